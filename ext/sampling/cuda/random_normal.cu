#include "ops/kernels.h"
#include "tensor/cuda/kernel.cuh"

/* One thread per Philox block, that is, four elements. */
__global__ void draw_normal(Real *out, Random random, const uint64_t *start, int64_t n)
{
    const uint64_t counter = random.counter + (start ? *start : 0);
    GRID_FOR(block, (n + 3) / 4) {
        double normal[4];
        philox_normal(philox(random.seed, random.stream, counter + (uint64_t)block), normal);
        for (int k = 0; k < 4 && 4 * block + k < n; k++)
            out[4 * block + k] = (Real)normal[k];
    }
}

extern "C" void draw_normal_cuda(Real *out, Random random, const uint64_t *start, int64_t n)
{
    LAUNCH(draw_normal, blocks_for((n + 3) / 4), THREADS, 0, out, random, start, n);
}
