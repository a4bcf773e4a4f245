/* The unary operations on CUDA: two kernels per row of unary_functions.h and dtype. */
#include "ops/elementwise/kernels.h"
#include "ops/shared/map.cuh"

#define UNARY(op, f, f_gradient, saved)                                                            \
    UNARY_KERNELS(op)                                                                              \
    struct op##_of_x {                                                                             \
        __device__ Real operator()(Real x) const                                                   \
        {                                                                                          \
            return f(x);                                                                           \
        }                                                                                          \
    };                                                                                             \
    struct op##_gradient_of {                                                                      \
        __device__ Real operator()(Real dout, Real y) const                                        \
        {                                                                                          \
            return f_gradient(dout, y);                                                            \
        }                                                                                          \
    };                                                                                             \
    extern "C" void op##_forward_cuda(TensorType type, Real *out, const Real *x, int64_t n)        \
    {                                                                                              \
        map(type, op##_of_x(), out, false, n, x);                                                  \
    }                                                                                              \
    extern "C" void op##_backward_cuda(TensorType type, Real *dx, bool accumulate,                 \
                                       const Real *dout, const Real *y, int64_t n)                 \
    {                                                                                              \
        map(type, op##_gradient_of(), dx, accumulate, n, dout, y);                                 \
    }

#define UNARY_CONSTANTS(op, f, f_gradient)                                                         \
    UNARY_CONSTANT_KERNELS(op)                                                                     \
    struct op##_of_x {                                                                             \
        Real c, d;                                                                                 \
        __device__ Real operator()(Real x) const                                                   \
        {                                                                                          \
            return f(x, c, d);                                                                     \
        }                                                                                          \
    };                                                                                             \
    struct op##_gradient_of {                                                                      \
        Real c, d;                                                                                 \
        __device__ Real operator()(Real dout, Real x) const                                        \
        {                                                                                          \
            return f_gradient(dout, x, c, d);                                                      \
        }                                                                                          \
    };                                                                                             \
    extern "C" void op##_forward_cuda(TensorType type, Real *out, const Real *x, Real c, Real d,   \
                                      int64_t n)                                                   \
    {                                                                                              \
        map(type, op##_of_x{ c, d }, out, false, n, x);                                            \
    }                                                                                              \
    extern "C" void op##_backward_cuda(TensorType type, Real *dx, bool accumulate,                 \
                                       const Real *dout, const Real *x, Real c, Real d, int64_t n) \
    {                                                                                              \
        map(type, op##_gradient_of{ c, d }, dx, accumulate, n, dout, x);                           \
    }

#include "ops/elementwise/unary_functions.h"
