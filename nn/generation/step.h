/* The arguments of a decode step, for both kernels: see step.c. */
#ifndef TAPEGRAD_NN_GENERATION_STEP_H
#define TAPEGRAD_NN_GENERATION_STEP_H

#include "nn/nn.h"
#include "tensor/kernel.h"

typedef struct StepLinear {
    const Real *weight, *bias; /* [out, in], [out] */
} StepLinear;

typedef struct StepNorm {
    const Real *weight, *bias; /* [width]; weight NULL: no norm */
    Real eps;
} StepNorm;

typedef struct StepLayer {
    StepLinear input, output, ff1, ff2; /* input: query, key and value, [3 width, width] */
    StepNorm norm1, norm2;
    const Real *projection; /* [F, D] for FEATURES_RANDOM; otherwise NULL */
    Real *sums;             /* linear: recurrent state [S, z], [B, H, F, D + 1]; otherwise NULL */
    Real *keys, *values;    /* softmax: KV cache, [B, H, max_length, D] each; otherwise NULL */
} StepLayer;

typedef struct TransformerStep {
    int64_t B, H, D, F;   /* sequences, heads, elements and features per head */
    int64_t width, inner; /* H D; the width of the feed-forward network */
    int64_t layers, max_length;
    bool softmax, pre_norm;
    Activation activation;
    Features features;
    Real eps; /* added to linear attention's denominator */
    Precision precision;
    StepLayer layer[NN_MAX_LAYERS];
    StepNorm norm;      /* the final norm */
    int32_t *counts;    /* [B]: positions processed per sequence */
    int32_t *positions; /* [B]: min(count, max_length - 1) */
    Real *scratch;      /* workspace of transformer_step_scratch elements */
} TransformerStep;

/* Elements of workspace that a step needs. */
DEVICE_FUNCTION(int64_t, transformer_step_scratch, const TransformerStep *step);

/* out, x [B, width], which may be the same; advances the layers' states, the counts and the
 * positions. For a sequence with max_length positions the result is NaN, and its KV cache and count
 * stay. */
DEVICE_FUNCTION(void, transformer_step, Real *out, const Real *x, const TransformerStep *step);

#endif
