/* What the files of optim/ share. */
#ifndef TAPEGRAD_OPTIM_INTERNAL_H
#define TAPEGRAD_OPTIM_INTERNAL_H

#include "nn/internal.h"
#include "optim/optim.h"
#include "optim/scalars.h"
#include "ops/internal.h"

/* What the plateau schedule remembers of the observed values. */
typedef struct Plateau {
    double best;
    int64_t bad;   /* values in a row that were no better */
    double factor; /* what the learning rate is multiplied by now */
} Plateau;

struct Optimizer {
    Params *params;
    Device *device;
    const char *kind; /* "sgd", "adam", "adamw" or "radam" */
    /* The numbers of step t; and that step, with the numbers at current, on all weights at once. */
    StepScalars (*scalars)(const Optimizer *optimizer, int64_t t, double learning_rate);
    void (*update)(const Optimizer *optimizer, Real *values, const Real *gradients);
    Real learning_rate; /* before the schedule's factor */
    Real momentum, beta1, beta2, eps, weight_decay;
    Schedule schedule;
    Plateau plateau;
    int64_t steps;
    int state_count; /* buffers in state, each laid out like the weights */
    Block *state;
    Real *m, *v;          /* in it, where there are one or two */
    StepScalars *current; /* behind them */
};

/* An optimiser from a template that holds params, kind, scalars, update, state_count, the numbers
 * and the schedule: checks these, as function, lays the weights out and takes the state's memory. */
Optimizer *optimizer_new(const char *function, Optimizer template);

/* The same for the kinds with m and v, from a config in which 0 means a default. */
Optimizer *optimizer_with_means(const char *function, Params *params, AdamConfig config,
                                Optimizer template);

/* Raises, as function, unless the schedule makes sense. */
void schedule_check(const char *function, const Schedule *schedule);

/* The factor of the learning rate in step t. */
double schedule_factor(const Schedule *schedule, const Plateau *plateau, int64_t t);

#endif
