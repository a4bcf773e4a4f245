#include "ops/map.cuh"

struct AddForward {
    __device__ Real operator()(Real a, Real b) const
    {
        return a + b;
    }
};

extern "C" void add_forward_cuda(Real *out, const Real *a, int64_t na, const Real *b, int64_t nb,
                                 int64_t n)
{
    map(AddForward(), out, false, n, Repeated{ a, na }, Repeated{ b, nb });
}
