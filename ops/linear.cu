#include "tensor/kernel.cuh"

enum { WARPS = THREADS / WARP };

/* A warp takes 32 columns of every so many-th row, and so reads their biases once. */
template <typename T> __global__ void add_bias(T *out, const Real *bias, int64_t R, int64_t O)
{
    const int64_t o = (int64_t)blockIdx.x * WARP + threadIdx.x % WARP;
    const int64_t first = (int64_t)blockIdx.y * WARPS + threadIdx.x / WARP;
    if (o >= O)
        return;
    const Real value = bias[o];
    for (int64_t r = first; r < R; r += (int64_t)gridDim.y * WARPS)
        store(&out[r * O + o], load(&out[r * O + o]) + value);
}

extern "C" void linear_add_bias_cuda(Real *out, const Real *bias, int64_t R, int64_t O)
{
    const dim3 tiles((unsigned)((O + WARP - 1) / WARP), blocks_for(R, WARPS));
    BY_STORAGE(T, LAUNCH(add_bias<T>, tiles, THREADS, 0, (T *)out, bias, R, O));
}
