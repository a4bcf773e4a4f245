#include "ops/kernels.h"
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
__global__ void logistic_mixture_rows(MixtureSums *sums, const T *parameters,
                                      const int32_t *targets, int64_t R, int64_t K)
{
    ROW_FOR(r, R, LANES) {
        const T *logits = parameters + r * 3 * K;
        const LogSumExp A = log_sum_exp_of_row<LANES>(logits, K);
        LogSum B = EMPTY_LOG_SUM;
        LANE_FOR(k, K, LANES) {
            const LogisticBin bin =
                logistic_bin(targets[r], load(&logits[K + k]), load(&logits[2 * K + k]));
            B = log_sum_add(B, load(&logits[k]) - A.max + bin.log_p);
        }
        const MixtureSums of_row = { A, log_sum_of_row<LANES>(B) };
        if (threadIdx.x % LANES == 0)
            sums[r] = of_row;
    }
}

/* One block of many threads: few elements, so load latency dominates. */
enum { MEAN_THREADS = 1024 };

__global__ void logistic_mixture_mean(Real *out, const MixtureSums *sums, int64_t R)
{
    double sum = 0;
    GRID_FOR(r, R)
        sum += mixture_loss(sums[r]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = (Real)(sum / (double)R);
}

/* One thread per component of a pixel. */
template <typename T>
__global__ void logistic_mixture_backward(T *dparameters, bool accumulate, const Real *dout,
                                          const MixtureSums *sums, const T *parameters,
                                          const int32_t *targets, int64_t R, int64_t K)
{
    const Real g = *dout / (Real)R;
    GRID_FOR(i, R * K) {
        const int64_t r = quotient(i, K), offset = i + r * 2 * K;
        const T *p = parameters + offset;
        T *d = dparameters + offset;
        const Real logit = load(&p[0]);
        const LogisticBin bin = logistic_bin(targets[r], load(&p[K]), load(&p[2 * K]));
        const MixtureSums s = sums[r];
        const Real prior = exp(log_probability(logit, s.A));
        const Real posterior = posterior_probability(logit, bin.log_p, s);
        contribute(&d[0], accumulate, g * (prior - posterior));
        contribute(&d[K], accumulate, -g * posterior * bin.dmean);
        contribute(&d[2 * K], accumulate, -g * posterior * bin.dlog_scale);
    }
}

extern "C" void logistic_mixture_forward_cuda(TensorType type, Real *out, MixtureSums *sums,
                                              const Real *parameters, const int32_t *targets,
                                              int64_t R, int64_t K)
{
    BY_STORAGE(
        type, T,
        LAUNCH_ROWS(logistic_mixture_rows, T, R, K, sums, (const T *)parameters, targets, R, K));
    LAUNCH(logistic_mixture_mean, 1, MEAN_THREADS, 0, out, (const MixtureSums *)sums, R);
}

extern "C" void logistic_mixture_backward_cuda(TensorType type, Gradient d, const Real *dout,
                                               const MixtureSums *sums, const Real *parameters,
                                               const int32_t *targets, int64_t R, int64_t K)
{
    BY_STORAGE(type, T,
               LAUNCH(logistic_mixture_backward<T>, blocks_for(R * K), THREADS, 0, (T *)d.data,
                      d.accumulate, dout, sums, (const T *)parameters, targets, R, K));
}
