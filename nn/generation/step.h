/* One position of a transformer, as the kernels take it: see step.c. */
#ifndef TAPEGRAD_NN_GENERATION_STEP_H
#define TAPEGRAD_NN_GENERATION_STEP_H

#include "nn/nn.h"

typedef struct StepLinear {
    const Real *weight, *bias; /* [out, in], [out] */
} StepLinear;

typedef struct StepNorm {
    const Real *weight, *bias; /* [width]; weight NULL: there is no such norm */
    Real eps;
} StepNorm;

typedef struct StepLayer {
    StepLinear input, output, ff1, ff2; /* input makes query, key and value: [3 width, width] */
    StepNorm norm1, norm2;
    const Real *projection; /* [F, D], of FEATURES_RANDOM; else NULL */
    Real *sums;             /* linear: [B, H, F, D + 1], the state of op_causal_linear_attention */
    Real *keys, *values;    /* softmax: [B, H, max_length, D] each; else NULL */
} StepLayer;

typedef struct TransformerStep {
    int64_t B, H, D, F;   /* sequences, heads, their size, features of a head */
    int64_t width, inner; /* H D, and that of the feed-forward network */
    int64_t layers, max_length;
    bool softmax, pre_norm, gelu;
    FeatureMap features;
    Real eps; /* of linear attention's divisor */
    Precision precision;
    StepLayer layer[NN_MAX_LAYERS];
    StepNorm norm;      /* the last one */
    int32_t *counts;    /* [B]: positions that each sequence has had */
    int32_t *positions; /* [B]: the same, but max_length - 1 at most */
    Real *scratch;      /* transformer_step_scratch numbers */
} TransformerStep;

/* How many numbers of scratch memory a step wants. */
int64_t transformer_step_scratch_cpu(const TransformerStep *step);

/* out, x [B, width], which may be the same; advances what the layers remember, the counts and the
 * positions. A sequence whose count is max_length gets not-a-number, remembers no further key, and its
 * count stays. */
void transformer_step_cpu(Real *out, const Real *x, const TransformerStep *step);

#endif
