/* sample_logistic_mixture: one pixel from each of R mixtures of K logistic distributions, from two
 * random numbers u and v, uniform in (0, 1):
 *   k is chosen from the logits by u, as in op_sample
 *   x = mean_k + e^s_k ln(v / (1 - v))     s = log scale, clamped to [-7, 64]
 *   out = the p in 0 to 255 for which 2 p / 255 - 1 is nearest to x
 * This inverts the logistic distribution function: x < y if and only if
 * ln(v / (1 - v)) < (y - mean) e^-s, which has probability 1 / (1 + e^-((y - mean) e^-s)). */
#include "ops/kernels.h"
#include "ops/shared/internal.h"
#include "ops/shared/rows.h"

void sample_logistic_mixture_plain(int32_t *out, const Real *parameters, Sampler sampler, int64_t R,
                                   int64_t K)
{
    EACH_ROW(r, R, 6 * K) {
        const Real *p = parameters + r * 3 * K;
        const Philox draw = sampler_draw(&sampler, r);
        const int64_t k = sample_symbol(p, K, &sampler, uniform_of_draw(draw));
        out[r] = logistic_pixel(p[K + k], p[2 * K + k], draw.word[2]);
    }
}

Tensor *op_sample_logistic_mixture(Tape *tape, Tensor *parameters)
{
    tape_use(tape, "op_sample_logistic_mixture: parameters", parameters);
    check_mixture(tape, "op_sample_logistic_mixture", parameters);
    const int64_t R = shape_rows(parameters->shape), K = shape_columns(parameters->shape) / 3;
    if (K > MAX_SYMBOLS)
        tape_error(tape,
                   "op_sample_logistic_mixture: parameters %s, expected %d distributions at most",
                   tensor_text(parameters).text, MAX_SYMBOLS);
    Tensor *out = bounded_integers(tape, shape_of_rows(parameters->shape), PIXELS - 1);
    kernels_of(parameters)
        ->sample_logistic_mixture(out->integers, parameters->data, sampler_new(tape, R), R, K);
    return out;
}
