/* The unary operations on CUDA: two kernels per row of unary_functions.h and dtype. */
#include "ops/elementwise/kernels.h"
#include "ops/cuda/shared/map.cuh"

/* value is an expression of x, dx_value one of dout and y; both may have the constants c and d. */
#define ROW(op, value, dx_value)                                                                   \
    UNARY_KERNELS(op)                                                                              \
    struct op##_of_x {                                                                             \
        Real c, d;                                                                                 \
        __device__ Real operator()(Real x) const                                                   \
        {                                                                                          \
            return value;                                                                          \
        }                                                                                          \
    };                                                                                             \
    struct op##_gradient_of {                                                                      \
        Real c, d;                                                                                 \
        __device__ Real operator()(Real dout, Real y) const                                        \
        {                                                                                          \
            return dx_value;                                                                       \
        }                                                                                          \
    };                                                                                             \
    extern "C" void op##_forward_cuda(TensorType type, Real *out, const Real *x, Real c, Real d,   \
                                      int64_t n)                                                   \
    {                                                                                              \
        map(type, op##_of_x{ c, d }, out, false, n, x);                                            \
    }                                                                                              \
    extern "C" void op##_backward_cuda(TensorType type, Real *dx, bool accumulate,                 \
                                       const Real *dout, const Real *y, Real c, Real d, int64_t n) \
    {                                                                                              \
        map(type, op##_gradient_of{ c, d }, dx, accumulate, n, dout, y);                           \
    }

#define UNARY(op, f, f_gradient, saved) ROW(op, f(x), f_gradient(dout, y))
#define UNARY_CONSTANTS(op, f, f_gradient) ROW(op, f(x, c, d), f_gradient(dout, y, c, d))

#include "ops/elementwise/unary_functions.h"
