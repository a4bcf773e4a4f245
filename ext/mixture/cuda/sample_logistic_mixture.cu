#include "ops/cuda/sampling/sampling.cuh"

template <typename T, int LANES>
__global__ void sample_mixtures(int32_t *out, const T *parameters, Sampler sampler, int64_t R,
                                int64_t K)
{
    ROW_FOR(r, R, LANES) {
        const Philox draw = sampler_draw(&sampler, r);
        const T *p = parameters + r * 3 * K;
        const int64_t k = choose_symbol<LANES>(p, K, sampler, uniform_of_draw(draw));
        if (k >= 0 && threadIdx.x % WARP == 0)
            out[r] = logistic_pixel(load(&p[K + k]), load(&p[2 * K + k]), draw.word[2]);
    }
}

extern "C" void sample_logistic_mixture_cuda(TensorType type, int32_t *out, const Real *parameters,
                                             Sampler sampler, int64_t R, int64_t K)
{
    BY_STORAGE(type, T,
               LAUNCH_ROWS(sample_mixtures, T, R, K, out, (const T *)parameters, sampler, R, K));
}
