#include "ext/mixture/kernels.h"
#include "ops/cuda/shared/map.cuh"
#include "ops/cuda/shared/rows.cuh"

/* ln sum_i e^x_i over all values that the threads sharing a row have added */
template <int LANES> __device__ static inline LogSumExp log_sum_of_row(LogSum part)
{
    const Real largest = row_max<LANES>(part.max);
    return { largest, log(row_sum<LANES>(part.sum * exp(part.max - largest))) };
}

template <typename T, int LANES>
__global__ void mixture_rows(MixtureSums *sums, const T *parameters, const int32_t *targets,
                             int64_t R, int64_t K)
{
    ROW_FOR(r, R, LANES) {
        const T *logits = parameters + r * 3 * K;
        const LogSumExp A = log_sum_exp_of_row<LANES>(logits, K);
        LogSum B = EMPTY_LOG_SUM;
        LANE_FOR(k, K, LANES) {
            const LogisticBin bin = logistic_bin(targets[r], logits[K + k], logits[2 * K + k]);
            B = log_sum_add(B, logits[k] - A.max + bin.log_p);
        }
        const MixtureSums of_row = { A, log_sum_of_row<LANES>(B) };
        if (threadIdx.x % LANES == 0)
            sums[r] = of_row;
    }
}

/* One block of many threads: few elements, so load latency dominates. */
enum { MEAN_THREADS = 1024 };

__global__ void mixture_mean(Real *out, const MixtureSums *sums, int64_t R)
{
    double sum = 0;
    GRID_FOR(r, R)
        sum += mixture_loss(sums[r]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = (Real)(sum / (double)R);
}

/* One thread per component of a pixel. */
__global__ void mixture_backward(Gradient d, const Real *dout, const MixtureSums *sums,
                                 const Real *parameters, const int32_t *targets, int64_t R,
                                 int64_t K)
{
    const Real g = *dout / (Real)R;
    GRID_FOR(i, R * K) {
        const int64_t r = quotient(i, K), k = i + r * 2 * K;
        const Real *p = parameters + k;
        const LogisticBin bin = logistic_bin(targets[r], p[K], p[2 * K]);
        const MixtureSums s = sums[r];
        const Real prior = exp(log_probability(p[0], s.A));
        const Real posterior = posterior_probability(p[0], bin.log_p, s);
        contribute(&d.data[k], d.accumulate, g * (prior - posterior));
        contribute(&d.data[k + K], d.accumulate, -g * posterior * bin.dmean);
        contribute(&d.data[k + 2 * K], d.accumulate, -g * posterior * bin.dlog_scale);
    }
}

__global__ void mixture_pixels(int32_t *out, const int32_t *k, const Real *parameters,
                               Random random, const uint64_t *start, int64_t R, int64_t K)
{
    GRID_FOR(r, R) {
        const Real *p = parameters + r * 3 * K + k[r];
        out[r] = logistic_pixel(p[K], p[2 * K], pixel_word(random, start, r));
    }
}

static void mixture_forward_cuda(Real *out, MixtureSums *sums, const Real *parameters,
                                 const int32_t *targets, int64_t R, int64_t K)
{
    LAUNCH_ROWS(mixture_rows, Real, R, K, sums, parameters, targets, R, K);
    LAUNCH(mixture_mean, 1, MEAN_THREADS, 0, out, (const MixtureSums *)sums, R);
}

static void mixture_backward_cuda(Gradient d, const Real *dout, const MixtureSums *sums,
                                  const Real *parameters, const int32_t *targets, int64_t R,
                                  int64_t K)
{
    LAUNCH(mixture_backward, blocks_for(R * K), THREADS, 0, d, dout, sums, parameters, targets, R,
           K);
}

static void mixture_sample_cuda(int32_t *out, const int32_t *k, const Real *parameters,
                                Random random, const uint64_t *start, int64_t R, int64_t K)
{
    LAUNCH(mixture_pixels, blocks_for(R), THREADS, 0, out, k, parameters, random, start, R, K);
}

const MixtureKernels mixture_cuda = { mixture_forward_cuda, mixture_backward_cuda,
                                      mixture_sample_cuda };
