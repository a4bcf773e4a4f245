#include "ops/activation.h"
#include "ops/map.cuh"

struct SquaredReluForward {
    __device__ Real operator()(Real x) const
    {
        return relu(x) * relu(x);
    }
};

struct SquaredReluBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return relu_gradient(2 * x * dout, x);
    }
};

extern "C" void squared_relu_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(SquaredReluForward(), out, false, n, x);
}

extern "C" void squared_relu_backward_cuda(Real *dx, bool accumulate, const Real *dout,
                                           const Real *x, int64_t n)
{
    map(SquaredReluBackward(), dx, accumulate, n, dout, x);
}
