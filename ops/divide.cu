#include "ops/map.cuh"

struct DivideForward {
    __device__ Real operator()(Real a, Real b) const
    {
        return a / b;
    }
};

struct DivideBackwardB {
    __device__ Real operator()(Real dout, Real out, Real b) const
    {
        return -dout * out / b;
    }
};

extern "C" void divide_forward_cuda(Real *out, const Real *a, int64_t na, const Real *b, int64_t nb,
                                    int64_t n)
{
    map(DivideForward(), out, false, n, Repeated{ a, na }, Repeated{ b, nb });
}

extern "C" void divide_backward_a_cuda(Real *da, bool accumulate, const Real *dout, const Real *b,
                                       int64_t nb, int64_t n)
{
    map(DivideForward(), da, accumulate, n, dout, Repeated{ b, nb });
}

extern "C" void divide_backward_b_cuda(Real *db, bool accumulate, const Real *dout, const Real *out,
                                       const Real *b, int64_t nb, int64_t n)
{
    map(DivideBackwardB(), db, accumulate, n, dout, out, Repeated{ b, nb });
}
