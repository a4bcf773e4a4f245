#include "ops/map.cuh"

struct MultiplyForward {
    __device__ Real operator()(Real a, Real b) const
    {
        return a * b;
    }
};

extern "C" void multiply_forward_cuda(Real *out, const Real *a, int64_t na, const Real *b,
                                      int64_t nb, int64_t n)
{
    map(MultiplyForward(), out, false, n, Repeated{ a, na }, Repeated{ b, nb });
}

extern "C" void multiply_backward_cuda(Real *dx, bool accumulate, const Real *dout,
                                       const Real *other, int64_t m, int64_t n)
{
    map(MultiplyForward(), dx, accumulate, n, dout, Repeated{ other, m });
}
