/* Batch normalization: the operation beside its formulas in double, running statistics, the layer,
 * its files and its replays. tests/operations.h has the gradients. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Tape *tape;

/* ------------------------------------------------------------------------------------ operation */
typedef struct Channels {
    Tensor *weight, *bias, *running_mean, *running_variance; /* [C] */
} Channels;

static Channels channels_of(int64_t C)
{
    const Real *numbers = test_normal(5, 4 * C);
    Real *variance = test_zeros(C);
    for (int64_t c = 0; c < C; c++)
        variance[c] = 1 + numbers[3 * C + c] * numbers[3 * C + c];
    Channels channels = { tape_variable(tape, numbers, shape(C)),
                          tape_variable(tape, numbers + C, shape(C)),
                          tape_persistent(tape, shape(C)), tape_persistent(tape, shape(C)) };
    tensor_write(channels.running_mean, numbers + 2 * C);
    tensor_write(channels.running_variance, variance);
    return channels;
}

static Tensor *normalize(Tensor *x, Channels c, double momentum)
{
    return op_batchnorm(tape, x, c.weight, c.bias, c.running_mean, c.running_variance, momentum,
                        1e-5);
}

/* [R, C] with channels of mean `offset` and 1, 2, ... times this deviation */
static Real *values_of(int64_t R, int64_t C, double offset, double deviation)
{
    Real *x = test_normal(1, R * C);
    for (int64_t i = 0; i < R * C; i++)
        x[i] = (Real)(offset + deviation * (double)(1 + i % C) * (double)x[i]);
    return x;
}

/* Compares out and running statistics with the formulas; tolerance: of out */
static void check_training(int64_t R, int64_t C, const Real *x, double tolerance)
{
    const double m = 0.25;
    tape = tape_new(test_device());
    const Channels channels = channels_of(C);
    const Real *old_mean = test_values(channels.running_mean);
    const Real *old_variance = test_values(channels.running_variance);
    Tensor *out = normalize(tape_input(tape, x, shape(R, C)), channels, m);
    const Real *outs = test_values(out), *new_mean = test_values(channels.running_mean);
    const Real *new_variance = test_values(channels.running_variance);
    const Real *weight = test_values(channels.weight), *bias = test_values(channels.bias);
    for (int64_t c = 0; c < C; c++) {
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < R; i++)
            mean += (double)x[i * C + c] / (double)R;
        for (int64_t i = 0; i < R; i++)
            squares += pow((double)x[i * C + c] - mean, 2);
        const double variance = squares / (double)(R - 1);
        ck_assert_double_eq_tol((double)new_mean[c], (1 - m) * (double)old_mean[c] + m * mean,
                                2e-7 * fabs(mean) + 1e-6);
        const double expected = (1 - m) * (double)old_variance[c] + m * variance;
        ck_assert_double_eq_tol((double)new_variance[c], expected, 1e-6 * expected);
        const double r = 1 / sqrt(squares / (double)R + 1e-5);
        for (int64_t i = 0; i < R; i++)
            ck_assert_double_eq_tol(
                (double)outs[i * C + c],
                ((double)x[i * C + c] - mean) * r * (double)weight[c] + (double)bias[c], tolerance);
    }
    tape_free(tape);
}

TEST(training_equals_the_formulas_in_double)
{
    check_training(2, 1, values_of(2, 1, 0, 1), 4e-6);
    check_training(7, 5, values_of(7, 5, -2, 0.5), 4e-6);
    check_training(3000, 70, values_of(3000, 70, 1, 1), 4e-6);
}

/* A large mean costs only the digits that the values and a mean in Real themselves lose. */
TEST(large_means_and_a_first_value_far_from_the_others)
{
    check_training(5000, 3, values_of(5000, 3, 1000, 0.1), 2e-3);
    Real *x = values_of(5000, 3, 1000, 0.1);
    memset(x, 0, 3 * sizeof *x);
    check_training(5000, 3, x, 2e-3);
    if (sizeof(Real) == sizeof(double))
        check_training(5000, 3, values_of(5000, 3, 1e6, 0.1), 1e-6);
}

/* A channel of one value, which rounding errors must not give a variance */
TEST(a_constant_channel_is_normalized_to_the_bias)
{
    enum { R = 333, C = 2 };
    Real x[R * C];
    for (int i = 0; i < R * C; i++)
        x[i] = i % C ? (Real)0.1 : (Real)1234.567;
    tape = tape_new(test_device());
    const Channels channels = channels_of(C);
    const Real *out = test_values(normalize(tape_input(tape, x, shape(R, C)), channels, 0.1));
    const Real *bias = test_values(channels.bias);
    for (int i = 0; i < R * C; i++)
        ck_assert_double_eq_tol((double)out[i], (double)bias[i % C], 1e-6);
    tape_free(tape);
}

static Outcome outcome_of(int64_t R, int64_t C, bool training)
{
    Outcome outcome = { 0 };
    tape = tape_new(test_device());
    tape_set_training(tape, training);
    const Channels channels = channels_of(C);
    Tensor *x = tape_variable(tape, values_of(R, C, 1, 1), shape(R, C));
    Tensor *out = tensor_keep(normalize(x, channels, 0.1));
    tape_backward_from(tape, out, tape_input(tape, test_normal(8, R * C), shape(R, C)));
    test_note(&outcome, out);
    test_note(&outcome, tensor_gradient(x));
    test_note(&outcome, tensor_gradient(channels.weight));
    test_note(&outcome, tensor_gradient(channels.bias));
    test_note(&outcome, channels.running_mean);
    test_note(&outcome, channels.running_variance);
    tape_free(tape);
    return outcome;
}

TEST(any_number_of_threads_computes_the_same_bits)
{
    const int64_t sizes[][2] = { { 2, 300 }, { 3001, 17 }, { 20000, 3 } };
    for (int i = 0; i < 3; i++) {
        test_set_threads(1);
        const Outcome one = outcome_of(sizes[i][0], sizes[i][1], true);
        for (int threads = 2; threads <= 5; threads++) {
            test_set_threads(threads);
            const Outcome other = outcome_of(sizes[i][0], sizes[i][1], true);
            for (int j = 0; j < one.count; j++)
                assert_identical(one.values[j], other.values[j], one.counts[j]);
        }
    }
}

/* With training off: out and dx are affine in x, and the statistics stay. */
TEST(evaluation_reads_the_running_statistics)
{
    enum { R = 50, C = 7 };
    const Outcome found = outcome_of(R, C, false);
    tape = tape_new(test_device());
    const Channels channels = channels_of(C);
    const Real *mean = test_values(channels.running_mean), *weight = test_values(channels.weight);
    const Real *variance = test_values(channels.running_variance);
    const Real *bias = test_values(channels.bias), *x = values_of(R, C, 1, 1);
    const Real *g = test_normal(8, R * C);
    assert_identical(found.values[4], mean, C);
    assert_identical(found.values[5], variance, C);
    for (int i = 0; i < R * C; i++) {
        const int c = i % C;
        const double factor = (double)weight[c] / sqrt((double)variance[c] + 1e-5);
        ck_assert_double_eq_tol((double)found.values[0][i],
                                ((double)x[i] - (double)mean[c]) * factor + (double)bias[c], 1e-5);
        ck_assert_double_eq_tol((double)found.values[1][i], (double)g[i] * factor, 1e-5);
    }
    tape_free(tape);
}

TEST(training_decides_and_recording_does_not)
{
    enum { R = 20, C = 3 };
    const Outcome recorded = outcome_of(R, C, true);
    tape = tape_new(test_device());
    tape_set_recording(tape, false);
    const Channels channels = channels_of(C);
    Tensor *out = normalize(tape_input(tape, values_of(R, C, 1, 1), shape(R, C)), channels, 0.1);
    assert_identical(test_values(out), recorded.values[0], R * C);
    assert_identical(test_values(channels.running_mean), recorded.values[4], C);
    assert_identical(test_values(channels.running_variance), recorded.values[5], C);
    tape_free(tape);
}

/* A recorded pass keeps its own copy of the statistics. */
TEST(a_later_update_leaves_the_gradients_of_a_recorded_evaluation)
{
    enum { R = 20, C = 3 };
    const Outcome expected = outcome_of(R, C, false);
    tape = tape_new(test_device());
    const Channels channels = channels_of(C);
    Tensor *x = tape_variable(tape, values_of(R, C, 1, 1), shape(R, C));
    tape_set_training(tape, false);
    Tensor *out = normalize(x, channels, 0.1);
    tape_set_training(tape, true);
    normalize(tape_input(tape, test_normal(3, R * C), shape(R, C)), channels, 1);
    tape_backward_from(tape, out, tape_input(tape, test_normal(8, R * C), shape(R, C)));
    assert_identical(test_values(tensor_gradient(x)), expected.values[1], R * C);
    tape_free(tape);
}

TEST(misuse_of_batchnorm_raises)
{
    tape = tape_new(test_device());
    const Channels c = channels_of(3), other = channels_of(4);
    Tensor *x = tape_input(tape, test_normal(1, 12), shape(4, 3));
    assert_raises("op_batchnorm: x is NULL", normalize(NULL, c, 0.1));
    assert_raises("op_batchnorm: x is a scalar, expected one axis at least",
                  normalize(tape_input(tape, test_zeros(1), shape_scalar()), c, 0.1));
    assert_raises(
        "op_batchnorm: bias is [4], expected [3]: x is [4,3]",
        op_batchnorm(tape, x, c.weight, other.bias, c.running_mean, c.running_variance, 0.1, 1e-5));
    assert_raises("op_batchnorm: running_variance is NULL",
                  op_batchnorm(tape, x, c.weight, c.bias, c.running_mean, NULL, 0.1, 1e-5));
    assert_raises("op_batchnorm: momentum is 1.5, expected 0 to 1", normalize(x, c, 1.5));
    assert_raises("op_batchnorm: momentum is nan, expected 0 to 1", normalize(x, c, (double)NAN));
    assert_raises(
        "op_batchnorm: eps is 0, expected more than 0",
        op_batchnorm(tape, x, c.weight, c.bias, c.running_mean, c.running_variance, 0.1, 0));
    x = tape_input(tape, test_normal(1, 3), shape(1, 3));
    assert_raises("op_batchnorm: x is [1,3], one value per channel, expected 2 or more in training",
                  normalize(x, c, 0.1));
    tape_set_training(tape, false);
    normalize(x, c, 0.1);
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------------- layer */
enum { BATCH = 6, IN = 4, HIDDEN = 5, STEPS = 12 };

typedef struct Model {
    Params *params;
    Linear first, second;
    BatchNorm norm;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *x, *loss;
} Model;

static Model model_new(uint64_t seed)
{
    Model model = { .params = params_new(test_device(), seed), .tape = tape_new(test_device()) };
    model.first = nn_linear(model.params, "first", IN, HIDDEN);
    model.norm = nn_batchnorm(model.params, "norm", HIDDEN);
    model.second = nn_linear(model.params, "second", HIDDEN, IN);
    model.optimizer = optim_adam(model.params, optim_adam_config(0.01));
    model.x = tape_persistent(model.tape, shape(BATCH, IN));
    return model;
}

static void model_free(Model model)
{
    tape_free(model.tape);
    optim_free(model.optimizer);
    params_free(model.params);
}

static Tensor *result(Model *model)
{
    Tensor *x = nn_linear_forward(model->tape, &model->first, model->x);
    x = op_relu(model->tape, nn_batchnorm_forward(model->tape, &model->norm, x));
    return nn_linear_forward(model->tape, &model->second, x);
}

static void step(void *context)
{
    Model *model = context;
    model->loss = op_mean_squared_error(model->tape, result(model), model->x);
    tape_backward(model->tape, model->loss);
    params_clip_gradients(model->params, 0.5);
    optim_step(model->optimizer);
}

static void train(Model *model, int64_t last, bool replayed)
{
    while (optim_steps(model->optimizer) < last) {
        const uint64_t stream = 100 + (uint64_t)optim_steps(model->optimizer);
        tensor_write(model->x, test_normal(stream, BATCH * IN));
        if (replayed) {
            tape_replay(model->tape, step, model);
        } else {
            tape_reset(model->tape);
            step(model);
        }
    }
}

/* The result of evaluation. */
static Real *evaluate(Model *model)
{
    tape_reset(model->tape);
    tape_set_training(model->tape, false);
    tensor_write(model->x, test_normal(99, BATCH * IN));
    Real *values = test_values(result(model));
    tape_reset(model->tape);
    tape_set_training(model->tape, true);
    return values;
}

static void assert_same_models(Model *a, Model *b)
{
    assert_identical_weights(a->params, b->params);
    assert_identical(test_values(a->norm.running_mean), test_values(b->norm.running_mean), HIDDEN);
    assert_identical(test_values(a->norm.running_variance), test_values(b->norm.running_variance),
                     HIDDEN);
    assert_identical(evaluate(a), evaluate(b), BATCH * IN);
}

TEST(the_layer_starts_at_the_identity_and_owns_two_weights)
{
    Model model = model_new(1);
    const Real zero = 0, one = 1;
    ck_assert_int_eq(params_count(model.params), 6);
    ck_assert_ptr_nonnull(params_find(model.params, "norm.weight"));
    ck_assert_ptr_nonnull(params_find(model.params, "norm.bias"));
    ck_assert_ptr_null(params_find(model.params, "norm.running_mean"));
    for (int c = 0; c < HIDDEN; c++) {
        assert_identical(&test_values(model.norm.running_mean)[c], &zero, 1);
        assert_identical(&test_values(model.norm.running_variance)[c], &one, 1);
        assert_identical(&test_values(model.norm.weight)[c], &one, 1);
        assert_identical(&test_values(model.norm.bias)[c], &zero, 1);
    }
    assert_raises("nn_batchnorm: empty: channels is 0, expected 1 or more",
                  nn_batchnorm(model.params, "empty", 0));
    model_free(model);
}

TEST(replayed_steps_with_batchnorm_are_bitwise_the_steps)
{
    Model eager = model_new(1), replayed = model_new(1);
    train(&eager, STEPS, false);
    train(&replayed, STEPS, true);
    assert_same_models(&eager, &replayed);
    model_free(eager);
    model_free(replayed);
}

static Tensor *layer_of_model(Tape *on, Tensor *x, const void *context)
{
    const Model *model = context;
    return op_exp(on, nn_batchnorm_forward(on, &model->norm, x));
}

TEST(recomputing_updates_the_statistics_once)
{
    Real *mean[2], *variance[2];
    for (int recompute = 0; recompute < 2; recompute++) {
        Model model = model_new(1);
        Tensor *x = tape_variable(model.tape, test_normal(1, 4 * HIDDEN), shape(4, HIDDEN));
        x = recompute ? tape_recompute(model.tape, layer_of_model, x, &model, sizeof model)
                      : layer_of_model(model.tape, x, &model);
        tape_backward(model.tape, op_mean(model.tape, x, ALL_AXES));
        mean[recompute] = test_values(model.norm.running_mean);
        variance[recompute] = test_values(model.norm.running_variance);
        model_free(model);
    }
    assert_identical(mean[1], mean[0], HIDDEN);
    assert_identical(variance[1], variance[0], HIDDEN);
}

/* The layer twice, so that its statistics are updated twice per step, and once recomputed. */
static void forward_and_backward(Model *model, Tensor *input)
{
    Tensor *x = tape_recompute(model->tape, layer_of_model, input, model, sizeof *model);
    x = layer_of_model(model->tape, x, model);
    tape_backward(model->tape, op_mean(model->tape, x, ALL_AXES));
}

TEST(a_step_that_failed_leaves_the_statistics_of_before)
{
    Real values[4 * HIDDEN];
    for (int i = 0; i < 4 * HIDDEN; i++)
        values[i] = (Real)(i * 37 % 11) / 11;
    Model model = model_new(1), expected = model_new(1);
    Tensor *inputs[2];
    for (int i = 0; i < 2; i++) {
        inputs[i] = tape_persistent((i ? &expected : &model)->tape, shape(4, HIDDEN));
        tensor_write(inputs[i], values);
    }
    volatile int failures = 0;
    for (volatile int n = 1, done = 0; !done; n++) {
        test_expect_error();
        if (!setjmp(test_error_jump)) {
            device_fail_allocation(n);
            forward_and_backward(&model, inputs[0]);
            done = 1;
        }
        tapegrad_on_error(NULL, NULL);
        failures += device_fail_allocation(0);
        tape_reset(model.tape);
    }
    ck_assert_int_gt(failures, 5);
    forward_and_backward(&expected, inputs[1]);
    assert_identical(test_values(model.norm.running_mean), test_values(expected.norm.running_mean),
                     HIDDEN);
    assert_identical(test_values(model.norm.running_variance),
                     test_values(expected.norm.running_variance), HIDDEN);
    model_free(model);
    model_free(expected);
}

static char path[] = "/tmp/tapegrad-batchnorm-XXXXXX";

TEST(a_resumed_run_with_batchnorm_continues_bitwise)
{
    close(mkstemp(path));
    Model whole = model_new(1), start = model_new(1), rest = model_new(2);
    train(&whole, STEPS, false);
    train(&start, STEPS / 2, false);
    assert_ok(optim_save(start.optimizer, start.tape, NULL, 0, path));
    train(&rest, 2, false); /* any state before the load */
    tape_reset(rest.tape);
    assert_ok(optim_load(rest.optimizer, rest.tape, path));
    assert_same_models(&rest, &start);
    train(&rest, STEPS, false);
    assert_same_models(&rest, &whole);
    Model loaded = model_new(3);
    assert_ok(params_save(whole.params, path));
    assert_ok(params_load(loaded.params, path));
    assert_same_models(&loaded, &whole);
    model_free(whole);
    model_free(start);
    model_free(rest);
    model_free(loaded);
    unlink(path);
}

static void count_report(const char *name, const char *sentence, void *context)
{
    ck_assert_msg(strstr(name, "norm.running_") && strstr(sentence, name), "%s: %s", name,
                  sentence);
    ++*(int *)context;
}

/* A model of the same weights without the statistics. */
TEST(a_file_without_running_statistics_is_refused)
{
    close(mkstemp(path));
    Params *others = params_new(test_device(), 7);
    nn_linear(others, "first", IN, HIDDEN);
    nn_linear(others, "second", HIDDEN, IN);
    nn_layernorm(others, "norm", HIDDEN);
    assert_ok(params_save(others, path));
    Model model = model_new(1), same = model_new(1);
    train(&model, 3, false);
    train(&same, 3, false);
    ck_assert(!params_load(model.params, path));
    ck_assert_msg(strstr(tapegrad_error(), "norm.running_"), "%s", tapegrad_error());
    assert_same_models(&model, &same);
    int reports = 0;
    ck_assert_int_eq(params_load_some(model.params, path, count_report, &reports), 6);
    ck_assert_int_eq(reports, 2);
    assert_identical_weights(model.params, others);
    assert_identical(test_values(model.norm.running_mean), test_values(same.norm.running_mean),
                     HIDDEN);
    params_free(others);
    model_free(model);
    model_free(same);
    unlink(path);
}

int main(void)
{
    return test_main("batchnorm", NULL, NULL);
}
