/* Recurrent layers: op_lstm, op_gru, nn_lstm, nn_gru. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Tape *tape;
static Params *params;

static void begin(void)
{
    tape = tape_new(test_device());
    params = params_new(test_device(), 7);
}

static void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

/* a.b as a tensor */
static Tensor *inner(Tensor *a, Tensor *b)
{
    return op_sum(tape, op_multiply(tape, op_reshape(tape, a, b->shape), b), ALL_AXES);
}

/* --------------------------------------------------------------------------- reference vectors */
static TensorFile *file;

static Real *entry(const char *prefix, const char *name, Shape *of)
{
    char path[128];
    snprintf(path, sizeof path, "%s%s", prefix, name);
    const FileEntry *found = tensor_file_find(file, path);
    ck_assert_msg(found != NULL, "no entry %s", path);
    *of = found->shape;
    Real *values = test_zeros(shape_count(*of));
    ck_assert_msg(tensor_file_read(file, path, *of, values), "%s", tapegrad_error());
    return values;
}

static Tensor *variable(const char *name)
{
    Shape of;
    Real *values = entry("", name, &of);
    return tape_variable(tape, values, of);
}

static void assert_entry(const char *prefix, const char *name, const Tensor *found)
{
    Shape of;
    Real *expected = entry(prefix, name, &of);
    ck_assert_int_eq(shape_count(of), tensor_count(found));
    const double error = relative_error(test_values(found), expected, shape_count(of));
    ck_assert_msg(error <= VECTOR_TOLERANCE, "%s%s has relative error %g", prefix, name, error);
}

/* Values and all gradients of nn_lstm, whose weights have the file's names. */
static void check_lstm_file(const char *name, RecurrentConfig config)
{
    char path[512];
    const char *directory = getenv("TAPEGRAD_VECTORS");
    snprintf(path, sizeof path, "%s/%s.safetensors", directory ? directory : "tests/data", name);
    file = tensor_file_open(path);
    ck_assert_msg(file != NULL, "%s", tapegrad_error());
    begin();
    const Lstm lstm = nn_lstm(params, "", config);
    for (int i = 0; i < params_count(params); i++) {
        Shape of;
        tensor_write(params_at(params, i), entry("param.", params_at(params, i)->name, &of));
    }
    Tensor *x = variable("x"), *lengths = NULL;
    if (tensor_file_find(file, "lengths")) {
        int32_t values[16];
        const Shape of = tensor_file_find(file, "lengths")->shape;
        ck_assert(tensor_file_read_i32(file, "lengths", of, values));
        lengths = tape_input_i32(tape, values, of);
    }
    LstmState state = { NULL, NULL };
    Tensor *out = nn_lstm_forward(tape, &lstm, x, lengths, &state);
    assert_entry("", "out", out);
    assert_entry("", "final_h", state.hidden);
    assert_entry("", "final_c", state.cell);
    Tensor *loss = inner(out, variable("grad_out"));
    loss = op_add(tape, loss, inner(state.hidden, variable("grad_final_h")));
    loss = op_add(tape, loss, inner(state.cell, variable("grad_final_c")));
    tape_backward(tape, loss);
    assert_entry("grad.", "x", tensor_gradient(x));
    for (int i = 0; i < params_count(params); i++)
        assert_entry("grad.", params_at(params, i)->name, tensor_gradient(params_at(params, i)));
    tensor_file_close(file);
    end();
}

TEST(lstm_equals_the_reference_vectors)
{
    check_lstm_file("lstm_1", (RecurrentConfig){ .input = 5, .hidden = 7 });
    check_lstm_file(
        "lstm_bidirectional_2",
        (RecurrentConfig){ .input = 5, .hidden = 6, .layers = 2, .bidirectional = true });
    check_lstm_file("lstm_lengths",
                    (RecurrentConfig){ .input = 5, .hidden = 6, .bidirectional = true });
}

int main(void)
{
    return test_main("recurrent", NULL, NULL);
}
