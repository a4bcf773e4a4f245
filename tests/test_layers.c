/* The layers: names, defaults, finite differences, equality with operations, misuse. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Device *device;
static Tape *tape;
static Params *params;

static void begin(void)
{
    device = test_device();
    tape = tape_new(device);
    params = params_new(device, 5);
}

static void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

static double largest(const Tensor *tensor)
{
    const Real *values = test_values(tensor);
    double result = 0;
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        result = fmax(result, fabs((double)values[i]));
    return result;
}

/* ---------------------------------------------------------------------- names, shapes, defaults */
static void assert_weight(const char *name, Shape expected)
{
    const Tensor *weight = params_find(params, name);
    ck_assert_msg(weight != NULL, "there is no weight %s", name);
    ck_assert_msg(shape_equal(weight->shape, expected), "%s has shape %s, expected %s", name,
                  shape_text(weight->shape).text, shape_text(expected).text);
}

TEST(a_transformer_names_its_weights)
{
    begin();
    Transformer transformer =
        nn_transformer(params, "", (TransformerConfig){ .layers = 2, .heads = 2, .head_dim = 3 });
    ck_assert_int_eq(transformer.layers, 2);
    static const char *const layers[] = { "layers.0", "layers.1" };
    for (int i = 0; i < 2; i++) {
        const struct {
            const char *name;
            Shape shape;
        } expected[] = {
            { "attention.query.weight", shape(6, 6) },
            { "attention.query.bias", shape(6) },
            { "attention.key.weight", shape(6, 6) },
            { "attention.key.bias", shape(6) },
            { "attention.value.weight", shape(6, 6) },
            { "attention.value.bias", shape(6) },
            { "attention.out.weight", shape(6, 6) },
            { "attention.out.bias", shape(6) },
            { "norm1.weight", shape(6) },
            { "norm1.bias", shape(6) },
            { "ff1.weight", shape(24, 6) },
            { "ff1.bias", shape(24) },
            { "ff2.weight", shape(6, 24) },
            { "ff2.bias", shape(6) },
            { "norm2.weight", shape(6) },
            { "norm2.bias", shape(6) },
        };
        for (size_t j = 0; j < sizeof expected / sizeof expected[0]; j++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s", layers[i], expected[j].name);
            assert_weight(name, expected[j].shape);
        }
    }
    assert_weight("norm.weight", shape(6));
    assert_weight("norm.bias", shape(6));
    ck_assert_int_eq(params_count(params), 2 * 16 + 2);
    ck_assert(shape_equal(transformer.layer[1].attention.input.weight->shape, shape(18, 6)));
    ck_assert_ptr_eq(params_find(params, "layers.1.attention.key.bias")->base,
                     transformer.layer[1].attention.input.bias);
    end();
}

TEST(a_config_of_zeros_means_the_defaults)
{
    begin();
    Transformer transformer = nn_transformer(params, "transformer", (TransformerConfig){ 0 });
    const Attention *attention = &transformer.layer[0].attention;
    ck_assert_int_eq(transformer.layers, 4);
    ck_assert(transformer.has_norm);
    ck_assert_int_eq(attention->heads, 8);
    ck_assert_int_eq(attention->head_dim, 32);
    ck_assert_ptr_nonnull(attention->kind);
    assert_weight("transformer.layers.3.ff1.weight", shape(1024, 256));
    assert_weight("transformer.norm.bias", shape(256));
    ck_assert_int_eq(params_count(params), 4 * 16 + 2);

    nn_transformer(params, "other", (TransformerConfig){ .layers = 1, .no_final_norm = true });
    ck_assert_int_eq(params_count(params), 4 * 16 + 2 + 16);
    end();
}

TEST(gated_feed_forward_is_its_three_linear_layers)
{
    enum { ROWS = 4, WIDTH = 6, INNER = 9 };
    begin();
    const GatedFeedForward layer = nn_gated_feed_forward(params, "ff", WIDTH, INNER);
    Tensor *x = tape_variable(tape, test_normal(1, ROWS * WIDTH), shape(ROWS, WIDTH));
    assert_weight("ff.gate.weight", shape(INNER, WIDTH));
    assert_weight("ff.up.weight", shape(INNER, WIDTH));
    assert_weight("ff.down.weight", shape(WIDTH, INNER));
    ck_assert_double_le(largest(layer.gate_up), 1 / sqrt(WIDTH));
    ck_assert_double_le(largest(layer.down), 1 / 3.0);
    Tensor *gate = op_linear(tape, x, params_find(params, "ff.gate.weight"), NULL);
    Tensor *up = op_linear(tape, x, params_find(params, "ff.up.weight"), NULL);
    Tensor *expected = op_multiply(tape, op_multiply(tape, gate, op_sigmoid(tape, gate)), up);
    expected = op_linear(tape, expected, params_find(params, "ff.down.weight"), NULL);
    Tensor *out = nn_gated_feed_forward_forward(tape, &layer, x);
    assert_close(test_values(out), test_values(expected), ROWS * WIDTH, 1e-6);
    tape_backward(tape, op_sum(tape, op_square(tape, out), ALL_AXES));
    ck_assert(largest(tensor_gradient(params_find(params, "ff.gate.weight"))) > 0);
    ck_assert(largest(tensor_gradient(params_find(params, "ff.up.weight"))) > 0);
    end();
}

TEST(initial_weights_are_those_of_the_papers_code)
{
    begin();
    Linear linear = nn_linear(params, "linear", 25, 300);
    LayerNorm norm = nn_layernorm(params, "norm", 8);
    Embedding embedding = nn_embedding(params, "embedding", 100, 40);
    Attention attention =
        nn_attention(params, "attention", (TransformerConfig){ .heads = 4, .head_dim = 4 });
    const struct {
        const Tensor *tensor;
        double bound;
    } uniform[] = { { linear.weight, 0.2 },
                    { linear.bias, 0.2 },
                    { attention.input.weight, 0.25 },
                    { attention.input.bias, 0.25 },
                    { attention.output.weight, 0.25 } };
    for (int i = 0; i < (int)(sizeof uniform / sizeof *uniform); i++) {
        const double found = largest(uniform[i].tensor);
        ck_assert_double_le(found, uniform[i].bound * (1 + 1e-6));
        ck_assert_double_ge(found, uniform[i].bound * 0.8);
    }
    double square = 0;
    const Real *table = test_values(embedding.weight);
    for (int i = 0; i < 4000; i++)
        square += (double)table[i] * (double)table[i];
    ck_assert_double_eq_tol(square / 4000, 1, 4 * sqrt(2. / 4000));
    for (int i = 0; i < 8; i++) {
        ck_assert(test_values(norm.weight)[i] == 1);
        ck_assert(test_values(norm.bias)[i] == 0);
    }
    end();
}

/* The square root of the mean of squares. */
static double deviation(const Tensor *tensor)
{
    const Real *values = test_values(tensor);
    double square = 0;
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        square += (double)values[i] * (double)values[i];
    return sqrt(square / (double)tensor_count(tensor));
}

TEST(an_initial_std_initializes_as_gpt2_does)
{
    begin();
    const TransformerConfig config = {
        .layers = 8, .heads = 4, .head_dim = 8, .initial_std = 0.02
    };
    const Transformer transformer = nn_transformer(params, "t", config);
    const TransformerLayer *layer = &transformer.layer[7];
    const Attention *attention = &layer->attention;
    const Linear *const linear[] = { &attention->input, &layer->ff1, &attention->output,
                                     &layer->ff2 };
    for (int i = 0; i < 4; i++) {
        const double std = i < 2 ? 0.02 : 0.02 / sqrt(2 * 8);
        const double count = (double)tensor_count(linear[i]->weight);
        ck_assert_double_eq_tol(deviation(linear[i]->weight), std, 4 * std / sqrt(2 * count));
        ck_assert(largest(linear[i]->weight) > 2.5 * std); /* normal, not uniform */
        ck_assert(largest(linear[i]->bias) == 0);
    }
    ck_assert(test_values(layer->norm1.weight)[0] == 1);
    end();
}

TEST(positions_follow_the_formula)
{
    begin();
    enum { LENGTH = 50, WIDTH = 7 };
    Tensor *positions = nn_sinusoidal_positions(params, LENGTH, WIDTH);
    ck_assert(shape_equal(positions->shape, shape(LENGTH, WIDTH)));
    const Real *values = test_values(positions);
    for (int n = 0; n < LENGTH; n++)
        for (int i = 0; 2 * i < WIDTH; i++) {
            double angle = n / pow(10000, 2. * i / WIDTH);
            ck_assert(values[n * WIDTH + 2 * i] == (Real)sin(angle));
            if (2 * i + 1 < WIDTH)
                ck_assert(values[n * WIDTH + 2 * i + 1] == (Real)cos(angle));
        }
    ck_assert_int_eq(params_count(params), 0);
    end();
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(invalid_configs_raise)
{
    begin();
#define CONFIG(...) ((TransformerConfig){ __VA_ARGS__ })
    assert_raises("nn_transformer: layers is 65, expected 1 to 64, or 0 for the default",
                  nn_transformer(params, "t", CONFIG(.layers = 65)));
    assert_raises("nn_transformer: layers is -1, expected 1 to 64, or 0 for the default",
                  nn_transformer(params, "t", CONFIG(.layers = -1)));
    assert_raises("nn_transformer: heads is -2, expected 1 to 1048576, or 0 for the default",
                  nn_transformer(params, "t", CONFIG(.heads = -2)));
    assert_raises("nn_attention: head_dim is -2, expected 1 to 1048576, or 0 for the default",
                  nn_attention(params, "t", CONFIG(.head_dim = -2)));
    assert_raises("nn_transformer_layer: feed_forward is 1048577, expected 1 to 1048576, or 0 for "
                  "the default",
                  nn_transformer_layer(params, "t", CONFIG(.feed_forward = 1048577)));
    assert_raises(
        "nn_causal_linear_attention: there is no form 5",
        nn_causal_linear_attention(params, (CausalLinearConfig){ .form = (AttentionForm)5 }));
    assert_raises("nn_transformer: dropout is 1, expected 0 <= dropout < 1",
                  nn_transformer(params, "t", CONFIG(.dropout = 1)));
    assert_raises("nn_transformer: dropout is nan, expected 0 <= dropout < 1",
                  nn_transformer(params, "t", CONFIG(.dropout = NAN)));
    assert_raises("nn_transformer: initial_std is -1, expected 0 or more, and finite",
                  nn_transformer(params, "t", CONFIG(.initial_std = -1)));
    assert_raises("nn_transformer: there is no activation 4",
                  nn_transformer(params, "t", CONFIG(.activation = (Activation)4)));
    assert_raises("nn_dropout: the probability is -0.5, expected 0 <= probability < 1",
                  nn_dropout(-0.5));
    assert_raises("nn_linear_forward: the layer is NULL", nn_linear_forward(tape, NULL, NULL));
    assert_raises("nn_embedding_forward: the layer is NULL",
                  nn_embedding_forward(tape, NULL, NULL));
    assert_raises("nn_layernorm_forward: the layer is NULL",
                  nn_layernorm_forward(tape, NULL, NULL));
    assert_raises("nn_dropout_forward: the layer is NULL", nn_dropout_forward(tape, NULL, NULL));
    assert_raises("nn_attention_forward: the layer is NULL",
                  nn_attention_forward(tape, NULL, NULL, (AttentionOptions){ 0 }));
    assert_raises("nn_transformer_layer_forward: the layer is NULL",
                  nn_transformer_layer_forward(tape, NULL, NULL, (AttentionOptions){ 0 }));
    assert_raises("nn_transformer_forward: the layer is NULL",
                  nn_transformer_forward(tape, NULL, NULL, (AttentionOptions){ 0 }));
    assert_raises("nn_linear: l: in is 0 and out 3, expected 1 or more",
                  nn_linear(params, "l", 0, 3));
    assert_raises("nn_embedding: e: count is 3 and width -1, expected 1 or more",
                  nn_embedding(params, "e", 3, -1));
    assert_raises("nn_layernorm: n: width is 0, expected 1 or more", nn_layernorm(params, "n", 0));
    assert_raises("nn_gated_feed_forward: f: width is 3 and inner 0, expected 1 or more",
                  nn_gated_feed_forward(params, "f", 3, 0));
    assert_raises("nn_gated_feed_forward_forward: the layer is NULL",
                  nn_gated_feed_forward_forward(tape, NULL, NULL));
    assert_raises("nn_sinusoidal_positions: length is 0 and width 4, expected 1 or more",
                  nn_sinusoidal_positions(params, 0, 4));
    assert_raises("shape: a tensor of these 2 sizes would take 2^63 bytes or more",
                  nn_sinusoidal_positions(params, (int64_t)1 << 40, (int64_t)1 << 22));
    ck_assert_int_eq(params_count(params), 0);
    end();
}

TEST(misuse_of_attention_raises)
{
    begin();
    Attention attention =
        nn_attention(params, "a", (TransformerConfig){ .heads = 2, .head_dim = 3 });
    Tensor *x = tape_input(tape, test_normal(1, 2 * 4 * 6), shape(2, 4, 6));
    assert_raises("nn_attention_forward: x is [8,6], expected [B, N, 6]",
                  nn_attention_forward(tape, &attention, op_reshape(tape, x, shape(8, 6)),
                                       (AttentionOptions){ 0 }));
    assert_raises("nn_attention_forward: x is [4,4,3], expected [B, N, 6]",
                  nn_attention_forward(tape, &attention, op_reshape(tape, x, shape(4, 4, 3)),
                                       (AttentionOptions){ 0 }));
    assert_raises("nn_attention_forward: x is NULL",
                  nn_attention_forward(tape, &attention, NULL, (AttentionOptions){ 0 }));
    end();
}

TEST(an_uninitialized_transformer_raises)
{
    begin();
    const Transformer transformer = { .layers = 0 };
    Tensor *x = tape_input(tape, test_normal(1, 2 * 4 * 6), shape(2, 4, 6));
    assert_raises("nn_transformer_forward: the transformer has no layers; see nn_transformer",
                  nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 }));
    end();
}

/* --------------------------------------------------------------------------- finite differences
 * A layer is a struct of handles: the check replaces them by its own variables. */
typedef struct LayerCheck {
    TransformerLayer layer;
    const int32_t *key_lengths;
} LayerCheck;

static Tensor *forward(Tape *checking, const LayerCheck *check, const TransformerLayer *layer,
                       Tensor *x)
{
    Tensor *key_lengths =
        check->key_lengths ? tape_input_i32(checking, check->key_lengths, shape(2)) : NULL;
    return nn_transformer_layer_forward(checking, layer, x,
                                        (AttentionOptions){ .key_lengths = key_lengths });
}

static Tensor *of_attention(Tape *checking, Tensor *const *in, void *context)
{
    const LayerCheck *check = context;
    TransformerLayer layer = check->layer;
    layer.attention.input = (Linear){ in[1], in[2] };
    layer.attention.output = (Linear){ in[3], in[4] };
    layer.norm1.weight = in[5];
    layer.norm1.bias = in[6];
    return forward(checking, check, &layer, in[0]);
}

static Tensor *of_feed_forward(Tape *checking, Tensor *const *in, void *context)
{
    const LayerCheck *check = context;
    TransformerLayer layer = check->layer;
    layer.ff1 = (Linear){ in[1], in[2] };
    layer.ff2 = (Linear){ in[3], in[4] };
    layer.norm2.weight = in[5];
    layer.norm2.bias = in[6];
    return forward(checking, check, &layer, in[0]);
}

/* The flat gradients of the mean square of transformer(x + added). */
static const Real *gradients_of(const Transformer *transformer, Tensor *added)
{
    Tensor *x = tape_input(tape, test_normal(3, 2 * 5 * 6), shape(2, 5, 6));
    Tensor *target = tape_input(tape, test_zeros(2 * 5 * 6), shape(2, 5, 6));
    x = op_add(tape, x, added);
    x = nn_transformer_forward(tape, transformer, x, (AttentionOptions){ 0 });
    tape_backward(tape, op_mean_squared_error(tape, x, target));
    const Real *gradients = test_values(params_flat_gradients(params));
    params_zero_gradients(params);
    tape_reset(tape);
    return gradients;
}

/* Each operation of a layer skips the gradients of frozen weights and computes all others. */
TEST(frozen_weights_leave_the_gradients_of_the_others)
{
    static const char *const patterns[] = { "*.weight", "*.bias", "*norm*.weight", "*ff1*", "*ff2*",
                                            "*.key.*",  "*out.*", "layers.0.*",    "free" };
    for (int pre_norm = 0; pre_norm < 2; pre_norm++) {
        begin();
        const TransformerConfig config = {
            .layers = 2, .heads = 2, .head_dim = 3, .feed_forward = 7, .pre_norm = pre_norm
        };
        Tensor *added = params_add(params, "free", shape(6), (Initializer){ INITIAL_NORMAL, 1 });
        const Transformer transformer = nn_transformer(params, "", config);
        const Real *all = gradients_of(&transformer, added);
        const Real *first = params_flat_values(params)->data;
        for (int i = 0; i < 9; i++) {
            params_set_requires_grad(params, patterns[i], false);
            const Real *some = gradients_of(&transformer, added);
            for (int w = 0; w < params_count(params); w++) {
                const Tensor *weight = params_at(params, w);
                const int64_t offset = weight->data - first, n = tensor_count(weight);
                assert_close(some + offset, weight->requires_grad ? all + offset : test_zeros(n), n,
                             1e-6);
            }
            params_set_requires_grad(params, "*", true);
        }
        end();
    }
}

typedef const AttentionKind *NewKind(Params *);

static const AttentionKind *linear_attention(Params *params_)
{
    return nn_linear_attention(params_, FEATURE_MAP_ELU_PLUS_ONE);
}

static const AttentionKind *causal_linear_attention(Params *params_)
{
    return nn_causal_linear_attention(params_, (CausalLinearConfig){ 0 });
}

static const AttentionKind *causal_softmax_attention(Params *params_)
{
    return nn_causal_softmax_attention(params_, (CausalSoftmaxConfig){ 0 });
}

static const AttentionKind *limited_attention(Params *params_)
{
    const CausalSoftmaxConfig limits = { .window = 2, .sinks = 1, .prefix = 2 };
    return nn_causal_softmax_attention(params_, limits);
}

static void check_layer(NewKind *kind, TransformerConfig config, const int32_t *key_lengths)
{
    begin();
    config.attention = kind(params);
    config.heads = 2;
    config.head_dim = 3;
    config.feed_forward = 7;
    LayerCheck check = { nn_transformer_layer(params, "layer", config), key_lengths };
    check_gradient(of_attention, &check, shape(2, 5, 6), shape(18, 6), shape(18), shape(6, 6),
                   shape(6), shape(6), shape(6));
    check_gradient(of_feed_forward, &check, shape(2, 5, 6), shape(7, 6), shape(7), shape(6, 7),
                   shape(6), shape(6), shape(6));
    end();
}

TEST(gradients_of_a_pre_norm_layer)
{
    check_layer(causal_linear_attention,
                (TransformerConfig){ .pre_norm = true, .activation = ACTIVATION_GELU }, NULL);
}

TEST(gradients_of_a_post_norm_layer_with_dropout)
{
    check_layer(causal_softmax_attention,
                (TransformerConfig){ .activation = ACTIVATION_GELU, .dropout = 0.25 }, NULL);
}

TEST(gradients_with_a_window_sinks_and_a_prefix)
{
    check_layer(limited_attention, (TransformerConfig){ .pre_norm = true }, NULL);
}

TEST(gradients_with_key_lengths)
{
    static const int32_t key_lengths[] = { 3, 5 };
    const TransformerConfig gelu = { .activation = ACTIVATION_GELU };
    check_layer(linear_attention,
                (TransformerConfig){ .pre_norm = true, .activation = ACTIVATION_GELU },
                key_lengths);
    check_layer(nn_softmax_attention, gelu, key_lengths);
    check_layer(causal_linear_attention, (TransformerConfig){ 0 }, key_lengths);
}

/* ------------------------------------------------------------------------------ cross-attention */
typedef struct CrossCheck {
    CrossAttention cross;
    bool masked;
} CrossCheck;

static Tensor *cross_forward(Tape *checking, const CrossCheck *check, Tensor *x, Tensor *memory)
{
    static const int32_t key_lengths[] = { 3, 5 };
    AttentionOptions options = { .key_lengths = tape_input_i32(checking, key_lengths, shape(2)) };
    if (check->masked)
        options.mask = tape_input(checking, test_normal(6, 2 * 5), shape(2, 5));
    return nn_cross_attention_forward(checking, &check->cross, x, memory, options);
}

static Tensor *of_query_and_out(Tape *checking, Tensor *const *in, void *context)
{
    CrossCheck check = *(const CrossCheck *)context;
    check.cross.attention.input = (Linear){ in[2], in[3] };
    check.cross.attention.output = (Linear){ in[4], in[5] };
    return cross_forward(checking, &check, in[0], in[1]);
}

static Tensor *of_key_and_value(Tape *checking, Tensor *const *in, void *context)
{
    CrossCheck check = *(const CrossCheck *)context;
    check.cross.key = (Linear){ in[2], in[3] };
    check.cross.value = (Linear){ in[4], in[5] };
    return cross_forward(checking, &check, in[0], in[1]);
}

TEST(gradients_of_cross_attention)
{
    enum { IN = 4 };
    begin();
    TransformerConfig config = { .heads = 2, .head_dim = 3 };
    config.attention = nn_softmax_attention(params);
    const CrossCheck softmax = { nn_cross_attention(params, "softmax", IN, config), true };
    config.attention = nn_linear_attention(params, FEATURE_MAP_ELU_PLUS_ONE);
    CrossCheck layers[] = { softmax, { nn_cross_attention(params, "linear", IN, config), false } };
    for (int i = 0; i < 2; i++) {
        check_gradient(of_query_and_out, &layers[i], shape(2, 2, 6), shape(2, 5, IN), shape(6, 6),
                       shape(6), shape(6, 6), shape(6));
        check_gradient(of_key_and_value, &layers[i], shape(2, 2, 6), shape(2, 5, IN), shape(6, IN),
                       shape(6), shape(6, IN), shape(6));
    }
    assert_weight("softmax.query.weight", shape(6, 6));
    assert_weight("softmax.key.weight", shape(6, IN));
    assert_weight("softmax.key.bias", shape(6));
    assert_weight("linear.value.weight", shape(6, IN));
    assert_weight("linear.out.weight", shape(6, 6));
    ck_assert_int_eq(params_count(params), 2 * 8);
    end();
}

/* The weights have the same names, and in another Params of the same seed the same values. */
TEST(cross_attention_to_x_itself_is_attention)
{
    begin();
    static const int32_t key_lengths[] = { 3, 5 };
    for (int map = 0; map <= FEATURE_MAP_IDENTITY + 1; map++) { /* the last is softmax */
        const bool softmax = map > FEATURE_MAP_IDENTITY;
        char name[24];
        snprintf(name, sizeof name, "%d", map);
        Params *one = params_new(device, 5), *two = params_new(device, 5);
        TransformerConfig config = { .heads = 2, .head_dim = 3, .initial_std = 0.3 };
        config.attention =
            softmax ? nn_softmax_attention(params) : nn_linear_attention(params, (FeatureMap)map);
        const Attention attention = nn_attention(one, name, config);
        const CrossAttention cross = nn_cross_attention(two, name, 6, config);
        Tensor *x = tape_input(tape, test_normal(3, 2 * 5 * 6), shape(2, 5, 6));
        AttentionOptions options = { .key_lengths = tape_input_i32(tape, key_lengths, shape(2)) };
        options.mask = softmax ? tape_input(tape, test_normal(4, 25), shape(5, 5)) : NULL;
        Tensor *expected = nn_attention_forward(tape, &attention, x, options);
        Tensor *out = nn_cross_attention_forward(tape, &cross, x, x, options);
        ck_assert_double_gt(largest(expected), 1e-3);
        assert_close(test_values(out), test_values(expected), 2 * 5 * 6, VECTOR_TOLERANCE);
        tape_reset(tape);
        params_free(one);
        params_free(two);
    }
    end();
}

TEST(misuse_of_cross_attention_raises)
{
    begin();
    TransformerConfig config = { .heads = 2, .head_dim = 3 };
    assert_raises("nn_cross_attention: attention is causal linear, expected linear or softmax",
                  nn_cross_attention(params, "d", 4, config));
    config.attention = nn_linear_attention(params, FEATURE_MAP_ELU_PLUS_ONE);
    const CrossAttention cross = nn_cross_attention(params, "c", 4, config);
    assert_raises("nn_linear: d.key: in is 0 and out 6, expected 1 or more",
                  nn_cross_attention(params, "d", 0, config));
    Tensor *x = tape_input(tape, test_normal(1, 2 * 5 * 6), shape(2, 5, 6));
    Tensor *memory = tape_input(tape, test_normal(1, 2 * 7 * 4), shape(2, 7, 4));
    Tensor *mask = tape_input(tape, test_zeros(5 * 7), shape(5, 7));
    const AttentionOptions none = { 0 };
    assert_raises("nn_cross_attention_forward: the layer is NULL",
                  nn_cross_attention_forward(tape, NULL, x, memory, none));
    assert_raises("nn_cross_attention_forward: x is [2,7,4], expected [B, N, 6]",
                  nn_cross_attention_forward(tape, &cross, memory, memory, none));
    assert_raises("nn_cross_attention_forward: memory is [2,5,6], expected [B, N, 4]",
                  nn_cross_attention_forward(tape, &cross, x, x, none));
    assert_raises("nn_cross_attention_forward: memory is NULL",
                  nn_cross_attention_forward(tape, &cross, x, NULL, none));
    assert_raises(
        "op_linear_attention: key is [1,7,2,3], expected [B, N, H, D] with the B, H, D of "
        "query, [2,5,2,3]",
        nn_cross_attention_forward(tape, &cross, x, op_slice(tape, memory, 0, 0, 1), none));
    assert_raises(
        "nn_attention: linear attention takes no mask; softmax attention does",
        nn_cross_attention_forward(tape, &cross, x, memory, (AttentionOptions){ .mask = mask }));
    end();
}

/* ----------------------------------------------------------------------- training and inference */
enum { BATCH = 2, LENGTH = 32, WIDTH = 32 };

static const TransformerConfig small = { .layers = 3, .heads = 4, .head_dim = 8 };

static Tensor *some_input(void)
{
    return tape_input(tape, test_normal(9, BATCH * LENGTH * WIDTH), shape(BATCH, LENGTH, WIDTH));
}

static void check_inference(TransformerConfig config)
{
    begin();
    Transformer transformer = nn_transformer(params, "t", config);
    tape_use(tape, "test: weights", params_at(params, 0));
    const size_t weights = device_memory(device).current;
    Real *trained = test_values(
        nn_transformer_forward(tape, &transformer, some_input(), (AttentionOptions){ 0 }));
    const size_t training = device_memory(device).current - weights;
    tape_reset(tape);
    ck_assert_uint_eq(device_memory(device).current, weights);

    config.dropout = 0.5;
    for (int i = 0; i < transformer.layers; i++)
        transformer.layer[i].dropout = nn_dropout(config.dropout);
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    Tensor *x = some_input();
    const size_t input = device_memory(device).current - weights;
    device_reset_peak(device);
    Tensor *out = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    assert_identical(test_values(out), trained, tensor_count(out));
    ck_assert_uint_eq(device_memory(device).current - weights, 2 * input);
    const size_t three_layers = device_memory(device).peak - weights;
    ck_assert_uint_lt(three_layers, training / 2);
    tape_reset(tape);

    transformer.layers = 2;
    x = some_input();
    device_reset_peak(device);
    nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    ck_assert_uint_eq(device_memory(device).peak - weights, three_layers);
    end();
}

TEST(inference_is_training_without_dropout_in_less_memory)
{
    check_inference(small);
    check_inference((TransformerConfig){
        .layers = 3, .heads = 4, .head_dim = 8, .pre_norm = true, .no_final_norm = true });
}

/* The vectors cover post-norm layers with a final norm; this test composes the other kinds from
 * single layers. */
TEST(a_pre_norm_transformer_is_made_of_its_parts)
{
    begin();
    TransformerConfig config = small;
    config.layers = 1;
    config.pre_norm = true;
    config.activation = ACTIVATION_GELU;
    Transformer whole = nn_transformer(params, "t", config);
    TransformerLayer *layer = &whole.layer[0];
    Tensor *x = some_input();
    Tensor *normed = nn_layernorm_forward(tape, &layer->norm1, x);
    Tensor *middle = op_add(
        tape, x, nn_attention_forward(tape, &layer->attention, normed, (AttentionOptions){ 0 }));
    normed = nn_layernorm_forward(tape, &layer->norm2, middle);
    Tensor *inner = op_gelu(tape, nn_linear_forward(tape, &layer->ff1, normed));
    Tensor *out = op_add(tape, middle, nn_linear_forward(tape, &layer->ff2, inner));
    Tensor *final = nn_layernorm_forward(tape, &whole.norm, out);
    assert_identical(
        test_values(nn_transformer_layer_forward(tape, layer, x, (AttentionOptions){ 0 })),
        test_values(out), tensor_count(x));
    assert_identical(test_values(nn_transformer_forward(tape, &whole, x, (AttentionOptions){ 0 })),
                     test_values(final), tensor_count(x));
    whole.has_norm = false;
    assert_identical(test_values(nn_transformer_forward(tape, &whole, x, (AttentionOptions){ 0 })),
                     test_values(out), tensor_count(x));
    end();
}

/* Only half the positions of the first sequence are keys: the contents of the other half
 * have no effect. */
TEST(key_lengths_hide_positions)
{
    begin();
    static NewKind *const kinds[] = { linear_attention, causal_linear_attention,
                                      nn_softmax_attention, causal_softmax_attention };
    static const int32_t lengths[] = { LENGTH / 2, LENGTH };
    Real *values = test_values(some_input());
    Attention attention = nn_attention(params, "a", small);
    const Shape size = shape(BATCH, LENGTH, WIDTH);
    for (int i = 0; i < 4; i++) {
        attention.kind = kinds[i](params);
        Tensor *key_lengths = tape_input_i32(tape, lengths, shape(BATCH));
        Tensor *x = tape_input(tape, values, size);
        Real *before = test_values(nn_attention_forward(
            tape, &attention, x, (AttentionOptions){ .key_lengths = key_lengths }));
        Real *all = test_values(nn_attention_forward(tape, &attention, x, (AttentionOptions){ 0 }));
        values[LENGTH / 2 * WIDTH] += 1;
        x = tape_input(tape, values, size);
        Real *after = test_values(nn_attention_forward(
            tape, &attention, x, (AttentionOptions){ .key_lengths = key_lengths }));
        assert_identical(after, before, LENGTH / 2 * WIDTH);
        const int later = (LENGTH / 2 + 1) * WIDTH; /* may see the changed position as a key */
        assert_identical(after + later, before + later, LENGTH * WIDTH - later);
        assert_identical(after + LENGTH * WIDTH, before + LENGTH * WIDTH, LENGTH * WIDTH);
        ck_assert_mem_ne(all, before, LENGTH * WIDTH * sizeof(Real));
    }
    end();
}

TEST(a_layers_limits_are_those_of_the_operation)
{
    begin();
    Attention attention = nn_attention(params, "a", small), limited = attention;
    Real *values = test_zeros(LENGTH * LENGTH);
    attention.kind = nn_softmax_attention(params);
    limited.kind = limited_attention(params);
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LENGTH; j++)
            if (!((i < 2 && j < 2) || (j <= i && (i - j < 2 || j < 1))))
                values[i * LENGTH + j] = -(Real)INFINITY;
    const AttentionOptions options = { .mask = tape_input(tape, values, shape(LENGTH, LENGTH)) };
    Tensor *x = some_input();
    assert_close(test_values(nn_attention_forward(tape, &limited, x, (AttentionOptions){ 0 })),
                 test_values(nn_attention_forward(tape, &attention, x, options)),
                 BATCH * LENGTH * WIDTH, VECTOR_TOLERANCE);
    assert_raises("nn_causal_softmax_attention: window is -1, expected 0 or more",
                  nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ .window = -1 }));
    assert_raises("nn_causal_softmax_attention: sinks is -2, expected 0 or more",
                  nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ .sinks = -2 }));
    assert_raises("nn_causal_softmax_attention: prefix is -3, expected 0 or more",
                  nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ .prefix = -3 }));
    end();
}

TEST(a_learned_sink_is_a_weight_of_the_layer)
{
    begin();
    TransformerConfig config = small;
    config.attention =
        nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ .learned_sink = true });
    const Attention attention = nn_attention(params, "a", config);
    Tensor *sinks = params_find(params, "a.sink_logits");
    ck_assert(shape_equal(sinks->shape, shape(attention.heads)));
    Tensor *out = nn_attention_forward(tape, &attention, some_input(), (AttentionOptions){ 0 });
    tape_backward(tape, op_sum(tape, op_square(tape, out), ALL_AXES));
    const Real *d = test_values(tensor_gradient(sinks));
    for (int h = 0; h < attention.heads; h++)
        ck_assert(d[h] != 0 && test_values(sinks)[h] == 0);
    end();
}

/* The keys j <= i of every layer */
TEST(a_mask_reaches_every_layer)
{
    begin();
    TransformerConfig config = small;
    config.attention = nn_softmax_attention(params);
    Transformer transformer = nn_transformer(params, "t", config);
    Real *values = test_zeros(LENGTH * LENGTH);
    for (int i = 0; i < LENGTH * LENGTH; i++)
        values[i] = i % LENGTH > i / LENGTH ? -(Real)INFINITY : 0;
    const AttentionOptions options = { .mask = tape_input(tape, values, shape(LENGTH, LENGTH)) };
    const Real *masked =
        test_values(nn_transformer_forward(tape, &transformer, some_input(), options));
    for (int i = 0; i < config.layers; i++)
        transformer.layer[i].attention.kind = causal_softmax_attention(params);
    assert_close(masked,
                 test_values(nn_transformer_forward(tape, &transformer, some_input(),
                                                    (AttentionOptions){ 0 })),
                 BATCH * LENGTH * WIDTH, VECTOR_TOLERANCE);
    transformer.layer[2].attention.kind = causal_linear_attention(params);
    assert_raises("nn_attention: causal linear attention takes no mask; softmax attention does",
                  nn_transformer_forward(tape, &transformer, some_input(), options));
    end();
}

TEST(a_dropout_layer_is_the_operation_while_the_tape_is_training)
{
    begin();
    Dropout dropout = nn_dropout(0.25);
    Tensor *x = some_input();
    const Random start = tape_random(tape);
    const Real *dropped = test_values(nn_dropout_forward(tape, &dropout, x));
    tape_set_random(tape, start);
    assert_identical(dropped, test_values(op_dropout(tape, x, 0.25)), tensor_count(x));
    tape_set_training(tape, false);
    ck_assert_ptr_eq(nn_dropout_forward(tape, &dropout, x), x);
    end();
}

/* An embedding that is also the output layer gets the sum of the gradients that two separate
 * weights of the same values get. */
TEST(a_tied_weight_gets_the_gradients_of_both_uses)
{
    enum { COUNT = 11, ROWS = 6 };
    begin();
    static const int32_t tokens[ROWS] = { 3, 1, 4, 1, 5, 9 }, targets[ROWS] = { 2, 6, 5, 3, 5, 8 };
    Embedding tied = nn_embedding(params, "tied", COUNT, WIDTH);
    Embedding input = nn_embedding(params, "input", COUNT, WIDTH);
    Linear output =
        nn_linear_with(params, "output", WIDTH, COUNT, (LinearConfig){ .no_bias = true });
    tensor_write(input.weight, test_values(tied.weight));
    tensor_write(output.weight, test_values(tied.weight));
    const Linear head = { .weight = tied.weight };
    Real loss[2];
    for (int i = 0; i < 2; i++) {
        Tensor *x = tape_input_i32(tape, tokens, shape(ROWS));
        x = op_tanh(tape, nn_embedding_forward(tape, i ? &input : &tied, x));
        x = nn_linear_forward(tape, i ? &output : &head, x);
        Tensor *entropy =
            op_cross_entropy(tape, x, tape_input_i32(tape, targets, shape(ROWS)), NULL);
        tape_backward(tape, entropy);
        loss[i] = (Real)tensor_item(entropy);
        tape_reset(tape);
    }
    ck_assert(loss[0] == loss[1]);
    const Real *both = test_values(tensor_gradient(tied.weight));
    const Real *first = test_values(tensor_gradient(input.weight));
    const Real *second = test_values(tensor_gradient(output.weight));
    for (int i = 0; i < COUNT * WIDTH; i++)
        ck_assert_double_eq_tol((double)both[i], (double)first[i] + (double)second[i], 1e-6);
    ck_assert_double_gt(largest(tensor_gradient(input.weight)), 1e-3);
    ck_assert_double_gt(largest(tensor_gradient(output.weight)), 1e-3);
    end();
}

TEST(a_layer_without_bias_is_a_product)
{
    begin();
    Linear layer = nn_linear_with(params, "l", WIDTH, 3, (LinearConfig){ .no_bias = true });
    Linear with_bias = nn_linear(params, "m", WIDTH, 3);
    ck_assert(!layer.bias && params_count(params) == 3);
    ck_assert_ptr_eq(params_find(params, "l.weight"), layer.weight);
    ck_assert_double_le(largest(layer.weight), 1 / sqrt(WIDTH));
    tensor_write(with_bias.weight, test_values(layer.weight));
    tensor_write(with_bias.bias, test_zeros(3));
    Tensor *x = some_input(), *out = nn_linear_forward(tape, &layer, x);
    Tensor *expected = nn_linear_forward(tape, &with_bias, x);
    assert_identical(test_values(out), test_values(expected), tensor_count(out));
    end();
}

/* A missing weight is ones, a missing bias zeros; files then lack their names, as PyTorch's do. */
TEST(norms_without_weight_or_bias)
{
    begin();
    const LayerNorm alone = nn_layernorm_with(
        params, "a", WIDTH, (LayerNormConfig){ .no_weight = true, .no_bias = true });
    const LayerNorm scaled =
        nn_layernorm_with(params, "s", WIDTH, (LayerNormConfig){ .no_bias = true });
    const LayerNorm full = nn_layernorm(params, "f", WIDTH);
    ck_assert(!alone.weight && !alone.bias && !scaled.bias);
    ck_assert_int_eq(params_count(params), 1 + 2);
    ck_assert_ptr_eq(params_find(params, "s.weight"), scaled.weight);
    Tensor *x = some_input(), *expected = nn_layernorm_forward(tape, &full, x);
    const Real *values = test_values(expected);
    assert_identical(test_values(nn_layernorm_forward(tape, &alone, x)), values, tensor_count(x));
    assert_identical(test_values(nn_layernorm_forward(tape, &scaled, x)), values, tensor_count(x));
    end();
}

/* The kinds draw the same numbers for one name, so these are multiples of the default values. */
TEST(layers_take_initializers)
{
    enum { IN = 16, OUT = 40 };
    begin();
    assert_raises(
        "params_add: k.weight: there is no initializer kind -1",
        nn_linear_with(params, "k", IN, OUT, (LinearConfig){ .weight = { (Initial)-1, 1 } }));
    assert_raises("params_add: k.weight: there is no initializer kind 0",
                  nn_embedding_with(params, "k", IN, OUT, (Initializer){ INITIAL_DEFAULT, 1 }));
    Params *other = params_new(device, 5);
    const Linear usual = nn_linear(other, "l", IN, OUT);
    const Embedding usual_table = nn_embedding(other, "e", IN, OUT);
    const Linear linear = nn_linear_with(
        params, "l", IN, OUT,
        (LinearConfig){ .weight = { INITIAL_UNIFORM, 0.5 }, .bias = { INITIAL_ZERO, 0 } });
    const Linear half =
        nn_linear_with(params, "half", IN, OUT, (LinearConfig){ .weight = { INITIAL_ZERO, 0 } });
    const Embedding table =
        nn_embedding_with(params, "e", IN, OUT, (Initializer){ INITIAL_NORMAL, 0.25 });
    for (int i = 0; i < IN * OUT; i++) {
        ck_assert(test_values(linear.weight)[i] == 2 * test_values(usual.weight)[i]);
        ck_assert(test_values(table.weight)[i] == test_values(usual_table.weight)[i] / 4);
    }
    ck_assert(largest(linear.bias) == 0 && largest(half.weight) == 0);
    ck_assert_double_ge(largest(half.bias), 0.8 / sqrt(IN));
    params_free(other);
    end();
}

/* After the attention, the activation and ff2; one Philox counter draws four elements. */
TEST(a_layer_drops_in_three_places)
{
    begin();
    TransformerConfig config = small;
    config.feed_forward = 20;
    config.dropout = 0.1;
    TransformerLayer layer = nn_transformer_layer(params, "layer", config);
    const uint64_t before = tape_random(tape).counter;
    nn_transformer_layer_forward(tape, &layer, some_input(), (AttentionOptions){ 0 });
    ck_assert_uint_eq(tape_random(tape).counter - before,
                      BATCH * LENGTH * (WIDTH + 20 + WIDTH) / 4);
    end();
}

int main(void)
{
    return test_main("layers", NULL, NULL);
}
