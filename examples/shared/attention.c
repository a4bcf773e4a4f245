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

static const AttentionKind *softmax(Params *params, const KindOptions *o)
{
    return rotary(params, nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 }),
                  o->rotary_dims);
}

static const AttentionKind *window(Params *params, const KindOptions *o)
{
    const CausalSoftmaxConfig config = { .window = o->window };
    return rotary(params, nn_causal_softmax_attention(params, config), o->rotary_dims);
}

static const AttentionKind *linear(Params *params, const KindOptions *o)
{
    return rotary(params, attention_linear(params, o->features, true, FORM_BEST), o->rotary_dims);
}

static const AttentionKind *polynomial(Params *params, const KindOptions *o)
{
    return rotary(params, attention_linear(params, "polynomial", true, FORM_BEST), o->rotary_dims);
}

static const AttentionKind *decay(Params *params, const KindOptions *o)
{
    return nn_gated_attention(params,
                              (GatedConfig){ .inner = linear(params, o), .decay = DECAY_LEARNED });
}

static const AttentionKind *unnormalized(Params *params, const KindOptions *o)
{
    const CausalLinearConfig config = { .features = FEATURE_MAP_IDENTITY, .unnormalized = true };
    const AttentionKind *inner = nn_causal_linear_attention(params, config);
    return nn_gated_attention(params, (GatedConfig){ .inner = rotary(params, inner, o->rotary_dims),
                                                     .decay = DECAY_LEARNED });
}

/* The gated delta rule behind a short convolution, as in Gated DeltaNet. */
static const AttentionKind *delta(Params *params, const KindOptions *o)
{
    const AttentionKind *inner =
        nn_delta_rule_attention(params, (DeltaRuleConfig){ .max_beta = 2 });
    (void)o;
    return nn_gated_attention(
        params, (GatedConfig){ .inner = inner, .decay = DECAY_LEARNED, .convolution = 4 });
}

/* The kind of all layers, but that of every `period`-th one, from layer `first` on, is `other`:
 * hybrid  three layers of the gated delta rule, then one of softmax attention, and so on
 * based   a window of softmax attention, then linear attention with the features of degree 2, and
 *         so on (Arora et al. 2024, Based; their layers of convolutions are left out): what is near
 *         exactly, and what is far by a state of constant size */
typedef struct NamedKind {
    const AttentionKind *(*kind)(Params *, const KindOptions *);
    const AttentionKind *(*other)(Params *, const KindOptions *);
    int first, period;
} NamedKind;

enum { SOFTMAX, LINEAR, DECAY, UNNORMALIZED, DELTA, HYBRID, WINDOW, BASED, ROWS };
const char *const attention_names[] = {
    [SOFTMAX] = "softmax", [LINEAR] = "linear",
    [DECAY] = "decay",     [UNNORMALIZED] = "unnormalized",
    [DELTA] = "delta",     [HYBRID] = "hybrid",
    [WINDOW] = "window",   [BASED] = "based",
    [ROWS] = NULL,
};
static const NamedKind kinds[ROWS] = {
    [SOFTMAX] = { .kind = softmax }, [LINEAR] = { .kind = linear },
    [DECAY] = { .kind = decay },     [UNNORMALIZED] = { .kind = unnormalized },
    [DELTA] = { .kind = delta },     [HYBRID] = { delta, softmax, .first = 3, .period = 4 },
    [WINDOW] = { .kind = window },   [BASED] = { polynomial, window, .first = 0, .period = 2 },
};

void attention_set(TransformerConfig *config, Params *params, const char *name, KindOptions options)
{
    const NamedKind *named = &kinds[choice_index(attention_names, name)];
    config->attention = named->kind(params, &options);
    for (int i = named->first; named->other && i < NN_MAX_LAYERS; i += named->period)
        config->layer_attention[i] = named->other(params, &options);
}
