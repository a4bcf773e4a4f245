/* A layer's products on CUDA. Post-norm's norm after one branch is the norm before the next, so
 * that the kernel which reads a norm's result computes it. */
#ifndef TAPEGRAD_DECODE_CUDA_PRODUCTS_CUH
#define TAPEGRAD_DECODE_CUDA_PRODUCTS_CUH

#include "ext/decode/kernels.h"

struct StepNorm {
    const Real *weight, *bias; /* [width]; weight NULL: no norm */
    Real eps;
};

static inline StepNorm step_norm(const LayerNorm &norm)
{
    return { norm.weight->data, norm.bias->data, (Real)norm.eps };
}

/* Intermediates of B sequences. x is the residual stream: with post-norm, before its norm. */
struct StepBuffers {
    Real *x, *normed, *attended; /* [B, width] */
    Real *packed;                /* [B, 3 width]: queries, keys, values */
    Real *hidden;                /* [B, inner] */
};

/* in = norm(x), or x if there is no norm. normed: where to store it, or NULL. */
struct StepInput {
    const Real *x;
    StepNorm norm;
    Real *normed;
};

/* out [B, O] = f(in [B, I] weight^T + bias) + residual [B, O] */
struct StepProduct {
    Real *out;
    StepInput in;
    const Real *weight, *bias; /* [O, I], [O] */
    const Real *residual;      /* or NULL */
    Activation activation;
    int B, I, O;
};

/* In order; attention of packed, which updates the layer's state and writes attended, follows
 * input. */
struct LayerProducts {
    StepProduct input, output, ff1, ff2;
};

static inline bool is_pre_norm(const TransformerState *state)
{
    return state->transformer.layer[0].pre_norm;
}

/* The norm after the layers, before the final one: post-norm's last. */
static inline StepNorm last_norm(const TransformerState *state)
{
    const Transformer &transformer = state->transformer;
    return is_pre_norm(state) ? StepNorm{}
                              : step_norm(transformer.layer[transformer.layers - 1].norm2);
}

static inline StepNorm final_norm(const TransformerState *state)
{
    const Transformer &transformer = state->transformer;
    return transformer.has_norm ? step_norm(transformer.norm) : StepNorm{};
}

/* x [B, width] is the residual stream before layer i; b.x, which may be x, after the layer. */
static inline LayerProducts layer_products(const TransformerState *state, int64_t i, const Real *x,
                                           const StepBuffers &b)
{
    const TransformerLayer &layer = state->transformer.layer[i];
    const int B = (int)state->B, width = (int)state->width, inner = (int)state->inner;
    const bool pre_norm = is_pre_norm(state);
    StepNorm norm1 = {};
    if (pre_norm)
        norm1 = step_norm(layer.norm1);
    else if (i > 0)
        norm1 = step_norm(state->transformer.layer[i - 1].norm2);
    Real *const normed1 = norm1.weight ? b.normed : NULL;
    const StepInput attention_in = { x, norm1, normed1 }, attended = { b.attended, {}, NULL };
    const StepInput ff_in = { b.x, step_norm(pre_norm ? layer.norm2 : layer.norm1), b.normed };
    const StepInput hidden = { b.hidden, {}, NULL };
    /* pre-norm: x <- x + branch(in); post-norm: x <- in + branch(in) */
    const Real *const residual1 = pre_norm || !normed1 ? x : normed1;
    const Real *const residual2 = pre_norm ? b.x : b.normed;
    const Linear &in = layer.attention.input, &out = layer.attention.output;
    return {
        { b.packed, attention_in, in.weight->data, in.bias->data, NULL, ACTIVATION_NONE, B, width,
          3 * width },
        { b.x, attended, out.weight->data, out.bias->data, residual1, ACTIVATION_NONE, B, width,
          width },
        { b.hidden, ff_in, layer.ff1.weight->data, layer.ff1.bias->data, NULL, layer.activation, B,
          width, inner },
        { b.x, hidden, layer.ff2.weight->data, layer.ff2.bias->data, residual2, ACTIVATION_NONE, B,
          inner, width },
    };
}

#endif
