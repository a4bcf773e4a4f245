/* The feature maps of linear attention on the CPU, one vector at a time, and their derivatives. */
#ifndef TAPEGRAD_OPS_CPU_SHARED_FEATURE_MAP_H
#define TAPEGRAD_OPS_CPU_SHARED_FEATURE_MAP_H

#include "ops/cpu/shared/storage.h"
#include "ops/elementwise/unary_functions.h"
#include "ops/cpu/shared/packing.h"

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
ALWAYS_INLINE Vector phi_vector(FeatureMap features, Vector x)
{
    const Vector zero = { 0 };
    switch (features) {
    case FEATURE_MAP_ELU_PLUS_ONE: { /* e^min(x, 0) + max(x, 0), selected by the sign bit */
        const Mask negative = (Mask)x >> (8 * sizeof(Real) - 1);
        return exp_vector((Vector)((Mask)x & negative)) + (Vector)((Mask)x & ~negative);
    }
    case FEATURE_MAP_RELU:
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

/* to [count, padded] = phi(rows), padded with zeros, where the compiler knows map and columns. Also
 * prefetches the next count rows: one per row that is mapped, because all at once would stall. */
ALWAYS_INLINE void pack_phi(int T, FeatureMap features, Real *to, Rows rows, int64_t padded)
{
    const Real *row = rows.data;
    for (int64_t i = 0; i < rows.count; i++, row = elements_at(T, row, rows.stride), to += padded) {
        for (int64_t c = 0; c < rows.columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, row, rows.count * rows.stride + c), 0, 2);
        int64_t c = 0;
        for (; c + LANES <= rows.columns; c += LANES)
            *at_vector(to + c) = phi_vector(features, load_vector(T, row, c));
        for (; c < rows.columns; c++)
            to[c] = phi_vector(features, (Vector){ load(T, row, c) })[0];
        for (; c < padded; c++)
            to[c] = 0;
    }
}

ALWAYS_INLINE void pack_phi_by_columns(int T, FeatureMap features, Real *to, const Rows *rows,
                                       int64_t padded)
{
    if (rows->columns == 16)
        pack_phi(T, features, to, with_columns(*rows, 16), 16);
    else if (rows->columns == 32)
        pack_phi(T, features, to, with_columns(*rows, 32), 32);
    else if (rows->columns == 64)
        pack_phi(T, features, to, with_columns(*rows, 64), 64);
    else
        pack_phi(T, features, to, *rows, padded);
}

ALWAYS_INLINE void pack_phi_by_map(int T, FeatureMap features, Real *to, const Rows *rows,
                                   int64_t padded)
{
    switch (features) {
    case FEATURE_MAP_ELU_PLUS_ONE:
        pack_phi_by_columns(T, FEATURE_MAP_ELU_PLUS_ONE, to, rows, padded);
        return;
    case FEATURE_MAP_RELU:
        pack_phi_by_columns(T, FEATURE_MAP_RELU, to, rows, padded);
        return;
    default:
        pack_phi_by_columns(T, FEATURE_MAP_IDENTITY, to, rows, padded);
        for (int64_t i = 0; features == FEATURE_MAP_SOFTPLUS && i < rows->count; i++)
            softplus_row(to + i * padded, rows->columns);
    }
}

/* to [count, padded] = phi(rows), padded with zeros; also prefetches the next count rows. */
WHOLE_VECTORS static inline void pack_mapped(FeatureMap features, Real *to, const Rows *rows,
                                             int64_t padded)
{
    BY_STORAGE(rows->type, T, pack_phi_by_map(T, features, to, rows, padded));
}

/* dx = da phi'(x) from a = phi(x), in place of da; n elements */
WHOLE_VECTORS static inline void feature_map_backward(FeatureMap features, Real *da, const Real *a,
                                                      int64_t n)
{
    const Vector zero = { 0 }, one = zero + 1;
    switch (features) {
    case FEATURE_MAP_ELU_PLUS_ONE: /* min(1, a), which propagates NaN */
        for (int64_t i = 0; i < n; i += LANES) {
            const Vector a_i = vector(a + i);
            *at_vector(da + i) *= choose(a_i > 1, one, a_i);
        }
        return;
    case FEATURE_MAP_RELU:
        for (int64_t i = 0; i < n; i += LANES)
            *at_vector(da + i) = choose(vector(a + i) == 0, zero, vector(da + i));
        return;
    case FEATURE_MAP_SOFTPLUS:
        for (int64_t i = 0; i < n; i++)
            da[i] *= -real_expm1(-a[i]);
        return;
    default:
        return;
    }
}

#endif
