#include "ops/activation.h"
#include "ops/map.cuh"

struct GeluForward {
    __device__ Real operator()(Real x) const
    {
        return gelu(x);
    }
};

struct GeluBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return dout * gelu_slope(x);
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
