/* The reference vectors in tests/data: results and gradients that PyTorch computed in float64. A
 * row names the files of an operation or a layer, and computes it. */
#include "tests/support.h"

#include <fnmatch.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__ /* a row may have nothing beside its expression */
#pragma clang diagnostic ignored "-Wgnu-zero-variadic-macro-arguments"
#endif

/* What a row computes with. */
static TensorFile *file;
static Tape *tape;
static Params *params;
static AttentionForm form;

enum { MAX_NAMES = 6 };

/* Names are separated by spaces. */
typedef struct Row {
    const char *files;  /* without .safetensors; the shell's patterns */
    const char *inputs; /* the entries x; of "#name", an int32 tensor without a gradient */
    Tensor *(*compute)(Tensor **x, Tensor **out); /* returns the first result, sets other ones */
    const char *results;                          /* the entries out; NULL: "out" */
    /* Gradients whose errors are relative to the largest magnitude in all gradients: one that
     * cancels to almost nothing has no digits of its own. */
    const char *scaled_by_all;
    /* Times VECTOR_TOLERANCE in float on CUDA, whose linear attention computes a product as three
     * of bf16; 0: once. */
    double on_cuda;
    bool all_forms; /* in each AttentionForm */
} Row;

/* -------------------------------------------------------------------------------------- layers */

/* Sets every weight to the entry param.NAME. */
static void load_weights(void)
{
    for (int i = 0; i < params_count(params); i++)
        tensor_write(params_at(params, i),
                     test_entry(file, "param.", params_at(params, i)->name, NULL));
}

static Tensor *lstm(RecurrentConfig config, Tensor **x, Tensor **out)
{
    const Lstm layer = nn_lstm(params, "", config);
    load_weights();
    LstmState state = { NULL, NULL };
    Tensor *result = nn_lstm_forward(tape, &layer, x[0], x[1], &state);
    out[1] = state.hidden;
    out[2] = state.cell;
    return result;
}

/* The copy task's model: half the width embeds the symbol, half the position. */
static Tensor *transformer(bool softmax, Tensor **x, Tensor **out)
{
    enum { LENGTH = 24, SYMBOLS = 11, WIDTH = 16 };
    TransformerConfig config = { .layers = 2, .heads = 2, .head_dim = 8 };
    if (softmax)
        config.attention = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    const Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, WIDTH / 2);
    Tensor *positions = nn_sinusoidal_positions(params, LENGTH, WIDTH / 2);
    const Transformer layers = nn_transformer(params, "", config);
    const Linear head = nn_linear(params, "head", WIDTH, SYMBOLS);
    load_weights();
    Tensor *symbols = nn_embedding_forward(tape, &embedding, x[0]);
    Tensor *both[] = { symbols, op_broadcast_to(tape, positions, symbols->shape) };
    Tensor *result = nn_transformer_forward(tape, &layers, op_concat(tape, both, 2, -1),
                                            (AttentionOptions){ 0 });
    out[1] = nn_linear_forward(tape, &head, result);
    return op_cross_entropy(tape, out[1], x[1], x[2]);
}

/* ------------------------------------------------------------------------------------ the rows */

/* Linear attention by its feature map elu + 1, or without one and unnormalized; x[3] and x[4]: the
 * log decay and the initial state, or NULL. */
static Tensor *attend(Tensor **x, bool unnormalized, Tensor **final_state)
{
    CausalLinearAttentionOptions options = { .form = form, .log_decay = x[3], .state = x[4] };
    options.unnormalized = unnormalized;
    if (unnormalized)
        options.features = FEATURE_MAP_IDENTITY;
    else
        options.eps = 1e-6;
    return op_causal_linear_attention(tape, x[0], x[1], x[2], options, final_state);
}

/* x without a gradient */
static Tensor *constant(Tensor *x)
{
    return tape_input(tape, test_values(x), x->shape);
}

/* clang-format off */
#define ROWS(ROW)                                                                                  \
    ROW(matmul, "matmul", "a b", op_matmul(tape, x[0], x[1]))                                      \
    ROW(linear, "linear", "x w b", op_linear(tape, x[0], x[1], x[2]))                              \
    ROW(causal_convolution, "causal_convolution", "x w b",                                         \
        op_causal_convolution(tape, x[0], x[1], x[2], (CausalConvolutionOptions){ 0 }, NULL))      \
    ROW(silu, "silu", "x", op_silu(tape, x[0]))                                                    \
    ROW(rotary, "rotary", "x", op_rotary(tape, x[0], (RotaryOptions){ 0 }))                        \
    ROW(embedding, "embedding", "w #index", op_embedding(tape, x[0], x[1]))                        \
    ROW(layernorm, "layernorm", "x w b", op_layernorm(tape, x[0], x[1], x[2], 1e-5))               \
    ROW(rms_norm, "rmsnorm", "x w", op_rms_norm(tape, x[0], x[1], 1e-6))                           \
    ROW(l2_normalize, "l2norm", "x", op_l2_normalize(tape, x[0], 1e-6))                            \
    ROW(softmax, "softmax", "x", op_softmax(tape, x[0]))                                           \
    /* softmax(log_softmax(x)) = softmax(x), because the two differ by one number per row. */      \
    ROW(log_softmax, "softmax", "x", op_softmax(tape, op_log_softmax(tape, x[0])))                 \
    ROW(cross_entropy, "cross_entropy_masked", "logits #target mask",                              \
        op_cross_entropy(tape, x[0], x[1], x[2]))                                                  \
    ROW(smoothed_cross_entropy, "label_smoothing", "logits #target",                               \
        op_smoothed_cross_entropy(tape, x[0], x[1], 0.1, NULL))                                    \
    ROW(soft_cross_entropy, "soft_cross_entropy", "logits target weights",                         \
        op_soft_cross_entropy(tape, x[0], x[1], constant(x[2])))                                   \
    ROW(binary_cross_entropy, "binary_cross_entropy", "logits target weights positive",            \
        op_binary_cross_entropy(tape, x[0], x[1],                                                  \
            (BinaryCrossEntropyOptions){ .weights = constant(x[2]),                                \
                                         .positive_weights = constant(x[3]) }))                    \
    ROW(logistic_mixture, "discretized_logistic_mixture", "params #pixels",                        \
        op_discretized_logistic_mixture(tape, x[0], x[1]))                                         \
    ROW(ctc, "ctc*", "logits #target #input_len #target_len",                                      \
        op_mean(tape, op_ctc(tape, x[0], x[1],                                                     \
                             (CtcOptions){ .lengths = x[2], .target_lengths = x[3] }), ALL_AXES))  \
    ROW(softmax_attention_of_lengths, "softmax_attention_key_lengths", "q k v #key_len",           \
        op_softmax_attention(tape, x[0], x[1], x[2],                                               \
                             (SoftmaxAttentionOptions){ .key_lengths = x[3] }))                    \
    ROW(causal_softmax_attention, "causal_softmax_attention_*", "q k v",                           \
        op_causal_softmax_attention(tape, x[0], x[1], x[2], (SoftmaxAttentionOptions){ 0 }))       \
    ROW(decaying_softmax_attention, "decaying_softmax_attention", "q k v log_decay",               \
        op_causal_softmax_attention(tape, x[0], x[1], x[2],                                        \
                                    (SoftmaxAttentionOptions){ .log_decay = x[3] }))               \
    ROW(linear_attention, "linear_attention_B*", "q k v",                                          \
        op_linear_attention(tape, x[0], x[1], x[2], (LinearAttentionOptions){ .eps = 1e-6 }),      \
        .scaled_by_all = "q k v")                                                                  \
    ROW(linear_attention_of_lengths, "linear_attention_key_lengths", "q k v #key_len",             \
        op_linear_attention(tape, x[0], x[1], x[2],                                                \
                            (LinearAttentionOptions){ .eps = 1e-6, .key_lengths = x[3] }),         \
        .scaled_by_all = "q k v")                                                                  \
    ROW(causal_linear_attention, "causal_linear_attention_*", "q k v", attend(x, false, NULL),     \
        .all_forms = true, .scaled_by_all = "q k v")                                               \
    ROW(gated_linear_attention, "gated_linear_attention_[!c]*", "q k v log_decay state",           \
        attend(x, false, &out[1]), .all_forms = true, .results = "out final_state", .on_cuda = 2)  \
    ROW(constant_decay, "gated_linear_attention_constant", "q k v log_decay",                      \
        attend(x, false, NULL), .all_forms = true, .on_cuda = 2)                                   \
    ROW(gated_unnormalized, "gated_unnormalized_linear_attention_*", "q k v log_decay state",      \
        attend(x, true, &out[1]), .all_forms = true, .results = "out final_state", .on_cuda = 2)   \
    ROW(unnormalized, "unnormalized_linear_attention", "q k v", attend(x, true, NULL),             \
        .all_forms = true, .on_cuda = 2)                                                           \
    ROW(delta_rule, "delta_rule_*", "q k v beta state",                                            \
        op_delta_rule(tape, x[0], x[1], x[2], x[3], (DeltaRuleOptions){ .state = x[4] }, &out[1]), \
        .results = "out final_state", .on_cuda = 2)                                                \
    ROW(gated_delta_rule, "gated_delta_rule_*", "q k v beta state log_decay",                      \
        op_delta_rule(tape, x[0], x[1], x[2], x[3],                                                \
                      (DeltaRuleOptions){ .state = x[4], .log_decay = x[5] }, &out[1]),            \
        .results = "out final_state", .on_cuda = 2)                                                \
    ROW(key_decay, "key_decay", "q k v log_decay state",                                           \
        op_gated_linear_attention(tape, x[0], x[1], x[2], x[3],                                    \
                                  (GatedLinearAttentionOptions){ .state = x[4] }, &out[1]),        \
        .results = "out final_state", .on_cuda = 2)                                                \
    ROW(kimi_delta_rule, "kimi_delta_rule", "q k v beta state log_decay",                          \
        op_delta_rule(tape, x[0], x[1], x[2], x[3],                                                \
                      (DeltaRuleOptions){ .state = x[4], .log_decay = x[5] }, &out[1]),            \
        .results = "out final_state", .on_cuda = 2)                                                \
    ROW(lstm_1, "lstm_1", "x", lstm((RecurrentConfig){ .input = 5, .hidden = 7 }, x, out),         \
        .results = "out final_h final_c")                                                          \
    ROW(lstm_bidirectional_2, "lstm_bidirectional_2", "x",                                         \
        lstm((RecurrentConfig){ .input = 5, .hidden = 6, .layers = 2, .bidirectional = true },     \
             x, out),                                                                              \
        .results = "out final_h final_c")                                                          \
    ROW(lstm_lengths, "lstm_lengths", "x #lengths",                                                \
        lstm((RecurrentConfig){ .input = 5, .hidden = 6, .bidirectional = true }, x, out),         \
        .results = "out final_h final_c")                                                          \
    ROW(transformer_linear, "transformer_linear", "#tokens #target mask",                          \
        transformer(false, x, out), .results = "loss logits", .on_cuda = 3)      \
    /* A key's bias adds the same value to all scores of a query, to which softmax is invariant:   \
     * the gradient is 0 up to rounding. */                                                        \
    ROW(transformer_softmax, "transformer_softmax", "#tokens #target mask",                        \
        transformer(true, x, out), .results = "loss logits", .on_cuda = 3,     \
        .scaled_by_all = "layers.0.attention.key.bias layers.1.attention.key.bias")
/* clang-format on */

#define DEFINE_ROW(row, pattern, entries, expression, ...)                                         \
    static Tensor *compute_##row(Tensor **x, __attribute__((unused)) Tensor **out)                 \
    {                                                                                              \
        return expression;                                                                         \
    }
#define ENTER_ROW(row, pattern, entries, expression, ...)                                          \
    { .files = pattern, .inputs = entries, .compute = compute_##row, __VA_ARGS__ },
ROWS(DEFINE_ROW)
static const Row rows[] = { ROWS(ENTER_ROW) };
enum { ROW_COUNT = sizeof rows / sizeof *rows };

/* Files of another form, and the tests that read them: trajectories of optimizers, features of
 * speech, models of other libraries. */
static const struct {
    const char *file, *source;
} elsewhere[] = {
    { "adamw.safetensors", "tests/test_optim.c" },
    { "nesterov.safetensors", "tests/test_optim.c" },
    { "radam.safetensors", "tests/test_optim.c" },
    { "radam_weight_decay.safetensors", "tests/test_optim.c" },
    { "muon.safetensors", "ext/muon/tests/test_muon.c" },
    { "log_mel.safetensors", "tests/test_speech.c" },
    { "pytorch_state.safetensors", "tests/test_from_pytorch.c" },
    { "pytorch_results.safetensors", "tests/test_from_pytorch.c" },
    { "qwen3_next_full_attention.safetensors", "tests/test_qwen3_next.c" },
    { "qwen3_next_linear_attention.safetensors", "tests/test_qwen3_next.c" },
};
enum { ELSEWHERE_COUNT = sizeof elsewhere / sizeof *elsewhere };

/* ------------------------------------------------------------------------------- the comparison */
typedef struct Names {
    char text[128];
    int count;
    const char *name[MAX_NAMES];
} Names;

static void split(Names *names, const char *text)
{
    names->count = 0;
    snprintf(names->text, sizeof names->text, "%s", text ? text : "");
    for (char *word = strtok(names->text, " "); word; word = strtok(NULL, " ")) {
        ck_assert_int_lt(names->count, MAX_NAMES);
        names->name[names->count++] = word;
    }
}

static bool contain(const Names *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->name[i], name) == 0)
            return true;
    return false;
}

/* Whether the file has the entry PREFIX NAME. */
static bool has(const char *prefix, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return tensor_file_find(file, full) != NULL;
}

/* The entry of this name as an input; of "#name", as an int32 tensor without a gradient. */
static Tensor *input(const char *name)
{
    Shape of;
    if (name[0] != '#') {
        const Real *values = test_entry(file, "", name, &of);
        return tape_variable(tape, values, of);
    }
    const FileEntry *entry = tensor_file_find(file, name + 1);
    ck_assert_msg(entry != NULL, "no entry %s", name);
    int32_t *integers = malloc((size_t)shape_count(entry->shape) * sizeof *integers);
    assert_ok(tensor_file_read_i32(file, name + 1, entry->shape, integers));
    Tensor *result = tape_input_i32(tape, integers, entry->shape);
    free(integers);
    return result;
}

/* The sum of out * grad_out over all results; without entries grad_..., the first result, a loss */
static Tensor *scalar_of(const Names *results, Tensor **out)
{
    Tensor *sum = NULL;
    for (int i = 0; i < results->count; i++)
        if (has("grad_", results->name[i])) {
            Shape of;
            const Real *values = test_entry(file, "grad_", results->name[i], &of);
            ck_assert_int_eq(shape_count(of), tensor_count(out[i]));
            Tensor *upstream = tape_input(tape, values, out[i]->shape);
            Tensor *product = op_sum(tape, op_multiply(tape, out[i], upstream), ALL_AXES);
            sum = sum ? op_add(tape, sum, product) : product;
        }
    return sum ? sum : out[0];
}

static double largest_magnitude(const Real *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

/* The largest magnitude in all gradients of the file. */
static double largest_gradient(void)
{
    double largest = 0;
    for (int i = 0; i < tensor_file_count(file); i++) {
        const FileEntry *entry = tensor_file_entry(file, i);
        if (strncmp(entry->name, "grad.", 5) == 0)
            largest = fmax(largest, largest_magnitude(test_entry(file, "", entry->name, NULL),
                                                      shape_count(entry->shape)));
    }
    return largest;
}

/* Fails unless the tensor's elements are the entry's; the error is relative to the largest
 * magnitude in the entry, or in all gradients. */
static void assert_entry(const Row *row, const char *path, const char *prefix, const char *name,
                         const Tensor *actual)
{
    const bool cuda = row->on_cuda > 0 && sizeof(Real) == 4 && device_is_cuda(test_device());
    const double allowed = (cuda ? row->on_cuda : 1) * VECTOR_TOLERANCE;
    Shape of;
    const Real *expected = test_entry(file, prefix, name, &of);
    const int64_t count = shape_count(of);
    ck_assert_int_eq(tensor_count(actual), count);
    double error = relative_error(test_values(actual), expected, count);
    Names scaled;
    split(&scaled, row->scaled_by_all);
    if (prefix[0] && contain(&scaled, name))
        error *= largest_magnitude(expected, count) / largest_gradient();
    ck_assert_msg(error <= allowed, "%s: %s%s has relative error %g, expected at most %g (form %d)",
                  path, prefix, name, error, allowed, (int)form);
}

/* Results, then the gradients of inputs and weights. The row uses each entry of the file. */
static void check_file(const Row *row, const char *path)
{
    Names inputs, results;
    Tensor *x[MAX_NAMES] = { NULL }, *out[MAX_NAMES] = { NULL };
    split(&inputs, row->inputs);
    split(&results, row->results ? row->results : "out");
    file = tensor_file_open(path);
    assert_ok(file);
    tape = tape_new(test_device());
    params = params_new(test_device(), 1);
    for (int i = 0; i < inputs.count; i++)
        x[i] = input(inputs.name[i]);
    out[0] = row->compute(x, out);
    for (int i = 0; i < results.count; i++)
        tensor_keep(out[i]);
    tape_backward(tape, scalar_of(&results, out));

    int used = inputs.count + results.count + 2 * params_count(params);
    for (int i = 0; i < results.count; i++) {
        assert_entry(row, path, "", results.name[i], out[i]);
        used += has("grad_", results.name[i]);
    }
    for (int i = 0; i < inputs.count; i++)
        if (has("grad.", inputs.name[i])) {
            assert_entry(row, path, "grad.", inputs.name[i], tensor_gradient(x[i]));
            used++;
        }
    for (int i = 0; i < params_count(params); i++) {
        Tensor *weight = params_at(params, i);
        assert_entry(row, path, "grad.", weight->name, tensor_gradient(weight));
    }
    ck_assert_msg(used == tensor_file_count(file), "%s: the row uses %d of %d entries", path, used,
                  tensor_file_count(file));
    tape_free(tape);
    params_free(params);
    tensor_file_close(file);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

/* The files of this pattern, sorted; for globfree. */
static glob_t files_of(const char *directory, const char *pattern)
{
    char path[512];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s.safetensors", directory, pattern);
    ck_assert_msg(glob(path, 0, NULL, &found) == 0, "there is no file %s", path);
    return found;
}

TEST(rows_equal_the_reference)
{
    for (int r = 0; r < ROW_COUNT; r++) {
        glob_t found = files_of(test_vector_directory(), rows[r].files);
        const AttentionForm last = rows[r].all_forms ? FORM_QUADRATIC : FORM_BEST;
        for (size_t i = 0; i < found.gl_pathc; i++)
            for (form = FORM_BEST; form <= last; form++)
                check_file(&rows[r], found.gl_pathv[i]);
        globfree(&found);
    }
}

static bool is_read_by_a_row(const char *name)
{
    for (int r = 0; r < ROW_COUNT; r++) {
        char pattern[96];
        snprintf(pattern, sizeof pattern, "%s.safetensors", rows[r].files);
        if (fnmatch(pattern, name, 0) == 0)
            return true;
    }
    return false;
}

/* Whether the table names a test for the file, and the test's source has the file's name. */
static bool is_read_elsewhere(const char *name)
{
    static char text[1 << 17];
    for (int i = 0; i < ELSEWHERE_COUNT; i++)
        if (strcmp(elsewhere[i].file, name) == 0) {
            FILE *source = fopen(elsewhere[i].source, "r");
            ck_assert_msg(source != NULL, "cannot open %s", elsewhere[i].source);
            text[fread(text, 1, sizeof text - 1, source)] = 0;
            fclose(source);
            return strstr(text, name) != NULL;
        }
    return false;
}

TEST(every_file_is_read)
{
    glob_t found = files_of("tests/data", "*");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        ck_assert_msg(is_read_by_a_row(name) || is_read_elsewhere(name), "no test reads %s",
                      found.gl_pathv[i]);
    }
    globfree(&found);
}

int main(void)
{
    return test_main("vectors", NULL, NULL);
}
