#include "ops/map.cuh"

struct SoftplusForward {
    __device__ Real operator()(Real x) const
    {
        return (x < 0 ? 0 : x) + log1p(exp(x < 0 ? x : -x));
    }
};

struct SoftplusBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return dout / (1 + exp(-x));
    }
};

extern "C" void softplus_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(SoftplusForward(), out, false, n, x);
}

extern "C" void softplus_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                       int64_t n)
{
    map(SoftplusBackward(), dx, accumulate, n, dout, x);
}
