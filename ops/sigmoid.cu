#include "ops/map.cuh"

struct SigmoidForward {
    __device__ Real operator()(Real x) const
    {
        return 1 / (1 + exp(-x));
    }
};

struct SigmoidBackward {
    __device__ Real operator()(Real dout, Real out) const
    {
        return dout * out * (1 - out);
    }
};

extern "C" void sigmoid_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(SigmoidForward(), out, false, n, x);
}

extern "C" void sigmoid_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *out,
                                      int64_t n)
{
    map(SigmoidBackward(), dx, accumulate, n, dout, out);
}
