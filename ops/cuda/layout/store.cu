#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

__global__ void store_integers(int32_t *to, const int32_t *columns, const int32_t *from, int64_t R,
                               int64_t N)
{
    GRID_FOR(r, R)
        to[columns ? r * N + columns[r] : r] = from[r];
}

extern "C" void store_integers_cuda(int32_t *to, const int32_t *columns, const int32_t *from,
                                    int64_t R, int64_t N)
{
    LAUNCH(store_integers, blocks_for(R), THREADS, 0, to, columns, from, R, N);
}
