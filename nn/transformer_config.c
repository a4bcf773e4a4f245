/* The config of a transformer: its defaults and ranges. */
#include "nn/internal.h"

#include <math.h>

enum { MAX_SIZE = 1 << 20 };

static void check_kind(const char *function, const char *noun, int kind, int last)
{
    if (kind < 0 || kind > last)
        error_raise("%s: there is no %s %d", function, noun, kind);
}

TransformerConfig nn_transformer_config(const char *function, TransformerConfig c)
{
    shape_need_size(function, "layers", &c.layers, 4, NN_MAX_LAYERS);
    shape_need_size(function, "heads", &c.heads, 8, MAX_SIZE);
    shape_need_size(function, "head_dim", &c.head_dim, 32, MAX_SIZE);
    shape_need_size(function, "feed_forward", &c.feed_forward, 4 * c.heads * c.head_dim, MAX_SIZE);
    shape_need_size(function, "projections", &c.projections, 2 * c.head_dim, MAX_SIZE);
    shape_need_size(function, "lsh_rounds", &c.lsh_rounds, 1, 64);
    shape_need_size(function, "lsh_chunk", &c.lsh_chunk, 32, MAX_SIZE);
    shape_need_size(function, "lsh_buckets", &c.lsh_buckets, 0, MAX_SIZE);
    check_kind(function, "attention", (int)c.attention, ATTENTION_DELTA_RULE);
    for (int64_t i = 0; i < NN_MAX_LAYERS; i++)
        check_kind(function, "attention", (int)c.layer_attention[i], ATTENTION_DELTA_RULE);
    check_kind(function, "decay", (int)c.decay, DECAY_LEARNED);
    check_kind(function, "decay", (int)c.softmax_decay, DECAY_LEARNED);
    shape_need_size(function, "convolution", &c.convolution, 0, MAX_SIZE);
    check_kind(function, "feature map", (int)c.features, FEATURES_RANDOM);
    check_kind(function, "form", (int)c.form, FORM_QUADRATIC);
    check_kind(function, "activation", (int)c.activation, ACTIVATION_SILU);
    if (!c.attention)
        c.attention = ATTENTION_CAUSAL_LINEAR;
    if (c.max_beta == 0)
        c.max_beta = 1;
    if (!(c.max_beta > 0 && c.max_beta <= 2))
        error_raise("%s: max_beta is %g, expected 0 < max_beta <= 2", function, c.max_beta);
    if (c.convolution == 1)
        error_raise("%s: convolution is 1, expected 2 or more taps, or 0: none", function);
    if (!(c.dropout >= 0 && c.dropout < 1))
        error_raise("%s: dropout is %g, expected 0 <= dropout < 1", function, c.dropout);
    if (!(c.initial_std >= 0 && isfinite((Real)c.initial_std)))
        error_raise("%s: initial_std is %g, expected 0 or more, and finite", function,
                    c.initial_std);
    if (c.lsh_buckets != 1 && c.lsh_buckets % 2 != 0)
        error_raise("%s: lsh_buckets is %lld, expected an even number, or 1", function,
                    (long long)c.lsh_buckets);
    return c;
}

double nn_residual_std(const TransformerConfig *config)
{
    return config->initial_std / sqrt(2 * (double)config->layers);
}
