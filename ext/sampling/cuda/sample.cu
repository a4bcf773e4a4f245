#include "ext/sampling/cuda/sampling.cuh"

template <typename T, int LANES>
__global__ void sample_rows(int32_t *out, const T *logits, Sampler sampler, int64_t R, int64_t C)
{
    ROW_FOR(r, R, LANES) {
        const uint64_t uniform = sampler_uniform(&sampler, r);
        const int64_t symbol = choose_symbol<LANES>(logits + r * C, C, sampler, uniform);
        if (symbol >= 0 && threadIdx.x % WARP == 0)
            out[r] = (int32_t)symbol;
    }
}

extern "C" void sample_cuda(TensorType type, int32_t *out, const Real *logits, Sampler sampler,
                            int64_t R, int64_t C)
{
    BY_STORAGE(type, T, LAUNCH_ROWS(sample_rows, T, R, C, out, (const T *)logits, sampler, R, C));
}
