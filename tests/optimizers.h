/* Shared by the tests of optimizers: all of them, each with hyperparameters that move weights far,
 * and a pair of weights that they step. */
#ifndef TAPEGRAD_TESTS_OPTIMIZERS_H
#define TAPEGRAD_TESTS_OPTIMIZERS_H

#include "tests/support.h"

#include <string.h>

static const double tolerance = sizeof(Real) == 4 ? 2e-6 : 1e-13;
static const Initializer normal = { INITIAL_NORMAL, 1 };

typedef struct Kind {
    TestOptimizer kind;
    AdamConfig config;
} Kind;

static inline Optimizer *make(Kind kind, Params *params)
{
    return test_optimizer(kind.kind, params, kind.config);
}

/* Contributes these values to the weight's gradient. */
static inline void contribute(Tensor *weight, const Real *values)
{
    Tape *tape = tape_new(test_device());
    tape_backward_from(tape, op_scale(tape, weight, 1), tape_input(tape, values, weight->shape));
    tape_free(tape);
}

#define DECAYING                                                                                   \
    {                                                                                              \
        .learning_rate = 0.03125, .beta1 = 0.75, .beta2 = 0.875, .eps = 0.015625,                  \
        .weight_decay = 0.5                                                                        \
    }
static const Kind kinds[] = {
    { SGD, { .learning_rate = 0.01, .weight_decay = 0.25 } },
    { MOMENTUM, { .learning_rate = 0.0625, .beta1 = 0.75, .weight_decay = 0.125 } },
    { NESTEROV, { .learning_rate = 0.0625, .beta1 = 0.75, .weight_decay = 0.125 } },
    { ADAM, DECAYING },
    { ADAMW, DECAYING },
    { RADAM, DECAYING },
#ifdef TAPEGRAD_SCHEDULE_FREE_H
    { SCHEDULE_FREE, DECAYING },
#endif
#ifdef TAPEGRAD_MUON_H
    { MUON, DECAYING },
#endif
};

/* Two weights, the larger of which occupies all threads, with padding after both. */
enum { FIRST = 137 * 141, SECOND = 5, COUNT = FIRST + SECOND, STEPS = 12 };

typedef struct Pair {
    Params *params;
    Tensor *first, *second;
} Pair;

static inline Pair pair_new(void)
{
    Pair pair = { .params = params_new(test_device(), 5) };
    pair.first = params_add(pair.params, "first", shape(137, 141), normal);
    pair.second = params_add(pair.params, "second", shape(SECOND), normal);
    return pair;
}

static inline void pair_read(Pair pair, Real *values)
{
    tensor_read(pair.first, values);
    tensor_read(pair.second, values + FIRST);
}

static inline void pair_step(Pair pair, Optimizer *optimizer, const Real *gradients)
{
    contribute(pair.first, gradients);
    contribute(pair.second, gradients + FIRST);
    optim_step(optimizer);
}

/* Values after STEPS steps, with a group of these factors unless pattern is NULL. */
static inline void run(Kind kind, const char *pattern, double rate, double decay, Real *values)
{
    Pair pair = pair_new();
    Optimizer *optimizer = make(kind, pair.params);
    if (pattern)
        optim_set_group(optimizer, pattern, rate, decay);
    for (int t = 1; t <= STEPS; t++)
        pair_step(pair, optimizer, test_normal((uint64_t)t, COUNT));
    pair_read(pair, values);
    optim_free(optimizer);
    params_free(pair.params);
}

#endif
