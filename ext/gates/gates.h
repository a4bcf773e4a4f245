/* Gates around a kind of attention. */
#ifndef TAPEGRAD_GATES_H
#define TAPEGRAD_GATES_H

#include "ext/causal_convolution/causal_convolution.h"
#include "ext/rms_norm/rms_norm.h"
#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* The log decay per head, l <= 0. Each head has its own half-life: the rates r_h fall from 1/32 for
 * the first head to 1/512 for the last, in equal ratios. */
typedef enum {
    DECAY_NONE,
    DECAY_CONSTANT, /* l = -r_h, as in RetNet (Sun et al. 2023) */
    DECAY_LEARNED,  /* l = -softplus(x Wl^T + bl + c_h), c_h such that softplus(c_h) = r_h */
} DecayKind;

/* A field left 0 means its default, the first value in its comment. */
typedef struct GatedConfig {
    const AttentionKind *inner; /* NULL: causal linear attention, with its defaults */
    DecayKind decay;            /* DECAY_NONE; softmax attention with one: Lin et al. 2025 */
    int64_t convolution;        /* 0: none; the taps, 2 or more, of a causal convolution over
                                 * queries, keys and values, then silu */
    bool output_gate;           /* false; true: out silu(x Wg^T + bg) */
} GatedConfig;

/* The inner kind of x with these gates: a causal one, of linear, gated linear or softmax attention
 * or the delta rule. Where no normalizer bounds its results, unnormalized, gated linear and of the
 * delta rule, an RMS norm of each head's follows, with and without gates. */
const AttentionKind *nn_gated_attention(Params *params, GatedConfig config);

/* What nn_gated_attention adds to a layer. */
typedef struct Gates {
    Tensor *decay_constant;        /* [heads], -r_h or, of a learned decay, c_h; NULL: no decay */
    Linear decay;                  /* decay.weight, decay.bias of a learned decay, or NULL */
    CausalConvolution convolution; /* convolution.weight, convolution.bias, or NULL */
    Linear gate;                   /* gate.weight, gate.bias, or NULL */
    RmsNorm norm;                  /* norm.weight [head_dim], or NULL */
} Gates;

/* A layer's gates; NULL: its kind is another. */
const Gates *nn_attention_gates(const Attention *attention);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
