/* tape_recompute: the gradients of the function itself, with less memory. */
#include "tests/kinds.h"
#include "tests/support.h"

#include <math.h>
#include <string.h>

enum { B = 2, N = 24, HEADS = 2, HEAD_DIM = 8, WIDTH = HEADS * HEAD_DIM };
static const Initializer normal = { INITIAL_NORMAL, 1 };

/* The mean of the squares. */
static Tensor *mean_square(Tape *tape, Tensor *x)
{
    return op_mean_squared_error(tape, x, op_scale(tape, x, 0));
}

/* --------------------------------------------------------------------------------- transformers */
typedef struct Model {
    Params *params;
    Transformer transformer;
    Tape *tape;
} Model;

static Model model_new(TestKind attention, int64_t layers, bool pre_norm, bool recompute)
{
    Model model = { .params = params_new(test_device(), 3), .tape = tape_new(test_device()) };
    const TestConfig config = { .layers = layers,
                                .heads = HEADS,
                                .head_dim = HEAD_DIM,
                                .attention = attention,
                                .activation = ACTIVATION_GELU,
                                .lsh_chunk = 8,
                                .dropout = 0.25,
                                .pre_norm = pre_norm,
                                .recompute = recompute };
    model.transformer =
        nn_transformer(model.params, "transformer", test_config(model.params, config));
    tape_seed(model.tape, 5);
    return model;
}

static void model_free(Model model)
{
    tape_free(model.tape);
    params_free(model.params);
}

/* Two micro-batches; returns x and its gradient of the second, if it requires one. */
static Tensor *run(Model *model, bool variable)
{
    Tensor *x = NULL;
    for (int i = 0; i < 2; i++) {
        tape_reset(model->tape);
        const Real *values = test_normal((uint64_t)i, B * N * WIDTH);
        x = (variable ? tape_variable : tape_input)(model->tape, values, shape(B, N, WIDTH));
        Tensor *out = nn_transformer_forward(model->tape, &model->transformer, x,
                                             (AttentionOptions){ .key_lengths = NULL });
        tape_backward(model->tape, mean_square(model->tape, out));
    }
    return x;
}

static void assert_same_gradients(const Params *a, const Params *b)
{
    for (int i = 0; i < params_count(a); i++) {
        const Tensor *weight = params_at(a, i);
        assert_identical(test_values(weight->gradient), test_values(params_at(b, i)->gradient),
                         tensor_count(weight));
    }
}

TEST(gradients_are_bitwise_those_without_recomputing)
{
    static const TestKind kinds[] = { KIND_CAUSAL_LINEAR, KIND_CAUSAL_SOFTMAX, KIND_LSH };
    for (int kind = 0; kind < 3; kind++)
        for (int variable = 0; variable < 2; variable++) {
            Model a = model_new(kinds[kind], 3, kind == 1, false);
            Model b = model_new(kinds[kind], 3, kind == 1, true);
            Tensor *x = run(&a, variable), *y = run(&b, variable);
            assert_same_gradients(a.params, b.params);
            if (variable)
                assert_identical(test_values(x->gradient), test_values(y->gradient), B * N * WIDTH);
            ck_assert_uint_eq(tape_random(a.tape).counter, tape_random(b.tape).counter);
            model_free(a);
            model_free(b);
        }
}

TEST(twelve_layers_take_less_memory)
{
    size_t peaks[2];
    for (int recompute = 0; recompute < 2; recompute++) {
        Model model = model_new(KIND_CAUSAL_SOFTMAX, 12, true, recompute);
        params_flat_gradients(model.params);
        const size_t before = device_memory(test_device()).current;
        device_reset_peak(test_device());
        run(&model, false);
        peaks[recompute] = device_memory(test_device()).peak - before;
        model_free(model);
    }
    ck_assert_msg(peaks[1] * 4 < peaks[0], "%zu bytes, %zu without", peaks[1], peaks[0]);
}

/* ------------------------------------------------------------------------------------ functions */
typedef struct Layer {
    Tensor *weight, *count;
    int depth;
} Layer;

static int calls;

/* Nested as deep as the layer says. */
static Tensor *nested(Tape *tape, Tensor *x, const void *context)
{
    Layer layer = *(const Layer *)context;
    calls++;
    x = op_dropout(tape, op_tanh(tape, op_matmul(tape, x, layer.weight)), 0.25);
    x = op_reshape(tape, x, shape(3, 4));
    if (layer.depth-- > 0)
        x = tape_recompute(tape, nested, x, &layer, sizeof layer);
    return op_reshape(tape, op_dropout(tape, x, 0.5), shape(1, 3, 4));
}

/* gradients: of the weight, 16 elements, and of x, 12. */
static void nested_gradients(Layer layer, bool recompute, Real *gradients)
{
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_variable(tape, test_normal(1, 12), shape(3, 4));
    Tensor *y = op_add(tape, x, x);
    y = recompute ? tape_recompute(tape, nested, y, &layer, sizeof layer) : nested(tape, y, &layer);
    Tensor *loss = mean_square(tape, y);
    tape_set_training(tape, false); /* the second run is as the first */
    tape_set_recording(tape, false);
    tape_backward(tape, loss);
    ck_assert(!tape_is_recording(tape) && !tape_is_training(tape));
    tensor_read(layer.weight->gradient, gradients);
    tensor_read(x->gradient, gradients + 16);
    layer.weight->has_gradient = false;
    tape_free(tape);
}

TEST(functions_nest)
{
    Real expected[28], gradients[28];
    Params *params = params_new(test_device(), 1);
    Layer layer = { .weight = params_add(params, "w", shape(4, 4), normal), .depth = 2 };
    nested_gradients(layer, false, expected);
    calls = 0;
    nested_gradients(layer, true, gradients);
    ck_assert_int_eq(calls, 3 + 3 + 2 + 1);
    assert_identical(gradients, expected, 28);
    params_free(params);
}

/* Counts its runs in a tensor from outside of the step. */
static Tensor *counted(Tape *tape, Tensor *x, const void *context)
{
    Tensor *count = ((const Layer *)context)->count;
    if (tape_will_overwrite(tape, count))
        tensor_write(count, (Real[]){ (Real)tensor_item(count) + 1 });
    return op_exp(tape, x);
}

TEST(a_tensor_from_outside_changes_in_the_first_run_alone)
{
    Tape *tape = tape_new(test_device());
    Layer layer = { .count = tape_persistent(tape, shape(1)) };
    for (int step = 1; step <= 2; step++) {
        Tensor *x = tape_variable(tape, test_normal(1, 12), shape(3, 4));
        x = tape_recompute(tape, counted, x, &layer, sizeof layer);
        tape_backward(tape, mean_square(tape, x));
        tape_reset(tape);
        ck_assert(tensor_item(layer.count) == step);
    }
    Tensor *x = tape_variable(tape, test_normal(1, 12), shape(3, 4));
    x = tape_recompute(tape, counted, x, &layer, sizeof layer);
    ck_assert(tensor_item(layer.count) == 3);
    assert_raises("the step fails", tape_error(tape, "the step fails"));
    tape_reset(tape);
    ck_assert(tensor_item(layer.count) == 2);
    tape_free(tape);
}

TEST(without_recording_the_function_runs_once)
{
    Params *params = params_new(test_device(), 1);
    Layer layer = { .weight = params_add(params, "w", shape(4, 4), normal) };
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, test_normal(1, 12), shape(3, 4));
    calls = 0;
    tape_set_recording(tape, false);
    tape_recompute(tape, nested, x, &layer, sizeof layer);
    ck_assert_int_eq(calls, 1);
    tape_set_recording(tape, true);
    params_set_requires_grad(params, "w", false); /* then nothing requires a gradient */
    Tensor *y = tape_recompute(tape, nested, x, &layer, sizeof layer);
    ck_assert(!y->requires_grad && !tape_has_recorded(tape));
    ck_assert_int_eq(calls, 2);
    tape_free(tape);
    params_free(params);
}

/* --------------------------------------------------------------------------------------- errors */

/* At every allocation, in both runs. */
TEST(exhausted_memory_undoes_the_step)
{
    Model plain = model_new(KIND_CAUSAL_LINEAR, 2, false, false);
    Model model = model_new(KIND_CAUSAL_LINEAR, 2, false, true);
    run(&plain, true);
    run(&model, true);
    volatile int failures = 0;
    for (volatile int n = 1;; n += 3) {
        params_zero_gradients(model.params);
        tape_reset(model.tape);
        tape_seed(model.tape, 5);
        test_expect_error();
        device_fail_allocation(n);
        if (!setjmp(test_error_jump))
            run(&model, true);
        tapegrad_on_error(NULL, NULL);
        if (!device_fail_allocation(0))
            break;
        assert_exhausted();
        failures++;
        tape_reset(model.tape);
        ck_assert(tape_is_recording(model.tape) && tape_is_training(model.tape));
        ck_assert(!tape_is_recomputing(model.tape));
        params_zero_gradients(model.params);
        tape_seed(model.tape, 5);
        run(&model, true);
        assert_same_gradients(model.params, plain.params);
    }
    ck_assert_int_gt(failures, 10);
    tape_reset(model.tape);
    model_free(plain);
    model_free(model);
}

static Tensor *raise_again(Tape *tape, Tensor *x, const void *context)
{
    const bool again = tape_is_recomputing(tape);
    const int mode = *(const int *)context;
    if (mode == 0)
        return NULL;
    if (mode == 1)
        return x;
    Tensor *y = op_scale(tape, x, 2);
    if (again && mode == 2)
        tape_error(tape, "the second run fails");
    return again && mode == 3
               ? op_reshape(tape, op_concat(tape, (Tensor *[]){ y, y }, 2, 0), shape(6))
               : y;
}

TEST(misuse_raises_and_the_next_step_works)
{
    Params *params = params_new(test_device(), 1);
    Tensor *w = params_add(params, "w", shape(3), normal);
    Tape *tape = tape_new(test_device());
    int mode = 0;
    assert_raises("tape_recompute: the function returned NULL, expected a tensor",
                  tape_recompute(tape, raise_again, w, &mode, sizeof mode));
    tape_reset(tape);
    mode = 1;
    assert_raises("tape_recompute: the function returned a tensor that it did not make: w is [3]; "
                  "op_scale by 1 copies it",
                  tape_recompute(tape, raise_again, w, &mode, sizeof mode));
    tape_reset(tape);
    for (mode = 2; mode <= 3; mode++) {
        Tensor *loss = op_sum(tape, tape_recompute(tape, raise_again, w, &mode, sizeof mode), 0);
        assert_raises(mode == 2 ? "the second run fails"
                                : "tape_recompute: the second result is of shape [6], expected "
                                  "shape and type of the first, [3]",
                      tape_backward(tape, loss));
        tape_reset(tape);
        ck_assert(tape_is_recording(tape) && !tape_is_recomputing(tape) && !w->has_gradient);
    }
    assert_raises("tape_recompute: the tape is NULL",
                  tape_recompute(NULL, raise_again, w, NULL, 0));
    assert_raises("tape_recompute: the function is NULL", tape_recompute(tape, NULL, w, NULL, 0));
    assert_raises("tape_recompute: the context is NULL",
                  tape_recompute(tape, raise_again, w, NULL, 4));
    assert_raises("tape_recompute: x is NULL", tape_recompute(tape, raise_again, NULL, &mode, 4));
    tape_reset(tape);
    tape_backward(tape, op_sum(tape, tape_recompute(tape, raise_again, w, &mode, sizeof mode), 0));
    ck_assert(test_values(w->gradient)[0] == 2);
    tape_free(tape);
    params_free(params);
}

int main(void)
{
    return test_main("recompute", NULL, NULL);
}
