/* The unary operations on CUDA: two kernels per row of unary_functions.h and dtype. */
#include "ops/cuda/shared/map.cuh"
#include "ops/kernels.h"

#define FUNCTORS(op, value, gradient, saved)                                                       \
    struct op##_of_x {                                                                             \
        Constants k;                                                                               \
        __device__ Real operator()(Real x) const                                                   \
        {                                                                                          \
            return value;                                                                          \
        }                                                                                          \
    };                                                                                             \
    struct op##_gradient_of {                                                                      \
        Constants k;                                                                               \
        __device__ Real operator()(Real dout, Real saved) const                                    \
        {                                                                                          \
            return (void)saved, gradient;                                                          \
        }                                                                                          \
    };
#define PERIODIC_FUNCTORS(op, quarters)                                                            \
    FUNCTORS(op, math_far_sine(x, quarters), dout *math_far_sine(x, quarters + 1), x)
UNARY_ROWS(FUNCTORS, PERIODIC_FUNCTORS)

extern "C" void unary_forward_cuda(TensorType type, UnaryFunction f, Real *out, const Real *x,
                                   Constants k, int64_t n)
{
    switch (f) {
#define FORWARD(op, ...)                                                                           \
    case UNARY_##op:                                                                               \
        return map(type, op##_of_x{ k }, out, false, n, x);
        UNARY_ROWS(FORWARD, FORWARD)
    }
}

extern "C" void unary_backward_cuda(TensorType type, UnaryFunction f, Gradient dx, const Real *dout,
                                    const Real *read, Constants k, int64_t n)
{
    switch (f) {
#define BACKWARD(op, ...)                                                                          \
    case UNARY_##op:                                                                               \
        return map(type, op##_gradient_of{ k }, dx.data, dx.accumulate, n, dout, read);
        UNARY_ROWS(BACKWARD, BACKWARD)
    }
}
