#include "ops/activation.h"
#include "ops/map.cuh"

struct GeluTanhForward {
    __device__ Real operator()(Real x) const
    {
        return gelu_tanh(x);
    }
};

struct GeluTanhBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return dout * gelu_tanh_slope(x);
    }
};

extern "C" void gelu_tanh_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(GeluTanhForward(), out, false, n, x);
}

extern "C" void gelu_tanh_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                        int64_t n)
{
    map(GeluTanhBackward(), dx, accumulate, n, dout, x);
}
