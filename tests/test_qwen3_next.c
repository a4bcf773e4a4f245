/* A recipe: the two layers of Qwen3-Next (Gated DeltaNet and gated softmax attention, each with a
 * feed-forward network) under the names of Hugging Face's checkpoints, beside PyTorch's results. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>

#ifdef TAPEGRAD_DOUBLE
#define LAYER_TOLERANCE 1e-9
#else
#define LAYER_TOLERANCE 1e-4
#endif

enum { B = 2, N = 19, WIDTH = 32, FEED_FORWARD = 40 };
enum { KEY_HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 8, VALUE_DIM = 12, TAPS = 4 }; /* Gated DeltaNet */
enum { KEYS = KEY_HEADS * KEY_DIM, VALUES = VALUE_HEADS * VALUE_DIM, CHANNELS = 2 * KEYS + VALUES };
enum { HEADS = 4, GROUPS = 2, HEAD_DIM = 16, ROTARY_DIM = 4 }; /* softmax attention */

static Tape *tape;

/* The layer's name, a dot and the part's name; valid until the next call. */
static const char *path(const char *layer, const char *part)
{
    static char text[96];
    snprintf(text, sizeof text, "%s.%s", layer, part);
    return text;
}

static Linear projection(Params *params, const char *name, int64_t in, int64_t out)
{
    return nn_linear_with(params, name, in, out, (LinearConfig){ .no_bias = true });
}

/* ------------------------------------------------------------------------------- Gated DeltaNet */

typedef struct GatedDeltaNet {
    Linear qkvz, ba, out;
    Tensor *conv; /* [C, 1, K], as Conv1d has it */
    Tensor *a_log, *dt_bias;
    RmsNorm norm;
} GatedDeltaNet;

static GatedDeltaNet delta_net(Params *params, const char *name)
{
    const Initializer zero = { INITIAL_ZERO, 0 };
    GatedDeltaNet net;
    net.qkvz = projection(params, path(name, "in_proj_qkvz"), WIDTH, 2 * KEYS + 2 * VALUES);
    net.ba = projection(params, path(name, "in_proj_ba"), WIDTH, 2 * VALUE_HEADS);
    net.conv = params_add(params, path(name, "conv1d.weight"), shape(CHANNELS, 1, TAPS), zero);
    net.a_log = params_add(params, path(name, "A_log"), shape(VALUE_HEADS), zero);
    net.dt_bias = params_add(params, path(name, "dt_bias"), shape(VALUE_HEADS), zero);
    net.norm = nn_rms_norm(params, path(name, "norm"), VALUE_DIM);
    net.out = projection(params, path(name, "out_proj"), VALUES, WIDTH);
    return net;
}

/* count elements of each key head from start on, in the shape `of`: the rows of in_proj_qkvz are
 * ordered by key head (q, k, and v and z of its value heads), those of in_proj_ba likewise. */
static Tensor *of_key_heads(Tensor *x, int64_t start, int64_t count, Shape of)
{
    const Shape by_head = shape(B, N, KEY_HEADS, tensor_count(x) / (B * N * KEY_HEADS));
    return op_reshape(tape, op_slice(tape, op_reshape(tape, x, by_head), 3, start, count), of);
}

/* Queries or keys: channels from start on, of length 1, for each value head. */
static Tensor *normalized_heads(Tensor *channels, int64_t start)
{
    Tensor *x = op_slice(tape, channels, 2, start, KEYS);
    x = op_l2_normalize(tape, op_reshape(tape, x, shape(B, N, KEY_HEADS, KEY_DIM)), 1e-6);
    return op_repeat_heads(tape, x, VALUE_HEADS / KEY_HEADS);
}

static Tensor *delta_net_forward(const GatedDeltaNet *net, Tensor *x)
{
    const Shape keys = shape(B, N, KEYS), values = shape(B, N, VALUES);
    const Shape heads = shape(B, N, VALUE_HEADS), value_heads = shape(B, N, VALUE_HEADS, VALUE_DIM);
    const int64_t each = VALUES / KEY_HEADS, gates = VALUE_HEADS / KEY_HEADS;
    Tensor *qkvz = nn_linear_forward(tape, &net->qkvz, x);
    Tensor *ba = nn_linear_forward(tape, &net->ba, x);
    Tensor *q = of_key_heads(qkvz, 0, KEY_DIM, keys);
    Tensor *k = of_key_heads(qkvz, KEY_DIM, KEY_DIM, keys);
    Tensor *v = of_key_heads(qkvz, 2 * KEY_DIM, each, values);
    Tensor *z = of_key_heads(qkvz, 2 * KEY_DIM + each, each, value_heads);
    Tensor *beta = op_sigmoid(tape, of_key_heads(ba, 0, gates, heads));
    Tensor *a = of_key_heads(ba, gates, gates, heads);

    Tensor *taps = op_reshape(tape, net->conv, shape(CHANNELS, TAPS));
    Tensor *qkv = op_concat(tape, (Tensor *[]){ q, k, v }, 3, 2);
    qkv = op_causal_convolution(tape, qkv, taps, NULL, (CausalConvolutionOptions){ 0 }, NULL);
    qkv = op_silu(tape, qkv);
    q = op_scale(tape, normalized_heads(qkv, 0), 1 / sqrt(KEY_DIM));
    k = normalized_heads(qkv, KEYS);
    v = op_reshape(tape, op_slice(tape, qkv, 2, 2 * KEYS, VALUES), value_heads);

    /* l = -e^A_log softplus(a + dt_bias) */
    Tensor *step = op_softplus(tape, op_add(tape, a, net->dt_bias));
    Tensor *rate = op_scale(tape, op_exp(tape, net->a_log), -1);
    const DeltaRuleOptions options = { .log_decay = op_multiply(tape, step, rate) };
    Tensor *out = op_delta_rule(tape, q, k, v, beta, options, NULL);
    out = op_multiply(tape, nn_rms_norm_forward(tape, &net->norm, out), op_silu(tape, z));
    return nn_linear_forward(tape, &net->out, op_reshape(tape, out, values));
}

/* ---------------------------------------------------------------------- gated softmax attention */

typedef struct GatedAttention {
    Linear q, k, v, out;
    RmsNorm q_norm, k_norm;
} GatedAttention;

static GatedAttention gated_attention(Params *params, const char *name)
{
    GatedAttention attention;
    attention.q = projection(params, path(name, "q_proj"), WIDTH, HEADS * 2 * HEAD_DIM);
    attention.k = projection(params, path(name, "k_proj"), WIDTH, GROUPS * HEAD_DIM);
    attention.v = projection(params, path(name, "v_proj"), WIDTH, GROUPS * HEAD_DIM);
    attention.q_norm = nn_rms_norm_one_plus(params, path(name, "q_norm"), HEAD_DIM);
    attention.k_norm = nn_rms_norm_one_plus(params, path(name, "k_norm"), HEAD_DIM);
    attention.out = projection(params, path(name, "o_proj"), HEADS * HEAD_DIM, WIDTH);
    return attention;
}

static Tensor *gated_attention_forward(const GatedAttention *attention, Tensor *x)
{
    const Shape groups = shape(B, N, GROUPS, HEAD_DIM);
    const RotaryOptions rotary = { .dims = ROTARY_DIM, .halves = true };
    Tensor *parts[2]; /* the rows of q_proj by head: its query, then its gate */
    Tensor *q = nn_linear_forward(tape, &attention->q, x);
    op_split(tape, op_reshape(tape, q, shape(B, N, HEADS, 2 * HEAD_DIM)), 3, 2, parts);
    Tensor *k = op_reshape(tape, nn_linear_forward(tape, &attention->k, x), groups);
    Tensor *v = op_reshape(tape, nn_linear_forward(tape, &attention->v, x), groups);
    q = op_rotary(tape, nn_rms_norm_forward(tape, &attention->q_norm, parts[0]), rotary);
    k = op_rotary(tape, nn_rms_norm_forward(tape, &attention->k_norm, k), rotary);
    k = op_repeat_heads(tape, k, HEADS / GROUPS);
    v = op_repeat_heads(tape, v, HEADS / GROUPS);
    Tensor *out = op_causal_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ 0 });
    out = op_multiply(tape, out, op_sigmoid(tape, parts[1]));
    out = op_reshape(tape, out, shape(B, N, HEADS * HEAD_DIM));
    return nn_linear_forward(tape, &attention->out, out);
}

/* ------------------------------------------------------------------------------- the two layers */

typedef struct Layer {
    bool linear; /* which of these two it has */
    GatedDeltaNet delta_net;
    GatedAttention attention;
    RmsNorm input_norm, post_norm;
    Linear gate, up, down;
} Layer;

static Layer layer_new(Params *params, const char *name, bool linear)
{
    Layer layer = { .linear = linear };
    char mixer[64];
    snprintf(mixer, sizeof mixer, "%s.%s", name, linear ? "linear_attn" : "self_attn");
    if (linear)
        layer.delta_net = delta_net(params, mixer);
    else
        layer.attention = gated_attention(params, mixer);
    layer.input_norm = nn_rms_norm_one_plus(params, path(name, "input_layernorm"), WIDTH);
    layer.post_norm = nn_rms_norm_one_plus(params, path(name, "post_attention_layernorm"), WIDTH);
    layer.gate = projection(params, path(name, "mlp.gate_proj"), WIDTH, FEED_FORWARD);
    layer.up = projection(params, path(name, "mlp.up_proj"), WIDTH, FEED_FORWARD);
    layer.down = projection(params, path(name, "mlp.down_proj"), FEED_FORWARD, WIDTH);
    return layer;
}

/* x + mixer(norm(x)), then x + mlp(norm(x)) with mlp(y) = down(silu(gate(y)) up(y)) */
static Tensor *layer_forward(const Layer *layer, Tensor *x)
{
    Tensor *y = nn_rms_norm_forward(tape, &layer->input_norm, x);
    y = layer->linear ? delta_net_forward(&layer->delta_net, y)
                      : gated_attention_forward(&layer->attention, y);
    x = op_add(tape, x, y);
    y = nn_rms_norm_forward(tape, &layer->post_norm, x);
    Tensor *gate = op_silu(tape, nn_linear_forward(tape, &layer->gate, y));
    y = op_multiply(tape, gate, nn_linear_forward(tape, &layer->up, y));
    return op_add(tape, x, nn_linear_forward(tape, &layer->down, y));
}

/* ------------------------------------------------------------------------------------ the tests */

/* Fails unless the tensor's elements are the entry's. */
static void assert_entry(const TensorFile *file, const char *prefix, const char *name,
                         const Tensor *actual)
{
    Shape of;
    const Real *expected = test_entry(file, prefix, name, &of);
    ck_assert_int_eq(shape_count(of), tensor_count(actual));
    const double error = relative_error(test_values(actual), expected, tensor_count(actual));
    ck_assert_msg(error <= LAYER_TOLERANCE, "%s%s: relative error %g, expected at most %g", prefix,
                  name, error, LAYER_TOLERANCE);
}

static void check_layer(const char *file_path, const char *name, bool linear)
{
    TensorFile *file = tensor_file_open(file_path);
    assert_ok(file);
    Params *params = params_new(test_device(), 1);
    const Layer layer = layer_new(params, name, linear);
    const int count = params_count(params);
    ck_assert_int_eq(params_load_some(params, file_path, NULL, NULL), count);
    /* Beyond the weights: their gradients, x, out and the gradients of these two. */
    ck_assert_int_eq(tensor_file_count(file), 2 * count + 4);

    tape = tape_new(test_device());
    const Shape of = shape(B, N, WIDTH);
    Tensor *x = tape_variable(tape, test_entry(file, "", "x", NULL), of);
    Tensor *out = tensor_keep(layer_forward(&layer, x));
    tape_backward_from(tape, out, tape_input(tape, test_entry(file, "", "grad_out", NULL), of));

    assert_entry(file, "", "out", out);
    assert_entry(file, "grad.", "x", tensor_gradient(x));
    for (int i = 0; i < count; i++) {
        Tensor *weight = params_at(params, i);
        assert_entry(file, "grad.", weight->name, tensor_gradient(weight));
    }
    tape_free(tape);
    params_free(params);
    tensor_file_close(file);
}

TEST(the_gated_delta_net_of_hugging_face_gives_its_results_and_gradients)
{
    check_layer("tests/data/qwen3_next_linear_attention.safetensors", "model.layers.0", true);
}

TEST(the_gated_attention_of_hugging_face_gives_its_results_and_gradients)
{
    check_layer("tests/data/qwen3_next_full_attention.safetensors", "model.layers.3", false);
}

int main(void)
{
    return test_main("qwen3_next", NULL, NULL);
}
