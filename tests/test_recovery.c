/* A training step that fails at any allocation is undone by tape_reset and may be repeated: then
 * all losses and weights are bitwise those of a run without a failure. */
#include "tests/kinds.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, LENGTH = 8, SYMBOLS = 5, STEPS = 3 };

typedef struct Model {
    Device *device;
    Precision precision;
    Params *params;
    Embedding embedding;
    Tensor *positions;
    Transformer transformer;
    Linear head;
    Optimizer *optimizer;
    Tape *tape;
} Model;

static void model_new(Model *model, TestKind attention)
{
    model->params = params_new(model->device, 3);
    const TransformerConfig config = { .layers = 1,
                                       .heads = 2,
                                       .head_dim = 4,
                                       .feed_forward = 16,
                                       .dropout = 0.1,
                                       .attention = test_attention(model->params, attention) };
    model->embedding = nn_embedding(model->params, "embedding", SYMBOLS, 4);
    model->positions = nn_sinusoidal_positions(model->params, LENGTH, 4);
    model->transformer = nn_transformer(model->params, "transformer", config);
    model->head = nn_linear(model->params, "head", 8, SYMBOLS);
    AdamConfig adam = optim_adam_config(1e-3);
    adam.weight_decay = 0.01;
    model->optimizer = optim_radam(model->params, adam);
    model->tape = tape_new(model->device);
    tape_set_precision(model->tape, model->precision);
}

static void model_free(Model *model)
{
    tape_free(model->tape);
    optim_free(model->optimizer);
    params_free(model->params);
    *model = (Model){ .device = model->device, .precision = model->precision };
}

/* A forward and a backward pass; returns the loss. */
static Tensor *micro_batch(Model *model, int number)
{
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = (i * 7 + number) % SYMBOLS;
        targets[i] = (i * 3 + number) % SYMBOLS;
    }
    Tape *tape = model->tape;
    const Shape size = shape(BATCH, LENGTH);
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tape_input_i32(tape, tokens, size));
    Tensor *parts[] = { x, op_broadcast_to(tape, model->positions, x->shape) };
    x = op_concat(tape, parts, 2, -1);
    x = nn_transformer_forward(tape, &model->transformer, x, (AttentionOptions){ 0 });
    Tensor *logits = nn_linear_forward(tape, &model->head, x);
    Tensor *loss = op_cross_entropy(tape, logits, tape_input_i32(tape, targets, size), NULL);
    tape_backward(tape, loss);
    return loss;
}

static Real step(Model *model, int number)
{
    Tensor *loss = micro_batch(model, number);
    params_clip_gradients(model->params, 1);
    const Real value = (Real)tensor_item(loss);
    optim_step(model->optimizer);
    tape_reset(model->tape);
    return value;
}

static Real sum_of_weights(const Model *model)
{
    Real sum = 0;
    for (int i = 0; i < params_count(model->params); i++) {
        Tensor *weight = params_at(model->params, i);
        Real *values = test_values(weight);
        for (int64_t j = 0; j < tensor_count(weight); j++)
            sum += values[j];
    }
    return sum;
}

/* The losses of all steps, then the sum of all weights. */
static void train(Model *model, Real *result)
{
    for (int i = 0; i < STEPS; i++)
        result[i] = step(model, i);
    result[STEPS] = sum_of_weights(model);
}

/* Trains again after each allocation of a step has failed in turn. */
static void fail_each_allocation(TestKind attention, Precision precision)
{
    static Model model;
    static Real expected[STEPS + 1], result[STEPS + 1];
    model.device = test_device();
    model.precision = precision;
    model_new(&model, attention);
    train(&model, expected);
    model_free(&model);

    volatile int failures = 0;
    for (volatile int n = 1;; n++) {
        model_new(&model, attention);
        volatile bool raised = false;
        volatile Real loss = 0;
        test_expect_error();
        if (!setjmp(test_error_jump)) {
            device_fail_allocation(n);
            loss = step(&model, 0);
        } else {
            raised = true;
        }
        tapegrad_on_error(NULL, NULL);
        const bool happened = device_fail_allocation(0);
        if (happened && !raised) { /* of the weights' bf16 copy: a layer then makes its own */
            ck_assert_int_eq(precision, PRECISION_BF16);
            ck_assert(loss == expected[0]);
        } else if (happened) {
            ck_assert_msg(strstr(tapegrad_error(), "memory is exhausted") != NULL, "%s",
                          tapegrad_error());
            failures++;
            tape_reset(model.tape);
            train(&model, result);
            for (int i = 0; i <= STEPS; i++)
                ck_assert_msg(result[i] == expected[i],
                              "after failure %d (%s) number %d is %.9g, "
                              "expected %.9g",
                              n, tapegrad_error(), i, (double)result[i], (double)expected[i]);
        }
        model_free(&model);
        ck_assert_uint_eq(device_memory(model.device).current, 0);
        ck_assert(happened || !raised);
        if (!happened)
            break;
    }
    ck_assert_int_ge(failures, 35);
}

TEST(every_failing_allocation_with_linear_attention)
{
    fail_each_allocation(KIND_CAUSAL_LINEAR, PRECISION_FLOAT32);
}

TEST(every_failing_allocation_with_softmax_attention)
{
    fail_each_allocation(KIND_CAUSAL_SOFTMAX, PRECISION_FLOAT32);
}

TEST(every_failing_allocation_with_lsh_attention)
{
    fail_each_allocation(KIND_CAUSAL_LSH, PRECISION_FLOAT32);
}

#ifndef TAPEGRAD_DOUBLE
TEST(every_failing_allocation_in_bf16)
{
    if (!test_has_bf16())
        return;
    fail_each_allocation(KIND_CAUSAL_LINEAR, PRECISION_BF16);
    fail_each_allocation(KIND_CAUSAL_SOFTMAX, PRECISION_BF16);
}
#endif

/* The second step fails halfway: the first one's weights and optimizer state must be unchanged. */
TEST(misuse_in_a_later_step)
{
    static Model model;
    static Real expected[STEPS + 1];
    model.device = test_device();
    model_new(&model, KIND_CAUSAL_LINEAR);
    train(&model, expected);
    model_free(&model);

    model_new(&model, KIND_CAUSAL_LINEAR);
    ck_assert(step(&model, 0) == expected[0]);
    const int32_t tokens[] = { 0, SYMBOLS, 1, 2, 3, 4, 0, 1 };
    Tensor *x = tape_input_i32(model.tape, tokens, shape(1, LENGTH));
    tensor_keep(op_dropout(model.tape, model.positions, 0.5)); /* draws random numbers */
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        nn_embedding_forward(model.tape, &model.embedding, x);
        ck_abort_msg("an index out of range was taken");
    }
    tapegrad_on_error(NULL, NULL);
    tape_reset(model.tape);
    for (int i = 1; i < STEPS; i++)
        ck_assert(step(&model, i) == expected[i]);
    model_free(&model);
}

/* A step of three micro-batches. */
static void accumulate(Model *model)
{
    for (int i = 0; i < 3; i++) {
        micro_batch(model, i);
        tape_reset(model->tape);
    }
    optim_step(model->optimizer);
}

/* As tape.h prescribes after an error in any micro-batch of an accumulation. */
TEST(an_accumulation_is_repeated_from_its_first_micro_batch)
{
    static Model model;
    model.device = test_device();
    model_new(&model, KIND_CAUSAL_LINEAR);
    accumulate(&model);
    const Real expected = sum_of_weights(&model);
    model_free(&model);

    for (volatile int n = 1, happened = true; happened; n += 7) {
        model_new(&model, KIND_CAUSAL_LINEAR);
        const Random start = tape_random(model.tape);
        test_expect_error();
        if (!setjmp(test_error_jump)) {
            device_fail_allocation(n);
            accumulate(&model);
        }
        tapegrad_on_error(NULL, NULL);
        happened = device_fail_allocation(0);
        if (happened) {
            tape_reset(model.tape);
            params_zero_gradients(model.params);
            tape_set_random(model.tape, start);
            accumulate(&model);
        }
        ck_assert(sum_of_weights(&model) == expected);
        model_free(&model);
    }
}

TEST(two_runs_are_bitwise_equal)
{
    static Model model;
    Real first[STEPS + 1], second[STEPS + 1];
    model.device = test_device();
    model_new(&model, KIND_CAUSAL_LINEAR);
    train(&model, first);
    model_free(&model);
    model_new(&model, KIND_CAUSAL_LINEAR);
    train(&model, second);
    model_free(&model);
    ck_assert_mem_eq(first, second, sizeof first);
}

int main(void)
{
    return test_main("recovery", NULL, NULL);
}
