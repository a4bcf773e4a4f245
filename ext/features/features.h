/* Feature maps of linear attention that its operations do not contain. */
#ifndef TAPEGRAD_FEATURES_H
#define TAPEGRAD_FEATURES_H

#include "nn/nn.h"
#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Operations on queries and keys, along the last axis, for linear attention with
 * FEATURE_MAP_IDENTITY. */

/* out(q).out(k) = (1 + q.k)^2: x [..., D]; returns [..., 1 + D + D (D + 1) / 2], the features
 * 1, sqrt 2 x_i, x_i^2 and, in unspecified order, sqrt 2 x_i x_j for i < j. */
Tensor *op_polynomial_features(Tape *tape, Tensor *x);

/* out_f = e^(w_f.x - |x|^2 / 2) / sqrt F: x [..., D], projection w [F, D]; returns [..., F]. If the
 * rows of w are standard normal, E out(q).out(k) = e^(q.k) over w  (Choromanski et al. 2021,
 * Rethinking Attention with Performers, lemma 1); q and k divided by D^(1/4) give the kernel of
 * softmax attention. random_normal draws such a w; the rows of random_orthogonal reduce the
 * variance of the estimate (section 2.3). */
Tensor *op_random_features(Tape *tape, Tensor *x, Tensor *projection);

/* out = [cos w_1.x, .., cos w_F.x, sin w_1.x, .., sin w_F.x] / sqrt F: x [..., D], projection
 * w [F, D]; returns [..., 2 F]. If the rows of w are standard normal,
 * E out(q).out(k) = e^(-|q - k|^2 / 2) over w (Rahimi and Recht 2007, Random Features for
 * Large-Scale Kernel Machines). A sum of such weights may be 0 or negative. */
Tensor *op_fourier_features(Tape *tape, Tensor *x, Tensor *projection);

/* They continue FeatureMap. */
typedef enum {
    FEATURES_SQUARED_RELU = FEATURE_MAP_IDENTITY + 1, /* op_squared_relu */
    FEATURES_POLYNOMIAL, /* op_polynomial_features of x / D^(1/4): (1 + q.k / sqrt D)^2 */
    FEATURES_RANDOM,     /* op_random_features of x / D^(1/4): e^(q.k / sqrt D) in expectation; for
                          * keys of |k|^2 up to about 20 sqrt D (docs/attention.md) */
    FEATURES_FOURIER,    /* op_fourier_features of x / D^(1/4): e^(-|q - k|^2 / (2 sqrt D)) in
                          * expectation; generated with by operations, not by an engine */
} Features;

/* A field left 0 means its default, the first value in its comment; but features has none. */
typedef struct FeatureConfig {
    const AttentionKind *inner; /* NULL: causal linear; or linear or causal linear attention with
                                 * FEATURE_MAP_IDENTITY */
    Features features;
    int64_t projections; /* 2 * head_dim, of FEATURES_RANDOM and FEATURES_FOURIER, which have one
                          * and two features per projection; other features have none */
} FeatureConfig;

/* The inner kind of the features of queries and keys. The projection of FEATURES_RANDOM and
 * FEATURES_FOURIER is a constant, not a weight: its orthogonal rows are drawn from the seed and the
 * layer's name, and files hold it with the weights (name.projection); if an earlier file lacks it,
 * the drawn one stays. */
const AttentionKind *nn_feature_attention(Params *params, FeatureConfig config);

/* What maps the queries and keys of a layer. */
typedef struct LayerFeatures {
    Features features;
    Tensor *projection; /* [projections, head_dim] of random and Fourier features; else NULL */
} LayerFeatures;

/* Also inside of other kinds; NULL: the layer has no such kind. */
const LayerFeatures *nn_attention_features(const Attention *attention);

/* Draws a new projection for such features (Choromanski et al. 2021); does nothing for other
 * kinds. Call it between replayed steps, not inside one. */
void nn_attention_redraw(const Attention *attention, Random *random);
/* The same for every layer. */
void nn_transformer_redraw(const Transformer *transformer, Random *random);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
