#include "examples/shared/attention.h"
#include "examples/shared/options.h"

const AttentionKind *attention_linear(Params *params, const char *features, bool causal,
                                      AttentionForm form)
{
    const int map = choice_index(feature_names, features);
    CausalLinearConfig config = { .features = FEATURE_MAP_IDENTITY, .form = form };
    if (map < FEATURES_SQUARED_RELU)
        config.features = (FeatureMap)map;
    const AttentionKind *linear = causal ? nn_causal_linear_attention(params, config)
                                         : nn_linear_attention(params, config.features);
    if (map < FEATURES_SQUARED_RELU)
        return linear;
    return nn_feature_attention(params,
                                (FeatureConfig){ .inner = linear, .features = (Features)map });
}

static const AttentionKind *rotary(Params *params, const AttentionKind *inner, int64_t dims)
{
    return dims ? nn_rotary_attention(params, (RotaryConfig){ .inner = inner, .dims = dims })
                : inner;
}

static const AttentionKind *softmax(Params *params, const char *features, int64_t rotary_dims)
{
    (void)features;
    return rotary(params, nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 }),
                  rotary_dims);
}

static const AttentionKind *linear(Params *params, const char *features, int64_t rotary_dims)
{
    return rotary(params, attention_linear(params, features, true, FORM_BEST), rotary_dims);
}

static const AttentionKind *decay(Params *params, const char *features, int64_t rotary_dims)
{
    return nn_gated_attention(params, (GatedConfig){ .inner = linear(params, features, rotary_dims),
                                                     .decay = DECAY_LEARNED });
}

static const AttentionKind *unnormalized(Params *params, const char *features, int64_t rotary_dims)
{
    const CausalLinearConfig config = { .features = FEATURE_MAP_IDENTITY, .unnormalized = true };
    const AttentionKind *inner = nn_causal_linear_attention(params, config);
    (void)features;
    return nn_gated_attention(params, (GatedConfig){ .inner = rotary(params, inner, rotary_dims),
                                                     .decay = DECAY_LEARNED });
}

/* The gated delta rule behind a short convolution, as in Gated DeltaNet. */
static const AttentionKind *delta(Params *params, const char *features, int64_t rotary_dims)
{
    const AttentionKind *inner =
        nn_delta_rule_attention(params, (DeltaRuleConfig){ .max_beta = 2 });
    (void)features, (void)rotary_dims;
    return nn_gated_attention(
        params, (GatedConfig){ .inner = inner, .decay = DECAY_LEARNED, .convolution = 4 });
}

/* A row of both arrays per kind. hybrid: three layers of the gated delta rule, then one of softmax
 * attention, and so on. */
enum { SOFTMAX, LINEAR, DECAY, UNNORMALIZED, DELTA, HYBRID, ROWS };
const char *const attention_names[] = {
    [SOFTMAX] = "softmax", [LINEAR] = "linear", [DECAY] = "decay", [UNNORMALIZED] = "unnormalized",
    [DELTA] = "delta",     [HYBRID] = "hybrid", [ROWS] = NULL,
};
static const AttentionKind *(*const kinds[ROWS])(Params *, const char *features, int64_t) = {
    [SOFTMAX] = softmax,           [LINEAR] = linear, [DECAY] = decay,
    [UNNORMALIZED] = unnormalized, [DELTA] = delta,   [HYBRID] = delta,
};

void attention_set(TransformerConfig *config, Params *params, const char *name,
                   const char *features, int64_t rotary_dims)
{
    const int row = choice_index(attention_names, name);
    config->attention = kinds[row](params, features, rotary_dims);
    for (int i = 3; row == HYBRID && i < NN_MAX_LAYERS; i += 4)
        config->layer_attention[i] = softmax(params, features, rotary_dims);
}
