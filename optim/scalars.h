/* Per-step scalars of an optimizer. They are stored in device memory, because a replayed step runs
 * with the recorded kernel arguments and must read the new values from there. */
#ifndef TAPEGRAD_OPTIM_SCALARS_H
#define TAPEGRAD_OPTIM_SCALARS_H

#include "tensor/kernel.h"

typedef struct StepScalars {
    Real keep;      /* decoupled weight decay: p = keep p */
    Real step;      /* the learning rate, divided by m's bias correction */
    Real scale;     /* adam: the factor of sqrt(v), its bias correction */
    Real decay;     /* sgd, adam: the group's factor of the weight decay; 1 without groups */
    bool rectified; /* radam: rho_t > 5, so that v is used */
    void *bf16;     /* the bf16 copy of the weights, which the step updates; or NULL */

    /* Parameter groups (optim/groups.c): element i has the scalars
     * of_group[groups[i >> unit_bits]]. groups is NULL if there are none. */
    const uint8_t *groups;
    const struct StepScalars *of_group;
    int unit_bits;
} StepScalars;

DEVICE_FUNCTION(void, sgd_step, Real *values, const Real *gradients, const StepScalars *scalars,
                Real weight_decay, int64_t n);
DEVICE_FUNCTION(void, sgd_momentum_step, Real *values, Real *m, const Real *gradients,
                const StepScalars *scalars, Real weight_decay, Real momentum, int64_t n);
DEVICE_FUNCTION(void, adam_step, Real *values, Real *m, Real *v, const Real *gradients,
                const StepScalars *scalars, Real decay, Real beta1, Real beta2, Real eps,
                int64_t n);
DEVICE_FUNCTION(void, radam_step, Real *values, Real *m, Real *v, const Real *gradients,
                const StepScalars *scalars, Real beta1, Real beta2, Real eps, int64_t n);

#endif
