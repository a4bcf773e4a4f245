#include "tensor/kernel.cuh"

template <typename Out, typename In>
__global__ void cast(Out *out, bool accumulate, const In *x, int64_t n)
{
    GRID_FOR(i, n)
        contribute(&out[i], accumulate, load(&x[i]));
}

extern "C" void cast_cuda(Real *out, bool accumulate, const Real *x, bool to_bf16, int64_t n)
{
    if (to_bf16)
        LAUNCH((cast<Bfloat16, Real>), blocks_for(n), THREADS, 0, (Bfloat16 *)out, accumulate, x,
               n);
    else
        LAUNCH((cast<Real, Bfloat16>), blocks_for(n), THREADS, 0, out, accumulate,
               (const Bfloat16 *)x, n);
}
