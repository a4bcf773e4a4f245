/* Optimizers and schedules against reference trajectories, plain loops and formulas. */
#include "extend.h"
#include "tests/optimizers.h"

#include <math.h>
#include <string.h>

typedef Optimizer *AdamMaker(Params *params, AdamConfig config);

/* ----------------------------------------------------------------------- reference trajectories */
enum { VECTOR_STEPS = 12, VECTOR_COUNT = 21 };

static void follow(const char *name, TestOptimizer kind, double weight_decay)
{
    TensorFile *file = test_vector_file(name);
    const Real *start = test_entry(file, "", "p0", NULL),
               *gradients = test_entry(file, "", "grads", NULL);
    const Real *trajectory = test_entry(file, "", "trajectory", NULL);
    Params *params = params_new(test_device(), 1);
    Tensor *weight = params_add(params, "p", shape(7, 3), normal);
    AdamConfig config = optim_adam_config(0.01);
    config.weight_decay = weight_decay; /* beta1, 0.9, is SGD's momentum */
    Optimizer *optimizer = test_optimizer(kind, params, config);
    tensor_write(weight, start);
    for (int t = 0; t < VECTOR_STEPS; t++) {
        contribute(weight, gradients + t * VECTOR_COUNT);
        optim_step(optimizer);
        assert_close(test_values(weight), trajectory + t * VECTOR_COUNT, VECTOR_COUNT,
                     VECTOR_TOLERANCE);
    }
    tensor_file_close(file);
    optim_free(optimizer);
    params_free(params);
}

TEST(trajectories_agree_with_the_reference)
{
    follow("radam.safetensors", RADAM, 0);
    follow("radam_weight_decay.safetensors", RADAM, 0.1);
    follow("adamw.safetensors", ADAMW, 0.1);
    follow("nesterov.safetensors", NESTEROV, 0.1);
}

/* ---------------------------------------------------------------------------------- plain loops */

/* One element's rule in double; state starts as zeros. */
typedef double Rule(double p, double g, double *state, int t);

static void compare(Kind kind, Rule *rule)
{
    static double expected[COUNT], state[COUNT][3];
    static Real values[COUNT], rounded[COUNT];
    Pair pair = pair_new();
    Optimizer *optimizer = make(kind, pair.params);
    memset(state, 0, sizeof state);
    pair_read(pair, values);
    for (int i = 0; i < COUNT; i++)
        expected[i] = (double)values[i];
    for (int t = 1; t <= STEPS; t++) {
        const Real *gradients = test_normal((uint64_t)t, COUNT);
        pair_step(pair, optimizer, gradients);
        ck_assert_int_eq(optim_steps(optimizer), t);
        pair_read(pair, values);
        for (int i = 0; i < COUNT; i++) {
            expected[i] = rule(expected[i], (double)gradients[i], state[i], t);
            rounded[i] = (Real)expected[i];
        }
        assert_close(values, rounded, COUNT, tolerance);
    }
    optim_free(optimizer);
    params_free(pair.params);
}

static double plain_sgd_rule(double p, double g, double *state, int t)
{
    (void)state, (void)t;
    return p - 0.01 * (g + 0.25 * p);
}

static double momentum_sgd_rule(double p, double g, double *state, int t)
{
    (void)t;
    state[0] = 0.75 * state[0] + g + 0.125 * p;
    return p - 0.0625 * state[0];
}

/* In PyTorch's form of Sutskever et al. 2013, where p is the point at which g is computed */
static double nesterov_sgd_rule(double p, double g, double *state, int t)
{
    (void)t;
    g += 0.125 * p;
    state[0] = 0.75 * state[0] + g;
    return p - 0.0625 * (g + 0.75 * state[0]);
}

static double adam_change(double g, double *state, int t)
{
    state[0] = 0.75 * state[0] + 0.25 * g;
    state[1] = 0.875 * state[1] + 0.125 * g * g;
    const double m = state[0] / (1 - pow(0.75, t)), v = state[1] / (1 - pow(0.875, t));
    return 0.03125 * m / (sqrt(v) + 0.015625);
}

static double decaying_adam_rule(double p, double g, double *state, int t)
{
    return p - adam_change(g + 0.5 * p, state, t);
}

static double decaying_adamw_rule(double p, double g, double *state, int t)
{
    return p - 0.03125 * 0.5 * p - adam_change(g, state, t);
}

static double decaying_radam_rule(double p, double g, double *state, int t)
{
    state[0] = 0.75 * state[0] + 0.25 * g;
    state[1] = 0.875 * state[1] + 0.125 * g * g;
    const double m = state[0] / (1 - pow(0.75, t)), power = pow(0.875, t), limit = 15;
    const double rho = limit - 2 * t * power / (1 - power);
    const double r = sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho));
    const double divisor = rho > 5 ? (sqrt(state[1]) + 0.015625) / (r * sqrt(1 - power)) : 1;
    return p - 0.03125 * 0.5 * p - 0.03125 * m / divisor;
}

/* Equal learning rates: c = 1 / t. state: z, v, x. */
static double schedule_free_rule(double y, double g, double *state, int t)
{
    double *z = &state[0], *v = &state[1], *x = &state[2];
    *z = t == 1 ? y : *z;
    *x = t == 1 ? y : *x;
    *v = 0.875 * *v + 0.125 * g * g;
    *z -= 0.03125 * (g / (sqrt(*v / (1 - pow(0.875, t))) + 0.015625) + 0.5 * y);
    *x = *x * (1 - 1.0 / t) + *z / t;
    return 0.25 * *z + 0.75 * *x;
}

TEST(rules_agree_with_plain_loops)
{
    static Rule *const rules[] = { plain_sgd_rule,     momentum_sgd_rule,   nesterov_sgd_rule,
                                   decaying_adam_rule, decaying_adamw_rule, decaying_radam_rule,
                                   schedule_free_rule };
    for (int i = 0; i < OPTIMIZERS && i < MUON; i++)
        compare(kinds[i], rules[i]);
}

/* ------------------------------------------------------------------------------ zero means zero */
static double unchanged_rule(double p, double g, double *state, int t)
{
    (void)g, (void)state, (void)t;
    return p;
}

/* RMSprop with a corrected bias */
static double zero_beta1_rule(double p, double g, double *state, int t)
{
    state[1] = 0.875 * state[1] + 0.125 * g * g;
    return p - 0.03125 * g / (sqrt(state[1] / (1 - pow(0.875, t))) + 1e-8);
}

static double zero_beta2_rule(double p, double g, double *state, int t)
{
    (void)state, (void)t;
    return p - 0.03125 * g / (fabs(g) + 0.015625);
}

static double zero_eps_rule(double p, double g, double *state, int t)
{
    state[0] = 0.75 * state[0] + 0.25 * g;
    state[1] = 0.875 * state[1] + 0.125 * g * g;
    return p - 0.03125 * state[0] / (1 - pow(0.75, t)) / sqrt(state[1] / (1 - pow(0.875, t)));
}

TEST(a_written_zero_is_obeyed)
{
    AdamConfig zero_beta1 = optim_adam_config(0.03125);
    zero_beta1.beta1 = 0;
    zero_beta1.beta2 = 0.875;
    const AdamConfig zero_beta2 = { .learning_rate = 0.03125, .eps = 0.015625 };
    const AdamConfig zero_eps = { .learning_rate = 0.03125, .beta1 = 0.75, .beta2 = 0.875 };
    compare((Kind){ SGD, { .learning_rate = 0 } }, unchanged_rule);
    compare((Kind){ RADAM, optim_adam_config(0) }, unchanged_rule);
    compare((Kind){ ADAM, zero_beta1 }, zero_beta1_rule);
    compare((Kind){ ADAM, zero_beta2 }, zero_beta2_rule);
    compare((Kind){ ADAMW, zero_eps }, zero_eps_rule);
}

TEST(with_eps_zero_a_weight_without_gradients_stays)
{
    for (TestOptimizer kind = ADAM; kind <= RADAM; kind++) {
        AdamConfig config = optim_adam_config(1);
        config.eps = 0;
        Params *params = params_new(test_device(), 1);
        Tensor *x = params_add(params, "x", shape(3), normal);
        Tensor *other = params_add(params, "other", shape(3), normal);
        const Real *before = test_values(x);
        Optimizer *optimizer = test_optimizer(kind, params, config);
        for (int t = 0; t < 10; t++) {
            contribute(other, before);
            optim_step(optimizer);
        }
        assert_identical(test_values(x), before, 3);
        optim_free(optimizer);
        params_free(params);
    }
}

/* Where g^2 underflows, v is 0 and m is not: of every optimizer that divides by sqrt(v). */
TEST(with_eps_zero_a_step_of_a_tiny_gradient_is_at_most_the_learning_rate)
{
    for (TestOptimizer kind = ADAM; kind < OPTIMIZERS; kind++)
        for (int exponent = -45; exponent <= -10; exponent += 5) {
            AdamConfig config = optim_adam_config(0.125);
            config.eps = 0;
            Params *params = params_new(test_device(), 1);
            Tensor *x = params_add(params, "x", shape(1), (Initializer){ INITIAL_ZERO, 0 });
            params_add(params, "matrix", shape(2, 2), normal); /* Muon needs one */
            Optimizer *optimizer = test_optimizer(kind, params, config);
            const Real gradient = (Real)pow(10, exponent);
            for (int t = 0; t < 10; t++) {
                const double before = (double)test_values(x)[0];
                contribute(x, &gradient);
                optim_step(optimizer);
                const double moved = fabs((double)test_values(x)[0] - before);
                ck_assert_msg(moved <= 0.126, "kind %d: 1e%d moves by %g", (int)kind, exponent,
                              moved);
                ck_assert_msg(exponent < -18 || kind == RADAM || moved > 0.05,
                              "kind %d: 1e%d moves by %g", (int)kind, exponent, moved);
            }
            optim_free(optimizer);
            params_free(params);
        }
}

TEST(configs_come_with_their_defaults)
{
    const SGDConfig sgd = optim_sgd_config(0.5);
    ck_assert(sgd.learning_rate == 0.5 && sgd.momentum == 0 && sgd.weight_decay == 0);
    ck_assert(!sgd.nesterov);
    ck_assert(sgd.schedule.kind == SCHEDULE_CONSTANT);
    const AdamConfig adam = optim_adam_config(0.25);
    ck_assert(adam.learning_rate == 0.25 && adam.beta1 == 0.9 && adam.beta2 == 0.999);
    ck_assert(adam.eps == 1e-8 && adam.weight_decay == 0);
    ck_assert(adam.schedule.kind == SCHEDULE_CONSTANT);
}

TEST(threads_change_nothing)
{
    static Real one[COUNT], three[COUNT];
    for (int i = 0; i < OPTIMIZERS && i < MUON;
         i++) { /* whose products depend on the number of threads */
        test_set_threads(1);
        run(kinds[i], NULL, 0, 0, one);
        test_set_threads(3);
        run(kinds[i], NULL, 0, 0, three);
        assert_identical(three, one, COUNT);
    }
}

/* Reads the CPU's memory past a weight's last element. */
TEST(padding_stays_zero)
{
    if (strcmp(device_name(test_device()), "cpu") != 0)
        return;
    for (int i = 0; i < OPTIMIZERS; i++) {
        Pair pair = pair_new();
        Optimizer *optimizer = make(kinds[i], pair.params);
        for (int t = 1; t <= STEPS; t++)
            pair_step(pair, optimizer, test_normal((uint64_t)t, COUNT));
        int gap = 0;
        for (Real *p = pair.first->data + FIRST; p < pair.second->data; p++, gap++)
            ck_assert(*p == 0);
        ck_assert_int_gt(gap, 0);
        ck_assert(pair.second->data[SECOND] == 0);
        optim_free(optimizer);
        params_free(pair.params);
    }
}

/* ---------------------------------------------------------------------------- parameter groups */

TEST(a_groups_weights_step_as_with_a_config_of_their_own)
{
    static const struct {
        double rate, decay;
    } factors[] = { { 0.5, 2 }, { 4, 0 }, { 1, 0.25 }, { 1, 1 } };
    static Real plain[COUNT], scaled[COUNT], grouped[COUNT];
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        run(kinds[kind], NULL, 0, 0, plain);
        for (int i = 0; i < 4; i++) {
            const double rate = factors[i].rate, decay = factors[i].decay;
            Kind other = kinds[kind];
            other.config.learning_rate *= rate;
            other.config.weight_decay *= decay;
            run(other, NULL, 0, 0, scaled);
            run(kinds[kind], "sec*", rate, decay, grouped);
            assert_identical(grouped, plain, FIRST);
            assert_identical(grouped + FIRST, scaled + FIRST, SECOND);
            run(kinds[kind], "*", rate, decay, grouped);
            assert_identical(grouped, scaled, COUNT);
        }
    }
}

TEST(a_rate_factor_of_zero_stops_weights_until_it_is_replaced)
{
    static Real grouped[COUNT], start[COUNT];
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        Pair pair = pair_new();
        Optimizer *optimizer = make(kinds[kind], pair.params);
        pair_read(pair, start);
        optim_set_group(optimizer, "*", 2, 2);
        optim_set_group(optimizer, "second", 0, 1);
        for (int t = 1; t <= STEPS; t++)
            pair_step(pair, optimizer, test_normal((uint64_t)t, COUNT));
        pair_read(pair, grouped);
        assert_identical(grouped + FIRST, start + FIRST, SECOND);
        ck_assert_mem_ne(grouped, start, FIRST * sizeof(Real));
        for (int i = 0; i < 1000; i++) /* more pairs than fit at once: unused ones are replaced */
            optim_set_group(optimizer, "second", 1 + i, 1);
        pair_step(pair, optimizer, test_normal(1, COUNT));
        pair_read(pair, grouped);
        ck_assert_mem_ne(grouped + FIRST, start + FIRST, SECOND * sizeof(Real));
        optim_free(optimizer);
        params_free(pair.params);
    }
}

/* A step changes the first weight and leaves the second. */
static void assert_step_of_first_alone(Pair pair, Optimizer *optimizer)
{
    static Real before[COUNT], after[COUNT];
    pair_read(pair, before);
    pair_step(pair, optimizer, test_normal(2, COUNT));
    pair_read(pair, after);
    assert_identical(after + FIRST, before + FIRST, SECOND);
    ck_assert_mem_ne(after, before, FIRST * sizeof(Real));
}

TEST(a_group_that_is_set_after_a_step_counts_in_the_next_one)
{
    Pair pair = pair_new();
    Optimizer *optimizer = optim_sgd(pair.params, optim_sgd_config(0.1));
    optim_set_group(optimizer, "*", 2, 1);
    pair_step(pair, optimizer, test_normal(1, COUNT));
    optim_set_group(optimizer, "second", 0, 1);
    assert_step_of_first_alone(pair, optimizer);
    optim_free(optimizer);
    params_free(pair.params);
}

static const OptimizerKind *sgd;
static StepScalars rate_of_role_0(const Optimizer *o, int role, double learning_rate,
                                  double decay_factor)
{
    return sgd->scalars(o, role, role == 0 ? learning_rate : 0, decay_factor);
}

TEST(a_role_that_is_set_after_a_step_counts_in_the_next_one)
{
    Pair pair = pair_new();
    Optimizer *optimizer = optim_sgd(pair.params, optim_sgd_config(0.1));
    sgd = optimizer->kind;
    OptimizerKind kind = *sgd;
    kind.scalars = rate_of_role_0;
    optimizer->kind = &kind;
    ck_assert(optim_set_role(optimizer, pair.second, 0));
    pair_step(pair, optimizer, test_normal(1, COUNT));
    ck_assert(optim_set_role(optimizer, pair.second, 1));
    assert_step_of_first_alone(pair, optimizer);
    optim_free(optimizer);
    params_free(pair.params);
}

/* ------------------------------------------------------------------------------ frozen weights */
static void step_unfrozen(Pair pair, Optimizer *optimizer, int t)
{
    const Real *gradients = test_normal((uint64_t)t, COUNT);
    contribute(pair.first, gradients);
    if (pair.second->requires_grad)
        contribute(pair.second, gradients + FIRST);
    optim_step(optimizer);
}

/* Neither decay nor momentum moves it. SGD, which does not depend on t, continues as if the steps
 * in between had never been. */
TEST(a_frozen_weight_stays_until_it_is_unfrozen)
{
    static Real values[COUNT], before[COUNT], always[COUNT], shorter[COUNT];
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        Pair pair = pair_new(), plain = pair_new(), brief = pair_new();
        Optimizer *optimizer = make(kinds[kind], pair.params);
        Optimizer *other = make(kinds[kind], plain.params);
        Optimizer *third = make(kinds[kind], brief.params);
        for (int t = 1; t <= 9; t++) {
            if (t == 4) {
                params_set_requires_grad(pair.params, "sec*", false);
                pair_read(pair, before);
            }
            if (t == 5)
                optim_set_group(optimizer, "*", 1, 1); /* does not unfreeze */
            if (t == 7) {
                pair_read(pair, values);
                assert_identical(values + FIRST, before + FIRST, SECOND);
                params_set_requires_grad(pair.params, "second", true);
            }
            step_unfrozen(pair, optimizer, t);
            step_unfrozen(plain, other, t);
            if (t < 4 || t >= 7)
                step_unfrozen(brief, third, t);
        }
        pair_read(pair, values);
        pair_read(plain, always);
        pair_read(brief, shorter);
        assert_identical(values, always, FIRST);
        ck_assert_mem_ne(values + FIRST, before + FIRST, SECOND * sizeof(Real));
        if (kind <= NESTEROV)
            assert_identical(values + FIRST, shorter + FIRST, SECOND);
        optim_free(optimizer);
        optim_free(other);
        optim_free(third);
        params_free(pair.params);
        params_free(plain.params);
        params_free(brief.params);
    }
}

/* The optimizer learns of the frozen weights at the first step, which allocates a table. */
TEST(weights_may_be_frozen_before_the_optimizer_is_made)
{
    const Real ones[] = { 1, 1, 1 };
    const size_t memory = device_memory(test_device()).current;
    Params *params = params_new(test_device(), 1);
    Tensor *a = params_add(params, "a", shape(3), normal),
           *b = params_add(params, "b", shape(3), normal);
    params_set_requires_grad(params, "a", false);
    Optimizer *optimizer = make(kinds[ADAMW], params);
    const Real *before = test_values(a), *start = test_values(b);
    for (int n = 1; n <= 2; n++) {
        contribute(b, ones);
        device_fail_allocation(n);
        test_expect_error();
        if (!setjmp(test_error_jump))
            optim_step(optimizer);
        tapegrad_on_error(NULL, NULL);
        ck_assert(device_fail_allocation(0));
        ck_assert_msg(strstr(tapegrad_error(), "optim_step: memory is exhausted") != NULL, "%s",
                      tapegrad_error());
        ck_assert_int_eq(optim_steps(optimizer), 0);
    }
    optim_step(optimizer);
    assert_identical(test_values(a), before, 3);
    ck_assert(test_values(b)[0] != start[0]);
    optim_free(optimizer);
    params_free(params);
    ck_assert_uint_eq(device_memory(test_device()).current, memory);
}

/* The parts start at multiples of 3 elements. */
TEST(joined_weights_may_be_in_different_groups)
{
    const char *const names[] = { "query", "key", "value" };
    const Real ones[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    Params *params = params_new(test_device(), 1);
    Tensor *whole = params_add_joined(params, "a", names, 3, "bias", shape(3), normal);
    const Real *before = test_values(whole);
    Optimizer *optimizer = optim_sgd(params, optim_sgd_config(0.5));
    optim_set_group(optimizer, "*.key.*", 0, 1);
    optim_set_group(optimizer, "*.value.bias", 2, 1);
    contribute(whole, ones);
    optim_step(optimizer);
    const Real *after = test_values(whole);
    for (int i = 0; i < 9; i++)
        ck_assert(after[i] == before[i] - (i < 3 ? (Real)0.5 : i < 6 ? 0 : 1));
    optim_free(optimizer);
    params_free(params);
}

TEST(bad_groups_raise_and_change_nothing)
{
    Params *params = params_new(test_device(), 1);
    Tensor *x = params_add(params, "x", shape(1), normal);
    for (int i = 0; i < 256; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", i);
        params_add(params, name, shape(1), normal);
    }
    Optimizer *optimizer = optim_sgd(params, optim_sgd_config(1));
    assert_raises("optim_set_group: the optimizer is NULL", optim_set_group(NULL, "*", 1, 1));
    assert_raises("optim_set_group: the pattern is NULL", optim_set_group(optimizer, NULL, 1, 1));
    assert_raises("optim_set_group: no weight's name matches \"*.bias\"",
                  optim_set_group(optimizer, "*.bias", 1, 1));
    assert_raises("optim_set_group: learning_rate_factor is -1, expected 0 or more, and finite",
                  optim_set_group(optimizer, "x", -1, 1));
    assert_raises("optim_set_group: weight_decay_factor is inf, expected 0 or more, and finite",
                  optim_set_group(optimizer, "x", 1, INFINITY));
    for (int n = 1; n <= 2; n++) {
        device_fail_allocation(n);
        test_expect_error();
        if (!setjmp(test_error_jump))
            optim_set_group(optimizer, "x", 0, 1);
        tapegrad_on_error(NULL, NULL);
        ck_assert(device_fail_allocation(0));
        ck_assert_msg(strstr(tapegrad_error(), "optim_set_group: memory is exhausted") != NULL,
                      "%s", tapegrad_error());
    }
    const Real one = 1, zero = 0;
    tensor_write(x, &zero);
    contribute(x, &one);
    optim_step(optimizer);
    ck_assert(tensor_item(x) == -1);
    for (int i = 0; i < 254; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", i);
        optim_set_group(optimizer, name, 2 + i, 1);
    }
    assert_raises("optim_set_group: there are 255 different pairs of factors already",
                  optim_set_group(optimizer, "layer255", 1000, 1));
    optim_set_group(optimizer, "layer255", 2, 1);
    optim_free(optimizer);
    params_free(params);
}

/* ------------------------------------------------------------------------------------ gradients */
TEST(a_step_uses_the_sum_of_contributions_and_empties_it)
{
    const Real one[] = { 1, -2 }, two[] = { 4, 8 }, sum[] = { 5, 6 };
    Params *a = params_new(test_device(), 1), *b = params_new(test_device(), 1);
    Tensor *x = params_add(a, "x", shape(2), normal), *y = params_add(b, "x", shape(2), normal);
    Optimizer *first = make(kinds[MOMENTUM], a), *second = make(kinds[MOMENTUM], b);
    for (int t = 0; t < 3; t++) {
        contribute(x, one);
        contribute(x, two);
        ck_assert(x->has_gradient);
        optim_step(first);
        ck_assert(!x->has_gradient);
        contribute(y, sum);
        optim_step(second);
        assert_identical(test_values(x), test_values(y), 2);
    }
    optim_free(first);
    optim_free(second);
    params_free(a);
    params_free(b);
}

TEST(a_weight_without_a_contribution_has_gradient_zero)
{
    const Real g[] = { 1, 1, 1 };
    Params *params = params_new(test_device(), 1);
    Tensor *used = params_add(params, "used", shape(3), normal);
    Tensor *unused = params_add(params, "unused", shape(3), normal);
    Optimizer *optimizer = optim_sgd(params, (SGDConfig){ .learning_rate = 1 });
    const Real *before = test_values(unused), *start = test_values(used);
    contribute(used, g);
    optim_step(optimizer);
    assert_identical(test_values(unused), before, 3);
    for (int i = 0; i < 3; i++)
        ck_assert(test_values(used)[i] == start[i] - 1);
    contribute(unused, g); /* discarded by params_zero_gradients */
    params_zero_gradients(params);
    contribute(used, g);
    optim_step(optimizer);
    assert_identical(test_values(unused), before, 3);
    optim_free(optimizer);
    params_free(params);
}

/* Momentum and decay would move the weights, and the step would count. */
TEST(a_step_without_a_backward_pass_raises)
{
    const char *sentence =
        "optim_step: no weight has a gradient since the last step; call tape_backward first";
    Pair pair = pair_new();
    Optimizer *optimizer = make(kinds[MOMENTUM], pair.params);
    assert_raises(sentence, optim_step(optimizer));
    pair_step(pair, optimizer, test_normal(1, COUNT));
    const Real *before = test_values(pair.first);
    assert_raises(sentence, optim_step(optimizer));
    ck_assert_int_eq(optim_steps(optimizer), 1);
    assert_identical(test_values(pair.first), before, FIRST);
    params_set_requires_grad(pair.params, "*", false);
    optim_step(optimizer);
    assert_identical(test_values(pair.first), before, FIRST);
    optim_free(optimizer);
    params_free(pair.params);
}

TEST(values_that_are_not_finite_pass_through)
{
    const Real g[] = { 1, (Real)NAN, 1, (Real)INFINITY };
    for (int i = 0; i < OPTIMIZERS; i++) {
        Params *params = params_new(test_device(), 1);
        Tensor *x = params_add(params, "x", shape(4), normal);
        params_add(params, "matrix", shape(2, 2), normal);
        Optimizer *optimizer = make(kinds[i], params);
        contribute(x, g);
        optim_step(optimizer);
        const Real *values = test_values(x);
        ck_assert(isfinite(values[0]) && isnan(values[1]) && isfinite(values[2]));
        ck_assert(!isfinite(values[3]));
        optim_free(optimizer);
        params_free(params);
    }
}

/* ------------------------------------------------------------------------------------ schedules */
typedef double Factor(int64_t t);

static const double rounding = sizeof(Real) == 4 ? 0x1p-24 : 0x1p-52;

/* Compares the learning rate of each step with the factor, for a base rate of 1 / 4; a step with
 * gradient 1 lowers the weight by the rate that was reported before. */
static void check_schedule(Schedule schedule, Factor *factor, int64_t steps)
{
    const Real one = 1, zero = 0;
    Params *params = params_new(test_device(), 1);
    Tensor *x = params_add(params, "x", shape(1), normal);
    Optimizer *optimizer =
        optim_sgd(params, (SGDConfig){ .learning_rate = 0.25, .schedule = schedule });
    for (int64_t t = 1; t <= steps; t++) {
        const double rate = optim_learning_rate(optimizer);
        ck_assert_msg(fabs(rate - 0.25 * factor(t)) <= 0.25 * rounding,
                      "step %lld: %.9g, expected %.9g", (long long)t, rate, 0.25 * factor(t));
        tensor_write(x, &zero);
        contribute(x, &one);
        optim_step(optimizer);
        ck_assert(tensor_item(x) == -(double)(Real)rate);
    }
    optim_free(optimizer);
    params_free(params);
}

static double constant_factor(int64_t t)
{
    return t > 0;
}

static double drops_factor(int64_t t)
{
    return t < 3 ? 1 : t < 4 ? 0.5 : t < 40 ? 0.25 : 0.125;
}

static double eight_drops_factor(int64_t t)
{
    return pow(0.75, t < 8 ? (double)t : 8);
}

static double cosine_factor(int64_t t)
{
    if (t < 10)
        return (double)t / 10;
    return t < 50 ? 0.125 + (1 - 0.125) * (1 + cos(acos(-1) * (double)(t - 10) / 40)) / 2 : 0.125;
}

static double fall_factor(int64_t t)
{
    return t < 7 ? (1 + cos(acos(-1) * (double)t / 7)) / 2 : 0;
}

TEST(schedules_follow_their_formulas)
{
    check_schedule(optim_constant(), constant_factor, 20);
    check_schedule((Schedule){ .kind = SCHEDULE_CONSTANT }, constant_factor, 20);
    check_schedule(optim_drops(0.5, 3, (const int64_t[]){ 3, 4, 40 }), drops_factor, 60);
    check_schedule(optim_drops(0.75, 8, (const int64_t[]){ 1, 2, 3, 4, 5, 6, 7, 8 }),
                   eight_drops_factor, 20);
    check_schedule(optim_drops(0.5, 0, NULL), constant_factor, 5);
    check_schedule(optim_cosine(10, 50, 0.125), cosine_factor, 80);
    check_schedule(optim_cosine(0, 7, 0), fall_factor, 12);
}

TEST(points_of_the_cosine)
{
    ck_assert(cosine_factor(10) == 1);
    ck_assert_double_eq_tol(cosine_factor(30), 0.5625, 1e-15);
    ck_assert_double_eq_tol(cosine_factor(20), 0.125 + 0.875 * (1 + sqrt(0.5)) / 2, 1e-15);
}

/* Observes each value and compares the factor after it. */
static void observe(Schedule schedule, int count, const double *values, const double *factors)
{
    Params *params = params_new(test_device(), 1);
    Tensor *x = params_add(params, "x", shape(1), normal);
    Optimizer *optimizer =
        optim_sgd(params, (SGDConfig){ .learning_rate = 1, .schedule = schedule });
    ck_assert(optim_learning_rate(optimizer) == 1);
    for (int i = 0; i < count; i++) {
        optim_observe(optimizer, values[i]);
        ck_assert_msg(optim_learning_rate(optimizer) == factors[i],
                      "value %d: the factor is %g, expected %g", i, optim_learning_rate(optimizer),
                      factors[i]);
        contribute(x, &(Real){ 1 });
        if (i % 2)
            optim_step(optimizer); /* steps have no effect */
    }
    optim_free(optimizer);
    params_free(params);
}

TEST(the_plateau_lowers_the_learning_rate)
{
    const Schedule two = optim_plateau(0.5, 2, 0.1875);
    observe(two, 13, (const double[]){ 4, 3, 3, 2.9999, 3, 5, 2, 2, 2, 2, 2, 2, 2 },
            (const double[]){ 1, 1, 1, 1, .5, .5, .5, .5, .5, .25, .25, .25, .1875 });
    /* A negative best, values just below and just above the margin, NaN. */
    observe(optim_plateau(0.5, 0, 0), 7,
            (const double[]){ -1, -0.99995, -1.00005, -1.0002, NAN, -1.0002, -2 },
            (const double[]){ 1, .5, .25, .25, .125, .0625, .0625 });
    observe(optim_plateau(0.5, 1, 0), 6,
            (const double[]){ NAN, NAN, INFINITY, -INFINITY, -INFINITY, -INFINITY },
            (const double[]){ 1, .5, .5, .5, .5, .25 });
    observe(optim_plateau(1, 0, 0), 3, (const double[]){ 1, 1, 1 }, (const double[]){ 1, 1, 1 });
    observe(optim_constant(), 3, (const double[]){ 1, 1, 1 }, (const double[]){ 1, 1, 1 });
}

TEST(the_base_of_the_learning_rate_may_change)
{
    Params *params = params_new(test_device(), 1);
    Tensor *x = params_add(params, "x", shape(1), normal);
    const int64_t at[] = { 2 };
    AdamConfig config = optim_adam_config(1e-3);
    config.schedule = optim_drops(0.5, 1, at);
    Optimizer *optimizer = optim_adam(params, config);
    ck_assert(optim_learning_rate(optimizer) == 1e-3);
    optim_set_learning_rate(optimizer, 8);
    ck_assert(optim_learning_rate(optimizer) == 8);
    contribute(x, &(Real){ 1 });
    optim_step(optimizer);
    ck_assert(optim_learning_rate(optimizer) == 4);
    optim_set_learning_rate(optimizer, 0);
    ck_assert(optim_learning_rate(optimizer) == 0);
    assert_raises("optim_set_learning_rate: learning_rate is -1, expected 0 or more, and finite",
                  optim_set_learning_rate(optimizer, -1));
    assert_raises("optim_set_learning_rate: learning_rate is inf, expected 0 or more, and finite",
                  optim_set_learning_rate(optimizer, INFINITY));
    optim_free(optimizer);
    params_free(params);
}

/* -------------------------------------------------------------------------------- bad arguments */
TEST(bad_schedules_raise)
{
    const int64_t at[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 }, twice[] = { 5, 5 }, early[] = { 0 };
    const double half = 0.5;
    assert_raises("optim_drops: the factor is 0, expected more than 0 and at most 1",
                  optim_drops(0, 1, at));
    assert_raises("optim_drops: the factor is 1.5, expected more than 0 and at most 1",
                  optim_drops(1.5, 1, at));
    assert_raises("optim_drops: the factor is nan, expected more than 0 and at most 1",
                  optim_drops(NAN, 1, at));
    assert_raises("optim_drops: there are 9 drops, expected 0 to 8", optim_drops(half, 9, at));
    assert_raises("optim_drops: there are -1 drops, expected 0 to 8", optim_drops(half, -1, at));
    assert_raises("optim_drops: drop 1 is at step 5, expected after step 5",
                  optim_drops(half, 2, twice));
    assert_raises("optim_drops: drop 0 is at step 0, expected after step 0",
                  optim_drops(half, 1, early));
    assert_raises("optim_drops: at is NULL, expected 2 steps", optim_drops(half, 2, NULL));
    assert_raises("optim_cosine: warm_up is -1 and total 5, expected 0 <= warm_up < total",
                  optim_cosine(-1, 5, 0));
    assert_raises("optim_cosine: warm_up is 5 and total 5, expected 0 <= warm_up < total",
                  optim_cosine(5, 5, 0));
    assert_raises("optim_cosine: last is 2, expected 0 to 1", optim_cosine(0, 5, 2));
    assert_raises("optim_cosine: last is nan, expected 0 to 1", optim_cosine(0, 5, NAN));
    assert_raises("optim_plateau: the factor is -1, expected more than 0 and at most 1",
                  optim_plateau(-1, 5, 0));
    assert_raises("optim_plateau: the patience is -1, expected 0 or more",
                  optim_plateau(half, -1, 0));
    assert_raises("optim_plateau: last is -0.5, expected 0 to 1", optim_plateau(half, 1, -half));
}

/* A default config with one field changed raises "FUNCTION: FIELD is VALUE, expected ...". */
static void assert_refused(Params *params, const char *function, AdamMaker *maker, size_t field,
                           double value, const char *expected)
{
    AdamConfig config = optim_adam_config(1e-3);
    *(double *)((char *)&config + field) = value;
    char sentence[160];
    snprintf(sentence, sizeof sentence, "%s: %s", function, expected);
    assert_raises(sentence, maker(params, config));
}

TEST(bad_configs_raise)
{
    Params *params = params_new(test_device(), 1), *empty = params_new(test_device(), 1);
    params_add(params, "x", shape(3), normal);
    const AdamConfig good = optim_adam_config(1e-3);
    assert_raises("optim_sgd: params is NULL", optim_sgd(NULL, optim_sgd_config(1e-2)));
    assert_raises("optim_step: the optimizer is NULL", optim_step(NULL));
    assert_raises("optim_radam: there are no weights; register them first",
                  optim_radam(empty, good));
    assert_raises("optim_sgd: learning_rate is -1, expected 0 or more, and finite",
                  optim_sgd(params, optim_sgd_config(-1)));
    assert_raises("optim_sgd: momentum is 1, expected at least 0 and less than 1",
                  optim_sgd(params, (SGDConfig){ .momentum = 1 }));
    assert_raises("optim_sgd: momentum is -0.5, expected at least 0 and less than 1",
                  optim_sgd(params, (SGDConfig){ .momentum = -0.5 }));
    assert_raises("optim_sgd: nesterov is true and momentum is 0, expected momentum above 0",
                  optim_sgd(params, (SGDConfig){ .learning_rate = 1, .nesterov = true }));
    assert_raises("optim_sgd: weight_decay is -1, expected 0 or more, and finite",
                  optim_sgd(params, (SGDConfig){ .weight_decay = -1 }));
    assert_refused(params, "optim_adam", optim_adam, offsetof(AdamConfig, learning_rate), NAN,
                   "learning_rate is nan, expected 0 or more, and finite");
    assert_refused(params, "optim_adam", optim_adam, offsetof(AdamConfig, beta1), 1,
                   "beta1 is 1, expected at least 0 and less than 1");
    assert_refused(params, "optim_adamw", optim_adamw, offsetof(AdamConfig, beta2), -1,
                   "beta2 is -1, expected at least 0 and less than 1");
    assert_refused(params, "optim_radam", optim_radam, offsetof(AdamConfig, eps), -1,
                   "eps is -1, expected 0 or more, and finite");
    assert_refused(params, "optim_radam", optim_radam, offsetof(AdamConfig, eps), NAN,
                   "eps is nan, expected 0 or more, and finite");
    assert_refused(params, "optim_radam", optim_radam, offsetof(AdamConfig, weight_decay), INFINITY,
                   "weight_decay is inf, expected 0 or more, and finite");
    AdamConfig config = good;
    config.schedule.kind = (ScheduleKind)7;
    assert_raises("optim_radam: the schedule's kind is 7, expected a ScheduleKind",
                  optim_radam(params, config));
    config.schedule = (Schedule){ .kind = SCHEDULE_DROPS, .factor = 0.5, .drop_count = 9 };
    assert_raises("optim_adam: there are 9 drops, expected 0 to 8", optim_adam(params, config));
    assert_raises("optim_steps: the optimizer is NULL", optim_steps(NULL));
    assert_raises("optim_learning_rate: the optimizer is NULL", optim_learning_rate(NULL));
    assert_raises("optim_set_learning_rate: the optimizer is NULL",
                  optim_set_learning_rate(NULL, 1));
    assert_raises("optim_observe: the optimizer is NULL", optim_observe(NULL, 1));
    assert_raises("optim_save: the optimizer is NULL", (void)!optim_save(NULL, NULL, NULL, 0, ""));
    assert_raises("optim_load: the optimizer is NULL", (void)!optim_load(NULL, NULL, ""));
    assert_raises("optim_adam: beta2 and eps are both 0, which divides each gradient by its own "
                  "size; start from optim_adam_config",
                  optim_adam(params, (AdamConfig){ .learning_rate = 1e-3 }));
    params_add(params, "still_open", shape(3), normal);
    params_free(empty);
    params_free(params);
}

/* ------------------------------------------------------------------------------------- lifetime */
TEST(a_failed_allocation_may_be_repeated)
{
    static Real expected[COUNT], values[COUNT];
    const size_t before = device_memory(test_device()).current;
    test_set_threads(2);
    for (int i = 0; i < OPTIMIZERS; i++) {
        run(kinds[i], NULL, 0, 0, expected);
        volatile int failures = 0;
        for (volatile int n = 1;; n++) {
            Pair pair = pair_new();
            Optimizer *volatile optimizer = NULL;
            test_expect_error();
            if (!setjmp(test_error_jump)) {
                device_fail_allocation(n);
                optimizer = make(kinds[i], pair.params);
            }
            tapegrad_on_error(NULL, NULL);
            const bool happened = device_fail_allocation(0);
            ck_assert(happened == !optimizer);
            if (happened) {
                assert_exhausted();
                optimizer = make(kinds[i], pair.params);
                failures++;
            }
            params_flat_gradients(pair.params);
            device_fail_allocation(kinds[i].kind == MUON ? 0
                                                         : 1); /* other steps allocate nothing */
            optim_step(optimizer);
            ck_assert(!device_fail_allocation(0));
            optim_free(optimizer);
            optimizer = make(kinds[i], pair.params);
            params_free(pair.params);
            optim_free(optimizer); /* in this order too */
            ck_assert_uint_eq(device_memory(test_device()).current, before);
            if (!happened)
                break;
            run(kinds[i], NULL, 0, 0, values);
            assert_identical(values, expected, COUNT);
        }
        ck_assert_int_eq(failures, kinds[i].kind == MUON ? 9 : 5);
    }
    optim_free(NULL);
}

TEST(no_weight_is_added_after_the_optimizer)
{
    Params *params = params_new(test_device(), 1);
    params_add(params, "x", shape(3), normal);
    Optimizer *optimizer = make(kinds[RADAM], params);
    assert_raises("params_add: y comes too late: storage was allocated at the first use of a "
                  "weight; register all weights before it",
                  params_add(params, "y", shape(3), normal));
    optim_free(optimizer);
    params_free(params);
}

int main(void)
{
    return test_main("optim", NULL, NULL);
}
