/* The binary operations on CUDA: one kernel per row of binary_functions.h, formula and dtype. If a
 * gradient ignores out, the compiler drops its load. */
#include "ops/elementwise/kernels.h"
#include "ops/shared/map.cuh"

#define FORWARD(op, f)                                                                             \
    BINARY_KERNEL(op)                                                                              \
    struct op##_of {                                                                               \
        __device__ Real operator()(Real a, Real b) const                                           \
        {                                                                                          \
            return f(a, b);                                                                        \
        }                                                                                          \
    };                                                                                             \
    extern "C" void op##_forward_cuda(TensorType type, Real *out, const Real *a, int64_t na,       \
                                      const Real *b, int64_t nb, int64_t n)                        \
    {                                                                                              \
        map(type, op##_of(), out, false, n, Repeated{ a, na }, Repeated{ b, nb });                 \
    }

#define BACKWARD(op, side, f_gradient)                                                             \
    BINARY_GRADIENT_KERNEL(op, side)                                                               \
    struct op##_gradient_of_##side {                                                               \
        __device__ Real operator()(Real dout, Real out, Real y) const                              \
        {                                                                                          \
            return f_gradient(dout, out, y);                                                       \
        }                                                                                          \
    };                                                                                             \
    extern "C" void op##_backward_##side##_cuda(TensorType type, Real *dx, bool accumulate,        \
                                                const Real *dout, const Real *out, const Real *y,  \
                                                int64_t m, int64_t n)                              \
    {                                                                                              \
        map(type, op##_gradient_of_##side(), dx, accumulate, n, dout, out, Repeated{ y, m });      \
    }

#define BINARY(op, f, a_gradient, a_from, b_gradient, b_from)                                      \
    FORWARD(op, f)                                                                                 \
    BACKWARD(op, a, a_gradient)                                                                    \
    BACKWARD(op, b, b_gradient)

#define BINARY_LINEAR(op, f, da, db) FORWARD(op, f)

#include "ops/elementwise/binary_functions.h"
