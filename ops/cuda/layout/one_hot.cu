#include "ops/kernels.h"
#include "ops/cuda/shared/map.cuh"

__global__ void one_hot(Real *out, const int32_t *indices, int64_t R, int64_t C)
{
    GRID_FOR(i, R * C) {
        const int64_t r = quotient(i, C);
        out[i] = i - r * C == indices[r];
    }
}

extern "C" void one_hot_cuda(Real *out, const int32_t *indices, int64_t R, int64_t C)
{
    LAUNCH(one_hot, blocks_for(R * C), THREADS, 0, out, indices, R, C);
}
