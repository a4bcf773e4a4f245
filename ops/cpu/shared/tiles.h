/* Products of tiles on the CPU, by register tiling. Rows of operands are packed (packing.h):
 * contiguous, padded with zeros to whole vectors, and aligned to vectors. */
#ifndef TAPEGRAD_OPS_SHARED_TILES_CPU_H
#define TAPEGRAD_OPS_SHARED_TILES_CPU_H

#include "autograd/tape.h"
#include "ops/cpu/shared/vectors.h"
#include "ops/shared/internal.h"

static inline int64_t minimum(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t maximum(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* The next count elements of a workspace. If it is NULL, counts them only and returns NULL. */
static inline Real *allocate(Real *workspace, int64_t *used, int64_t count)
{
    Real *allocated = workspace ? workspace + *used : NULL;
    *used += round_up(count, UNIT);
    return allocated;
}

/* ------------------------------------------------------------------------------------- products */

/* A matrix that is read in place: element (r, c) is data[r row + c column]. */
typedef struct MatrixView {
    const Real *data;
    int64_t row, column; /* strides */
} MatrixView;

/* The matrix from row r and column c on. */
ALWAYS_INLINE MatrixView view_from(MatrixView x, int64_t r, int64_t c)
{
    x.data += r * x.row + c * x.column;
    return x;
}

/* C = A B or C += A B, where row r of C is c + r columns. Register tiling: ROWS rows by one or two
 * vectors of columns are accumulated in registers; b.column is 1. prefetch: also prefetches the
 * next ROWS rows of A, which are too short for the hardware prefetcher. add, prefetch and vectors
 * are compile-time constants. */
ALWAYS_INLINE void product_tile(bool add, bool prefetch, int vectors, Real *c, MatrixView a,
                                MatrixView b, int64_t inner, int64_t columns)
{
    Vector sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add ? vector(c + r * columns + v * LANES) : (Vector){ 0 };
    for (int64_t start = 0; start < inner; start += prefetch ? LINE : inner) {
        for (int r = 0; prefetch && r < ROWS; r++)
            __builtin_prefetch(a.data + (r + ROWS) * a.row + start);
        const int64_t end = prefetch ? minimum(start + LINE, inner) : inner;
        for (int64_t k = start; k < end; k++)
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < vectors; v++)
                    sum[r][v] = multiply_add(broadcast(a.data[r * a.row + k * a.column]),
                                             vector(b.data + k * b.row + v * LANES), sum[r][v]);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *at_vector(c + r * columns + v * LANES) = sum[r][v];
}

/* C [rows, columns] = A B or C += A B; rows is a multiple of ROWS, columns of LANES. */
ALWAYS_INLINE void tiled_product(bool add, bool prefetch, Real *c, MatrixView a, MatrixView b,
                                 int64_t rows, int64_t inner, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += ROWS) {
        const MatrixView a_r = view_from(a, r, 0);
        Real *c_r = c + r * columns;
        int64_t v = 0;
        for (; v + 2 * LANES <= columns; v += 2 * LANES)
            product_tile(add, prefetch, 2, c_r + v, a_r, view_from(b, 0, v), inner, columns);
        if (v < columns)
            product_tile(add, prefetch, 1, c_r + v, a_r, view_from(b, 0, v), inner, columns);
    }
}

/* C += A B of ROWS rows and terms: row r takes only the terms k <= r (lower) or k >= r, and
 * k < inner. A factor 0 would not do, because 0 times NaN is NaN. */
ALWAYS_INLINE void triangle_tile(bool lower, int vectors, Real *c, MatrixView a, MatrixView b,
                                 int64_t inner, int64_t columns)
{
    Vector sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vector(c + r * columns + v * LANES);
    for (int k = 0; k < ROWS && k < inner; k++)
        for (int r = lower ? k : 0; r < (lower ? ROWS : k + 1); r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = multiply_add(broadcast(a.data[r * a.row + k * a.column]),
                                         vector(b.data + k * b.row + v * LANES), sum[r][v]);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *at_vector(c + r * columns + v * LANES) = sum[r][v];
}

/* Rows r to r + ROWS of triangle_product in some vectors of columns: the terms before or after the
 * diagonal tile, then those in it. */
ALWAYS_INLINE void triangle_rows(bool lower, int vectors, Real *c, MatrixView a, MatrixView b,
                                 int64_t r, int64_t inner, int64_t columns)
{
    const int64_t first = lower ? 0 : minimum(r + ROWS, inner);
    const int64_t end = lower ? minimum(r, inner) : inner;
    product_tile(true, false, vectors, c, view_from(a, r, first), view_from(b, first, 0),
                 end - first, columns);
    triangle_tile(lower, vectors, c, view_from(a, r, r), view_from(b, r, 0), inner - r, columns);
}

/* C [rows, columns] += A B, where row r takes only the terms k <= r (lower) or k >= r. */
ALWAYS_INLINE void triangle_product(bool lower, Real *c, MatrixView a, MatrixView b, int64_t rows,
                                    int64_t inner, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += ROWS)
        for (int64_t v = 0; v < columns; v += 2 * LANES) {
            Real *c_r = c + r * columns + v;
            if (v + 2 * LANES <= columns)
                triangle_rows(lower, 2, c_r, a, view_from(b, 0, v), r, inner, columns);
            else
                triangle_rows(lower, 1, c_r, a, view_from(b, 0, v), r, inner, columns);
        }
}

/* C [rows, columns] = A [rows, inner] B [inner, columns]; a_row, b_row: strides of the rows. */
WHOLE_VECTORS static inline void set_product(Real *c, const Real *a, int64_t a_row, const Real *b,
                                             int64_t b_row, int64_t rows, int64_t inner,
                                             int64_t columns)
{
    tiled_product(false, false, c, (MatrixView){ a, a_row, 1 }, (MatrixView){ b, b_row, 1 }, rows,
                  inner, columns);
}

/* C [rows, columns] += A [rows, inner] B [inner, columns]; a_row: stride of A's rows. */
WHOLE_VECTORS static inline void add_product(Real *c, const Real *a, int64_t a_row, const Real *b,
                                             int64_t rows, int64_t inner, int64_t columns)
{
    tiled_product(true, false, c, (MatrixView){ a, a_row, 1 }, (MatrixView){ b, columns, 1 }, rows,
                  inner, columns);
}

/* C [rows, columns] += A^T B, A [inner, rows], B [inner, columns]; a_row: stride of A's rows. */
WHOLE_VECTORS static inline void add_product_transposed(Real *c, const Real *a, int64_t a_row,
                                                        const Real *b, int64_t rows, int64_t inner,
                                                        int64_t columns)
{
    tiled_product(true, false, c, (MatrixView){ a, 1, a_row }, (MatrixView){ b, columns, 1 }, rows,
                  inner, columns);
}

/* The same as dot, with x of dtype T. */
ALWAYS_INLINE Real dot_with(int T, const Real *x, const Real *y, int64_t n)
{
    Vector products = { 0 };
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES)
        products += load_vector(T, x, c) * load_vector(TENSOR_REAL, y, c);
    Real sum = vector_sum(products);
    for (; c < n; c++)
        sum += load(T, x, c) * y[c];
    return sum;
}

/* x.y, n elements each */
WHOLE_VECTORS static inline Real dot(const Real *x, const Real *y, int64_t n)
{
    return dot_with(TENSOR_REAL, x, y, n);
}

#endif
