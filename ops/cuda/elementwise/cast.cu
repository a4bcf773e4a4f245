#include "ops/elementwise/kernels.h"
#include "ops/cuda/shared/map.cuh"

extern "C" void cast_cuda(Real *out, bool accumulate, const Real *x, bool to_bf16, int64_t n)
{
    if (to_bf16)
        map_inputs(Identity(), (Bfloat16 *)out, accumulate, n, WholeInput<Real>{ x });
    else
        map_inputs(Identity(), out, accumulate, n, WholeInput<Bfloat16>{ (const Bfloat16 *)x });
}
