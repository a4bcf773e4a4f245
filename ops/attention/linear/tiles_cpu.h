/* Shared by the CPU kernels of linear attention: vectors, feature maps, packed rows, products.
 *
 * A head's rows have a stride of at least H D elements. The kernels pack the rows of CHUNK
 * positions contiguously, padded with zeros to whole vectors, compute there, and unpack the
 * results: so there is one path for all sizes. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_TILES_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_TILES_CPU_H

#include "ops/attention/shared/arguments.h"
#include "ops/attention/linear/feature_map_cpu.h"

enum { CHUNK = 16 }; /* positions that are packed at once */

typedef Real Piece __attribute__((vector_size(16), may_alias));
/* --------------------------------------------------------------------------------- feature maps */
/* Backward through the feature map, in place: dphi <- dphi phi'(x), n elements */
static inline void through_map(FeatureMap features, Real *dphi, const Real *phi_x, int64_t n)
{
    const Vector zero = { 0 }, one = zero + 1;
    switch (features) {
    case FEATURE_MAP_ELU_PLUS_ONE:
        for (int64_t i = 0; i < n; i += LANES) {
            Vector slope = vector(phi_x + i);
            *at_vector(dphi + i) *= choose(slope > 1, one, slope);
        }
        return;
    case FEATURE_MAP_RELU:
        for (int64_t i = 0; i < n; i += LANES)
            *at_vector(dphi + i) = choose(vector(phi_x + i) == 0, zero, vector(dphi + i));
        return;
    case FEATURE_MAP_SOFTPLUS:
        for (int64_t i = 0; i < n; i++)
            dphi[i] *= -real_expm1(-phi_x[i]);
        return;
    default:
        return;
    }
}

/* ------------------------------------------------------------------------ packing and unpacking */

/* Packs rows [count, columns] at this stride into [count, padded], with the feature map applied.
 * ahead: also prefetches the next `count` rows, as the hardware prefetcher misses widely strided
 * rows; one per row that is mapped, because prefetching all at once would stall. */
ALWAYS_INLINE void pack_columns(FeatureMap features, bool ahead, Real *to, const Real *from,
                                int64_t stride, int64_t count, int64_t columns, int64_t padded)
{
    for (int64_t i = 0; i < count; i++, from += stride, to += padded) {
        for (int64_t c = 0; ahead && c < columns; c += LINE)
            __builtin_prefetch(from + count * stride + c, 0, 2);
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES)
            *at_vector(to + c) = phi(features, *(const UnalignedVector *)(const void *)(from + c));
        for (; c < columns; c++)
            to[c] = phi(features, (Vector){ from[c] })[0];
        for (; c < padded; c++)
            to[c] = 0;
    }
}

/* The usual sizes are compile-time constants: loops over few vectors cost more than the rows. */
ALWAYS_INLINE void pack_rows(FeatureMap features, bool ahead, Real *to, const Real *from,
                             int64_t stride, int64_t count, int64_t columns, int64_t padded)
{
    switch (columns) {
    case 16:
        pack_columns(features, ahead, to, from, stride, count, 16, 16);
        return;
    case 32:
        pack_columns(features, ahead, to, from, stride, count, 32, 32);
        return;
    case 64:
        pack_columns(features, ahead, to, from, stride, count, 64, 64);
        return;
    default:
        pack_columns(features, ahead, to, from, stride, count, columns, padded);
    }
}

static inline void pack(Real *to, const Real *from, int64_t stride, int64_t count, int64_t columns,
                        int64_t padded)
{
    pack_rows(FEATURE_MAP_IDENTITY, false, to, from, stride, count, columns, padded);
}

/* Also prefetches the next rows. */
static inline void pack_mapped(FeatureMap features, Real *to, const Real *from, int64_t stride,
                               int64_t count, int64_t columns, int64_t padded)
{
    switch (features) {
    case FEATURE_MAP_ELU_PLUS_ONE:
        pack_rows(FEATURE_MAP_ELU_PLUS_ONE, true, to, from, stride, count, columns, padded);
        return;
    case FEATURE_MAP_RELU:
        pack_rows(FEATURE_MAP_RELU, true, to, from, stride, count, columns, padded);
        return;
    case FEATURE_MAP_SOFTPLUS:
        pack_rows(FEATURE_MAP_IDENTITY, true, to, from, stride, count, columns, padded);
        for (int64_t i = 0; i < count; i++)
            softplus_row(to + i * padded, columns);
        return;
    default:
        pack_rows(FEATURE_MAP_IDENTITY, true, to, from, stride, count, columns, padded);
    }
}

/* The inverse of packing: stores the rows, or adds them to the destination. */
ALWAYS_INLINE void unpack_columns(Gradient to, const Real *from, int64_t stride, int64_t count,
                                  int64_t columns, int64_t padded)
{
    Real *row = to.data;
    for (int64_t i = 0; i < count; i++, row += stride, from += padded) {
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) {
            UnalignedVector *target = (UnalignedVector *)(void *)(row + c);
            Vector x = vector(from + c);
            if (to.accumulate)
                x += *target;
            *target = x;
        }
        for (; c < columns; c++)
            contribute(row + c, to.accumulate, from[c]);
    }
}

static inline void unpack(Gradient to, const Real *from, int64_t stride, int64_t count,
                          int64_t columns, int64_t padded)
{
    switch (columns) {
    case 16:
        unpack_columns(to, from, stride, count, 16, 16);
        return;
    case 32:
        unpack_columns(to, from, stride, count, 32, 32);
        return;
    case 64:
        unpack_columns(to, from, stride, count, 64, 64);
        return;
    default:
        unpack_columns(to, from, stride, count, columns, padded);
    }
}

/* Prefetches widely strided rows, which will be packed, or unpacked to. */
ALWAYS_INLINE void ask_for_rows(const Real *rows, int64_t stride, int64_t count, int64_t columns)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < columns; c += LINE)
            __builtin_prefetch(rows + i * stride + c, 0, 2);
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

/* sum <- sum + sum_i x_i, over rows x [count, n] */
static inline void add_rows(Real *sum, const Real *x, int64_t count, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES) {
        Vector total = vector(sum + c);
        for (int64_t i = 0; i < count; i++)
            total += vector(x + i * n + c);
        *at_vector(sum + c) = total;
    }
}

/* row <- factor row */
static inline void multiply_row(Real *row, Real factor, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES)
        *at_vector(row + c) *= factor;
}

/* ------------------------------------------------------------------------------------- products */

/* Register tiling: ROWS rows of C and 1 or 2 vectors (a compile-time constant) of its columns. */
ALWAYS_INLINE void product_tile(int vectors, Real *c, const Real *a, int64_t a_row,
                                int64_t a_column, const Real *b, int64_t inner, int64_t columns)
{
    Vector tile[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            tile[r][v] = vector(c + r * columns + v * LANES);
    for (int64_t k = 0; k < inner; k++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                tile[r][v] += a[r * a_row + k * a_column] * vector(b + k * columns + v * LANES);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *at_vector(c + r * columns + v * LANES) = tile[r][v];
}

/* C [rows, columns] <- C + A B, B [inner, columns]; A's (r, k) is at r a_row + k a_column. */
ALWAYS_INLINE void add_product(Real *c, const Real *a, int64_t a_row, int64_t a_column,
                               const Real *b, int64_t rows, int64_t inner, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += ROWS) {
        int64_t v = 0;
        for (; v + 2 * LANES <= columns; v += 2 * LANES)
            product_tile(2, c + r * columns + v, a + r * a_row, a_row, a_column, b + v, inner,
                         columns);
        if (v < columns)
            product_tile(1, c + r * columns + v, a + r * a_row, a_row, a_column, b + v, inner,
                         columns);
    }
}

/* T [Y, W] <- T + sum_i y_i w_i^T, over the rows of y [count, Y] and w [count, W] */
WHOLE_VECTORS static inline void add_outer(Real *T, const Real *y, const Real *w, int64_t count,
                                           int64_t Y, int64_t W)
{
    add_product(T, y, 1, Y, w, Y, count, W);
}

#endif
