/* The elementwise feature maps of linear attention. */
#ifndef TAPEGRAD_OPS_SHARED_FEATURE_MAP_CUH
#define TAPEGRAD_OPS_SHARED_FEATURE_MAP_CUH

#include "ops/elementwise/unary_functions.h"
#include "ops/ops.h"
#include "tensor/cuda/kernel.cuh"

/* exp(x) for a result that is stored as T. A result that is rounded to bf16 comes from the
 * hardware's ex2.approx: its error is a few ulp of float, far below bf16's, and results below
 * 2^-126 are 0. */
template <typename T> __device__ static inline Real exp_for(Real x)
{
#ifndef TAPEGRAD_CUDA_ON_HOST
    if (sizeof(T) == sizeof(Bfloat16)) {
        float power;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"((float)x * 1.44269504f));
        return power;
    }
#endif
    return exp(x);
}

/* The feature map phi(x), and dphi, its derivative phi'(x). The threads of a warp hold x of
 * both signs: one exponential for all takes less time than a divergent branch. */
template <typename T = Real> __device__ static inline Real phi(FeatureMap map, Real x)
{
    switch (map) {
    case FEATURE_MAP_ELU_PLUS_ONE: {
        const Real above = x + 1, below = exp_for<T>(x);
        return x > 0 ? above : below;
    }
    case FEATURE_MAP_RELU:
        return relu(x);
    case FEATURE_MAP_SOFTPLUS:
        return softplus(x);
    default:
        return x;
    }
}

__device__ static inline Real dphi(FeatureMap map, Real x)
{
    switch (map) {
    case FEATURE_MAP_ELU_PLUS_ONE:
        return exp(x > 0 ? (Real)0 : x);
    case FEATURE_MAP_RELU:
        return relu_gradient(1, x);
    case FEATURE_MAP_SOFTPLUS:
        return softplus_gradient(1, x);
    default:
        return 1;
    }
}

/* Each x becomes phi(x), to be stored as T, with one branch per COUNT values. Without SOFTPLUS the
 * map is known to be another one: softplus takes many instructions. */
template <int COUNT, typename T, bool SOFTPLUS>
__device__ static inline void map_values(FeatureMap map, Real *x)
{
    if (map == FEATURE_MAP_ELU_PLUS_ONE)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            x[i] = phi<T>(FEATURE_MAP_ELU_PLUS_ONE, x[i]);
    else if (map == FEATURE_MAP_RELU)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            x[i] = phi(FEATURE_MAP_RELU, x[i]);
    else if (SOFTPLUS && map == FEATURE_MAP_SOFTPLUS)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            x[i] = phi(FEATURE_MAP_SOFTPLUS, x[i]);
}

/* Each phi(x) becomes phi'(x): elu'(x) = min(1, elu(x) + 1), softplus'(x) = 1 - e^-softplus(x). */
template <int COUNT> __device__ static inline void derivatives_from_values(FeatureMap map, Real *y)
{
    if (map == FEATURE_MAP_ELU_PLUS_ONE)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            y[i] = y[i] > 1 ? (Real)1 : y[i];
    else if (map == FEATURE_MAP_RELU)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            y[i] = y[i] > 0 ? (Real)1 : (Real)0;
    else if (map == FEATURE_MAP_SOFTPLUS)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            y[i] = -expm1(-y[i]);
}

#endif
