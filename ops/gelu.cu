#include "ops/map.cuh"

__device__ static inline Real gelu_distribution(Real x)
{
    return (1 + erf(x * (Real)0.70710678118654752)) / 2;
}

__device__ static inline Real gelu_density(Real x)
{
    return (Real)0.39894228040143268 * exp(-x * x / 2);
}

struct GeluForward {
    __device__ Real operator()(Real x) const
    {
        return x * gelu_distribution(x);
    }
};

struct GeluBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return dout * (gelu_distribution(x) + x * gelu_density(x));
    }
};

extern "C" void gelu_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(GeluForward(), out, false, n, x);
}

extern "C" void gelu_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                   int64_t n)
{
    map(GeluBackward(), dx, accumulate, n, dout, x);
}
