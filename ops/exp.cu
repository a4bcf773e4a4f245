#include "ops/map.cuh"

struct ExpForward {
    __device__ Real operator()(Real x) const
    {
        return exp(x);
    }
};

struct ExpBackward {
    __device__ Real operator()(Real dout, Real out) const
    {
        return dout * out;
    }
};

extern "C" void exp_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(ExpForward(), out, false, n, x);
}

extern "C" void exp_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *out,
                                  int64_t n)
{
    map(ExpBackward(), dx, accumulate, n, dout, out);
}
