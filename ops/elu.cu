#include "ops/map.cuh"

struct EluForward {
    __device__ Real operator()(Real x) const
    {
        return x > 0 ? x : expm1(x);
    }
};

struct EluBackward {
    __device__ Real operator()(Real dout, Real out) const
    {
        return out > 0 ? dout : dout * (out + 1);
    }
};

extern "C" void elu_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(EluForward(), out, false, n, x);
}

extern "C" void elu_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *out,
                                  int64_t n)
{
    map(EluBackward(), dx, accumulate, n, dout, out);
}
