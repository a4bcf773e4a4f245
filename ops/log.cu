#include "ops/map.cuh"

struct LogForward {
    __device__ Real operator()(Real x) const
    {
        return log(x);
    }
};

struct LogBackward {
    __device__ Real operator()(Real dout, Real x) const
    {
        return dout / x;
    }
};

extern "C" void log_forward_cuda(Real *out, const Real *x, int64_t n)
{
    map(LogForward(), out, false, n, x);
}

extern "C" void log_backward_cuda(Real *dx, bool accumulate, const Real *dout, const Real *x,
                                  int64_t n)
{
    map(LogBackward(), dx, accumulate, n, dout, x);
}
