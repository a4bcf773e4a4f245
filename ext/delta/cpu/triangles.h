/* Triangular matrices of a chunk of the delta rule, in register tiles as in ops/cpu/shared/tiles.h:
 * products of rows by rows, and forward substitution. */
#ifndef TAPEGRAD_OPS_ATTENTION_DELTA_TRIANGLES_CPU_H
#define TAPEGRAD_OPS_ATTENTION_DELTA_TRIANGLES_CPU_H

#include "ops/cpu/shared/packing.h"

enum { DELTA_CHUNK = 32 }; /* positions per chunk, at least 2 LANES; 64 take 1.1 times as long */

/* to [columns, stride] = the transpose of rows [count, columns], count and columns multiples of
 * LANES. */
WHOLE_VECTORS static inline void transpose_rows(Real *to, int64_t stride, const Real *rows,
                                                int64_t count, int64_t columns)
{
    for (int64_t i = 0; i < count; i += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            Vector x[LANES];
            for (int r = 0; r < LANES; r++)
                x[r] = vector(rows + (i + r) * columns + c);
            transpose_vectors(x);
            for (int r = 0; r < LANES; r++)
                *at_vector(to + (c + r) * stride + i) = x[r];
        }
}

/* p [rows, DELTA_CHUNK] = the lower triangle of X Y^T, and what shares its tiles; x [rows, inner],
 * y_t [inner, DELTA_CHUNK] */
WHOLE_VECTORS static inline void lower_triangle(Real *p, const Real *x, const Real *y_t,
                                                int64_t rows, int64_t inner)
{
    for (int64_t r = 0; r < rows; r += ROWS)
        for (int64_t v = 0; v < r + ROWS; v += 2 * LANES)
            product_tile(false, false, 2, p + r * DELTA_CHUNK + v,
                         (MatrixView){ x + r * inner, inner, 1 },
                         (MatrixView){ y_t + v, DELTA_CHUNK, 1 }, inner, DELTA_CHUNK);
}

/* Rows r to r + ROWS of substitute, in some vectors of columns: the terms of rows that are known,
 * then those within the tile. */
ALWAYS_INLINE void substitute_tile(bool lower, int vectors, Real *u, MatrixView a, int64_t r,
                                   int64_t rows, int64_t columns)
{
    Vector sum[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < vectors; v++)
            sum[i][v] = vector(u + (r + i) * columns + v * LANES);
    for (int64_t k = lower ? 0 : r + ROWS; k < (lower ? r : rows); k++)
        for (int i = 0; i < ROWS; i++)
            for (int v = 0; v < vectors; v++)
                sum[i][v] = multiply_add(broadcast(a.data[(r + i) * a.row + k * a.column]),
                                         vector(u + k * columns + v * LANES), sum[i][v]);
    for (int j = 0; j < ROWS; j++) {
        const int k = lower ? j : ROWS - 1 - j;
        for (int i = lower ? k + 1 : 0; i < (lower ? ROWS : k); i++)
            for (int v = 0; v < vectors; v++)
                sum[i][v] = multiply_add(broadcast(a.data[(r + i) * a.row + (r + k) * a.column]),
                                         sum[k][v], sum[i][v]);
    }
    for (int i = 0; i < ROWS; i++)
        for (int v = 0; v < vectors; v++)
            *at_vector(u + (r + i) * columns + v * LANES) = sum[i][v];
}

/* Solves u_i = b_i + sum_k a_ik u_k, over k < i (lower) or k > i, for u [rows, columns], in the
 * place of b. */
ALWAYS_INLINE void substitute(bool lower, Real *u, MatrixView a, int64_t rows, int64_t columns)
{
    for (int64_t step = 0; step < rows; step += ROWS) {
        const int64_t r = lower ? step : rows - ROWS - step;
        int64_t v = 0;
        for (; v + 2 * LANES <= columns; v += 2 * LANES)
            substitute_tile(lower, 2, u + v, a, r, rows, columns);
        if (v < columns)
            substitute_tile(lower, 1, u + v, a, r, rows, columns);
    }
}

/* The two directions, as functions of their own: in one place each for the compiler. */
WHOLE_VECTORS static void substitute_forward(Real *u, const Real *a, int64_t rows, int64_t columns)
{
    substitute(true, u, (MatrixView){ a, DELTA_CHUNK, 1 }, rows, columns);
}

/* With the transpose of a. */
WHOLE_VECTORS static void substitute_backward(Real *u, const Real *a, int64_t rows, int64_t columns)
{
    substitute(false, u, (MatrixView){ a, 1, DELTA_CHUNK }, rows, columns);
}

/* c [rows, columns] += A B with the lower triangle of a, and of B the first count rows. */
WHOLE_VECTORS static void add_lower_product(Real *c, const Real *a, const Real *b, int64_t rows,
                                            int64_t count, int64_t columns)
{
    triangle_product(true, c, (MatrixView){ a, DELTA_CHUNK, 1 }, (MatrixView){ b, columns, 1 },
                     rows, count, columns);
}

/* The same with the transpose of a. */
WHOLE_VECTORS static void add_upper_product(Real *c, const Real *a, const Real *b, int64_t rows,
                                            int64_t count, int64_t columns)
{
    triangle_product(false, c, (MatrixView){ a, 1, DELTA_CHUNK }, (MatrixView){ b, columns, 1 },
                     rows, count, columns);
}

/* to [count, columns] = rows, row i times factor_i */
WHOLE_VECTORS static inline void scale_rows(Real *to, const Real *rows, const Real *factor,
                                            int64_t count, int64_t columns)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < columns; c += LANES)
            *at_vector(to + i * columns + c) = factor[i] * vector(rows + i * columns + c);
}

#endif
