/* sample_logistic_mixture: one pixel from each of R mixtures of K logistic distributions, from two
 * random numbers u and v, uniform in (0, 1):
 *   k is chosen from the logits by u, as in op_sample
 *   x = mean_k + e^s_k ln(v / (1 - v))     s = log scale, clamped to [-7, 64]
 *   out = the p in 0 to 255 for which 2 p / 255 - 1 is nearest to x
 * This inverts the logistic distribution function: x < y if and only if
 * ln(v / (1 - v)) < (y - mean) e^-s, which has probability 1 / (1 + e^-((y - mean) e^-s)). */
#include "ops/shared/logistic_mixture.h"
#include "ops/rows/rows.h"
#include "ops/sampling/sampling.h"

/* The pixel of one mixture, parameters p [3 K] */
ALWAYS_INLINE int32_t sample_pixel(int T, const Real *p, int64_t K, const Sampler *sampler,
                                   Philox draw)
{
    const int64_t k = sample_row(T, p, K, sampler, uniform_of_draw(draw));
    return logistic_pixel(load(T, p, K + k), load(T, p, 2 * K + k), draw.word[2]);
}

/* out [R]; parameters [R, 3 K] */
void sample_logistic_mixture_cpu(TensorType type, int32_t *out, const Real *parameters,
                                 Sampler sampler, int64_t R, int64_t K)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *K, 3))
    for (int64_t r = 0; r < R; r++)
        BY_STORAGE(type, T,
                   out[r] = sample_pixel(T, elements_at(T, parameters, r * 3 * K), K, &sampler,
                                         sampler_draw(&sampler, r)));
}

Tensor *op_sample_logistic_mixture(Tape *tape, Tensor *parameters)
{
    tape_use(tape, "op_sample_logistic_mixture: parameters", parameters);
    check_mixture(tape, "op_sample_logistic_mixture", parameters);
    const int64_t R = shape_rows(parameters->shape), K = shape_columns(parameters->shape) / 3;
    if (K > MOST_SYMBOLS)
        tape_error(tape,
                   "op_sample_logistic_mixture: parameters %s, expected %d distributions at most",
                   tensor_text(parameters).text, MOST_SYMBOLS);
    Tensor *out = sampled_tensor(tape, shape_of_rows(parameters->shape), PIXELS - 1);
    KERNEL_CALL(parameters, sample_logistic_mixture,
                (out->integers, parameters->data, sampler_new(tape, R), R, K));
    return out;
}
