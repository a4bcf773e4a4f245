/* Per-step scalars of an optimizer. They are stored in device memory, because a replayed step runs
 * with the recorded kernel arguments and must read the new values from there. */
#ifndef TAPEGRAD_OPTIM_SCALARS_H
#define TAPEGRAD_OPTIM_SCALARS_H

#include "tensor/kernel.h"

typedef struct StepScalars {
    Real learning_rate; /* adam: divided by the bias correction of m */
    Real weight_decay;  /* sgd, adam: g = g + weight_decay p */
    Real keep;          /* adamw, radam: p = keep p, decoupled weight decay */
    Real v_scale, eps;  /* adam: the divisor is v_scale sqrt(v) + eps */
    void *bf16;         /* the bf16 copy of the weights, which the step updates; or NULL */

    /* Parameter groups and frozen weights (optim/groups.c): element i has the scalars
     * of_group[groups[i >> unit_bits]], or is FROZEN. groups is NULL if there are none. */
    const uint8_t *groups;
    const struct StepScalars *of_group;
    int unit_bits;
} StepScalars;

/* In the table of groups: a step changes neither the weight nor its m and v. */
enum { FROZEN = 255 };

DEVICE_FUNCTION(void, sgd_step, Real *values, const Real *gradients, const StepScalars *scalars,
                int64_t n);
DEVICE_FUNCTION(void, sgd_momentum_step, Real *values, Real *m, const Real *gradients,
                const StepScalars *scalars, Real momentum, int64_t n);
DEVICE_FUNCTION(void, adam_step, Real *values, Real *m, Real *v, const Real *gradients,
                const StepScalars *scalars, Real beta1, Real beta2, int64_t n);

#endif
