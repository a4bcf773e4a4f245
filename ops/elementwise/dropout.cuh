/* How CUDA kernels draw a dropout's numbers: by the four of a block of the generator. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_CUH
#define TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_CUH

#include "ops/elementwise/dropout.h"
#include "tensor/kernel.cuh"

/* Which of the elements 4 block, ..., 4 block + 3 are kept: a bit each, from the lowest on. */
__device__ static inline unsigned draw_kept(const Dropout &d, int64_t block)
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

/* The k-th of these elements, x, when it has been through the dropout. */
__device__ static inline Real dropped(const Dropout &d, unsigned kept, int k, Real x)
{
    return kept >> k & 1 ? d.scale * x : 0;
}

#endif
