/* Shared by the optimizers' kernels. */
#ifndef TAPEGRAD_OPTIM_STEP_CUH
#define TAPEGRAD_OPTIM_STEP_CUH

#include "optim/scalars.h"
#include "tensor/cuda/kernel.cuh"

/* Calls step(i, now) for each of n elements that is not frozen, now being the scalars of element i:
 * those of its group, if there are groups. */
template <class Step>
__device__ static inline void step_elements(const StepScalars *scalars, int64_t n, Step step)
{
    const StepScalars all = *scalars;
    if (!all.groups) {
        GRID_FOR(i, n)
            step(i, all);
        return;
    }
    GRID_FOR(i, n) {
        const uint8_t group = all.groups[i >> all.unit_bits];
        if (group == FROZEN)
            continue;
        const StepScalars now = all.of_group[group];
        step(i, now);
    }
}

/* Stores weight i and its bf16 copy. */
__device__ static inline void store_weight(Real *values, const StepScalars &now, int64_t i,
                                           Real value)
{
    values[i] = value;
    if (now.bf16)
        store((Bfloat16 *)now.bf16 + i, value);
}

/* Adam's step of weight i. */
__device__ static inline void adam_element(Real *values, Real *m, Real *v, Real gradient, int64_t i,
                                           const StepScalars &now)
{
    const Real p = values[i], g = gradient + now.weight_decay * p;
    const Real mean = now.beta1 * m[i] + (1 - now.beta1) * g;
    const Real square = now.beta2 * v[i] + (1 - now.beta2) * g * g;
    m[i] = mean;
    v[i] = square;
    const Real m_hat = now.m_scale * mean, divisor = now.v_scale * sqrt(square) + now.eps;
    store_weight(values, now, i, now.keep * p - now.learning_rate * m_hat / divisor);
}

#endif
