/* How the products of two elements lie in a row of polynomial features. */
#ifndef TAPEGRAD_OPS_POLYNOMIAL_FEATURES_H
#define TAPEGRAD_OPS_POLYNOMIAL_FEATURES_H

#include "ops/ops.h"

#ifdef __cplusplus
#include "ops/math.cuh"
#else
#include "ops/math.h"
#endif

#define SQRT_2 ((Real)1.4142135623730951)

/* The products follow the 1 and the D linear features: those of elements d apart, around the end,
 * for d = 0, ..., D / 2. Place d D + i holds x_i x_j, j = i + d mod D; at d = D / 2, i + d would find
 * every pair twice, and only the first half is there. */
MATH_FUNCTION int64_t polynomial_pairs(int64_t d, int64_t D)
{
    return d > 0 && 2 * d == D ? d : D;
}

/* What a product is multiplied by. */
MATH_FUNCTION Real polynomial_factor(int64_t d)
{
    return d ? SQRT_2 : 1;
}

#endif
