/* discretized_logistic_mixture: the mean over R pixels of -ln P(t_r), for mixtures of K discretized
 * logistic distributions (Salimans et al. 2017, PixelCNN++, section 2.1)
 *   x = 2 t / 255 - 1   h = 1 / 255   S(y) = 1 / (1 + e^-y)   s = max(log scale, -7)   r = e^-s
 *   a = r (x + h - mean)     b = r (x - h - mean)     m = r (x - mean)     w = a - b = 2 h r
 *   P_k = S(a) - S(b)     with S(a) = 1 for t = 255, S(b) = 0 for t = 0
 *   A = ln sum_k e^logit_k     B = ln sum_k e^(logit_k + ln P_k)     out = sum_r (A_r - B_r) / R
 * Both are computed and saved relative to max_k logit_k, which would round them if it is large.
 * S(a) - S(b) loses precision by cancellation; equal to it, but accurate to all digits, is
 *   S(a) - S(b) = (e^a - e^b) / ((1 + e^a) (1 + e^b)) = q S(a) S(-b)     with q = 1 - e^-w
 * If P is 1e-5 or less, it is replaced, as in the authors' code, by the density in the middle of
 * the bin times the width: ln P = ln(S(m) S(-m) r 2 h). This is finite, and so are ln S(a) for
 * t = 0 and ln S(-b) for t = 255, computed as ln S(y) = min(y, 0) - ln(1 + e^-|y|).
 * Backward. ln P is ln S(a), ln S(-b), ln q + ln S(a) + ln S(-b) or ln S(m) + ln S(-m) - s + ln 2h,
 * in the order of the rows below. (ln S)'(y) = S(-y), and dr / ds = -r, so da = -a ds - r dmean,
 * likewise db and dm, and dw = -w ds; dq / dw = e^-w:
 *              d ln P / dmean         d ln P / ds
 *   t = 0      -r S(-a)               -a S(-a)
 *   t = 255     r S(b)                 b S(b)
 *   P > 1e-5    r (S(b) - S(-a))       b S(b) - a S(-a) - w e^-w / q
 *   else        r (S(m) - S(-m))       m (S(m) - S(-m)) - 1
 * and dlog scale = ds, but 0 below -7. With g = dL/dout / R, and each component's prior and
 * posterior probability,
 *   prior_k = e^(logit_k - A) = dA / dlogit_k
 *   posterior_k = e^(logit_k + ln P_k - B) = dB / dlogit_k = dB / dln P_k
 *   dlogit_k <- g (prior_k - posterior_k)
 *   dmean_k <- -g posterior_k d ln P_k / dmean_k     and dlog scale_k likewise
 * Saved for the backward pass: A and B, four values per pixel (`sums`).
 *
 * sample_logistic_mixture: one pixel from each mixture, from two random numbers u and v, uniform in
 * (0, 1):
 *   k is chosen from the logits by u, by op_sample
 *   x = mean_k + e^s_k ln(v / (1 - v))     s = log scale, clamped to [-7, 64]
 *   out = the p in 0 to 255 for which 2 p / 255 - 1 is nearest to x
 * This inverts the logistic distribution function: x < y if and only if
 * ln(v / (1 - v)) < (y - mean) e^-s, which has probability 1 / (1 + e^-((y - mean) e^-s)). */
#include "ext/mixture/mixture.h"
#include "ext/mixture/kernels.h"
#include "ext/sampling/sampling.h"

static void mixture_forward_plain(Real *out, MixtureSums *sums, const Real *parameters,
                                  const int32_t *targets, int64_t R, int64_t K)
{
    EACH_ROW(r, R, 40 * K) {
        const Real *logit = parameters + r * 3 * K, *mean = logit + K, *log_scale = mean + K;
        const LogSumExp A = log_sum_exp(logit, K);
        LogSum B = EMPTY_LOG_SUM;
        for (int64_t k = 0; k < K; k++)
            B = log_sum_add(B, logit[k] - A.max +
                                   logistic_bin(targets[r], mean[k], log_scale[k]).log_p);
        sums[r] = (MixtureSums){ A, { B.max, real_log(B.sum) } };
    }
    double sum = 0; /* on one thread, in order: repeatable */
    for (int64_t r = 0; r < R; r++)
        sum += mixture_loss(sums[r]);
    *out = (Real)(sum / (double)R);
}

static void mixture_backward_plain(Gradient d, const Real *dout, const MixtureSums *sums,
                                   const Real *parameters, const int32_t *targets, int64_t R,
                                   int64_t K)
{
    const Real g = *dout / (Real)R;
    EACH_ROW(r, R, 40 * K)
        for (int64_t k = r * 3 * K; k < r * 3 * K + K; k++) {
            const Real *p = parameters + k;
            const LogisticBin bin = logistic_bin(targets[r], p[K], p[2 * K]);
            const Real prior = real_exp(log_probability(p[0], sums[r].A));
            const Real posterior = posterior_probability(p[0], bin.log_p, sums[r]);
            gradient_add(d, k, g * (prior - posterior));
            gradient_add(d, k + K, -g * posterior * bin.dmean);
            gradient_add(d, k + 2 * K, -g * posterior * bin.dlog_scale);
        }
}

static void mixture_sample_plain(int32_t *out, const int32_t *k, const Real *parameters,
                                 Random random, const uint64_t *start, int64_t R, int64_t K)
{
    EACH_ROW(r, R, 40) {
        const Real *p = parameters + r * 3 * K + k[r];
        out[r] = logistic_pixel(p[K], p[2 * K], pixel_word(random, start, r));
    }
}

const MixtureKernels mixture_plain = { mixture_forward_plain, mixture_backward_plain,
                                       mixture_sample_plain };

static void mixture_backward(Node *node)
{
    Tensor *parameters = node->inputs[0], *targets = node->inputs[1];
    mixture_kernels(parameters)
        ->backward(tape_contribution(node, parameters), tape_upstream(node, 0),
                   (const MixtureSums *)node->saved[0]->data, parameters->data, targets->integers,
                   tensor_count(targets), shape_columns(parameters->shape) / 3);
}

/* Raises in the operation's name unless parameters is [..., 3 K]. */
static void mixture_check(Tape *tape, const char *operation, const Tensor *parameters)
{
    if (parameters->shape.rank < 1 || shape_columns(parameters->shape) % 3 != 0)
        tape_error(tape,
                   "%s: parameters %s, expected [..., 3 K]: the logits, the means and the "
                   "logarithms of the scales of K distributions",
                   operation, tensor_text(parameters).text);
}

Tensor *op_discretized_logistic_mixture(Tape *tape, Tensor *parameters, Tensor *targets)
{
    tape_use(tape, "op_discretized_logistic_mixture: parameters", parameters);
    mixture_check(tape, "op_discretized_logistic_mixture", parameters);
    tape_use_i32(tape, "op_discretized_logistic_mixture: targets", targets);
    check_one_per_row(tape, "op_discretized_logistic_mixture: targets", targets, parameters,
                      "parameters");
    op_check_indices(tape, "op_discretized_logistic_mixture: targets", targets, 0, PIXELS - 1,
                     "the values of a pixel");
    parameters = op_cast(tape, parameters, TENSOR_REAL);
    const int64_t R = tensor_count(targets), K = shape_columns(parameters->shape) / 3;
    Tensor *out = tape_tensor(tape, shape_scalar());
    Tensor *sums = tape_tensor(tape, shape(R, 4));
    mixture_kernels(parameters)
        ->forward(out->data, (MixtureSums *)sums->data, parameters->data, targets->integers, R, K);
    tape_record(tape,
                (Node){ "op_discretized_logistic_mixture", mixture_backward,
                        .inputs = { parameters, targets }, .outputs = { out }, .saved = { sums } });
    return out;
}

Tensor *op_sample_logistic_mixture(Tape *tape, Tensor *parameters)
{
    tape_use(tape, "op_sample_logistic_mixture: parameters", parameters);
    mixture_check(tape, "op_sample_logistic_mixture", parameters);
    parameters = op_cast(tape, parameters, TENSOR_REAL);
    const int64_t R = shape_rows(parameters->shape), K = shape_columns(parameters->shape) / 3;
    const Random random = tape_draw(tape, 0); /* where op_sample's draws begin */
    Tensor *logits = op_slice(tape, parameters, -1, 0, K);
    Tensor *k = op_sample(tape, logits, (Sampling){ .temperature = 1 });
    Tensor *out = bounded_integers(tape, k->shape, PIXELS - 1);
    mixture_kernels(parameters)
        ->sample(out->integers, k->integers, parameters->data, random, tape_random_start(tape), R,
                 K);
    tape_record(tape, (Node){ .name = "op_sample_logistic_mixture", .outputs = { out } });
    return out;
}
