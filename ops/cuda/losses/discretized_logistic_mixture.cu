#include "ops/kernels.h"
#include "ops/shared/logistic_mixture.h"
#include "ops/cuda/shared/map.cuh"
#include "ops/cuda/rows/rows.cuh"

/* ln sum_i e^x_i over all values that the threads sharing a row have added */
template <int LANES> __device__ static inline Real log_sum_of_row(LogSum part)
{
    const Real largest = row_max<LANES>(part.max);
    return largest + log(row_sum<LANES>(part.sum * exp(part.max - largest)));
}

template <typename T, int LANES>
__global__ void logistic_mixture_rows(Real *saved, Real *loss, const T *parameters,
                                      const int32_t *targets, int64_t R, int64_t K)
{
    ROW_FOR(r, R, LANES) {
        const T *logits = parameters + r * 3 * K;
        LogSum before = EMPTY_LOG_SUM, after = EMPTY_LOG_SUM;
        LANE_FOR(k, K, LANES) {
            const Real logit = load(&logits[k]);
            const LogisticBin bin =
                logistic_bin(targets[r], load(&logits[K + k]), load(&logits[2 * K + k]));
            before = log_sum_add(before, logit);
            after = log_sum_add(after, logit + bin.log_p);
        }
        const Real a = log_sum_of_row<LANES>(before), b = log_sum_of_row<LANES>(after);
        if (threadIdx.x % LANES == 0) {
            saved[r] = a;
            saved[R + r] = b;
            loss[r] = a - b;
        }
    }
}

/* One block of many threads: few elements, so load latency dominates. */
enum { MEAN_THREADS = 1024 };

__global__ void logistic_mixture_mean(Real *out, const Real *loss, int64_t R)
{
    double sum = 0;
    GRID_FOR(r, R)
        sum += (double)loss[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = (Real)(sum / (double)R);
}

/* One thread per component of a pixel. */
template <typename T>
__global__ void logistic_mixture_backward(T *dparameters, bool accumulate, const Real *dout,
                                          const Real *saved, const T *parameters,
                                          const int32_t *targets, int64_t R, int64_t K)
{
    const Real g = *dout / (Real)R;
    GRID_FOR(i, R * K) {
        const int64_t r = quotient(i, K), offset = i + r * 2 * K;
        const T *p = parameters + offset;
        T *d = dparameters + offset;
        const Real logit = load(&p[0]);
        const LogisticBin bin = logistic_bin(targets[r], load(&p[K]), load(&p[2 * K]));
        const Real after = g * exp(logit + bin.log_p - saved[R + r]);
        contribute(&d[0], accumulate, g * exp(logit - saved[r]) - after);
        contribute(&d[K], accumulate, -after * bin.dmean);
        contribute(&d[2 * K], accumulate, -after * bin.dlog_scale);
    }
}

extern "C" void logistic_mixture_forward_cuda(TensorType type, Real *out, Real *saved,
                                              const Real *parameters, const int32_t *targets,
                                              int64_t R, int64_t K)
{
    Real *loss = device_workspace(R);
    BY_STORAGE(type, T,
               LAUNCH_ROWS(logistic_mixture_rows, T, R, K, saved, loss, (const T *)parameters,
                           targets, R, K));
    LAUNCH(logistic_mixture_mean, 1, MEAN_THREADS, 0, out, (const Real *)loss, R);
    device_workspace_free(loss);
}

extern "C" void logistic_mixture_backward_cuda(TensorType type, Gradient d, const Real *dout,
                                               const Real *saved, const Real *parameters,
                                               const int32_t *targets, int64_t R, int64_t K)
{
    BY_STORAGE(type, T,
               LAUNCH(logistic_mixture_backward<T>, blocks_for(R * K), THREADS, 0, (T *)d.data,
                      d.accumulate, dout, saved, (const T *)parameters, targets, R, K));
}
