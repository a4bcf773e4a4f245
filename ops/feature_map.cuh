/* Feature maps of linear attention that take a number at a time. */
#ifndef TAPEGRAD_OPS_FEATURE_MAP_CUH
#define TAPEGRAD_OPS_FEATURE_MAP_CUH

#include "ops/ops.h"
#include "tensor/kernel.cuh"

/* The feature map of linear attention, phi(x), and its derivative phi'(x). Threads of a warp have x of
 * both signs: one exponential for all is less than a branch each. */
__device__ static inline Real phi(FeatureMap map, Real x)
{
    switch (map) {
    case FEATURES_ELU_PLUS_ONE:
        return exp(x > 0 ? (Real)0 : x) + (x > 0 ? x : (Real)0);
    case FEATURES_RELU:
        return x < 0 ? (Real)0 : x;
    case FEATURES_SOFTPLUS:
        return (x < 0 ? 0 : x) + log1p(exp(x < 0 ? x : -x));
    default:
        return x;
    }
}

__device__ static inline Real phi_slope(FeatureMap map, Real x)
{
    switch (map) {
    case FEATURES_ELU_PLUS_ONE:
        return exp(x > 0 ? (Real)0 : x);
    case FEATURES_RELU:
        return x > 0 ? (Real)1 : (Real)0;
    case FEATURES_SOFTPLUS:
        return 1 / (1 + exp(-x));
    default:
        return 1;
    }
}

#endif
