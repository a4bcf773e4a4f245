/* Dropout's random numbers in CUDA kernels: four elements per Philox block. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_CUH
#define TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_CUH

#include "ops/elementwise/dropout.h"
#include "tensor/cuda/kernel.cuh"

/* Bit k: whether dropout keeps element 4 block + k. */
__device__ static inline unsigned draw_kept(const DropoutDraw &d, int64_t block)
{
    if (d.limit == 0)
        return 15;
    const uint64_t start = d.random.counter + (d.start ? *d.start : 0);
    const Philox drawn = philox(d.random.seed, d.random.stream, start + (uint64_t)block);
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        kept |= (unsigned)(drawn.word[k] >> 8 >= d.limit) << k;
    return kept;
}

/* Dropout of x, the k-th of these elements. */
__device__ static inline Real dropped(const DropoutDraw &d, unsigned kept, int k, Real x)
{
    return kept >> k & 1 ? d.scale * x : 0;
}

#endif
