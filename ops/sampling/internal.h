/* Shared by the operations that sample. */
#ifndef TAPEGRAD_OPS_SAMPLING_INTERNAL_H
#define TAPEGRAD_OPS_SAMPLING_INTERNAL_H

#include "ops/sampling/sampling.h"

/* Chooses the symbol of a row of C logits, from a uniform 64-bit random number: see sample.c. */
int64_t sample_symbol(const Real *logits, int64_t C, const Sampler *sampler, uint64_t uniform);

/* Draws one Philox counter per row; returns a Sampler that keeps all symbols at temperature 1. */
Sampler sampler_new(Tape *tape, int64_t R);

/* A new int32 tensor on the tape's device, recorded to have elements in [0, max]. */
Tensor *sampled_tensor(Tape *tape, Shape shape, int32_t max);

#endif
