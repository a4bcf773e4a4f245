/* The feature maps of linear attention on the CPU, one vector at a time. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_FEATURE_MAP_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_FEATURE_MAP_CPU_H

#include "ops/elementwise/unary_functions.h"
#include "ops/shared/internal.h"
#include "ops/shared/vectors.h"

#ifdef TAPEGRAD_DOUBLE
ALWAYS_INLINE Vector exp_vector(Vector x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = exp(x[i]);
    return x;
}
#else
/* e^x for x <= 0, as real_exp of ops/shared/math.h, but on one vector at a time during packing:
 * e^x = 2^k e^r with k the integer nearest to x / ln 2, and e^r = 1 + r + r^2 P(r). Adding shift
 * leaves k + 127, the exponent field of 2^k, in the lowest bits.
 * Below -87 the result is 0, so that sums hold no denormal values. NaN stays NaN. */
ALWAYS_INLINE Vector exp_vector(Vector x)
{
    const float shift = 0x3p22f + 127;
    Vector shifted = x * 1.44269504f + shift;
    Vector k = shifted - shift;
    Vector r = x - k * 0.693359375f - k * -2.12194440e-4f;
    Vector p = 0.00138683163f * r + 0.00836642366f;
    p = p * r + 0.0416674651f;
    p = p * r + 0.16666545f;
    p = p * r + 0.49999997f;
    p = p * r + 1;
    p = p * r + 1;
    p *= (Vector)((Mask)shifted << 23);
    return (Vector)(~(x < -87) & (Mask)p);
}
#endif

/* phi(x) for the feature maps that are computed during packing: all but softplus. */
ALWAYS_INLINE Vector phi(FeatureMap features, Vector x)
{
    const Vector zero = { 0 };
    switch (features) {
    case FEATURES_ELU_PLUS_ONE: { /* e^min(x, 0) + max(x, 0), selected by the sign bit */
        const Mask negative = (Mask)x >> (8 * sizeof(Real) - 1);
        return exp_vector((Vector)((Mask)x & negative)) + (Vector)((Mask)x & ~negative);
    }
    case FEATURES_RELU:
        return choose(x < 0, zero, x);
    default:
        return x;
    }
}

/* x <- softplus(x), n elements */
static inline void softplus_row(Real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = softplus(x[i]);
}

#endif
