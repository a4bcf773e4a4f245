/* What older versions wrote: names, shapes and offsets of weights, and checkpoints, which commit
 * f758768 wrote by this program (WRITE=yes build/tests/test_old_files), and later versions read. */
#include "tests/kinds.h"
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Device *device;
static Tape *tape;

static void begin(void)
{
    device = test_device();
    tape = tape_new(device);
}

static void end(void)
{
    tape_free(tape);
}

static void add_transformer(Params *params, const char *name, TestConfig config)
{
    config.layers = 1;
    config.heads = 2;
    config.head_dim = 2;
    config.feed_forward = 5;
    nn_transformer(params, name, test_config(params, config));
}

/* A layer of every kind: weights alone, since the forward passes have tests of their own. */
static Params *weights(void)
{
    Params *params = params_new(device, 3);
    add_transformer(params, "linear", (TestConfig){ 0 });
    add_transformer(params, "gated",
                    (TestConfig){ .decay = DECAY_LEARNED, .convolution = 3, .output_gate = true });
    add_transformer(
        params, "softmax",
        (TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .decay = DECAY_LEARNED, .pre_norm = true });
    add_transformer(params, "lsh", (TestConfig){ .attention = KIND_CAUSAL_LSH });
    add_transformer(params, "delta",
                    (TestConfig){ .attention = KIND_DELTA_RULE,
                                  .decay = DECAY_LEARNED,
                                  .convolution = 2,
                                  .output_gate = true });
    nn_lstm(params, "lstm", (RecurrentConfig){ .input = 3, .hidden = 2, .bidirectional = true });
    nn_gru(params, "gru", (RecurrentConfig){ .input = 3, .hidden = 2, .layers = 2 });
    nn_embedding(params, "embedding", 5, 3);
    nn_conv2d(params, "conv2d", 2, 3, (Window){ .height = 2, .width = 3 });
    nn_batchnorm(params, "batchnorm", 3);
    nn_rms_norm(params, "rms_norm", 3);
    assert_ok(params_flat_values(params));
    return params;
}

/* One step down the sum over weights of mean(w^2), with a learning rate that moves them far. */
static void step(Params *params, Optimizer *optimizer)
{
    Tensor *sum = NULL;
    for (int i = 0; i < params_count(params); i++) {
        Tensor *w = params_at(params, i), *square = op_multiply(tape, w, w);
        Tensor *mean = op_mean(tape, op_reshape(tape, square, shape(tensor_count(w))), 0);
        sum = sum ? op_add(tape, sum, mean) : mean;
    }
    tape_backward(tape, sum);
    optim_step(optimizer);
    tape_reset(tape);
    assert_ok(!tapegrad_error()[0]);
}

/* "name [shape] offset" of each weight; the offset is that of params_flat_values. */
static char *describe(Params *params)
{
    enum { SIZE = 1 << 14 };
    static char text[SIZE];
    size_t length = 0;
    const Real *flat = params_flat_values(params)->data;
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *w = params_at(params, i);
        char shape[64] = "";
        for (int axis = 0; axis < w->shape.rank; axis++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", axis ? ", " : "",
                     (int)w->shape.size[axis]);
        length += (size_t)snprintf(text + length, SIZE - length, "%s [%s] %d\n", w->name, shape,
                                   (int)((const Real *)w->data - flat));
    }
    return text;
}

static const TestOptimizer optimizers[] = { RADAM, MUON, SCHEDULE_FREE };
static const char *const names[] = { "radam", "muon", "schedule_free" };
static const AdamConfig config = {
    .learning_rate = 0.05, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1
};

static const char *path_of(const char *what, int which)
{
    static char path[2][64];
    snprintf(path[which & 1], sizeof path[0], "tests/old/%s_%s.safetensors", what, names[which]);
    return path[which & 1];
}

static void write_files(void)
{
    Params *params = weights();
    FILE *file = fopen("tests/old/weights.txt", "w");
    fputs(describe(params), file);
    fclose(file);
    params_free(params);
    for (int which = 0; which < 3; which++) {
        params = weights();
        Optimizer *optimizer = test_optimizer(optimizers[which], params, config);
        for (int i = 0; i < 3; i++)
            step(params, optimizer);
        assert_ok(optim_save(optimizer, tape, NULL, 0, path_of("checkpoint", which)));
        step(params, optimizer);
        optim_set_training(optimizer, false);
        assert_ok(params_save(params, path_of("after", which)));
        optim_free(optimizer);
        params_free(params);
    }
}

/* Clipping sums in ranges of the flat buffer, and files hold names: both outlive a version. The
 * file has the offsets of a float build. */
TEST(weights_keep_names_shapes_and_offsets)
{
    if (getenv("WRITE"))
        write_files();
    Params *params = weights();
    char expected[1 << 14];
    FILE *file = fopen("tests/old/weights.txt", "r");
    ck_assert_ptr_nonnull(file);
    expected[fread(expected, 1, sizeof expected - 1, file)] = 0;
    fclose(file);
    if (sizeof(Real) == sizeof(float))
        ck_assert_str_eq(describe(params), expected);
    params_free(params);
}

/* The step after a resume ends where the older version's did; processors round differently. */
TEST(checkpoints_of_an_older_version_resume)
{
    for (int which = 0; which < 3; which++) {
        Params *params = weights(), *after = weights();
        Optimizer *optimizer = test_optimizer(optimizers[which], params, config);
        assert_ok(optim_load(optimizer, tape, path_of("checkpoint", which)));
        ck_assert_int_eq(optim_steps(optimizer), 3);
        step(params, optimizer);
        optim_set_training(optimizer, false);
        assert_ok(params_load(after, path_of("after", which)));
        for (int i = 0; i < params_count(params); i++)
            assert_near(params_at(params, i)->name, test_values(params_at(params, i)),
                        test_values(params_at(after, i)), tensor_count(params_at(after, i)), 1e-4);
        optim_free(optimizer);
        params_free(params);
        params_free(after);
    }
}

int main(void)
{
    return test_main("old_files", begin, end);
}
