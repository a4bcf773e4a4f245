/* discretized_logistic_mixture, one pixel per vector lane. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"
#include "ops/shared/logistic_mixture.h"

enum { PIXEL_LANES = 16 };

/* PIXEL_LANES pixels, one per vector lane: the offset of its parameters, and its value. Lanes
 * beyond the last pixel repeat it, and their results are discarded. */
typedef struct Pixels {
    int64_t count;
    int64_t offset[PIXEL_LANES];
    int32_t target[PIXEL_LANES];
} Pixels;

static inline Pixels pixels_from(int64_t start, const int32_t *targets, int64_t R, int64_t K)
{
    Pixels pixels = { .count = R - start < PIXEL_LANES ? R - start : PIXEL_LANES };
    for (int64_t i = 0; i < PIXEL_LANES; i++) {
        const int64_t r = i < pixels.count ? start + i : R - 1;
        pixels.offset[i] = r * 3 * K;
        pixels.target[i] = targets[r];
    }
    return pixels;
}

/* saved <- A, B of the pixels from `start` on */
ALWAYS_INLINE void mixture_pixels(int T, Real *saved, const Real *parameters,
                                  const int32_t *targets, int64_t start, int64_t R, int64_t K)
{
    const Pixels pixels = pixels_from(start, targets, R, K);
    LogSum before[PIXEL_LANES], after[PIXEL_LANES];
    for (int i = 0; i < PIXEL_LANES; i++)
        before[i] = after[i] = EMPTY_LOG_SUM;
    for (int64_t k = 0; k < K; k++) {
#pragma omp simd
        for (int i = 0; i < PIXEL_LANES; i++) {
            const Real *p = elements_at(T, parameters, pixels.offset[i] + k);
            const LogisticBin bin =
                logistic_bin(pixels.target[i], load(T, p, K), load(T, p, 2 * K));
            before[i] = log_sum_add(before[i], load(T, p, 0));
            after[i] = log_sum_add(after[i], load(T, p, 0) + bin.log_p);
        }
    }
    for (int64_t i = 0, r = start; i < pixels.count; i++, r++) {
        saved[r] = before[i].max + real_log(before[i].sum);
        saved[R + r] = after[i].max + real_log(after[i].sum);
    }
}

ALWAYS_INLINE void mixture_forward(int T, Real *out, Real *saved, const Real *parameters,
                                   const int32_t *targets, int64_t R, int64_t K)
{
    PRAGMA(omp parallel for schedule(static) num_threads(threads_for(R * K, 5)))
    for (int64_t start = 0; start < R; start += PIXEL_LANES)
        mixture_pixels(T, saved, parameters, targets, start, R, K);
    double sum = 0; /* on one thread, in order: repeatable */
    for (int64_t r = 0; r < R; r++)
        sum += (double)(saved[r] - saved[R + r]);
    *out = (Real)(sum / (double)R);
}

void logistic_mixture_forward_cpu(Real *out, Real *saved, const Real *parameters,
                                  const int32_t *targets, int64_t R, int64_t K)
{
    mixture_forward(TENSOR_REAL, out, saved, parameters, targets, R, K);
}

void logistic_mixture_forward_bf16(Real *out, Real *saved, const Real *parameters,
                                   const int32_t *targets, int64_t R, int64_t K)
{
    mixture_forward(TENSOR_BF16, out, saved, parameters, targets, R, K);
}

/* dparameters <- the gradients of the pixels from `start` on; g = dL/dout / R */
ALWAYS_INLINE void mixture_pixels_backward(int T, Real *dparameters, bool accumulate, Real g,
                                           const Real *saved, const Real *parameters,
                                           const int32_t *targets, int64_t start, int64_t R,
                                           int64_t K)
{
    const Pixels pixels = pixels_from(start, targets, R, K);
    for (int64_t k = 0; k < K; k++) {
        Real d[3][PIXEL_LANES];
#pragma omp simd
        for (int i = 0; i < PIXEL_LANES; i++) {
            const Real *p = elements_at(T, parameters, pixels.offset[i] + k);
            const int64_t r = i < pixels.count ? start + i : start;
            const LogisticBin bin =
                logistic_bin(pixels.target[i], load(T, p, K), load(T, p, 2 * K));
            const Real after = g * real_exp(load(T, p, 0) + bin.log_p - saved[R + r]);
            d[0][i] = g * real_exp(load(T, p, 0) - saved[r]) - after;
            d[1][i] = -after * bin.dmean;
            d[2][i] = -after * bin.dlog_scale;
        }
        for (int part = 0; part < 3; part++)
            for (int i = 0; i < pixels.count; i++)
                contribute(T, dparameters, pixels.offset[i] + part * K + k, accumulate, d[part][i]);
    }
}

ALWAYS_INLINE void mixture_backward(int T, Gradient d, const Real *dout, const Real *saved,
                                    const Real *parameters, const int32_t *targets, int64_t R,
                                    int64_t K)
{
    const Real g = *dout / (Real)R;
    PRAGMA(omp parallel for schedule(static) num_threads(threads_for(R * K, 5)))
    for (int64_t start = 0; start < R; start += PIXEL_LANES)
        mixture_pixels_backward(T, d.data, d.accumulate, g, saved, parameters, targets, start, R,
                                K);
}

void logistic_mixture_backward_cpu(Gradient d, const Real *dout, const Real *saved,
                                   const Real *parameters, const int32_t *targets, int64_t R,
                                   int64_t K)
{
    mixture_backward(TENSOR_REAL, d, dout, saved, parameters, targets, R, K);
}

void logistic_mixture_backward_bf16(Gradient d, const Real *dout, const Real *saved,
                                    const Real *parameters, const int32_t *targets, int64_t R,
                                    int64_t K)
{
    mixture_backward(TENSOR_BF16, d, dout, saved, parameters, targets, R, K);
}
