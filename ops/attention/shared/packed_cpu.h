/* Shared by the CPU kernels of softmax and LSH attention: the rows of a head, packed contiguously
 * and padded with zeros to whole vectors, and products of such matrices. */
#ifndef TAPEGRAD_OPS_ATTENTION_SHARED_PACKED_CPU_H
#define TAPEGRAD_OPS_ATTENTION_SHARED_PACKED_CPU_H

#include "autograd/tape.h"
#include "ops/shared/internal.h"
#include "ops/shared/vectors.h"

static inline int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static inline int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The next count Reals of scratch memory. If scratch is NULL, counts them only and returns NULL. */
static inline Real *take(Real *scratch, int64_t *used, int64_t count)
{
    Real *taken = scratch ? scratch + *used : NULL;
    *used += round_up(count, LANES);
    return taken;
}

/* -------------------------------------------------------------------------------------- product */

/* Register tiling: ROWS rows of C by one or two vectors of columns are accumulated in registers. */
ALWAYS_INLINE void product_tile(bool add, int vectors, Real *c, const Real *a, int64_t a_row,
                                int64_t a_column, const Real *b, int64_t b_row, int64_t inner,
                                int64_t columns)
{
    Vector sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add ? *(const Vector *)(c + r * columns + v * LANES) : (Vector){ 0 };
    for (int64_t k = 0; k < inner; k++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] +=
                    a[r * a_row + k * a_column] * *(const Vector *)(b + k * b_row + v * LANES);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *(Vector *)(c + r * columns + v * LANES) = sum[r][v];
}

/* C = A B or C += A B. Element (r, k) of A is stored at r a_row + k a_column, (k, c) of B at
 * k b_row + c. */
ALWAYS_INLINE void product(bool add, Real *c, const Real *a, int64_t a_row, int64_t a_column,
                           const Real *b, int64_t b_row, int64_t rows, int64_t inner,
                           int64_t columns)
{
    for (int64_t r = 0; r < rows; r += ROWS) {
        const Real *a_r = a + r * a_row;
        Real *c_r = c + r * columns;
        int64_t v = 0;
        for (; v + 2 * LANES <= columns; v += 2 * LANES)
            product_tile(add, 2, c_r + v, a_r, a_row, a_column, b + v, b_row, inner, columns);
        if (v < columns)
            product_tile(add, 1, c_r + v, a_r, a_row, a_column, b + v, b_row, inner, columns);
    }
}

/* C [rows, columns] = A [rows, inner] B [inner, columns]; a_row, b_row: strides of the rows. */
WHOLE_VECTORS static inline void set_product(Real *c, const Real *a, int64_t a_row, const Real *b,
                                             int64_t b_row, int64_t rows, int64_t inner,
                                             int64_t columns)
{
    product(false, c, a, a_row, 1, b, b_row, rows, inner, columns);
}

/* C [rows, columns] += A [rows, inner] B [inner, columns]; a_row: stride of A's rows. */
WHOLE_VECTORS static inline void add_product(Real *c, const Real *a, int64_t a_row, const Real *b,
                                             int64_t rows, int64_t inner, int64_t columns)
{
    product(true, c, a, a_row, 1, b, columns, rows, inner, columns);
}

/* C [rows, columns] += A^T B, A [inner, rows], B [inner, columns]; a_row: stride of A's rows. */
WHOLE_VECTORS static inline void add_product_transposed(Real *c, const Real *a, int64_t a_row,
                                                        const Real *b, int64_t rows, int64_t inner,
                                                        int64_t columns)
{
    product(true, c, a, 1, a_row, b, columns, rows, inner, columns);
}

/* x.y, n elements each */
static inline Real dot(const Real *x, const Real *y, int64_t n)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* -------------------------------------------------------------------------------------- packing */

/* The hardware prefetcher misses widely strided rows: prefetch AHEAD rows ahead. */
enum { AHEAD = 16 };

/* Rows of a head as the tensors store them: columns elements each, stride apart. */
typedef struct Rows {
    const Real *data;
    int64_t stride, count, columns;
} Rows;

/* to [padded] = factor * row, padded with zeros. */
ALWAYS_INLINE void pack_row(Real *restrict to, const Real *restrict row, int64_t columns,
                            int64_t padded, Real factor)
{
    int64_t c = 0;
    for (; c + LANES <= columns; c += LANES)
        *(Vector *)(to + c) = factor * *(const UnalignedVector *)(row + c);
    for (; c < padded; c++)
        to[c] = c < columns ? factor * row[c] : 0;
}

/* to [round_up(count, ROWS), padded] = factor * from, padded with zeros. */
WHOLE_VECTORS static inline void pack(Real *restrict to, Rows from, int64_t padded, Real factor)
{
    const Real *restrict row = from.data;
    for (int64_t i = 0; i < from.count; i++, row += from.stride, to += padded) {
        for (int64_t c = 0; c < from.columns; c += LINE)
            __builtin_prefetch(row + AHEAD * from.stride + c);
        pack_row(to, row, from.columns, padded, factor);
    }
    memset(to, 0, (size_t)((round_up(from.count, ROWS) - from.count) * padded) * sizeof *to);
}

/* to [columns, padded] = the transpose of from [count, stride], padded with zeros. */
static inline void transpose(Real *restrict to, const Real *restrict from, int64_t stride,
                             int64_t count, int64_t columns, int64_t padded)
{
    for (int64_t c = 0; c < columns; c++, to += padded) {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i * stride + c];
        for (int64_t i = count; i < padded; i++)
            to[i] = 0;
    }
}

/* d [count, columns] <- factor * from [count, padded]; rows of d are stride apart. */
WHOLE_VECTORS static inline void unpack(Gradient d, int64_t stride, const Real *restrict from,
                                        int64_t count, int64_t columns, int64_t padded, Real factor)
{
    Real *restrict to = d.data;
    for (int64_t i = 0; i < count; i++, to += stride, from += padded) {
        int64_t c = 0;
        for (; c < columns; c += LINE)
            __builtin_prefetch(to + AHEAD * stride + c, 1);
        c = 0;
        for (; c + LANES <= columns; c += LANES) {
            UnalignedVector *d_c = (UnalignedVector *)(to + c);
            Vector contribution = factor * *(const Vector *)(from + c);
            if (d.accumulate)
                contribution += *d_c;
            *d_c = contribution;
        }
        for (; c < columns; c++)
            contribute(to + c, d.accumulate, factor * from[c]);
    }
}

#endif
