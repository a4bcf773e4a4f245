/* The config of a transformer: its defaults and ranges. */
#include "nn/internal.h"

#include <math.h>
#include <string.h>

enum { MAX_SIZE = 1 << 20 };

static void check_kind(const char *function, const char *noun, int kind, int last)
{
    if (kind < 0 || kind > last)
        error_raise("%s: there is no %s %d", function, noun, kind);
}

/* --------------------------------------------------- fields that some kinds of attention read */
/* field, the flag of the kinds that read it, their names */
#define READ_FIELDS(ROW)                                                                           \
    ROW(features, READS_FEATURES, "linear or causal linear")                                       \
    ROW(form, READS_FORM, "causal linear")                                                         \
    ROW(decay, READS_GATES, "causal linear or the delta rule")                                     \
    ROW(convolution, READS_GATES, "causal linear or the delta rule")                               \
    ROW(output_gate, READS_GATES, "causal linear or the delta rule")                               \
    ROW(unnormalized, READS_UNNORMALIZED, "causal linear")                                         \
    ROW(rotary_dims, READS_ROTARY, "causal linear or causal softmax")                              \
    ROW(rotary_base, READS_ROTARY, "causal linear or causal softmax")                              \
    ROW(softmax_decay, READS_SOFTMAX_DECAY, "causal softmax")                                      \
    ROW(max_beta, READS_BETA, "the delta rule")

/* What the kinds of the layers read. */
static unsigned reads_of(const TransformerConfig *c)
{
    unsigned reads = 0;
    for (int64_t i = 0; i < c->layers; i++)
        reads |= (c->layer_attention[i] ? c->layer_attention[i] : c->attention)->reads;
    return reads;
}

static void check_fields_are_read(const char *function, const TransformerConfig *c)
{
    const unsigned reads = reads_of(c);
#define CHECK(field, readers, names)                                                               \
    if (c->field != 0 && !(reads & (readers)))                                                     \
        error_raise("%s: %s is set, expected attention that has it: %s", function, #field, names);
    READ_FIELDS(CHECK)
#undef CHECK
}

TransformerConfig nn_config_of_layer(const TransformerConfig *config, int64_t layer)
{
    TransformerConfig c = *config;
    if (c.layer_attention[layer])
        c.attention = c.layer_attention[layer];
    memset(c.layer_attention, 0, sizeof c.layer_attention);
#define CLEAR(field, readers, names)                                                               \
    if (!(c.attention->reads & (readers)))                                                         \
        c.field = 0;
    READ_FIELDS(CLEAR)
#undef CLEAR
    return c;
}

/* --------------------------------------------------------------------- defaults and ranges */
TransformerConfig nn_layer_config(const char *function, TransformerConfig c)
{
    memset(c.layer_attention, 0, sizeof c.layer_attention);
    return nn_transformer_config(function, c);
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
    check_kind(function, "decay", (int)c.decay, DECAY_LEARNED);
    check_kind(function, "decay", (int)c.softmax_decay, DECAY_LEARNED);
    shape_need_size(function, "convolution", &c.convolution, 0, MAX_SIZE);
    check_kind(function, "feature map", (int)c.features, FEATURES_RANDOM);
    check_kind(function, "form", (int)c.form, FORM_QUADRATIC);
    check_kind(function, "activation", (int)c.activation, ACTIVATION_SILU);
    if (!c.attention)
        c.attention = ATTENTION_CAUSAL_LINEAR;
    check_fields_are_read(function, &c);
    if (c.max_beta == 0 && reads_of(&c) & READS_BETA)
        c.max_beta = 1;
    if (!(c.max_beta >= 0 && c.max_beta <= 2))
        error_raise("%s: max_beta is %g, expected 0 < max_beta <= 2", function, c.max_beta);
    if (c.rotary_dims < 0 || c.rotary_dims % 2 != 0 || c.rotary_dims > c.head_dim)
        error_raise("%s: rotary_dims is %lld, expected an even number from 0 to head_dim %lld",
                    function, (long long)c.rotary_dims, (long long)c.head_dim);
    if (!(c.rotary_base >= 0 && isfinite(c.rotary_base)) || (c.rotary_base > 0 && !c.rotary_dims))
        error_raise("%s: rotary_base is %g, expected more than 0, with rotary_dims, or 0 for 10000",
                    function, c.rotary_base);
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
