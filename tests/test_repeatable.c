/* On "cpu:repeatable", and on "plain", whole programs compute the same bits on any number of
 * threads; test_operations has this test of every operation. */
#include "tests/support.h"

#include <string.h>

/* A sequence and heads fewer than threads, which then divide a head. */
enum { SYMBOLS = 50, LENGTH = 150, HEADS = 2, HEAD_DIM = 40, WIDTH = HEADS * HEAD_DIM };
enum { STEPS = SLOW ? 3 : 20 };
static const int thread_counts[] = { 1, 2, 3, 8 };
enum { COUNTS = sizeof thread_counts / sizeof *thread_counts };

/* NULL: a GPU */
static Device *repeatable_device(void)
{
    if (device_is_cuda(test_device()))
        return NULL;
    const bool plain = strcmp(device_name(test_device()), "plain") == 0;
    return plain ? test_device() : device_open("cpu:repeatable");
}

/* ------------------------------------------------------------------------------------- training */
typedef struct Model {
    Params *params;
    Embedding embedding;
    Transformer transformer;
    Linear head;
} Model;

/* Linear attention, then softmax attention */
static Model model_new(Device *device)
{
    Model model = { .params = params_new(device, 3) };
    const TransformerConfig config = {
        .layers = 2,
        .heads = HEADS,
        .head_dim = HEAD_DIM,
        .feed_forward = 2 * WIDTH,
        .dropout = 0.1,
        .attention =
            nn_causal_linear_attention(model.params, (CausalLinearConfig){ .unnormalized = false }),
        .layer_attention = { [1] = nn_causal_softmax_attention(model.params,
                                                               (CausalSoftmaxConfig){ 0 }) }
    };
    model.embedding = nn_embedding(model.params, "embedding", SYMBOLS, WIDTH);
    model.transformer = nn_transformer(model.params, "transformer", config);
    model.head = nn_linear(model.params, "head", WIDTH, SYMBOLS);
    return model;
}

static void train_step(const Model *model, Tape *tape, int number)
{
    int32_t tokens[LENGTH], targets[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        tokens[i] = (i * i + number) % SYMBOLS;
        targets[i] = (i * 3 + number) % SYMBOLS;
    }
    const Shape size = shape(1, LENGTH);
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tape_input_i32(tape, tokens, size));
    x = nn_transformer_forward(tape, &model->transformer, x, (AttentionOptions){ 0 });
    Tensor *logits = nn_linear_forward(tape, &model->head, x);
    tape_backward(tape, op_cross_entropy(tape, logits, tape_input_i32(tape, targets, size), NULL));
    params_clip_gradients(model->params, 1);
}

static Params *trained(Device *device, TestOptimizer kind, Precision precision, int threads)
{
    test_set_threads(threads);
    const Model model = model_new(device);
    const AdamConfig config = {
        .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1
    };
    Optimizer *optimizer = test_optimizer(kind, model.params, config);
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    for (int i = 0; i < STEPS; i++) {
        train_step(&model, tape, i);
        optim_step(optimizer);
        tape_reset(tape);
    }
    tape_free(tape);
    optim_free(optimizer);
    return model.params;
}

static void assert_training_repeats(TestOptimizer kind, Precision precision, int first, int end)
{
    Device *device = repeatable_device();
    if (!device)
        return;
    Params *one = trained(device, kind, precision, 1);
    for (int i = first; i < end; i++) {
        Params *several = trained(device, kind, precision, thread_counts[i]);
        assert_identical_weights(several, one);
        params_free(several);
    }
    params_free(one);
}

TEST(training_has_the_same_bits_on_any_number_of_threads)
{
    assert_training_repeats(ADAMW, PRECISION_FLOAT32, 1, COUNTS);
}

TEST(so_has_training_in_bf16)
{
    if (test_has_bf16())
        assert_training_repeats(ADAMW, PRECISION_BF16, 1, COUNTS);
}

TEST(so_has_training_by_every_optimizer)
{
    for (int kind = 0; kind < OPTIMIZERS; kind++)
        assert_training_repeats((TestOptimizer)kind, PRECISION_FLOAT32, 2, 3);
}

/* --------------------------------------------------------------------------------------- decode */
#ifdef TAPEGRAD_DECODE_H
enum { DECODE_STEPS = 5 };

/* The results of all steps, [DECODE_STEPS, sequences, WIDTH] */
static Real *decoded(Device *device, GenerationConfig config, bool softmax, int threads)
{
    test_set_threads(threads);
    Params *params = params_new(device, 5);
    const AttentionKind *kind =
        softmax ? nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 })
                : nn_causal_linear_attention(params, (CausalLinearConfig){ .unnormalized = false });
    const Transformer transformer = nn_transformer(params, "",
                                                   (TransformerConfig){ .layers = 2,
                                                                        .heads = HEADS,
                                                                        .head_dim = HEAD_DIM,
                                                                        .feed_forward = 2 * WIDTH,
                                                                        .attention = kind });
    TransformerState *state = nn_transformer_state(&transformer, config);
    Tape *tape = tape_new(device);
    tape_set_recording(tape, false);
    const int64_t count = config.sequences * WIDTH;
    Real *all = test_zeros(DECODE_STEPS * count);
    for (int i = 0; i < DECODE_STEPS; i++) {
        const Real *x = test_normal((uint64_t)i, count);
        Tensor *out =
            nn_transformer_step(state, tape_input(tape, x, shape(config.sequences, WIDTH)));
        tensor_read(out, all + i * count);
        tape_reset(tape);
    }
    tape_free(tape);
    nn_transformer_state_free(state);
    params_free(params);
    return all;
}

/* Threads divide the rows of weights or, from some batch size on, the sequences. */
TEST(decode_steps_have_the_same_bits_on_any_number_of_threads)
{
    static const int sequences[] = { 1, 3, 16, 70 };
    const bool plain = strcmp(device_name(test_device()), "plain") == 0;
    const int stored = plain ? 1 : test_has_bf16() ? 3 : 2; /* in Real, 8 bits, bf16 */
    Device *device = repeatable_device();
    for (int i = 0; i < 4 * 2 * stored && device; i++) {
        const int how = i / 8;
        const GenerationConfig config = { .sequences = sequences[i / 2 % 4],
                                          .max_length = DECODE_STEPS,
                                          .int8_weights = how == 1,
                                          .precision =
                                              how == 2 ? PRECISION_BF16 : PRECISION_FLOAT32 };
        const Real *one = decoded(device, config, i % 2, 1);
        for (int t = 1; t < COUNTS; t++)
            assert_identical(decoded(device, config, i % 2, thread_counts[t]), one,
                             DECODE_STEPS * config.sequences * WIDTH);
        test_forget();
    }
}
#endif

/* --------------------------------------------------------------------------------------- device */
TEST(the_repeatable_device_is_one_of_its_own)
{
    Device *device = device_open("cpu:repeatable");
    ck_assert_str_eq(device_name(device), "cpu:repeatable");
    ck_assert_ptr_eq(device, device_open("cpu:repeatable"));
    ck_assert_ptr_ne(device, device_open("cpu"));
    ck_assert(!device_is_cuda(device) && !device_has_bf16(device));
}

int main(void)
{
    return test_main("repeatable", NULL, NULL);
}
