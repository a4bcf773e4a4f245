/* Schedule-free AdamW against plain loops, in training and in evaluation. */
#include "tests/optimizers.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* With warm-up, against the algorithm in double: y in training, x in evaluation, and switching
 * between them, and a checkpoint of either, change no bit of later steps. */
TEST(schedule_free_evaluates_the_average)
{
    char path[] = "/tmp/tapegrad-schedule-free-XXXXXX";
    close(mkstemp(path));
    Pair pair = pair_new(), switched = pair_new(), loaded = pair_new();
    static double x[COUNT], z[COUNT], v[COUNT];
    static Real values[COUNT], other[COUNT], expected[COUNT], y[COUNT];
    AdamConfig config = optim_adam_config(0.0625);
    config.weight_decay = 0.25;
    config.schedule = optim_warm_up(5);
    Optimizer *optimizer = optim_schedule_free_adamw(pair.params, config);
    Optimizer *second = optim_schedule_free_adamw(switched.params, config);
    Optimizer *third = optim_schedule_free_adamw(loaded.params, config);
    pair_read(pair, values);
    for (int i = 0; i < COUNT; i++)
        x[i] = z[i] = (double)values[i];
    double sum = 0;
    ck_assert(optim_set_training(second, false));
    assert_ok(optim_save(second, NULL, NULL, 0, path));
    for (int t = 1; t <= STEPS; t++) {
        assert_ok(optim_load(third, NULL, path));
        optim_set_training(second, true);
        optim_set_training(third, true);
        pair_read(pair, y);
        pair_read(switched, other);
        assert_identical(other, y, COUNT);
        const Real *gradients = test_normal((uint64_t)t, COUNT);
        pair_step(pair, optimizer, gradients);
        pair_step(switched, second, gradients);
        pair_step(loaded, third, gradients);
        const double lr = 0.0625 * fmin(1, t / 5.0);
        sum += lr * lr;
        for (int i = 0; i < COUNT; i++) {
            const double g = (double)gradients[i], c = lr * lr / sum;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            z[i] -= lr * (g / (sqrt(v[i] / (1 - pow(0.999, t))) + 1e-8) + 0.25 * (double)y[i]);
            x[i] += c * (z[i] - x[i]);
            expected[i] = (Real)x[i];
        }
        pair_read(pair, values);
        pair_read(switched, other);
        assert_identical(other, values, COUNT);
        if (t % 2)
            assert_ok(optim_save(second, NULL, NULL, 0, path));
        ck_assert(optim_set_training(second, false));
        ck_assert(!optim_set_training(second, false));
        if (t % 2 == 0)
            assert_ok(optim_save(second, NULL, NULL, 0, path));
        optim_set_training(third, t % 3 == 0);
        pair_read(switched, other);
        assert_close(other, expected, COUNT, tolerance);
        assert_ok(params_load(loaded.params, path)); /* x: the weights of a checkpoint */
        pair_read(loaded, values);
        assert_identical(values, other, COUNT);
    }
    contribute(switched.first, test_normal(1, COUNT));
    assert_raises("optim_step: the weights are those of evaluation; call "
                  "optim_set_training(optimizer, true) before the forward pass",
                  optim_step(second));
    assert_raises("optim_set_training: the optimizer is NULL", optim_set_training(NULL, true));
    assert_raises("optim_warm_up: steps is -1, expected 0 or more", optim_warm_up(-1));
    unlink(path);
    optim_free(optimizer);
    optim_free(second);
    optim_free(third);
    params_free(pair.params);
    params_free(switched.params);
    params_free(loaded.params);
}

/* No step has a weight in the average yet. */
TEST(first_steps_with_a_learning_rate_of_0_change_no_weight)
{
    static Real before[COUNT], after[COUNT];
    Pair pair = pair_new();
    Optimizer *optimizer = optim_schedule_free_adamw(pair.params, optim_adam_config(0));
    pair_read(pair, before);
    for (int t = 1; t <= 3; t++) {
        pair_step(pair, optimizer, test_normal((uint64_t)t, COUNT));
        pair_read(pair, after);
        assert_identical(after, before, COUNT);
    }
    optim_free(optimizer);
    params_free(pair.params);
}

TEST(other_schedules_raise)
{
    Pair pair = pair_new();
    AdamConfig config = optim_adam_config(0.01);
    config.schedule = optim_cosine(1, 10, 0);
    assert_raises(
        "optim_schedule_free_adamw: the schedule is of kind 2, expected optim_constant or "
        "optim_warm_up: the average is in place of others",
        optim_schedule_free_adamw(pair.params, config));
    params_free(pair.params);
}

int main(void)
{
    return test_main("schedule_free", NULL, NULL);
}
