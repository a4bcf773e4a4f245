/* Tiles on the CPU: rows packed contiguously, their products, and online softmax.
 *
 * A head's rows have a stride of at least H D elements. The attention kernels pack them into
 * workspaces of Reals, padded with zeros to whole vectors, compute there and unpack the results, so
 * there is one path for all sizes and dtypes. Pointers to packed rows are aligned to vectors. */
#ifndef TAPEGRAD_OPS_SHARED_TILES_CPU_H
#define TAPEGRAD_OPS_SHARED_TILES_CPU_H

#include "autograd/tape.h"
#include "ops/cpu/shared/storage.h"
#include "ops/shared/internal.h"
#include "ops/cpu/shared/vectors.h"

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

/* -------------------------------------------------------------------------------------- packing */

/* Rows as the tensors store them: columns elements each, stride apart. */
typedef struct Rows {
    int type; /* a TensorType */
    const Real *data;
    int64_t stride, count, columns;
} Rows;

/* Such rows of a result or gradient, to which rows are contributed. */
typedef struct GradientRows {
    int type;
    Gradient gradient;
    int64_t stride, count, columns;
} GradientRows;

/* The hardware prefetcher misses widely strided rows: prefetch AHEAD rows ahead. */
enum { AHEAD = 16 };

ALWAYS_INLINE int64_t elements_per_line(int T)
{
    return LINE_BYTES / (int64_t)element_bytes(T);
}

/* to [padded] = factor * row, padded with zeros. */
ALWAYS_INLINE void pack_row(int T, Real *restrict to, const Real *restrict row, int64_t columns,
                            int64_t padded, Real factor)
{
    int64_t c = 0;
    for (; c + LANES <= columns; c += LANES)
        *at_vector(to + c) = factor * load_vector(T, row, c);
    for (; c < padded; c++)
        to[c] = c < columns ? factor * load(T, row, c) : 0;
}

/* As pack, where the compiler knows the columns: loops over few vectors cost more than the rows. */
ALWAYS_INLINE void pack_columns(int T, Real *restrict to, Rows rows, int64_t padded, Real factor,
                                int64_t ahead)
{
    const Real *restrict row = rows.data;
    for (int64_t i = 0; i < rows.count; i++, row = elements_at(T, row, rows.stride), to += padded) {
        for (int64_t c = 0; ahead && c < rows.columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, row, ahead * rows.stride + c), 0, 2);
        pack_row(T, to, row, rows.columns, padded, factor);
    }
}

ALWAYS_INLINE Rows with_columns(Rows rows, int64_t columns)
{
    rows.columns = columns;
    return rows;
}

ALWAYS_INLINE void pack_by_columns(int T, Real *restrict to, Rows rows, int64_t padded, Real factor,
                                   int64_t ahead)
{
    if (rows.columns == 16 && padded == 16)
        pack_columns(T, to, with_columns(rows, 16), 16, factor, ahead);
    else if (rows.columns == 32 && padded == 32)
        pack_columns(T, to, with_columns(rows, 32), 32, factor, ahead);
    else if (rows.columns == 64 && padded == 64)
        pack_columns(T, to, with_columns(rows, 64), 64, factor, ahead);
    else
        pack_columns(T, to, rows, padded, factor, ahead);
}

/* to [count, padded] = factor * rows, padded with zeros; ahead: rows to prefetch ahead, or 0. */
WHOLE_VECTORS static inline void pack(Real *restrict to, const Rows *rows, int64_t padded,
                                      Real factor, int64_t ahead)
{
    BY_STORAGE(rows->type, T, pack_by_columns(T, to, *rows, padded, factor, ahead));
}

/* Zeroes the rows after the first count up to a multiple of ROWS. */
static inline void zero_missing(Real *rows, int64_t count, int64_t padded)
{
    const int64_t missing = round_up(count, ROWS) - count;
    memset(rows + count * padded, 0, (size_t)(missing * padded) * sizeof *rows);
}

/* The same as pack, and zeroes the rows up to a multiple of ROWS. */
static inline void pack_tile(Real *restrict to, const Rows *rows, int64_t padded, Real factor)
{
    pack(to, rows, padded, factor, AHEAD);
    zero_missing(to, rows->count, padded);
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

/* As unpack, where the compiler knows the columns. */
ALWAYS_INLINE void unpack_columns(int T, GradientRows to, const Real *restrict from, int64_t padded,
                                  Real factor, int64_t ahead)
{
    Real *restrict row = to.gradient.data;
    const bool accumulate = to.gradient.accumulate;
    for (int64_t i = 0; i < to.count; i++, row = elements_at(T, row, to.stride), from += padded) {
        int64_t c = 0;
        for (; ahead && c < to.columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, row, ahead * to.stride + c), 1);
        for (c = 0; c + LANES <= to.columns; c += LANES) {
            Vector contribution = factor * vector(from + c);
            if (accumulate)
                contribution += load_vector(T, row, c);
            store_vector(T, row, c, contribution);
        }
        for (; c < to.columns; c++)
            contribute(T, row, c, accumulate, factor * from[c]);
    }
}

ALWAYS_INLINE GradientRows with_gradient_columns(GradientRows rows, int64_t columns)
{
    rows.columns = columns;
    return rows;
}

ALWAYS_INLINE void unpack_by_columns(int T, GradientRows to, const Real *restrict from,
                                     int64_t padded, Real factor, int64_t ahead)
{
    if (to.columns == 16 && padded == 16)
        unpack_columns(T, with_gradient_columns(to, 16), from, 16, factor, ahead);
    else if (to.columns == 32 && padded == 32)
        unpack_columns(T, with_gradient_columns(to, 32), from, 32, factor, ahead);
    else if (to.columns == 64 && padded == 64)
        unpack_columns(T, with_gradient_columns(to, 64), from, 64, factor, ahead);
    else
        unpack_columns(T, to, from, padded, factor, ahead);
}

/* to [count, columns] <- factor * from [count, padded] */
WHOLE_VECTORS static inline void unpack(const GradientRows *to, const Real *restrict from,
                                        int64_t padded, Real factor, int64_t ahead)
{
    BY_STORAGE(to->type, T, unpack_by_columns(T, *to, from, padded, factor, ahead));
}

/* --------------------------------------------------------------------------------- online softmax
 * A score tile is stored transposed, [keys, columns]: the maxima m and sums l of consecutive
 * queries are contiguous, and no vector is summed horizontally. The derivation is in
 * ops/attention/softmax/softmax.c. weight [keys, columns]: each term's factor, 0 where the query
 * does not see the key; without it, all are 1. weighted is a compile-time constant. */

/* m = max(m, s), for one key and all queries. */
ALWAYS_INLINE void raise_maxima(bool weighted, Real *restrict m, const Real *restrict s,
                                const Real *restrict weight, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++)
        m[i] = ((!weighted || weight[i] > 0) & (s[i] > m[i])) ? s[i] : m[i];
}

/* s = e^(s - m) weight and l += s, for one key and all queries. */
ALWAYS_INLINE void exponentiate(bool weighted, Real *restrict s, Real *restrict l,
                                const Real *restrict m, const Real *restrict weight,
                                int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        Real power = real_exp(s[i] - m[i]);
        if (weighted) {
            power *= weight[i];
            power = weight[i] > 0 ? power : 0;
        }
        s[i] = power;
        l[i] += power;
    }
}

/* What online softmax knows of consecutive queries after some of their keys. */
typedef struct OnlineSoftmax {
    Real *m, *l; /* [columns] */
    Real *out;   /* [queries, M] */
    int64_t queries, columns, M;
    Real *buffer; /* [columns] */
} OnlineSoftmax;

/* One step of online softmax: updates m, P = e^(s - m) weight, rescales l and out to the new m, and
 * adds the tile's terms to l. */
ALWAYS_INLINE void online_softmax(bool weighted, OnlineSoftmax q, Real *P, const Real *weight,
                                  int64_t keys)
{
    const int64_t columns = q.columns;
    Real *restrict factor = q.buffer;
    memcpy(factor, q.m, (size_t)columns * sizeof *q.m);
    for (int64_t j = 0; j < keys; j++)
        raise_maxima(weighted, q.m, P + j * columns, weighted ? weight + j * columns : NULL,
                     columns);
    for (int64_t i = 0; i < columns; i++) {
        factor[i] = real_exp(factor[i] - q.m[i]);
        q.l[i] *= factor[i];
    }
    for (int64_t j = 0; j < keys; j++)
        exponentiate(weighted, P + j * columns, q.l, q.m, weighted ? weight + j * columns : NULL,
                     columns);
    for (int64_t i = 0; i < q.queries; i++)
        for (int64_t c = 0; c < q.M; c++)
            q.out[i * q.M + c] *= factor[i];
}

/* P = e^(s - m) weight from s and dS = P (dP - D) from dP, in place, for one key and all queries;
 * D: g.out of each query, where g is divided by l, and so are dP and D. */
ALWAYS_INLINE void score_gradients(bool weighted, Real *restrict P, Real *restrict dS,
                                   const Real *restrict m, const Real *restrict D,
                                   const Real *restrict weight, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        Real power = real_exp(P[i] - m[i]);
        if (weighted)
            power *= weight[i];
        const Real dscore = power * (dS[i] - D[i]);
        P[i] = !weighted || weight[i] > 0 ? power : 0;
        dS[i] = !weighted || weight[i] > 0 ? dscore : 0;
    }
}

#endif
