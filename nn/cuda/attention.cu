#include "nn/internal.h"
#include "ops/kernels.h"
#include "ops/cuda/shared/map.cuh"

__global__ void store_keys_values(const KeysValues s, const AttentionCache cache)
{
    GRID_FOR(i, s.B * s.count * s.H * s.D) {
        const int64_t row = quotient(i, s.D), position = quotient(row, s.H),
                      b = quotient(position, s.count);
        const int64_t d = i - row * s.D, h = row - position * s.H, n = position - b * s.count;
        const int64_t first = cache.counts ? cache.counts[b] : 0;
        const int64_t to = ((b * s.H + h) * cache.max_length + first + n) * s.D + d;
        const int64_t from = ((b * s.N + n) * 3 * s.H + h) * s.D + d;
        cache.keys[to] = s.packed[from + s.H * s.D];
        cache.values[to] = s.packed[from + 2 * s.H * s.D];
    }
}

/* The cache is Real: states in bf16 are on the CPU. */
extern "C" void store_keys_values_cuda(const KeysValues *s)
{
    LAUNCH(store_keys_values, blocks_for(s->B * s->count * s->H * s->D), THREADS, 0, *s, *s->cache);
}
