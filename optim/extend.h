/* For optimizers of one's own: an optimizer is a kind and its states. */
#ifndef TAPEGRAD_OPTIM_EXTEND_H
#define TAPEGRAD_OPTIM_EXTEND_H

#include "nn/extend.h"
#include "optim/optim.h"
#include "optim/scalars.h"

#pragma GCC visibility push(default)

enum { OPTIM_STATES = 3, OPTIM_NUMBERS = 2 };

/* What distinguishes an optimizer from others; optim/sgd.c is the shortest. scalars and update are
 * required; another function that is NULL does nothing. gradients and p are the optimizer's range
 * of the flat buffers, on its device. The padding between weights is 0 in both and must stay 0 in
 * p. On CUDA, which has kernels of its own for update, these also write the weights' bf16 copies
 * (optim/cuda/step.cuh); a kind without them raises (KERNELS_FOR). */
typedef struct OptimizerKind {
    const char *name; /* of its function, optim_NAME; checkpoints say it */
    /* The prefix of each state in a checkpoint, such as STATE_PREFIX "m."; "" if files hold the
     * state as the weights, NULL if no file has it */
    const char *states[OPTIM_STATES];
    size_t own_bytes; /* of o->own, which is zero at first */
    /* Numbers of 0 or more in o->own, doubles at these offsets, that checkpoints keep under these
     * keys, "tapegrad.NAME" */
    struct {
        const char *key;
        size_t offset;
    } numbers[OPTIM_NUMBERS];
    /* Before the first step, and before a checkpoint of an optimizer that has taken none: sets
     * states that depend on the weights. */
    void (*start)(const Optimizer *o);
    /* On the host before each step, replayed steps too, with the step's learning rate. */
    void (*begin)(Optimizer *o, double learning_rate);
    /* The scalars of the step that has begun, o->steps, for the weights of this role
     * (optim_set_role; 0 by default), whose weight decay has this factor. */
    StepScalars (*scalars)(const Optimizer *o, int role, double learning_rate, double decay_factor);
    /* Before a step: may raise, as when memory is exhausted, so it changes no result. */
    void (*prepare)(const Optimizer *o, const Real *gradients);
    /* The step of the weights p, which reads the scalars at o->scalars. */
    void (*update)(const Optimizer *o, Real *p, const Real *gradients);
    /* Optimizers that train with other weights than they evaluate with: optim_set_training; and p =
     * the weights of the present setting, for optim_set_weights. */
    bool (*set_training)(Optimizer *o, bool on);
    void (*set_weights)(const Optimizer *o, Real *p);
    void (*free)(Optimizer *o); /* what o->own holds */
} OptimizerKind;

/* Progress of the plateau schedule. */
typedef struct Plateau {
    double best;
    int64_t bad;   /* consecutive values without improvement */
    double factor; /* of the learning rate, now */
} Plateau;

struct Optimizer {
    const OptimizerKind *kind;
    Params *params;
    Device *device;
    double learning_rate; /* before the schedule's factor */
    double weight_decay;
    Real momentum, beta1, beta2, eps; /* as the kernels compute with them */
    bool nesterov;
    Schedule schedule;
    Plateau plateau;
    int64_t steps;
    FlatRange range; /* of the flat buffers, which this process steps */
    int state_count;
    Real *states[OPTIM_STATES]; /* [range.count] each, 0 at first; NULL from state_count on */
    StepScalars *scalars;       /* of this step, in device memory; without groups, or of group 0 */
    Block *block;               /* which holds the states and the scalars */
    struct Groups *groups;      /* NULL until optim_set_group or optim_set_role */
    void *own;                  /* of the kind */
};

/* An optimizer from a struct with kind, params, state_count, hyperparameters and schedule: checks
 * these, raising as function, and allocates the flat buffers and the states. */
Optimizer *optim_new(const char *function, Optimizer from);

/* Raises, as function, unless value is 0 or more, and finite as a Real. */
void optim_check_not_negative(const char *function, const char *name, double value);

/* The kind's set_weights, and what follows where weights have changed. */
void optim_set_weights(const Optimizer *optimizer);

/* --------------------------------------------------------------------------- like Adam or AdamW */

/* For optim_new: an AdamConfig's hyperparameters, and two states, m and v. */
#define ADAM_STATES STATE_PREFIX "m.", STATE_PREFIX "v."
Optimizer optim_adam_template(const char *function, const OptimizerKind *kind, Params *params,
                              AdamConfig config);
/* AdamW's scalars, for these rates and as a kind's function. */
StepScalars optim_adamw_scalars_of(const Optimizer *o, double learning_rate, double weight_decay);
StepScalars optim_adamw_scalars(const Optimizer *o, int role, double learning_rate,
                                double decay_factor);
/* update of Adam's variants, which differ in their scalars; and of a run alone. */
void optim_adam_update(const Optimizer *o, Real *p, const Real *gradients);
struct Run;
void optim_adam_run(Real *p, Real *m, Real *v, const Real *gradients, const struct Run *run);

/* --------------------------------------------------------------------------------------- groups */

/* Moves a weight to a role, 0 or 1, for which the kind has scalars of its own. False when memory is
 * exhausted. */
bool optim_set_role(Optimizer *optimizer, const Tensor *weight, int role);

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

#pragma GCC visibility pop
#endif
