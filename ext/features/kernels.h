/* The order of the products in a row of polynomial features; such a row. */
#ifndef TAPEGRAD_OPS_ATTENTION_POLYNOMIAL_FEATURES_H
#define TAPEGRAD_OPS_ATTENTION_POLYNOMIAL_FEATURES_H

#include "ops/ops.h"
#include "ops/shared/math.h"

#define SQRT_2 ((Real)1.4142135623730951)

/* The products follow the 1 and the D linear features, by cyclic distance d = 0, ..., D / 2:
 * product d D + i is x_i x_j, j = i + d mod D. At d = D / 2 this has every pair twice, and only the
 * first half is stored. */
MATH_FUNCTION int64_t polynomial_pairs(int64_t d, int64_t D)
{
    return d > 0 && 2 * d == D ? d : D;
}

/* The factor of the products of elements at distance d. */
MATH_FUNCTION Real polynomial_factor(int64_t d)
{
    return d ? SQRT_2 : 1;
}

/* out [1 + D + D (D + 1) / 2], x [D] */
MATH_FUNCTION void polynomial_row(Real *out, const Real *x, int64_t D)
{
    out[0] = 1;
    for (int64_t i = 0; i < D; i++)
        out[1 + i] = SQRT_2 * x[i];
    out += 1 + D;
    for (int64_t d = 0; d <= D / 2; d++, out += D) {
        const int64_t pairs = polynomial_pairs(d, D), inside = pairs < D - d ? pairs : D - d;
        const Real factor = polynomial_factor(d);
        for (int64_t i = 0; i < inside; i++)
            out[i] = factor * x[i] * x[i + d];
        for (int64_t i = inside; i < pairs; i++)
            out[i] = factor * x[i] * x[i + d - D];
    }
}

#endif
