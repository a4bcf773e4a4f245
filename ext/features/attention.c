/* Feature maps as a kind of attention around linear attention. */
#include "ext/features/features.h"
#include "ext/features/kernels.h"

#include <math.h>
#include <stdlib.h>

typedef struct FeatureKind {
    AttentionKind kind;
    int64_t projections; /* 0: 2 head_dim */
    LayerFeatures own;
} FeatureKind;

/* ---------------------------------------------------------------------------------- projections */
static void draw_projection(const char *function, Tensor *projection, Random *random)
{
    const int64_t features = projection->shape.size[0], D = projection->shape.size[1];
    Real *host = memory_allocate(tensor_bytes(projection));
    if (!host)
        error_raise("%s: memory is exhausted: a projection [%lld,%lld]", function,
                    (long long)features, (long long)D);
    random_orthogonal(random, host, features, D);
    tensor_write(projection, host);
    free(host);
}

static const AttentionKind *random_of_layer(const AttentionKind *kind, Params *params,
                                            const char *name, const TransformerConfig *config)
{
    FeatureKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const FeatureKind *)kind;
    const int64_t D = config->head_dim;
    const int64_t features = layer->projections ? layer->projections : 2 * D;
    const Name path = nn_name(name, "projection");
    Random random = params_random(params, path.text);
    layer->own.projection =
        params_new_constant("nn_attention", params, path.text, shape(features, D), false);
    draw_projection("nn_attention", layer->own.projection, &random);
    return &layer->kind;
}

/* ------------------------------------------------------------------------------------- features */

/* phi of queries or keys [B, N, H, D], returns [B, N, H, F]. Maps that approximate a function of
 * q.k get q and k divided by D^(1/4), which gives q.k / sqrt D as in softmax attention. The random
 * features of a query are computed as a softmax: they differ by one factor per position, which
 * cancels in num / den, and neither overflow nor all underflow. */
static Tensor *map_features(Tape *tape, const LayerFeatures *map, Tensor *x, bool queries)
{
    if (map->features == FEATURES_SQUARED_RELU)
        return op_squared_relu(tape, x);
    x = op_scale(tape, x, pow((double)x->shape.size[3], -0.25));
    if (map->features == FEATURES_FOURIER)
        return op_fourier_features(tape, x, map->projection);
    if (map->features == FEATURES_POLYNOMIAL)
        return op_polynomial_features(tape, x);
    if (queries)
        return op_softmax(tape, op_matmul_nt(tape, x, map->projection));
    return op_random_features(tape, x, map->projection);
}

static Tensor *attend_features(Tape *tape, const AttentionKind *kind, Tensor *query, Tensor *key,
                               Tensor *value, const AttentionContext *context)
{
    const LayerFeatures *map = &((const FeatureKind *)kind)->own;
    if (!key) {
        Tensor *packed = query;
        const int64_t H = packed->shape.size[2] / 3;
        value = op_slice(tape, packed, 2, 2 * H, H);
        key = op_slice(tape, packed, 2, H, H);
        query = op_slice(tape, packed, 2, 0, H);
    }
    query = map_features(tape, map, query, true);
    key = map_features(tape, map, key, false);
    return kind->inner->attend(tape, kind->inner, query, key, value, context);
}

static AttentionState feature_state(const AttentionKind *kind, int state, AttentionSizes sizes)
{
    const LayerFeatures *map = &((const FeatureKind *)kind)->own;
    if (map->features == FEATURES_POLYNOMIAL)
        sizes.key_dim = polynomial_count(sizes.key_dim);
    else if (map->projection)
        sizes.key_dim =
            map->projection->shape.size[0] * (map->features == FEATURES_FOURIER ? 2 : 1);
    return kind->inner->state(kind->inner, state, sizes);
}

const AttentionKind *nn_feature_attention(Params *params, FeatureConfig config)
{
    static const char function[] = "nn_feature_attention";
    const CausalLinearConfig identity = { .features = FEATURE_MAP_IDENTITY };
    const AttentionKind *inner =
        config.inner ? config.inner : nn_causal_linear_attention(params, identity);
    const CausalLinearConfig *options = nn_linear_options(inner);
    if (!options || options->features != FEATURE_MAP_IDENTITY)
        error_raise("%s: inner is %s attention, expected linear or causal linear attention with "
                    "FEATURE_MAP_IDENTITY",
                    function, inner->name);
    if (config.features < FEATURES_SQUARED_RELU || config.features > FEATURES_FOURIER)
        error_raise("%s: features is %d, expected FEATURES_SQUARED_RELU to FEATURES_FOURIER",
                    function, (int)config.features);
    shape_need_size(function, "projections", &config.projections, 0, 1 << 20);
    if (config.projections && config.features < FEATURES_RANDOM)
        error_raise("%s: projections is %lld, expected 0: random and Fourier features alone have "
                    "projections",
                    function, (long long)config.projections);
    FeatureKind *features = params_memory(params, sizeof *features);
    *features = (FeatureKind){ .kind = nn_kind_around(inner),
                               .projections = config.projections,
                               .own = { .features = config.features } };
    features->kind.state = feature_state;
    features->kind.of_layer = config.features >= FEATURES_RANDOM ? random_of_layer : NULL;
    features->kind.attend = attend_features;
    return &features->kind;
}

/* ------------------------------------------------------------------------------------ of layers */
const LayerFeatures *nn_attention_features(const Attention *attention)
{
    for (const AttentionKind *kind = attention->kind; kind; kind = kind->inner)
        if (kind->attend == attend_features)
            return &((const FeatureKind *)kind)->own;
    return NULL;
}

void nn_attention_redraw(const Attention *attention, Random *random)
{
    const LayerFeatures *map = nn_attention_features(attention);
    if (map && map->projection)
        draw_projection("nn_attention_redraw", map->projection, random);
}

void nn_transformer_redraw(const Transformer *transformer, Random *random)
{
    for (int64_t i = 0; i < transformer->layers; i++)
        nn_attention_redraw(&transformer->layer[i].attention, random);
}
