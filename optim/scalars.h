/* Per-step scalars of an optimizer. They are stored in device memory, because a replayed step runs
 * with the recorded kernel arguments and must read the new values from there. */
#ifndef TAPEGRAD_OPTIM_SCALARS_H
#define TAPEGRAD_OPTIM_SCALARS_H

#include "tensor/kernel.h"

typedef struct StepScalars {
    Real learning_rate;    /* lr of this step */
    Real weight_decay;     /* sgd, adam: g = g + weight_decay p */
    Real keep;             /* adamw, radam, muon: p = keep p, decoupled weight decay */
    Real momentum;         /* sgd, muon */
    Real average;          /* schedule_free_adamw: c, the weight of z in x */
    bool is_matrix;        /* muon: its own step, not that of adamw */
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

/* schedule_free_adamw: y of x and z. */
SHARED_FUNCTION Real schedule_free_point(Real x, Real z, Real beta1)
{
    return z + beta1 * (x - z);
}

/* muon: u, the direction before it is orthogonalized, from m before the step, where nesterov is the
 * weight of m in u; and an element of scale (a I + b A + c A^2), from those of A and A^2. */
SHARED_FUNCTION Real muon_direction(Real m, Real g, Real momentum, Real nesterov)
{
    const Real mean = momentum * m + (1 - momentum) * g;
    return (1 - nesterov) * g + nesterov * mean;
}
SHARED_FUNCTION Real muon_coefficients(Real gram, Real squared, bool diagonal, Real scale)
{
    const Real a = (Real)3.4445, b = (Real)-4.7750, c = (Real)2.0315;
    return scale * ((diagonal ? a : 0) + b * gram + c * squared);
}

/* muon: a matrix whose norm is less is divided by this. */
#define MUON_MIN_NORM 1e-7

/* In the table of groups: a step changes neither the weight nor its m and v. */
enum { FROZEN = 255 };

#endif
