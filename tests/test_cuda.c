/* Training on CUDA against the CPU, and the errors of CUDA devices. Without DEVICE=cuda only the
 * last part runs. tests/test_operations.c compares every operation. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool on_cuda(void)
{
    return device_is_cuda(test_device());
}

static Tensor *integers(Tape *tape, Shape shape, int64_t below)
{
    int32_t values[512];
    ck_assert_int_le(shape_count(shape), 512);
    Random random = random_new(4, (uint64_t)below);
    for (int64_t i = 0; i < shape_count(shape); i++)
        values[i] = (int32_t)random_integer(&random, 0, below);
    return tape_input_i32(tape, values, shape);
}

/* ------------------------------------------------------------------------------------- training */
enum { SYMBOLS = 11, LENGTH = 21, BATCH = 3, STEPS = 10, WEIGHTS = 64 };

typedef struct Training {
    double losses[STEPS];
    int count;
    int64_t counts[WEIGHTS];
    Real *gradients[WEIGHTS]; /* of the first step */
    Real *values[WEIGHTS];    /* after the last */
} Training;

static Training train(Device *device, Precision precision, Activation activation)
{
    Params *params = params_new(device, 1);
    Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, 48);
    Transformer transformer = nn_transformer(params, "transformer",
                                             (TransformerConfig){ .layers = 2,
                                                                  .heads = 3,
                                                                  .head_dim = 16,
                                                                  .feed_forward = 70,
                                                                  .activation = activation,
                                                                  .dropout = 0.1 });
    Linear head = nn_linear(params, "head", 48, SYMBOLS);
    Optimizer *optimizer = optim_radam(params, optim_adam_config(1e-3));
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    Training training = { .count = params_count(params) };
    ck_assert_int_le(training.count, WEIGHTS);
    for (int step = 0; step < STEPS; step++) {
        Tensor *tokens = integers(tape, shape(BATCH, LENGTH), SYMBOLS);
        Tensor *x = nn_embedding_forward(tape, &embedding, tokens);
        x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
        Tensor *loss = op_cross_entropy(tape, nn_linear_forward(tape, &head, x), tokens, NULL);
        tape_backward(tape, loss);
        training.losses[step] = (double)tensor_item(loss);
        for (int i = 0; i < training.count && step == 0; i++) {
            training.counts[i] = tensor_count(params_at(params, i));
            training.gradients[i] = test_values(tensor_gradient(params_at(params, i)));
        }
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        tape_reset(tape);
    }
    for (int i = 0; i < training.count; i++)
        training.values[i] = test_values(params_at(params, i));
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return training;
}

static void compare_training(Precision precision, double loss_tolerance, double tolerance)
{
    for (Activation activation = ACTIVATION_RELU; activation <= ACTIVATION_GELU && on_cuda();
         activation++) {
        Training expected = train(device_open("cpu"), PRECISION_FLOAT32, activation);
        Training actual = train(test_device(), precision, activation);
        for (int step = 0; step < STEPS; step++) {
            double error = fabs(actual.losses[step] - expected.losses[step]);
            ck_assert_msg(error <= loss_tolerance * expected.losses[step],
                          "step %d: the losses are %g and %g", step, expected.losses[step],
                          actual.losses[step]);
        }
        double largest = 0, error = 0;
        for (int i = 0; i < expected.count; i++)
            for (int64_t j = 0; j < expected.counts[i]; j++) {
                double a = (double)expected.gradients[i][j];
                double difference = fabs(a - (double)actual.gradients[i][j]);
                largest = fmax(largest, fabs(a));
                error = error >= difference ? error : difference;
            }
        ck_assert_msg(error <= tolerance * largest, "gradients differ by %g of %g", error, largest);
    }
}

TEST(training_as_on_the_cpu)
{
    compare_training(PRECISION_FLOAT32, 1e-4, 1e-5);
}

#ifndef TAPEGRAD_DOUBLE
TEST(training_in_tf32)
{
    compare_training(PRECISION_TF32, 2e-3, 5e-3);
}

TEST(training_in_bf16)
{
    compare_training(PRECISION_BF16, 2e-2, 5e-2);
}

/* CUDA's conversion makes one NaN of all: so do kernels that convert elements one by one. */
TEST(nan_in_bf16_has_the_bits_of_cuda)
{
    if (!on_cuda())
        return;
    const uint32_t bits = 0xffc12345u, expected = 0x7fff0000u;
    Real nan[1], read[1];
    memcpy(nan, &bits, sizeof nan);
    Tape *tape = tape_new(test_device());
    tape_set_precision(tape, PRECISION_BF16);
    tensor_read(op_cast(tape, tape_input(tape, nan, shape(1)), TENSOR_BF16), read);
    ck_assert_mem_eq(read, &expected, sizeof read);
    tape_free(tape);
}
#endif

/* ------------------------------------------------------------------------------------- devices */
TEST(exhausted_memory_raises)
{
    if (!on_cuda())
        return;
    Tape *tape = tape_new(test_device());
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        tape_persistent(tape, shape(1 << 20, 1 << 16));
        ck_abort_msg("no error");
    }
    tapegrad_on_error(NULL, NULL);
    const char *sentence = tapegrad_error();
    const char *start = sizeof(Real) == sizeof(float)
                            ? "tape_persistent: memory is exhausted: 274877906944 bytes requested, "
                              "0 in use on cuda:0, 0 cached, "
                            : "tape_persistent: memory is exhausted: 549755813888 bytes requested, "
                              "0 in use on cuda:0, 0 cached, ";
    ck_assert_msg(strncmp(sentence, start, strlen(start)) == 0, "%s", sentence);
    ck_assert_msg(strstr(sentence, " free") != NULL, "%s", sentence);
    tape_free(tape);
}

TEST(missing_devices_raise)
{
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        device_open("cuda:99");
        ck_abort_msg("no error");
    }
    tapegrad_on_error(NULL, NULL);
    const char *sentence = tapegrad_error();
#ifndef TAPEGRAD_CUDA
    const char *start = "device_open: there is no device \"cuda:99\"; this library has \"cpu\", "
                        "\"cpu:repeatable\", \"plain\"; it was built without CUDA";
#else
    const char *start = device_is_cuda(device_best())
                            ? "device_open: there is no device \"cuda:99\"; this machine has "
                            : "device_open: \"cuda:99\": no GPU was found: ";
#endif
    ck_assert_msg(strncmp(sentence, start, strlen(start)) == 0, "%s", sentence);
}

int main(void)
{
    return test_main("cuda", NULL, NULL);
}
