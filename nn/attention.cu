#include "tensor/kernel.cuh"

__global__ void keep_keys_and_values(Real *keys, Real *values, const Real *packed, int64_t B,
                                     int64_t N, int64_t H, int64_t D, int64_t longest)
{
    GRID_FOR(i, B * N * H * D) {
        const int64_t d = i % D, h = i / D % H, n = i / D / H % N, b = i / D / H / N;
        const int64_t to = ((b * H + h) * longest + n) * D + d;
        const int64_t from = ((b * N + n) * 3 * H + h) * D + d;
        keys[to] = packed[from + H * D];
        values[to] = packed[from + 2 * H * D];
    }
}

extern "C" void attention_keep_cuda(Real *keys, Real *values, const Real *packed, int64_t B,
                                    int64_t N, int64_t H, int64_t D, int64_t longest)
{
    LAUNCH(keep_keys_and_values, blocks_for(B * N * H * D), THREADS, 0, keys, values, packed, B, N,
           H, D, longest);
}
