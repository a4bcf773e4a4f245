/* where on CUDA: one kernel per direction and dtype. */
#include "ops/cuda/elementwise/broadcast.cuh"
#include "ops/kernels.h"

struct Choose {
    __device__ Real operator()(Real c, Real a, Real b) const
    {
        return c != 0 ? a : b;
    }
};

struct ChooseGradient {
    bool of_a;
    __device__ Real operator()(Real dout, Real c) const
    {
        return (c != 0) == of_a ? dout : 0;
    }
};

extern "C" void where_forward_cuda(TensorType type, Real *out, Choice in, int64_t n)
{
    map(type, Choose(), out, false, n, Broadcasted{ in.c, in.c_view },
        Broadcasted{ in.a, in.a_view }, Broadcasted{ in.b, in.b_view });
}

extern "C" void where_backward_cuda(TensorType type, Gradient dx, bool of_a, const Real *dout,
                                    const Real *c, Broadcast c_view)
{
    map(type, ChooseGradient{ of_a }, dx.data, dx.accumulate, broadcast_count(c_view), dout,
        Broadcasted{ c, c_view });
}
