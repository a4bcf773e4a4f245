/* Internals of optim/. */
#ifndef TAPEGRAD_OPTIM_INTERNAL_H
#define TAPEGRAD_OPTIM_INTERNAL_H

#include "nn/internal.h"
#include "optim/optim.h"
#include "optim/scalars.h"

/* Progress of the plateau schedule. */
typedef struct Plateau {
    double best;
    int64_t bad;   /* consecutive values without improvement */
    double factor; /* of the learning rate, now */
} Plateau;

typedef struct Groups Groups;
typedef struct Muon Muon;

/* The scalars of the step that has begun, optimizer->steps, without those of groups. */
typedef StepScalars ScalarsOf(const Optimizer *optimizer, double learning_rate,
                              double weight_decay);

struct Optimizer {
    Params *params;
    Device *device;
    const char *kind; /* the end of the name of its function: "sgd", "adamw" */
    ScalarsOf *scalars;
    /* Before a step: computes what may exhaust memory and changes no result; or NULL. gradients and
     * p are those of the range. */
    void (*prepare)(const Optimizer *optimizer, const Real *gradients);
    /* The step on the range's weights, which reads the scalars at `current`. */
    void (*update)(const Optimizer *optimizer, Real *p, const Real *gradients);
    double learning_rate; /* before the schedule's factor */
    double weight_decay;
    Real momentum, beta1, beta2, eps; /* as the kernels compute with them */
    Schedule schedule;
    Plateau plateau;
    int64_t steps;
    FlatRange range; /* of the flat buffers, which this process steps */
    int state_count; /* buffers in state, each with the layout of this range: 0 to 3 */
    Block *state;
    Real *m, *v, *average; /* in state; NULL if state_count is less */
    StepScalars *current;  /* in state, after these */
    Groups *groups;        /* NULL until optim_set_group, but for Muon */
    Muon *muon;            /* NULL for the others */
    /* Schedule-free, whose z is m, and x average: the weights are x, in evaluation, or y. */
    bool evaluating;
    double square_sum;   /* of the learning rates so far */
    Real average_weight; /* c of this step */
};

/* An optimizer from a template with params, scalars, update, state_count, hyperparameters and
 * schedule: checks these, raising as function, and allocates the flat buffers and the state. The
 * function is "optim_" and the kind. */
Optimizer *optim_new(const char *function, Optimizer template);

/* Raises, as function, if optimizer is NULL or not divided as its params are. */
void optim_need(const char *function, const Optimizer *optimizer);

/* Divides the optimizer's work as its params' shards say. */
void optim_set_range(const char *function, Optimizer *optimizer, FlatRange range);

/* Schedule-free: z = x = the weights; before a step, c; the weights = x or y. */
void schedule_free_start(const Optimizer *o);
void schedule_free_begin(Optimizer *o, double learning_rate);
void schedule_free_set_weights(const Optimizer *o);

/* Raises, as function, unless value is 0 or more, and finite as a Real. */
void optim_check_not_negative(const char *function, const char *name, double value);

/* The same for Adam's variants, which differ in their scalars; and the template alone, without
 * them. */
Optimizer optim_adam_template(const char *function, Params *params, AdamConfig config);
Optimizer *optim_new_adam(const char *function, Params *params, AdamConfig config,
                          ScalarsOf *scalars);
ScalarsOf adamw_scalars;

/* Before a step: uploads the table of groups if groups or frozen weights have changed. Raises when
 * memory is exhausted. */
void groups_update(Optimizer *optimizer);
/* With groups: uploads the scalars of each group, and completes all, those of group 0. */
void groups_set_scalars(const Optimizer *optimizer, double learning_rate, StepScalars *all);
void groups_free(Optimizer *optimizer);
/* Allocates the groups, with all weights in group 0; NULL when memory is exhausted. */
Groups *groups_new(Optimizer *optimizer);
/* Muon: moves a weight to the group of matrices. muon_rest_scalars: of the other groups, before a
 * factor of the decay. */
void groups_set_matrix(Optimizer *optimizer, const Tensor *weight);
StepScalars muon_rest_scalars(const Optimizer *o, double learning_rate, double decay_factor);
void muon_free(const Optimizer *optimizer);

/* Consecutive elements of one group. Without groups there is one run. */
typedef struct Run {
    int64_t start, count;
    const StepScalars *scalars;
} Run;

/* Moves to the next run of n elements that are not frozen, the first one from { 0 }; false after
 * the last. */
static inline bool next_run(Run *run, const StepScalars *scalars, int64_t n)
{
    int64_t start = run->start + run->count;
    *run = (Run){ start, n - start, scalars };
    if (!scalars->groups)
        return start < n;
    const uint8_t *groups = scalars->groups;
    const int64_t units = n >> scalars->unit_bits;
    int64_t unit = start >> scalars->unit_bits;
    while (unit < units && groups[unit] == FROZEN)
        unit++;
    if (unit == units)
        return false;
    const uint8_t group = groups[unit];
    start = unit << scalars->unit_bits;
    while (unit < units && groups[unit] == group)
        unit++;
    *run = (Run){ start, (unit << scalars->unit_bits) - start, scalars->of_group + group };
    return true;
}

/* Adam's step of the elements of a run. */
void adam_run(Real *p, Real *m, Real *v, const Real *gradients, const Run *run);

/* Raises, as function, when a field of the schedule is out of range. */
void schedule_check(const char *function, const Schedule *schedule);

/* The factor of the learning rate in step t. */
double schedule_factor(const Schedule *schedule, const Plateau *plateau, int64_t t);

#endif
