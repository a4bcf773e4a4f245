#include "ops/activation.h"
#include "ops/map.cuh"

struct ReluForward {
    __device__ Real operator()(Real x) const
    {
        return relu(x);
    }
};

struct ReluBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return relu_gradient(dout, x);
    }
};

extern "C" void relu_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(ReluForward(), out, false, n, x);
}

extern "C" void relu_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                   int64_t n)
{
    map(ReluBackward(), dx, accumulate, n, dout, x);
}
