/* The kinds of linear attention, and their feature maps. */
#include "nn/internal.h"
#include "ops/kernels.h"

#include <math.h>
#include <stdlib.h>

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

Tensor *nn_projection(Params *params, const char *name, int64_t features, int64_t D)
{
    const Name path = nn_name(name, "projection");
    Random random = params_random(params, path.text);
    Tensor *projection = params_new_constant("nn_attention", params, path.text, shape(features, D));
    draw_projection("nn_attention", projection, &random);
    return projection;
}

void nn_attention_redraw(const Attention *attention, Random *random)
{
    if (attention->projection)
        draw_projection("nn_attention_redraw", attention->projection, random);
}

/* ------------------------------------------------------------------------------------ the kinds */

int64_t nn_feature_count(const Attention *attention)
{
    const int64_t D = attention->head_dim;
    if (attention->features == FEATURES_POLYNOMIAL)
        return 1 + D + D * (D + 1) / 2;
    return attention->projection ? attention->projection->shape.size[0] : D;
}

/* phi of queries or keys [B, N, H, D], returns [B, N, H, F], for feature maps that the attention
 * operations do not contain. Maps that approximate a function of q.k get q and k divided by
 * D^(1/4), which gives q.k / sqrt D as in softmax attention. The random features of a query are
 * computed as a softmax: they differ by one factor per position, which cancels in num / den, and
 * neither overflow nor all underflow. */
static Tensor *map_features(Tape *tape, const Attention *attention, Tensor *x, bool queries)
{
    if (attention->features == FEATURES_SQUARED_RELU)
        return op_squared_relu(tape, x);
    x = op_scale(tape, x, pow((double)attention->head_dim, -0.25));
    if (attention->features == FEATURES_POLYNOMIAL)
        return op_polynomial_features(tape, x);
    if (queries)
        return op_softmax(tape, op_matmul_nt(tape, x, attention->projection));
    return op_random_features(tape, x, attention->projection);
}

static void separate(Tape *tape, int64_t H, Tensor **query, Tensor **key, Tensor **value)
{
    Tensor *packed = *query;
    *value = op_slice(tape, packed, 2, 2 * H, H);
    *key = op_slice(tape, packed, 2, H, H);
    *query = op_slice(tape, packed, 2, 0, H);
}

/* Queries and keys become features for maps that the operations do not contain. */
static FeatureMap map_heads(Tape *tape, const Attention *attention, Tensor **query, Tensor **key,
                            Tensor **value)
{
    if (attention->features <= FEATURES_IDENTITY)
        return (FeatureMap)attention->features;
    if (!*key)
        separate(tape, attention->heads, query, key, value);
    *query = map_features(tape, attention, *query, true);
    *key = map_features(tape, attention, *key, false);
    return FEATURE_MAP_IDENTITY;
}

static Tensor *attend_linear(Tape *tape, const Attention *attention, Tensor *query, Tensor *key,
                             Tensor *value, const AttentionContext *context)
{
    const FeatureMap features = map_heads(tape, attention, &query, &key, &value);
    return op_linear_attention(
        tape, query, key, value,
        (LinearAttentionOptions){ .features = features,
                                  .eps = ATTENTION_EPS,
                                  .key_lengths = context->options.key_lengths });
}

typedef struct LinearOperands {
    Tensor *key, *value;
    const CausalLinearAttentionOptions *options;
} LinearOperands;

/* S <- decay S + B, B the positions' state, decay the product of theirs */
static void linear_effect(Tape *tape, const void *operands, Tensor **state, Tensor **transition)
{
    const LinearOperands *of = operands;
    Tensor *log_decay = of->options->log_decay;
    *state = op_causal_linear_state(tape, of->key, of->value, *of->options);
    *transition = log_decay ? op_sum(tape, log_decay, 1) : NULL;
}

static Tensor *attend_causal_linear(Tape *tape, const Attention *attention, Tensor *query,
                                    Tensor *key, Tensor *value, const AttentionContext *context)
{
    Tensor *after = NULL;
    const FeatureMap features = map_heads(tape, attention, &query, &key, &value);
    CausalLinearAttentionOptions options = { .features = features,
                                             .eps = ATTENTION_EPS,
                                             .key_lengths = context->options.key_lengths,
                                             .form = attention->form,
                                             .unnormalized = attention->unnormalized,
                                             .log_decay = context->log_decay };
    const LinearOperands operands = { key ? key : query, value, &options };
    options.state = state_before(tape, context, STATE_ATTENTION, linear_effect, &operands);
    Tensor *out = op_causal_linear_attention(tape, query, key, value, options,
                                             context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, STATE_ATTENTION, after);
    return out;
}

/* [S, z], or S alone */
static Shape causal_linear_state_shape(const Attention *attention, int64_t B)
{
    const int64_t D = attention->head_dim;
    return shape(B, attention->heads, nn_feature_count(attention),
                 attention->unnormalized ? D : D + 1);
}

const struct AttentionFunctions nn_causal_linear_attention = {
    .name = "ATTENTION_CAUSAL_LINEAR",
    .projections = { "query", "key", "value" },
    .reads = READS_FEATURES | READS_FORM | READS_GATES | READS_UNNORMALIZED | READS_ROTARY,
    .is_causal = true,
    .state_shape = causal_linear_state_shape,
    .attend = attend_causal_linear,
};

const struct AttentionFunctions nn_linear_attention = {
    .name = "ATTENTION_LINEAR",
    .projections = { "query", "key", "value" },
    .reads = READS_FEATURES,
    .crosses = true,
    .attend = attend_linear,
};
