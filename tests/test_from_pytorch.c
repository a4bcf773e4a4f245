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
    config.attention = ATTENTION_SOFTMAX;
    Conv2d conv = nn_conv2d(params, "images.conv", 3, 4, (Window){ 3, 2, 2, 1 });
    BatchNorm norm = nn_batchnorm(params, "images.norm", 4);
    Linear fc = nn_linear(params, "images.fc", 48, 5);
    Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, 8);
    Transformer transformer = nn_transformer(params, "transformer", config);
    CrossAttention cross = nn_cross_attention(params, "attention", 6, config);
    Lstm lstm = nn_lstm(params, "lstm", (RecurrentConfig){ 8, 3, 2, true, 0 });
    Gru gru = nn_gru(params, "gru", (RecurrentConfig){ 8, 3, 1, false, 0 });
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

int main(void)
{
    return test_main("from_pytorch", NULL, NULL);
}
