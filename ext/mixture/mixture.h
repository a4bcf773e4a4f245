/* Mixtures of discretized logistic distributions: pixels of 256 values. */
#ifndef TAPEGRAD_MIXTURE_H
#define TAPEGRAD_MIXTURE_H

#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* out = the mean over pixels of -ln P(target), a scalar in nats, for mixtures of K discretized
 * logistic distributions  (Salimans et al. 2017, PixelCNN++, section 2.1 and equation 2).
 * parameters [..., 3 K]: per pixel the K logits, then the K means, then the K log scales. targets:
 * int32 [...], in [0, 255]; value t stands for x = 2 t / 255 - 1. P(t) is the mixture's probability
 * of the bin of width 2 / 255 around x; the bins of 0 and 255 extend to infinity. As in the
 * authors' code, log scales below -7 count as -7, and a component's probability of 1e-5 or less is
 * its density times the width. */
Tensor *op_discretized_logistic_mixture(Tape *tape, Tensor *parameters, Tensor *targets);

/* out_r = a pixel drawn from the mixture: parameters [..., 3 K] as in
 * op_discretized_logistic_mixture; returns int32 [...], in [0, 255]. Draws a component by its
 * logit, then a value of its distribution, rounded to the nearest of the 256 values. */
Tensor *op_sample_logistic_mixture(Tape *tape, Tensor *parameters);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
