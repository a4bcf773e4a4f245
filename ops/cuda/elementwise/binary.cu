/* The binary operations on CUDA: one kernel per row of binary_functions.h, formula and dtype. If a
 * gradient ignores out, the compiler drops its load. */
#include "ops/elementwise/kernels.h"
#include "ops/cuda/elementwise/broadcast.cuh"

#define FORWARD(op, f)                                                                             \
    BINARY_KERNEL(op)                                                                              \
    struct op##_of {                                                                               \
        __device__ Real operator()(Real a, Real b) const                                           \
        {                                                                                          \
            return f(a, b);                                                                        \
        }                                                                                          \
    };                                                                                             \
    extern "C" void op##_forward_cuda(TensorType type, Real *out, const Real *a, Broadcast a_view, \
                                      const Real *b, Broadcast b_view, int64_t n)                  \
    {                                                                                              \
        if (broadcast_of_whole(a_view) && broadcast_of_whole(b_view))                              \
            map(type, op##_of(), out, false, n, Repeated{ a, a_view.Q }, Repeated{ b, b_view.Q }); \
        else                                                                                       \
            map(type, op##_of(), out, false, n, Broadcasted{ a, a_view },                          \
                Broadcasted{ b, b_view });                                                         \
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
                                                Broadcast y_view, int64_t n)                       \
    {                                                                                              \
        const op##_gradient_of_##side f;                                                           \
        if (broadcast_of_whole(y_view))                                                            \
            map(type, f, dx, accumulate, n, dout, out, Repeated{ y, y_view.Q });                   \
        else                                                                                       \
            map(type, f, dx, accumulate, n, dout, out, Broadcasted{ y, y_view });                  \
    }

#define BINARY(op, f, a_gradient, a_from, b_gradient, b_from)                                      \
    FORWARD(op, f)                                                                                 \
    BACKWARD(op, a, a_gradient)                                                                    \
    BACKWARD(op, b, b_gradient)

#define BINARY_LINEAR(op, f, da, db) FORWARD(op, f)

#include "ops/elementwise/binary_functions.h"
