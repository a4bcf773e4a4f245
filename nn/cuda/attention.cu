#include "nn/internal.h"
#include "ops/cuda/shared/map.cuh"

__global__ void store_keys_values(Real *keys, Real *values, const Real *packed, int64_t B,
                                  int64_t N, int64_t count, int64_t H, int64_t D,
                                  int64_t max_length)
{
    GRID_FOR(i, B * count * H * D) {
        const int64_t row = quotient(i, D), position = quotient(row, H),
                      b = quotient(position, count);
        const int64_t d = i - row * D, h = row - position * H, n = position - b * count;
        const int64_t to = ((b * H + h) * max_length + n) * D + d;
        const int64_t from = ((b * N + n) * 3 * H + h) * D + d;
        keys[to] = packed[from + H * D];
        values[to] = packed[from + 2 * H * D];
    }
}

/* The cache is Real: states in bf16 are on the CPU. */
extern "C" void store_keys_values_cuda(int, Real *keys, Real *values, const Real *packed, int64_t B,
                                       int64_t N, int64_t count, int64_t H, int64_t D,
                                       int64_t max_length)
{
    LAUNCH(store_keys_values, blocks_for(B * count * H * D), THREADS, 0, keys, values, packed, B, N,
           count, H, D, max_length);
}
