/* Per-step scalars of an optimizer. They are stored in device memory, because a replayed step runs
 * with the recorded kernel arguments and must read the new values from there. */
#ifndef TAPEGRAD_OPTIM_SCALARS_H
#define TAPEGRAD_OPTIM_SCALARS_H

#include "tensor/kernel.h"

typedef struct StepScalars {
    Real learning_rate;    /* lr of this step */
    Real weight_decay;     /* sgd, adam: g = g + weight_decay p */
    Real keep;             /* adamw, radam: p = keep p, decoupled weight decay */
    Real momentum;         /* sgd */
    Real own;              /* of the kind; sgd: 1 for Nesterov's momentum, else 0 */
    Real beta1, beta2;     /* adam */
    Real m_scale, v_scale; /* adam: m_hat = m_scale m, sqrt(v_hat) = v_scale sqrt(v) */
    Real eps;              /* adam: added to sqrt(v_hat) */
    void *bf16;            /* the bf16 copy of the weights, which CUDA's kernels write; or NULL */

    /* Parameter groups and frozen weights (optim/groups.c): element i has the scalars
     * of_group[groups[i >> unit_bits]], or is FROZEN. groups is NULL if there are none. */
    const uint8_t *groups;
    const struct StepScalars *of_group;
    int unit_bits;
} StepScalars;

/* In the table of groups: a step changes neither the weight nor its states. */
enum { FROZEN = 255 };

#endif
