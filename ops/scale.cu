#include "ops/map.cuh"

extern "C" void scale_forward_cuda(Real *out, const Real *x, Real factor, int64_t n)
{
    map(ScaleBy{ factor }, out, false, n, x);
}

extern "C" void scale_backward_cuda(Real *dx, bool accumulate, const Real *dout, Real factor,
                                    int64_t n)
{
    map(ScaleBy{ factor }, dx, accumulate, n, dout);
}
