/* examples/from_pytorch.py: a renamed state dictionary of PyTorch, loaded, gives its results. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static Tape *tape;
static TensorFile *results;

static Tensor *result(const char *name)
{
    const FileEntry *entry = tensor_file_find(results, name);
    ck_assert(entry);
    Real *values = malloc((size_t)shape_count(entry->shape) * sizeof *values);
    assert_ok(tensor_file_read(results, name, entry->shape, values));
    Tensor *tensor = tape_input(tape, values, entry->shape);
    free(values);
    return tensor;
}

static void assert_result(const char *name, Tensor *out)
{
    const Tensor *expected = result(name);
    ck_assert(shape_equal(out->shape, expected->shape));
    assert_near(name, test_values(out), test_values(expected), tensor_count(out), 2e-5);
}

TEST(a_renamed_state_dictionary_gives_the_results_of_pytorch)
{
    enum { B = 2, N = 5, SYMBOLS = 7 };
    char converted[] = "/tmp/tapegrad-from-pytorch-XXXXXX";
    close(mkstemp(converted));
    char command[1024];
    snprintf(command, sizeof command,
             "python3 -B examples/from_pytorch.py --rename encoder=transformer --flatten "
             "images.fc=4,3,4 tests/data/pytorch_state.safetensors '%s' >/dev/null",
             converted);
    ck_assert_int_eq(system(command), 0);

    Params *params = params_new(test_device(), 1);
    TransformerConfig config = { .layers = 2, .heads = 2, .head_dim = 4, .feed_forward = 16 };
    config.attention = nn_softmax_attention(params);
    Conv2d conv = nn_conv2d(params, "images.conv", 3, 4,
                            (Window){ .height = 3, .width = 2, .stride = 2, .padding = 1 });
    BatchNorm norm = nn_batchnorm(params, "images.norm", 4);
    Linear fc = nn_linear(params, "images.fc", 48, 5);
    Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, 8);
    Transformer transformer = nn_transformer(params, "transformer", config);
    CrossAttention cross = nn_cross_attention(params, "attention", 6, config);
    Lstm lstm =
        nn_lstm(params, "lstm",
                (RecurrentConfig){ .input = 8, .hidden = 3, .layers = 2, .bidirectional = true });
    Gru gru = nn_gru(params, "gru", (RecurrentConfig){ .input = 8, .hidden = 3 });
    assert_ok(params_load(params, converted));
    unlink(converted);

    tape = tape_new(test_device());
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    results = tensor_file_open("tests/data/pytorch_results.safetensors");
    assert_ok(results);
    Tensor *images = nn_conv2d_forward(tape, &conv, result("pixels"));
    images = op_relu(tape, nn_batchnorm_forward(tape, &norm, images));
    images = op_reshape(tape, images, shape(B, tensor_count(images) / B));
    assert_result("images", nn_linear_forward(tape, &fc, images));

    const int32_t symbols[] = { 0, 6, 2, 3, 1, 5, 4, 4, 0, 2 };
    const AttentionOptions all = { 0 };
    Tensor *x = nn_embedding_forward(tape, &embedding, tape_input_i32(tape, symbols, shape(B, N)));
    assert_result("encoder", nn_transformer_forward(tape, &transformer, x, all));
    assert_result("attention", nn_cross_attention_forward(tape, &cross, x, result("memory"), all));
    assert_result("lstm", nn_lstm_forward(tape, &lstm, x, NULL, NULL));
    assert_result("gru", nn_gru_forward(tape, &gru, x, NULL, NULL));
    tensor_file_close(results);
    tape_free(tape);
    params_free(params);
}

enum { GPT2_WIDTH = 8, GPT2_LAYERS = 2, GPT2_TOKENS = 11, GPT2_CONTEXT = 6 };

/* A weight of Hugging Face's GPT-2. */
static Tensor *gpt2_weight(Params *params, const char *prefix, const char *name, Shape shape)
{
    char path[64];
    snprintf(path, sizeof path, "transformer.%s%s", prefix, name);
    Tensor *found = params_find(params, path);
    return found ? found : params_add(params, path, shape, (Initializer){ INITIAL_NORMAL, 0.4 });
}

/* GPT-2 by its definition with Hugging Face's weights, linear layers as x W + b; x NULL: only
 * registers the weights. */
static Tensor *gpt2_linear(Params *params, const char *prefix, const char *name, Tensor *x,
                           int64_t in, int64_t out)
{
    char weight[32], bias[32];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    Tensor *w = gpt2_weight(params, prefix, weight, shape(in, out));
    Tensor *b = gpt2_weight(params, prefix, bias, shape(out));
    return x ? op_add(tape, op_matmul(tape, x, w), b) : NULL;
}

static Tensor *gpt2_norm(Params *params, const char *prefix, const char *name, Tensor *x)
{
    char weight[32], bias[32];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    Tensor *w = gpt2_weight(params, prefix, weight, shape(GPT2_WIDTH));
    Tensor *b = gpt2_weight(params, prefix, bias, shape(GPT2_WIDTH));
    return x ? op_layernorm(tape, x, w, b, 1e-5) : NULL;
}

static Tensor *gpt2_by_definition(Params *params, Tensor *x)
{
    enum { B = 2, N = GPT2_CONTEXT, HEADS = 2, C = GPT2_WIDTH };
    const Shape heads = shape(B, N, HEADS, C / HEADS);
    for (int layer = 0; layer < GPT2_LAYERS; layer++) {
        char h[16];
        snprintf(h, sizeof h, "h.%d.", layer);
        Tensor *qkv[3], *y = gpt2_norm(params, h, "ln_1", x);
        y = gpt2_linear(params, h, "attn.c_attn", y, C, 3 * C);
        if (x) {
            op_split(tape, y, 2, 3, qkv);
            for (int i = 0; i < 3; i++)
                qkv[i] = op_reshape(tape, qkv[i], heads);
            y = op_causal_softmax_attention(tape, qkv[0], qkv[1], qkv[2],
                                            (SoftmaxAttentionOptions){ 0 });
            y = op_reshape(tape, y, shape(B, N, C));
        }
        y = gpt2_linear(params, h, "attn.c_proj", y, C, C);
        x = x ? op_add(tape, x, y) : NULL;
        y = gpt2_norm(params, h, "ln_2", x);
        y = gpt2_linear(params, h, "mlp.c_fc", y, C, 4 * C);
        y = gpt2_linear(params, h, "mlp.c_proj", y ? op_gelu_tanh(tape, y) : NULL, 4 * C, C);
        x = x ? op_add(tape, x, y) : NULL;
    }
    return gpt2_norm(params, "", "ln_f", x);
}

TEST(gpt2_of_hugging_face_gives_its_results)
{
    char stored[] = "/tmp/tapegrad-gpt2-XXXXXX.safetensors";
    char converted[] = "/tmp/tapegrad-from-gpt2-XXXXXX", command[256];
    close(mkstemps(stored, 12));
    close(mkstemp(converted));
    Params *theirs = params_new(test_device(), 1), *ours = params_new(test_device(), 2);
    gpt2_weight(theirs, "", "wte.weight", shape(GPT2_TOKENS, GPT2_WIDTH));
    gpt2_weight(theirs, "", "wpe.weight", shape(GPT2_CONTEXT, GPT2_WIDTH));
    gpt2_by_definition(theirs, NULL);
    gpt2_weight(theirs, "h.0.attn.", "bias", shape(1, 1, GPT2_CONTEXT, GPT2_CONTEXT)); /* a mask */
    params_add(theirs, "lm_head.weight", shape(GPT2_TOKENS, GPT2_WIDTH),
               (Initializer){ INITIAL_ZERO, 0 });
    assert_ok(params_save(theirs, stored));
    snprintf(command, sizeof command, "python3 -B examples/from_pytorch.py '%s' '%s' >/dev/null",
             stored, converted);
    ck_assert_int_eq(system(command), 0);

    TransformerConfig config = { .layers = GPT2_LAYERS, .heads = 2, .head_dim = GPT2_WIDTH / 2 };
    config.attention = nn_causal_softmax_attention(ours, (CausalSoftmaxConfig){ 0 });
    config.pre_norm = true;
    config.activation = ACTIVATION_GELU_TANH;
    Embedding tokens = nn_embedding(ours, "wte", GPT2_TOKENS, GPT2_WIDTH);
    Embedding positions = nn_embedding(ours, "wpe", GPT2_CONTEXT, GPT2_WIDTH);
    Transformer transformer = nn_transformer(ours, "", config);
    assert_ok(params_load(ours, converted));
    unlink(stored);
    unlink(converted);

    tape = tape_new(test_device());
    const int32_t text[] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 10, 0 };
    Tensor *x = tape_input_i32(tape, text, shape(2, GPT2_CONTEXT));
    x = op_add(tape, nn_embedding_forward(tape, &tokens, x), positions.weight);
    const Tensor *expected = gpt2_by_definition(theirs, x);
    const Tensor *found = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    assert_close(test_values(found), test_values(expected), tensor_count(found), 1e-5);
    tape_free(tape);
    params_free(theirs);
    params_free(ours);
}

#define REFUSED(arguments, sentence)                                                               \
    ck_assert_int_eq(system("python3 -B examples/from_pytorch.py " arguments                       \
                            " /dev/null 2>&1 | grep -qF '" sentence "'"),                          \
                     0)
TEST(wrong_arguments_of_the_script_are_refused)
{
    REFUSED("--rename x tests/data/pytorch_state.safetensors",
            "error: \"x\": expected --rename OLD=NEW");
    REFUSED("--flatten images.fc=4,3,5 tests/data/pytorch_state.safetensors",
            "images.fc.weight has 48 inputs, expected 4 x 3 x 5 of --flatten");
    REFUSED("no_such.safetensors", "from_pytorch: no_such.safetensors: [Errno 2]");
}

/* Runs the script in a directory with these files; `torch` there stands for PyTorch: its load
 * evaluates the text of a file. */
static void assert_script(const char *arguments, bool ok, const char *sentence)
{
    static const char torch[] =
        "import ctypes, pickle\n"
        "class Tensor:\n"
        "    is_meta = is_quantized = False\n"
        "    dtype, device = 'complex64', 'cpu'\n"
        "    def __init__(self, *values, kind=float):\n"
        "        self.values, self.kind = (ctypes.c_float * len(values))(*values), kind\n"
        "        self.shape = [len(values)]\n"
        "    def is_complex(self): return self.kind is complex\n"
        "    def float(self): return self\n"
        "    to_dense = contiguous = float\n"
        "    def detach(self): return Tensor(*self.values)\n"
        "    def numel(self): return len(self.values)\n"
        "    def data_ptr(self): return ctypes.addressof(self.values)\n"
        "class Parameter(Tensor):\n"
        "    data_ptr = to_dense = float = None\n"
        "def is_tensor(value): return isinstance(value, Tensor)\n"
        "def load(path, map_location, weights_only):\n"
        "    text = open(path).read()\n"
        "    if text == 'module': raise pickle.UnpicklingError('Weights only load failed. Long.')\n"
        "    return eval(text, globals())\n";
    static char command[8192];
    snprintf(
        command, sizeof command,
        "script=$PWD/examples/from_pytorch.py; cd $(mktemp -d) && cat >torch.py <<'END'\n%s"
        "END\n"
        "echo \"{'model': {'w': Parameter(1, 2)}, 'optimizer': {'lr': 1}, 'epoch': 3}\" >nested\n"
        "echo \"{'w': Tensor(1, 2), 'step': 3}\" >mixed; echo '[1, 2]' >list; echo '{}' >none\n"
        "echo \"{'w': Tensor(1, 2), 'v': Tensor(3)}\" >flat; printf module >module\n"
        "echo \"__import__('resource').setrlimit(1, (4096, 4096)) or {'w': Tensor(*range(2000))}\" "
        ">large\n"
        "echo \"{'w': Tensor(1, kind=complex)}\" >complex; echo '<html>' >page.safetensors\n"
        "echo older >out; { PYTHONPATH=. python3 -B $script %s; echo \"status $?\"; } >said 2>&1\n"
        "[ $(wc -l <said) -eq 2 ] && grep -qFe '%s' said && grep -q 'status %d' said &&\n"
        "    [ $(ls out*) = out ] && { %s grep -q older out; } || { cat said; exit 1; }\n"
        "rm -r $PWD",
        torch, arguments, sentence, !ok, ok ? "!" : "");
    ck_assert_msg(system(command) == 0, "%s: expected %s", arguments, sentence);
}

TEST(nested_dictionaries_and_other_files_are_one_sentence)
{
    assert_script("nested out", false,
                  "nested: its entries are model, optimizer, epoch, expected tensors; "
                  "--entry model has these");
    assert_script("--entry model nested out", true, "w [2]");
    assert_script("--entry weights nested out", false,
                  "its entries are model, optimizer, epoch, expected --entry weights");
    assert_script("--entry epoch nested out", false, "it has a int, expected a dictionary");
    assert_script("mixed out", false, "its entries are w, step, expected tensors; step is a int");
    assert_script("list out", false, "list: it has a list, expected a dictionary of tensors");
    assert_script("none out", false, "none: it has no tensors");
    assert_script("complex out", false, "w is complex64 on cpu, expected real numbers");
    assert_script("module out", false,
                  "expected what torch.save(model.state_dict(), path) wrote: Weights only load "
                  "failed");
    assert_script("page.safetensors out", false, "page.safetensors: not a safetensors file");
    assert_script("--entry a page.safetensors out", false, "--entry a: expected a file of torch");
}

TEST(no_tensor_and_no_older_file_is_lost)
{
    assert_script("--rename v=w flat out", false, "two tensors would have the name w");
    assert_script("--rename v=__metadata__ flat out", false,
                  "a tensor must not be named __metadata__");
    assert_script("flat .", false, " exists and is not a regular file");
    assert_script("large out", false, "large: [Errno 27] File too large");
}

int main(void)
{
    return test_main("from_pytorch", NULL, NULL);
}
