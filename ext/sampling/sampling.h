/* Sampling from the tape's generator, which every call and every replay of a step advances. Not
 * differentiable. */
#ifndef TAPEGRAD_SAMPLING_H
#define TAPEGRAD_SAMPLING_H

#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* out = independent normal numbers with mean 0 and standard deviation 1, Real, up to rounding the
 * same on every device: random_normal of the generator tape_random. mean + std out, by op_multiply
 * and op_add, is normal with gradients by mean and std (the reparametrization of Kingma and Welling
 * 2014, section 2.4). Raises for an invalid shape. */
Tensor *op_random_normal(Tape *tape, Shape shape);

/* Random choices, one draw per row; equal arguments give equal choices on every device. The results
 * are int32 and can be indices of op_embedding. Logits that are NaN or minus infinity are never
 * chosen; a row of nothing else gives index 0. */

typedef struct Sampling {
    double temperature; /* logits are divided by it; 0, the limit: choose the largest logit, the
                         * first of equal ones, without a draw */
    int64_t top_k;      /* keep the top_k largest logits, of equal ones the first; 0: all */
    double top_p;       /* in (0, 1]: of these keep the fewest, from the largest on, whose
                         * probabilities sum to top_p or more; 0 means the default, 1 */
} Sampling;

/* out_r = c with probability softmax(logits_r / temperature)_c, renormalized over the symbols that
 * top_k and top_p keep: logits [..., C], C at most 2^23; returns int32 [...], in [0, C).
 * Probabilities below about 1e-12 of the largest count as 0. Options out of range raise. Row r
 * takes the first two words of Philox counter r from the generator tape_random; temperature 0 takes
 * none. */
Tensor *op_sample(Tape *tape, Tensor *logits, Sampling sampling);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
