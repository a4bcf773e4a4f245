/* A decode step as an engine receives it, the kernel transformer_step of the CPU or of CUDA, and
 * the products of a layer. step.c has the mathematics. */
#ifndef TAPEGRAD_NN_DECODE_STEP_H
#define TAPEGRAD_NN_DECODE_STEP_H

#include "nn/nn.h"
#include "ops/elementwise/activation.h"
#include "tensor/kernel.h"

/* How the weight of a product is stored; bf16 and 8 bits on the CPU only. */
typedef enum WeightType {
    WEIGHT_REAL = TENSOR_REAL,
    WEIGHT_BF16 = TENSOR_BF16,
    WEIGHT_INT8, /* 8-bit integers with one scale per row; see product_cpu.c */
} WeightType;

typedef struct StepLinear {
    const Real *weight, *bias; /* [out, in], [out] or NULL */
    WeightType type;
    const Real *scales; /* [out] for WEIGHT_INT8; otherwise NULL */
} StepLinear;

typedef struct StepNorm {
    const Real *weight, *bias; /* [width]; weight NULL: no norm */
    Real eps;
} StepNorm;

/* A layer's recurrent state of linear attention, or its KV cache of softmax attention. */
typedef struct LayerState {
    Real *sums;          /* linear: [S, z], [B, H, F, D + 1]; otherwise NULL */
    Real *keys, *values; /* softmax: [B, H, max_length, D] each, of cache_type; otherwise NULL */
} LayerState;

typedef struct StepLayer {
    StepLinear input, output, ff1, ff2; /* input: query, key and value, [3 width, width] */
    StepNorm attention_norm, ff_norm;   /* of the input of the attention and of ff1 */
    const Real *projection;             /* [F, D] for FEATURES_RANDOM; otherwise NULL */
    LayerState state;
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
    int cache_type; /* TensorType of keys and values: Real, or bf16 on the CPU */
    StepLayer layer[NN_MAX_LAYERS];
    StepNorm last_norm, norm; /* after the layers: post-norm's last norm2; the final norm */
    int32_t *counts;          /* [B]: positions processed per sequence */
    int32_t *positions;       /* [B]: min(count, max_length - 1) */
} TransformerStep;

/* ------------------------------------------------------------------------------ a layer's products
 * Intermediates of B sequences. x is the residual stream: with post-norm, before its norm. */
typedef struct StepBuffers {
    int64_t B;
    Real *x, *normed, *attended; /* [B, width] */
    Real *packed;                /* [B, 3 width]: queries, keys, values */
    Real *hidden;                /* [B, inner] */
} StepBuffers;

/* in = norm(x), or x if there is no norm. normed: where to store it, or NULL. */
typedef struct StepInput {
    const Real *x;
    StepNorm norm;
    Real *normed;
} StepInput;

/* out [B, O] = f(in [B, I] weight^T + bias) + residual [B, O] */
typedef struct StepProduct {
    Real *out;
    StepInput in;
    StepLinear linear;
    const Real *residual; /* or NULL */
    Activation activation;
    int B, I, O;
} StepProduct;

/* In order; attention of packed, which updates the layer's state and writes attended, follows
 * input. */
typedef struct LayerProducts {
    StepProduct input, output, ff1, ff2;
} LayerProducts;

/* x [B, width] is the residual stream before the layer; b->x, which may be x, after the layer. */
static inline LayerProducts layer_products(const TransformerStep *step, const StepLayer *layer,
                                           const Real *x, const StepBuffers *b)
{
    const int B = (int)b->B, width = (int)step->width, inner = (int)step->inner;
    const Activation none = ACTIVATION_NONE;
    Real *const attention_normed = layer->attention_norm.weight ? b->normed : NULL;
    const StepInput attention_in = { x, layer->attention_norm, attention_normed };
    const StepInput attended = { b->attended, { NULL, NULL, 0 }, NULL };
    const StepInput ff_in = { b->x, layer->ff_norm, b->normed };
    const StepInput hidden = { b->hidden, { NULL, NULL, 0 }, NULL };
    /* pre-norm: x <- x + branch(in); post-norm: x <- in + branch(in) */
    const Real *residual1 = step->pre_norm || !attention_normed ? x : attention_normed;
    const Real *residual2 = step->pre_norm ? b->x : b->normed;
    const LayerProducts products = {
        { b->packed, attention_in, layer->input, NULL, none, B, width, 3 * width },
        { b->x, attended, layer->output, residual1, none, B, width, width },
        { b->hidden, ff_in, layer->ff1, NULL, step->activation, B, width, inner },
        { b->x, hidden, layer->ff2, residual2, none, B, inner, width },
    };
    return products;
}

#endif
