/* discretized_logistic_mixture: the mean over R pixels of -ln P(t_r), for mixtures of K discretized
 * logistic distributions (Salimans et al. 2017, PixelCNN++, section 2.1)
 *   x = 2 t / 255 - 1   h = 1 / 255   S(y) = 1 / (1 + e^-y)   s = max(log scale, -7)   r = e^-s
 *   a = r (x + h - mean)     b = r (x - h - mean)     m = r (x - mean)     w = a - b = 2 h r
 *   P_k = S(a) - S(b)     with S(a) = 1 for t = 255, S(b) = 0 for t = 0
 *   A = ln sum_k e^logit_k     B = ln sum_k e^(logit_k + ln P_k)     out = sum_r (A_r - B_r) / R
 * S(a) - S(b) loses precision by cancellation; equal to it, but accurate to all digits, is
 *   S(a) - S(b) = (e^a - e^b) / ((1 + e^a) (1 + e^b)) = q S(a) S(-b)     with q = 1 - e^-w
 * If P is 1e-5 or less, it is replaced, as in the authors' code, by the density in the middle of
 * the bin times the width: ln P = ln(S(m) S(-m) r 2 h). This is finite, and so are ln S(a) for
 * t = 0 and ln S(-b) for t = 255, computed as ln S(y) = min(y, 0) - ln(1 + e^-|y|).
 * Backward, with (ln S)'(y) = S(-y), da = -a ds - r dmean, likewise db and dm, and dw = -w ds:
 *              d ln P / dmean         d ln P / ds
 *   t = 0      -r S(-a)               -a S(-a)
 *   t = 255     r S(b)                 b S(b)
 *   P > 1e-5    r (S(b) - S(-a))       b S(b) - a S(-a) - w e^-w / q
 *   else        r (S(m) - S(-m))       m (S(m) - S(-m)) - 1
 * and dlog scale = ds, but 0 below -7. With g = dL/dout / R, and each component's prior and
 * posterior probability, before_k = e^(logit_k - A) and after_k = e^(logit_k + ln P_k - B):
 *   dlogit_k <- g (before_k - after_k)
 *   dmean_k <- -g after_k d ln P_k / dmean_k     and dlog scale_k likewise
 * Saved for the backward pass: A and B, two values per pixel (`saved`). */
#include "ops/shared/indices.h"
#include "ops/losses/kernels.h"
#include "ops/shared/logistic_mixture.h"
#include "ops/rows/rows.h"

enum { LANES = 16 };

/* LANES pixels, one per vector lane: the offset of its parameters, and its value. Lanes beyond the
 * last pixel repeat it, and their results are discarded. */
typedef struct Pixels {
    int64_t count;
    int64_t offset[LANES];
    int32_t target[LANES];
} Pixels;

static inline Pixels pixels_from(int64_t start, const int32_t *targets, int64_t R, int64_t K)
{
    Pixels pixels = { .count = R - start < LANES ? R - start : LANES };
    for (int64_t i = 0; i < LANES; i++) {
        const int64_t r = i < pixels.count ? start + i : R - 1;
        pixels.offset[i] = r * 3 * K;
        pixels.target[i] = targets[r];
    }
    return pixels;
}

/* saved, loss <- A, B and A - B of the pixels from `start` on */
ALWAYS_INLINE void mixture_pixels(int T, Real *saved, Real *loss, const Real *parameters,
                                  const int32_t *targets, int64_t start, int64_t R, int64_t K)
{
    const Pixels pixels = pixels_from(start, targets, R, K);
    LogSum before[LANES], after[LANES];
    for (int i = 0; i < LANES; i++)
        before[i] = after[i] = EMPTY_LOG_SUM;
    for (int64_t k = 0; k < K; k++) {
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            const Real *p = elements_at(T, parameters, pixels.offset[i] + k);
            const LogisticBin bin =
                logistic_bin(pixels.target[i], load(T, p, K), load(T, p, 2 * K));
            before[i] = log_sum_add(before[i], load(T, p, 0));
            after[i] = log_sum_add(after[i], load(T, p, 0) + bin.log_p);
        }
    }
    for (int64_t i = 0, r = start; i < pixels.count; i++, r++) {
        saved[r] = before[i].largest + real_log(before[i].sum);
        saved[R + r] = after[i].largest + real_log(after[i].sum);
        loss[r] = saved[r] - saved[R + r];
    }
}

/* out [], saved [2, R] = A, B, loss [R] is scratch; parameters [R, 3 K], targets [R] */
void logistic_mixture_forward_cpu(TensorType type, Real *out, Real *saved, Real *loss,
                                  const Real *parameters, const int32_t *targets, int64_t R,
                                  int64_t K)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *K, 5))
    for (int64_t start = 0; start < R; start += LANES)
        BY_STORAGE(type, T, mixture_pixels(T, saved, loss, parameters, targets, start, R, K));
    double sum = 0; /* on one thread, in order: repeatable */
    for (int64_t r = 0; r < R; r++)
        sum += (double)loss[r];
    *out = (Real)(sum / (double)R);
}

/* dparameters <- the gradients of the pixels from `start` on; g = dL/dout / R */
ALWAYS_INLINE void mixture_pixels_backward(int T, Real *dparameters, bool accumulate, Real g,
                                           const Real *saved, const Real *parameters,
                                           const int32_t *targets, int64_t start, int64_t R,
                                           int64_t K)
{
    const Pixels pixels = pixels_from(start, targets, R, K);
    for (int64_t k = 0; k < K; k++) {
        Real d[3][LANES];
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
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

/* dparameters [R, 3 K], dout [], saved [2, R] = A, B; parameters [R, 3 K], targets [R] */
void logistic_mixture_backward_cpu(TensorType type, Real *dparameters, bool accumulate,
                                   const Real *dout, const Real *saved, const Real *parameters,
                                   const int32_t *targets, int64_t R, int64_t K)
{
    const Real g = *dout / (Real)R;
#pragma omp parallel for schedule(static) num_threads(threads_for(R *K, 5))
    for (int64_t start = 0; start < R; start += LANES)
        BY_STORAGE(type, T,
                   mixture_pixels_backward(T, dparameters, accumulate, g, saved, parameters,
                                           targets, start, R, K));
}

void check_mixture(Tape *tape, const char *operation, const Tensor *parameters)
{
    if (parameters->shape.rank < 1 || shape_columns(parameters->shape) % 3 != 0)
        tape_error(tape,
                   "%s: parameters %s, expected [..., 3 K]: the logits, the means and the "
                   "logarithms of the scales of K distributions",
                   operation, tensor_text(parameters).text);
}

static void logistic_mixture_backward(Node *node)
{
    Tensor *parameters = node->inputs[0], *targets = node->inputs[1];
    Gradient d = tape_contribution(node, parameters);
    KERNEL_CALL(parameters, logistic_mixture_backward,
                (d.data, d.accumulate, tape_upstream(node, 0), node->saved[0]->data,
                 parameters->data, targets->integers, tensor_count(targets),
                 shape_columns(parameters->shape) / 3));
}

Tensor *op_discretized_logistic_mixture(Tape *tape, Tensor *parameters, Tensor *targets)
{
    tape_use(tape, "op_discretized_logistic_mixture: parameters", parameters);
    check_mixture(tape, "op_discretized_logistic_mixture", parameters);
    tape_use_i32(tape, "op_discretized_logistic_mixture: targets", targets);
    check_one_per_row(tape, "op_discretized_logistic_mixture: targets", targets, parameters,
                      "parameters");
    check_indices(tape, "op_discretized_logistic_mixture: targets", targets, 0, PIXELS - 1,
                  "the values of a pixel");
    const int64_t R = tensor_count(targets), K = shape_columns(parameters->shape) / 3;
    Tensor *out = tape_tensor(tape, shape_scalar());
    Tensor *saved = tape_tensor(tape, shape(2, R));
    Tensor *loss = tape_scratch(tape, shape(R));
    KERNEL_CALL(parameters, logistic_mixture_forward,
                (out->data, saved->data, loss->data, parameters->data, targets->integers, R, K));
    tape_scratch_free(tape, loss);
    tape_record(tape, (Node){ "op_discretized_logistic_mixture", logistic_mixture_backward,
                              .inputs = { parameters, targets }, .outputs = { out },
                              .saved = { saved } });
    return out;
}
