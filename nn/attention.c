/* Multi-head attention (Vaswani et al. 2017, section 3.2.2). One product computes the queries, keys
 * and values of all heads; the attention operation combines positions; the output product combines
 * heads. */
#include "nn/internal.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

#include <math.h>
#include <stdlib.h>

/* Added to the squared lengths of the delta rule's queries and keys. */
static const double L2_EPS = 1e-6;

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

static Tensor *projection_new(Params *params, const char *name, int64_t features, int64_t D)
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

/* ------------------------------------------------------------------------------------ the layer */

/* The tensors that the joined product computes; LSH attention shares queries and keys. */
static int part_count(const Attention *attention)
{
    return attention->kind == ATTENTION_CAUSAL_LSH || attention->kind == ATTENTION_LSH ? 2 : 3;
}

static Linear input_new(Params *params, const char *name, const Attention *attention, double std)
{
    static const char *const all[] = { "query", "key", "value" }, *const lsh[] = { "query",
                                                                                   "value" };
    const int count = part_count(attention);
    const char *const *parts = count == 2 ? lsh : all;
    const int64_t width = attention->heads * attention->head_dim;
    const LinearConfig initial = nn_linear_config(width, std);
    Linear input;
    input.weight = params_add_joined(params, name, parts, count, "weight", shape(width, width),
                                     initial.weight);
    input.bias = params_add_joined(params, name, parts, count, "bias", shape(width), initial.bias);
    return input;
}

/* Per head -r_h, or c_h; see DecayKind. */
static Tensor *decay_constants(Params *params, DecayKind decay, int64_t H)
{
    Tensor *constants = params_new_constant("nn_attention", params, NULL, shape(H));
    Real *host = memory_allocate((size_t)H * sizeof *host);
    if (!host)
        error_raise("nn_attention: memory is exhausted: a decay of %lld heads", (long long)H);
    for (int64_t h = 0; h < H; h++) {
        const double rate = exp2(-5 - (H > 1 ? 4.0 * (double)h / (double)(H - 1) : 0));
        host[h] = (Real)(decay == DECAY_CONSTANT ? -rate : log(expm1(rate)));
    }
    tensor_write(constants, host);
    free(host);
    return constants;
}

/* Decay, beta, convolution, output gate and norm, as far as the config, of one layer, has them. */
static void add_gates(Params *params, const char *name, Attention *attention,
                      const TransformerConfig *config)
{
    const int64_t H = config->heads, D = config->head_dim, width = H * D;
    const DecayKind decay = config->softmax_decay ? config->softmax_decay : config->decay;
    const bool delta = config->attention == ATTENTION_DELTA_RULE;
    if (decay)
        attention->decay_constant = decay_constants(params, decay, H);
    if (decay == DECAY_LEARNED)
        attention->decay = nn_linear_part(params, name, "decay", width, H, config->initial_std);
    if (delta)
        attention->beta = nn_linear_part(params, name, "beta", width, H, config->initial_std);
    attention->unnormalized = config->unnormalized;
    if (config->convolution)
        attention->convolution = nn_causal_convolution(params, nn_name(name, "convolution").text,
                                                       3 * width, config->convolution);
    if (config->output_gate)
        attention->gate = nn_linear_part(params, name, "gate", width, width, config->initial_std);
    if (delta || attention->unnormalized)
        attention->norm = nn_rms_norm(params, nn_name(name, "norm").text, D);
}

/* Without its linear layers */
static Attention attention_new(Params *params, const char *name, TransformerConfig config)
{
    Attention attention = {
        .heads = config.heads,
        .head_dim = config.head_dim,
        .kind = config.attention,
        .features = config.features,
        .form = config.form,
        .lsh_rounds = config.lsh_rounds,
        .lsh_chunk = config.lsh_chunk,
        .lsh_buckets = config.lsh_buckets,
        .max_beta = config.max_beta,
        .rotary_dims = config.rotary_dims,
        .rotary_base = config.rotary_base,
    };
    if (config.features == FEATURES_RANDOM)
        attention.projection = projection_new(params, name, config.projections, config.head_dim);
    return attention;
}

Attention nn_attention(Params *params, const char *name, TransformerConfig config)
{
    config = nn_layer_config("nn_attention", config);
    const int64_t width = config.heads * config.head_dim;
    Attention attention = attention_new(params, name, config);
    attention.input = input_new(params, name, &attention, config.initial_std);
    attention.output = nn_linear_part(params, name, "out", width, width, nn_residual_std(&config));
    add_gates(params, name, &attention, &config);
    return attention;
}

CrossAttention nn_cross_attention(Params *params, const char *name, int64_t memory_width,
                                  TransformerConfig config)
{
    config = nn_layer_config("nn_cross_attention", config);
    if (config.attention != ATTENTION_LINEAR && config.attention != ATTENTION_SOFTMAX)
        error_raise("nn_cross_attention: attention is %d, expected ATTENTION_LINEAR or "
                    "ATTENTION_SOFTMAX",
                    (int)config.attention);
    const int64_t width = config.heads * config.head_dim;
    const double std = config.initial_std;
    Attention attention = attention_new(params, name, config);
    attention.input = nn_linear_part(params, name, "query", width, width, std);
    const Linear key = nn_linear_part(params, name, "key", memory_width, width, std);
    const Linear value = nn_linear_part(params, name, "value", memory_width, width, std);
    attention.output = nn_linear_part(params, name, "out", width, width, nn_residual_std(&config));
    return (CrossAttention){ attention, key, value };
}

/* label: "function: x" */
static void check_attention_input(Tape *tape, const char *label, Tensor *x, int64_t width)
{
    tape_use(tape, label, x);
    if (x->shape.rank != 3 || x->shape.size[2] != width)
        tape_error(tape, "%s %s, expected [B, N, %lld]", label, tensor_text(x).text,
                   (long long)width);
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

/* The gates of a layer's positions, [B, N, H]; NULL: the layer has none. See gates_of. */
typedef struct Gates {
    Tensor *log_decay, *beta;
} Gates;

/* to = a state after a layer's positions, unless to is NULL */
static void save_state(Real *to, const Tensor *after)
{
    if (to)
        device_copy(after->device, to, after->data, tensor_bytes(after));
}

/* The other kinds attend to keys of other processes. */
static void check_states_before(Tape *tape, const Attention *attention, AttentionOptions options)
{
    if (!options.states_before)
        return;
    if (attention->kind != ATTENTION_CAUSAL_LINEAR && attention->kind != ATTENTION_DELTA_RULE)
        tape_error(tape,
                   "nn_attention: states_before with attention %d, expected "
                   "ATTENTION_CAUSAL_LINEAR or ATTENTION_DELTA_RULE",
                   (int)attention->kind);
    if (options.key_lengths)
        tape_error(tape, "nn_attention: states_before with key_lengths, expected NULL: positions "
                         "of other processes follow");
    if (attention->rotary_dims && !options.positions)
        tape_error(tape, "nn_attention: states_before and rotary_dims without positions, expected "
                         "those of x in the whole sequence");
}

/* Sets options->state to that of earlier processes before the positions of query, key and value, as
 * in attend. */
static void linear_state_before(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                CausalLinearAttentionOptions *options, StatesBefore *states_before)
{
    Tensor *state = op_causal_linear_state(tape, key ? key : query, value, *options);
    Tensor *log_decay = options->log_decay ? op_sum(tape, options->log_decay, 1) : NULL;
    options->state = states_before(tape, state, log_decay);
}

static Tensor *identity(Tape *tape, int64_t D)
{
    Tensor *ones = tape_tensor(tape, shape(D)), *matrix = tape_tensor(tape, shape(D, D));
    tensor_fill(ones, 1);
    tensor_fill(matrix, 0);
    kernels_of(matrix)->copy_rows((Gradient){ matrix->data, false }, D + 1, ones->data, 1, D, 1);
    return matrix;
}

/* The same for the delta rule, whose positions take a state S to A S + B: zeros to B, and the
 * identity to A if all values are 0. */
static void delta_state_before(Tape *tape, Tensor *key, Tensor *value, Tensor *beta,
                               DeltaRuleOptions *options, StatesBefore *states_before)
{
    Tensor *state = NULL, *transition = NULL;
    const int64_t *size = key->shape.size, D = size[3];
    Tensor *zeros = tape_tensor_of(tape, value->type, value->shape);
    tensor_fill(zeros, 0);
    op_delta_rule(tape, key, key, value, beta, *options, &state);
    options->state = op_broadcast_to(tape, identity(tape, D), shape(size[0], size[2], D, D));
    op_delta_rule(tape, key, key, zeros, beta, *options, &transition);
    options->state = states_before(tape, state, transition);
}

static Tensor *attend_linear(Tape *tape, const Attention *attention, Tensor *query, Tensor *key,
                             Tensor *value, AttentionOptions given, Tensor *log_decay,
                             const AttentionCache *cache)
{
    Tensor *sums = NULL;
    FeatureMap feature_map = (FeatureMap)attention->features;
    if (attention->features > FEATURES_IDENTITY) {
        const int64_t H = attention->heads;
        if (!key) {
            value = op_slice(tape, query, 2, 2 * H, H);
            key = op_slice(tape, query, 2, H, H);
            query = op_slice(tape, query, 2, 0, H);
        }
        query = map_features(tape, attention, query, true);
        key = map_features(tape, attention, key, false);
        feature_map = FEATURE_MAP_IDENTITY;
    }
    if (attention->kind == ATTENTION_LINEAR)
        return op_linear_attention(tape, query, key, value,
                                   (LinearAttentionOptions){ .features = feature_map,
                                                             .eps = ATTENTION_EPS,
                                                             .key_lengths = given.key_lengths });
    CausalLinearAttentionOptions options = { .features = feature_map,
                                             .eps = ATTENTION_EPS,
                                             .key_lengths = given.key_lengths,
                                             .form = attention->form,
                                             .unnormalized = attention->unnormalized,
                                             .log_decay = log_decay };
    if (given.states_before)
        linear_state_before(tape, query, key, value, &options, given.states_before);
    else if (cache)
        options.state = (Tensor *)&cache->state->sums;
    Tensor *out =
        op_causal_linear_attention(tape, query, key, value, options, cache ? &sums : NULL);
    save_state(cache ? cache->sums_after : NULL, sums);
    return out;
}

/* Appends keys and values to the cache. N may exceed max_length when lengths end every sequence
 * before it: the rest is padding. */
static void append_to_cache(Tape *tape, Tensor *packed, const AttentionCache *cache)
{
    const Tensor *const caches[] = { &cache->state->keys, &cache->state->values };
    const Shape to = caches[0]->shape; /* [B, H, max_length, D] */
    const int64_t H = to.size[1], max_length = to.size[2], D = to.size[3];
    const int64_t N = packed->shape.size[1], count = N < max_length ? N : max_length;
    Tensor *heads = op_transpose(tape, packed, 1, 2); /* [B, 3 H, N, D] */
    if (heads->type != caches[0]->type) {
        Tensor *converted = tape_tensor_of(tape, caches[0]->type, heads->shape);
        convert(heads->device, (Gradient){ converted->data, false }, heads->data,
                converted->type == TENSOR_BF16, tensor_count(heads));
        heads = converted;
    }
    for (int64_t b = 0; b < to.size[0]; b++)
        for (int i = 0; i < 2; i++) {
            Real *dst = tensor_at(caches[i], (b * H * max_length + cache->counts[b]) * D);
            const Real *src = tensor_at(heads, (3 * b + 1 + i) * H * N * D);
            kernels_of(heads)->copy_rows((Gradient){ dst, false }, max_length * D, src, N * D, H,
                                         count * D);
        }
}

static Tensor *attend_causal_softmax(Tape *tape, const Attention *attention, Tensor *packed,
                                     SoftmaxAttentionOptions options, const AttentionCache *cache)
{
    if (cache)
        append_to_cache(tape, packed, cache);
    if (!cache || !cache->lengths)
        return op_causal_softmax_attention(tape, packed, NULL, NULL, options);
    /* Each head of a sequence as a sequence of one head, whose keys the cache has in a row. */
    const int64_t B = packed->shape.size[0], H = attention->heads, D = attention->head_dim;
    const Shape rows = shape(B * H, cache->state->keys.shape.size[2], 1, D);
    Tensor *query = op_slice(tape, packed, 2, 0, H); /* [B, 1, H, D] */
    Tensor *out = op_softmax_attention(tape, op_reshape(tape, query, shape(B * H, 1, 1, D)),
                                       op_reshape(tape, (Tensor *)&cache->state->keys, rows),
                                       op_reshape(tape, (Tensor *)&cache->state->values, rows),
                                       (SoftmaxAttentionOptions){ .key_lengths = cache->lengths });
    return op_reshape(tape, out, query->shape);
}

/* packed [B, N, 2 H, D]: the H heads of queries, which are also the keys, then those of values. */
static Tensor *attend_lsh(Tape *tape, const Attention *attention, Tensor *packed,
                          Tensor *key_lengths)
{
    LshAttentionOptions options = { .rounds = attention->lsh_rounds,
                                    .chunk = attention->lsh_chunk,
                                    .buckets = attention->lsh_buckets,
                                    .key_lengths = key_lengths };
    if (attention->kind == ATTENTION_CAUSAL_LSH)
        return op_causal_lsh_attention(tape, packed, NULL, options);
    return op_lsh_attention(tape, packed, NULL, options);
}

/* packed [B, N, 3 H, D] */
static Tensor *attend_delta_rule(Tape *tape, const Attention *attention, Tensor *packed,
                                 Tensor *beta, AttentionOptions given, Tensor *log_decay,
                                 const AttentionCache *cache)
{
    Tensor *sums = NULL;
    DeltaRuleOptions options = { .key_lengths = given.key_lengths, .log_decay = log_decay };
    const int64_t H = attention->heads;
    Tensor *query = op_l2_normalize(tape, op_slice(tape, packed, 2, 0, H), L2_EPS);
    Tensor *key = op_l2_normalize(tape, op_slice(tape, packed, 2, H, H), L2_EPS);
    Tensor *value = op_slice(tape, packed, 2, 2 * H, H);
    query = op_scale(tape, query, 1 / sqrt((double)attention->head_dim));
    if (given.states_before)
        delta_state_before(tape, key, value, beta, &options, given.states_before);
    else if (cache)
        options.state = (Tensor *)&cache->state->sums;
    Tensor *out = op_delta_rule(tape, query, key, value, beta, options, cache ? &sums : NULL);
    save_state(cache ? cache->sums_after : NULL, sums);
    return out;
}

/* query, key and value [B, N, H, D], returned in this shape; or key and value NULL and query
 * [B, N, 3 H, D], the H heads of queries, then of keys, then of values; see attend_lsh. */
static Tensor *attend(Tape *tape, const Attention *attention, Tensor *query, Tensor *key,
                      Tensor *value, AttentionOptions options, Gates gates,
                      const AttentionCache *cache)
{
    const AttentionKind kind = attention->kind;
    Tensor *const key_lengths = options.key_lengths, *const log_decay = gates.log_decay;
    const SoftmaxAttentionOptions softmax = { .key_lengths = key_lengths,
                                              .mask = options.mask,
                                              .log_decay = log_decay };
    if (options.mask && kind != ATTENTION_SOFTMAX && kind != ATTENTION_CAUSAL_SOFTMAX)
        tape_error(tape, "nn_attention: attention %d takes no mask; softmax attention does",
                   (int)kind);
    switch (kind) {
    case ATTENTION_CAUSAL_LINEAR:
    case ATTENTION_LINEAR:
        return attend_linear(tape, attention, query, key, value, options, log_decay, cache);
    case ATTENTION_CAUSAL_SOFTMAX:
        return attend_causal_softmax(tape, attention, query, softmax, cache);
    case ATTENTION_SOFTMAX:
        return op_softmax_attention(tape, query, key, value, softmax);
    case ATTENTION_CAUSAL_LSH:
    case ATTENTION_LSH:
        return attend_lsh(tape, attention, query, key_lengths);
    case ATTENTION_DELTA_RULE:
        return attend_delta_rule(tape, attention, query, gates.beta, options, log_decay, cache);
    }
    tape_error(tape, "nn_attention: there is no attention %d", (int)kind);
}

/* [B, N, width] to [B, N, H, D], and back */
static Tensor *split_heads(Tape *tape, const Linear *linear, Tensor *x, int64_t D)
{
    const int64_t B = x->shape.size[0], N = x->shape.size[1];
    x = nn_linear_forward(tape, linear, x);
    return op_reshape(tape, x, shape(B, N, x->shape.size[2] / D, D));
}

static Tensor *join_heads(Tape *tape, const Linear *linear, Tensor *x)
{
    const int64_t *size = x->shape.size;
    return nn_linear_forward(tape, linear,
                             op_reshape(tape, x, shape(size[0], size[1], size[2] * size[3])));
}

/* The last taps - 1 inputs of the process before: states whose log decay is -infinity, as a part
 * of that many positions leaves nothing of the inputs before it. */
static Tensor *inputs_before(Tape *tape, Tensor *x, int64_t count, StatesBefore *states_before)
{
    const int64_t B = x->shape.size[0], N = x->shape.size[1], C = x->shape.size[2];
    if (N < count)
        tape_error(tape,
                   "nn_attention: states_before: %lld positions, expected at least %lld: the "
                   "convolution's taps - 1",
                   (long long)N, (long long)count);
    Tensor *last = op_cast(tape, op_slice(tape, x, 1, N - count, count), TENSOR_REAL);
    Tensor *log_decay = tape_tensor(tape, shape(B, 1));
    tensor_fill(log_decay, (Real)-INFINITY);
    Tensor *before = states_before(tape, op_reshape(tape, last, shape(B, 1, count, C)), log_decay);
    return op_reshape(tape, before, last->shape);
}

/* silu of the causal convolution of packed [B, N, 3 H, D] */
static Tensor *convolve_heads(Tape *tape, const Attention *attention, Tensor *packed,
                              AttentionOptions given, const AttentionCache *cache)
{
    Tensor *after = NULL;
    const Shape heads = packed->shape;
    const int64_t taps = attention->convolution.weight->shape.size[1];
    CausalConvolutionOptions options = { .lengths = given.key_lengths };
    packed = op_reshape(tape, packed,
                        shape(heads.size[0], heads.size[1], heads.size[2] * heads.size[3]));
    if (given.states_before)
        options.state = inputs_before(tape, packed, taps - 1, given.states_before);
    else if (cache)
        options.state = (Tensor *)&cache->state->convolution;
    packed = nn_causal_convolution_forward(tape, &attention->convolution, packed, options,
                                           cache ? &after : NULL);
    save_state(cache ? cache->convolution_after : NULL, after);
    return op_reshape(tape, op_silu(tape, packed), heads);
}

/* The gates of x [B, N, width], in Real */
static Gates gates_of(Tape *tape, const Attention *attention, Tensor *x)
{
    const Shape all = shape(x->shape.size[0], x->shape.size[1], attention->heads);
    Tensor *constant = attention->decay_constant;
    Gates gates = { NULL, NULL };
    if (attention->decay.weight) {
        Tensor *z = op_cast(tape, nn_linear_forward(tape, &attention->decay, x), TENSOR_REAL);
        z = op_softplus(tape, op_add(tape, z, constant));
        gates.log_decay = op_scale(tape, z, -1);
    } else if (constant) {
        gates.log_decay = op_broadcast_to(tape, constant, all);
    }
    if (attention->beta.weight) {
        Tensor *z = op_cast(tape, nn_linear_forward(tape, &attention->beta, x), TENSOR_REAL);
        gates.beta = op_scale(tape, op_sigmoid(tape, z), attention->max_beta);
    }
    return gates;
}

Tensor *nn_attention_forward_cached(Tape *tape, const Attention *attention, Tensor *x,
                                    AttentionOptions options, const AttentionCache *cache)
{
    const int64_t D = attention->head_dim;
    check_attention_input(tape, "nn_attention_forward: x", x, attention->heads * D);
    check_states_before(tape, attention, options);
    Tensor *packed = split_heads(tape, &attention->input, x, D);
    if (attention->convolution.weight)
        packed = convolve_heads(tape, attention, packed, options, cache);
    if (attention->rotary_dims)
        packed = op_rotary(tape, packed,
                           (RotaryOptions){ .dims = attention->rotary_dims,
                                            .heads = 2 * attention->heads,
                                            .base = attention->rotary_base,
                                            .halves = true,
                                            .positions = options.positions });
    const Gates gates = gates_of(tape, attention, x);
    Tensor *out = attend(tape, attention, packed, NULL, NULL, options, gates, cache);
    if (attention->norm.weight)
        out = nn_rms_norm_forward(tape, &attention->norm, out);
    if (attention->gate.weight)
        out = op_multiply(tape, out, op_silu(tape, split_heads(tape, &attention->gate, x, D)));
    return join_heads(tape, &attention->output, out);
}

Tensor *nn_attention_forward(Tape *tape, const Attention *attention, Tensor *x,
                             AttentionOptions options)
{
    error_need("nn_attention_forward", "the layer", attention);
    return nn_attention_forward_cached(tape, attention, x, options, NULL);
}

Tensor *nn_cross_attention_forward(Tape *tape, const CrossAttention *cross, Tensor *x,
                                   Tensor *memory, AttentionOptions options)
{
    error_need("nn_cross_attention_forward", "the layer", cross);
    const Attention *attention = &cross->attention;
    const int64_t D = attention->head_dim, memory_width = cross->key.weight->shape.size[1];
    check_attention_input(tape, "nn_cross_attention_forward: x", x, attention->heads * D);
    check_attention_input(tape, "nn_cross_attention_forward: memory", memory, memory_width);
    check_states_before(tape, attention, options);
    Tensor *query = split_heads(tape, &attention->input, x, D);
    Tensor *key = split_heads(tape, &cross->key, memory, D);
    Tensor *value = split_heads(tape, &cross->value, memory, D);
    Tensor *out = attend(tape, attention, query, key, value, options, (Gates){ 0 }, NULL);
    return join_heads(tape, &attention->output, out);
}
