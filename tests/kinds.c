#include "tests/kinds.h"

static const AttentionKind *base_kind(Params *params, TestConfig c)
{
    const LshConfig lsh = { .rounds = c.lsh_rounds, .chunk = c.lsh_chunk };
    const bool maps = c.features > FEATURE_MAP_IDENTITY;
    const CausalLinearConfig linear = { .features =
                                            maps ? FEATURE_MAP_IDENTITY : (FeatureMap)c.features,
                                        .form = c.form,
                                        .unnormalized = c.unnormalized };
    const AttentionKind *kind = NULL;
    switch (c.attention) {
    case KIND_CAUSAL_SOFTMAX:
        return nn_causal_softmax_attention(params, c.softmax);
    case KIND_SOFTMAX:
        return nn_softmax_attention(params);
    case KIND_DELTA_RULE:
        return nn_delta_rule_attention(params, (DeltaRuleConfig){ c.max_beta, c.decay_rank });
    case KIND_GATED_LINEAR:
        return nn_gated_linear_attention(params, (GatedLinearConfig){ 0 });
    case KIND_CAUSAL_LSH:
        return nn_causal_lsh_attention(params, lsh);
    case KIND_LSH:
        return nn_lsh_attention(params, lsh);
    case KIND_LINEAR:
        kind = nn_linear_attention(params, linear.features);
        break;
    case KIND_CAUSAL_LINEAR:
        kind = nn_causal_linear_attention(params, linear);
        break;
    }
    const FeatureConfig map = { kind, (Features)c.features, c.projections };
    return maps ? nn_feature_attention(params, map) : kind;
}

static const AttentionKind *rotary_kind(Params *params, TestConfig c)
{
    const RotaryConfig rotary = { base_kind(params, c), c.rotary_dims, c.rotary_base };
    return c.rotary_dims ? nn_rotary_attention(params, rotary) : rotary.inner;
}

TransformerConfig test_config(Params *params, TestConfig c)
{
    const GatedConfig gated = { rotary_kind(params, c), c.decay, c.convolution, c.output_gate };
    const bool has_gates = c.decay || c.convolution || c.output_gate || c.unnormalized ||
                           c.attention == KIND_DELTA_RULE || c.attention == KIND_GATED_LINEAR;
    TransformerConfig config = { .layers = c.layers,
                                 .heads = c.heads,
                                 .head_dim = c.head_dim,
                                 .feed_forward = c.feed_forward,
                                 .activation = c.activation,
                                 .dropout = c.dropout,
                                 .initial_std = c.initial_std,
                                 .pre_norm = c.pre_norm,
                                 .no_final_norm = c.no_final_norm,
                                 .recompute = c.recompute };
    config.attention = has_gates ? nn_gated_attention(params, gated) : gated.inner;
    c.attention = KIND_CAUSAL_SOFTMAX;
    if (c.softmax_layer)
        config.layer_attention[c.softmax_layer] = rotary_kind(params, c);
    return config;
}

const AttentionKind *test_attention(Params *params, TestKind kind)
{
    return base_kind(params, (TestConfig){ .attention = kind });
}
