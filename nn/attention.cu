#include "ops/map.cuh"

__global__ void keep_keys_and_values(Real *keys, Real *values, const Real *packed, int64_t B,
                                     int64_t N, int64_t kept, int64_t H, int64_t D,
                                     int64_t max_length)
{
    GRID_FOR(i, B * kept * H * D) {
        const int64_t row = quotient(i, D), position = quotient(row, H),
                      b = quotient(position, kept);
        const int64_t d = i - row * D, h = row - position * H, n = position - b * kept;
        const int64_t to = ((b * H + h) * max_length + n) * D + d;
        const int64_t from = ((b * N + n) * 3 * H + h) * D + d;
        keys[to] = packed[from + H * D];
        values[to] = packed[from + 2 * H * D];
    }
}

extern "C" void attention_keep_cuda(Real *keys, Real *values, const Real *packed, int64_t B,
                                    int64_t N, int64_t kept, int64_t H, int64_t D,
                                    int64_t max_length)
{
    LAUNCH(keep_keys_and_values, blocks_for(B * kept * H * D), THREADS, 0, keys, values, packed, B,
           N, kept, H, D, max_length);
}
