/* What the CPU kernels of linear attention share: vectors, the feature map, packed rows.
 *
 * A head's rows lie H D numbers apart in memory. The kernels pack the rows of CHUNK positions side
 * by side, padded with zeros to whole vectors, compute there, and unpack the results: so there is
 * one path for all sizes. */
#ifndef TAPEGRAD_OPS_ATTENTION_CPU_H
#define TAPEGRAD_OPS_ATTENTION_CPU_H

#include "ops/attention.h"
#include "ops/internal.h"
#include "ops/vectors.h"

enum { CHUNK = 16 }; /* positions that are packed at once */

typedef Real Piece __attribute__((vector_size(16), may_alias));
#ifdef TAPEGRAD_DOUBLE
typedef int64_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#else
typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#endif

ALWAYS_INLINE Vector *at_vector(Real *data)
{
    return (Vector *)(void *)data;
}

ALWAYS_INLINE Vector vector(const Real *data)
{
    return *(const Vector *)(const void *)data;
}

/* mask ? x : y */
ALWAYS_INLINE Vector choose(Mask mask, Vector x, Vector y)
{
    return (Vector)((mask & (Mask)x) | (~mask & (Mask)y));
}

/* ---------------------------------------------------------------------------------- feature map */
#ifdef TAPEGRAD_DOUBLE
ALWAYS_INLINE Vector exp_vector(Vector x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = exp(x[i]);
    return x;
}
#else
/* e^x for x <= 0, as real_exp of ops/math.h, but on a vector at a time while it is being packed:
 * e^x = 2^k e^r with k the integer next to x / ln 2, and e^r = 1 + r + r^2 P(r).
 * Below -87 it is e^-87 = 1.6e-38, lest sums hold denormal numbers. Not-a-number stays. */
ALWAYS_INLINE Vector exp_vector(Vector x)
{
    const Vector lowest = (Vector){ 0 } - 87;
    x = choose(x < lowest, lowest, x);
    Vector shifted = x * 1.44269504f + 0x3p22f;
    Vector k = shifted - 0x3p22f;
    Vector r = x - k * 0.693359375f - k * -2.12194440e-4f;
    Vector p = 0.00138683163f * r + 0.00836642366f;
    p = p * r + 0.0416674651f;
    p = p * r + 0.16666545f;
    p = p * r + 0.49999997f;
    p = p * r + 1;
    p = p * r + 1;
    return p * (Vector)(((Mask)shifted + 127) << 23);
}
#endif

/* phi(x) = e^min(x, 0) + max(x, 0) */
ALWAYS_INLINE Vector phi(Vector x)
{
    const Vector zero = { 0 };
    return exp_vector(choose(x > 0, zero, x)) + choose(x > 0, x, zero);
}

/* dx = dphi min(1, phi(x)) in place of dphi, n numbers */
static inline void through_map(Real *dphi, const Real *phi_x, int64_t n)
{
    const Vector one = (Vector){ 0 } + 1;
    for (int64_t i = 0; i < n; i += LANES) {
        Vector slope = vector(phi_x + i);
        *at_vector(dphi + i) *= choose(slope > 1, one, slope);
    }
}

/* -------------------------------------------------------------------------- packing and unpacking */

/* Packs rows [count, columns], which are stride apart, to [count, padded], mapped by phi or not;
 * meanwhile asks for the rows of the next chunk. */
ALWAYS_INLINE void pack_rows(bool map, Real *to, const Real *from, int64_t stride, int64_t count,
                             int64_t columns, int64_t padded)
{
    for (int64_t i = 0; i < count; i++, from += stride, to += padded) {
        for (int64_t c = 0; c < columns; c += LINE)
            __builtin_prefetch(from + CHUNK * stride + c);
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) {
            Vector x = *(const UnalignedVector *)(const void *)(from + c);
            *at_vector(to + c) = map ? phi(x) : x;
        }
        for (; c < columns; c++)
            to[c] = map ? phi((Vector){ from[c] })[0] : from[c];
        for (; c < padded; c++)
            to[c] = 0;
    }
}

static inline void pack(Real *to, const Real *from, int64_t stride, int64_t count, int64_t columns,
                        int64_t padded)
{
    pack_rows(false, to, from, stride, count, columns, padded);
}

static inline void pack_mapped(Real *to, const Real *from, int64_t stride, int64_t count,
                               int64_t columns, int64_t padded)
{
    pack_rows(true, to, from, stride, count, columns, padded);
}

typedef struct Columns {
    int64_t first, end;
} Columns;

/* The way back, of some of the columns: stores them, or adds them to what is there. */
static inline void unpack(Gradient to, const Real *from, int64_t stride, int64_t count,
                          Columns columns, int64_t padded)
{
    Real *row = to.data;
    for (int64_t i = 0; i < count; i++, row += stride, from += padded) {
        for (int64_t c = columns.first; c < columns.end; c += LINE)
            __builtin_prefetch(row + CHUNK * stride + c, 1);
        int64_t c = columns.first;
        for (; c + LANES <= columns.end; c += LANES) {
            UnalignedVector *target = (UnalignedVector *)(void *)(row + c);
            Vector x = vector(from + c);
            if (to.accumulate)
                x += *target;
            *target = x;
        }
        for (; c < columns.end; c++)
            contribute(row + c, to.accumulate, from[c]);
    }
}

/* ----------------------------------------------------------------------------------------- rows */

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t padded_size(int64_t n)
{
    return (n + UNIT - 1) / UNIT * UNIT;
}

static inline void zero_rows(Real *rows, int64_t count, int64_t padded)
{
    memset(rows, 0, (size_t)(count * padded) * sizeof(Real));
}

static inline Real dot(const Real *x, const Real *y, int64_t n)
{
    Vector products = { 0 };
    for (int64_t c = 0; c < n; c += LANES)
        products += vector(x + c) * vector(y + c);
    Piece pieces[VECTOR_BYTES / 16], sum = { 0 };
    memcpy(pieces, &products, sizeof products);
    for (int i = 0; i < VECTOR_BYTES / 16; i++)
        sum += pieces[i];
    Real total = 0;
    for (int i = 0; i < 16 / (int)sizeof(Real); i++)
        total += sum[i];
    return total;
}

/* to <- to + factor x */
static inline void add_multiple(Real *to, Real factor, const Real *x, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES)
        *at_vector(to + c) += factor * vector(x + c);
}

/* row <- factor row */
static inline void multiply_row(Real *row, Real factor, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES)
        *at_vector(row + c) *= factor;
}

#endif
