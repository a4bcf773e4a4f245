/* Shared by the optimizers' kernels. */
#ifndef TAPEGRAD_OPTIM_STEP_CUH
#define TAPEGRAD_OPTIM_STEP_CUH

#include "optim/scalars.h"
#include "tensor/kernel.cuh"

__device__ static inline bool is_frozen(const StepScalars &all, int64_t i)
{
    return all.groups && all.groups[i >> all.unit_bits] == FROZEN;
}

/* The scalars of element i: those of its group, if there are groups. */
__device__ static inline StepScalars scalars_of(const StepScalars &all, int64_t i)
{
    return all.groups ? all.of_group[all.groups[i >> all.unit_bits]] : all;
}

/* Stores weight i and its bf16 copy. */
__device__ static inline void store_weight(Real *values, const StepScalars &all, int64_t i,
                                           Real value)
{
    values[i] = value;
    if (all.bf16)
        store((Bfloat16 *)all.bf16 + i, value);
}

#endif
