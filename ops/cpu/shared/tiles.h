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

/* Register tiling: ROWS rows of C by one or two vectors of columns are accumulated in registers.
 * prefetch: also prefetches the next ROWS rows of A, which are too short for the hardware
 * prefetcher. add, prefetch and vectors are compile-time constants. */
ALWAYS_INLINE void product_tile(bool add, bool prefetch, int vectors, Real *c, const Real *a,
                                int64_t a_row, int64_t a_column, const Real *b, int64_t b_row,
                                int64_t inner, int64_t columns)
{
    Vector sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add ? vector(c + r * columns + v * LANES) : (Vector){ 0 };
    for (int64_t start = 0; start < inner; start += prefetch ? LINE : inner) {
        for (int r = 0; prefetch && r < ROWS; r++)
            __builtin_prefetch(a + (r + ROWS) * a_row + start);
        const int64_t end = prefetch ? minimum(start + LINE, inner) : inner;
        for (int64_t k = start; k < end; k++)
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < vectors; v++)
                    sum[r][v] += a[r * a_row + k * a_column] * vector(b + k * b_row + v * LANES);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *at_vector(c + r * columns + v * LANES) = sum[r][v];
}

/* C = A B or C += A B; rows is a multiple of ROWS, columns of LANES. Element (r, k) of A is stored
 * at r a_row + k a_column, (k, c) of B at k b_row + c. */
ALWAYS_INLINE void tiled_product(bool add, bool prefetch, Real *c, const Real *a, int64_t a_row,
                                 int64_t a_column, const Real *b, int64_t b_row, int64_t rows,
                                 int64_t inner, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += ROWS) {
        const Real *a_r = a + r * a_row;
        Real *c_r = c + r * columns;
        int64_t v = 0;
        for (; v + 2 * LANES <= columns; v += 2 * LANES)
            product_tile(add, prefetch, 2, c_r + v, a_r, a_row, a_column, b + v, b_row, inner,
                         columns);
        if (v < columns)
            product_tile(add, prefetch, 1, c_r + v, a_r, a_row, a_column, b + v, b_row, inner,
                         columns);
    }
}

/* C += A B of ROWS rows and terms: row r takes only the terms k <= r (lower) or k >= r, and
 * k < inner. A factor 0 would not do, because 0 times NaN is NaN. */
ALWAYS_INLINE void triangle_tile(bool lower, int vectors, Real *c, const Real *a, int64_t a_row,
                                 int64_t a_column, const Real *b, int64_t inner, int64_t columns)
{
    Vector sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vector(c + r * columns + v * LANES);
    for (int k = 0; k < ROWS && k < inner; k++)
        for (int r = lower ? k : 0; r < (lower ? ROWS : k + 1); r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] += a[r * a_row + k * a_column] * vector(b + k * columns + v * LANES);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            *at_vector(c + r * columns + v * LANES) = sum[r][v];
}

/* C [rows, columns] += A B, where row r takes only the terms k <= r (lower) or k >= r. */
ALWAYS_INLINE void triangle_product(bool lower, Real *c, const Real *a, int64_t a_row,
                                    int64_t a_column, const Real *b, int64_t rows, int64_t inner,
                                    int64_t columns)
{
    for (int64_t r = 0; r < rows; r += ROWS, a += ROWS * a_row, c += ROWS * columns)
        for (int64_t v = 0; v < columns; v += 2 * LANES) {
            const int64_t first = lower ? 0 : minimum(r + ROWS, inner);
            const int64_t end = lower ? minimum(r, inner) : inner, left = inner - r;
            const Real *a_k = a + first * a_column, *b_k = b + first * columns + v;
            const Real *a_r = a + r * a_column, *b_r = b + r * columns + v;
            if (v + 2 * LANES <= columns) {
                product_tile(true, false, 2, c + v, a_k, a_row, a_column, b_k, columns, end - first,
                             columns);
                triangle_tile(lower, 2, c + v, a_r, a_row, a_column, b_r, left, columns);
            } else {
                product_tile(true, false, 1, c + v, a_k, a_row, a_column, b_k, columns, end - first,
                             columns);
                triangle_tile(lower, 1, c + v, a_r, a_row, a_column, b_r, left, columns);
            }
        }
}

/* C [rows, columns] = A [rows, inner] B [inner, columns]; a_row, b_row: strides of the rows. */
WHOLE_VECTORS static inline void set_product(Real *c, const Real *a, int64_t a_row, const Real *b,
                                             int64_t b_row, int64_t rows, int64_t inner,
                                             int64_t columns)
{
    tiled_product(false, false, c, a, a_row, 1, b, b_row, rows, inner, columns);
}

/* C [rows, columns] += A [rows, inner] B [inner, columns]; a_row: stride of A's rows. */
WHOLE_VECTORS static inline void add_product(Real *c, const Real *a, int64_t a_row, const Real *b,
                                             int64_t rows, int64_t inner, int64_t columns)
{
    tiled_product(true, false, c, a, a_row, 1, b, columns, rows, inner, columns);
}

/* C [rows, columns] += A^T B, A [inner, rows], B [inner, columns]; a_row: stride of A's rows. */
WHOLE_VECTORS static inline void add_product_transposed(Real *c, const Real *a, int64_t a_row,
                                                        const Real *b, int64_t rows, int64_t inner,
                                                        int64_t columns)
{
    tiled_product(true, false, c, a, 1, a_row, b, columns, rows, inner, columns);
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
ALWAYS_INLINE void pack_columns(int T, Real *restrict to, const Real *restrict row, int64_t stride,
                                int64_t count, int64_t columns, int64_t padded, Real factor,
                                int64_t ahead)
{
    for (int64_t i = 0; i < count; i++, row = elements_at(T, row, stride), to += padded) {
        for (int64_t c = 0; ahead && c < columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, row, ahead * stride + c), 0, 2);
        pack_row(T, to, row, columns, padded, factor);
    }
}

ALWAYS_INLINE void pack_by_columns(int T, Real *restrict to, const Rows *rows, int64_t padded,
                                   Real factor, int64_t ahead)
{
    const Real *data = rows->data;
    const int64_t stride = rows->stride, count = rows->count, columns = rows->columns;
    if (columns == 16 && padded == 16)
        pack_columns(T, to, data, stride, count, 16, 16, factor, ahead);
    else if (columns == 32 && padded == 32)
        pack_columns(T, to, data, stride, count, 32, 32, factor, ahead);
    else if (columns == 64 && padded == 64)
        pack_columns(T, to, data, stride, count, 64, 64, factor, ahead);
    else
        pack_columns(T, to, data, stride, count, columns, padded, factor, ahead);
}

/* to [count, padded] = factor * rows, padded with zeros; ahead: rows to prefetch ahead, or 0. */
WHOLE_VECTORS static inline void pack(Real *restrict to, const Rows *rows, int64_t padded,
                                      Real factor, int64_t ahead)
{
    BY_STORAGE(rows->type, T, pack_by_columns(T, to, rows, padded, factor, ahead));
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

ALWAYS_INLINE void unpack_columns(int T, Gradient d, int64_t stride, const Real *restrict from,
                                  int64_t count, int64_t columns, int64_t padded, Real factor,
                                  int64_t ahead)
{
    Real *restrict to = d.data;
    for (int64_t i = 0; i < count; i++, to = elements_at(T, to, stride), from += padded) {
        int64_t c = 0;
        for (; ahead && c < columns; c += elements_per_line(T))
            __builtin_prefetch(elements_at(T, to, ahead * stride + c), 1);
        for (c = 0; c + LANES <= columns; c += LANES) {
            Vector contribution = factor * vector(from + c);
            if (d.accumulate)
                contribution += load_vector(T, to, c);
            store_vector(T, to, c, contribution);
        }
        for (; c < columns; c++)
            contribute(T, to, c, d.accumulate, factor * from[c]);
    }
}

ALWAYS_INLINE void unpack_by_columns(int T, Gradient d, int64_t stride, const Real *restrict from,
                                     int64_t count, int64_t columns, int64_t padded, Real factor,
                                     int64_t ahead)
{
    if (columns == 16 && padded == 16)
        unpack_columns(T, d, stride, from, count, 16, 16, factor, ahead);
    else if (columns == 32 && padded == 32)
        unpack_columns(T, d, stride, from, count, 32, 32, factor, ahead);
    else if (columns == 64 && padded == 64)
        unpack_columns(T, d, stride, from, count, 64, 64, factor, ahead);
    else
        unpack_columns(T, d, stride, from, count, columns, padded, factor, ahead);
}

/* d [count, columns] <- factor * from [count, padded]; d is of this dtype, its rows stride apart */
WHOLE_VECTORS static inline void unpack(int type, Gradient d, int64_t stride,
                                        const Real *restrict from, int64_t count, int64_t columns,
                                        int64_t padded, Real factor, int64_t ahead)
{
    BY_STORAGE(type, T,
               unpack_by_columns(T, d, stride, from, count, columns, padded, factor, ahead));
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

/* One step of online softmax: updates m, P = e^(s - m) weight, rescales l and out [queries, M] to
 * the new m, and adds the tile's terms to l. buffer [columns] */
ALWAYS_INLINE void online_softmax(bool weighted, Real *P, const Real *weight, Real *m, Real *l,
                                  Real *out, Real *buffer, int64_t keys, int64_t queries,
                                  int64_t columns, int64_t M)
{
    Real *restrict factor = buffer;
    memcpy(factor, m, (size_t)columns * sizeof *m);
    for (int64_t j = 0; j < keys; j++)
        raise_maxima(weighted, m, P + j * columns, weighted ? weight + j * columns : NULL, columns);
    for (int64_t i = 0; i < columns; i++) {
        factor[i] = real_exp(factor[i] - m[i]);
        l[i] *= factor[i];
    }
    for (int64_t j = 0; j < keys; j++)
        exponentiate(weighted, P + j * columns, l, m, weighted ? weight + j * columns : NULL,
                     columns);
    for (int64_t i = 0; i < queries; i++)
        for (int64_t c = 0; c < M; c++)
            out[i * M + c] *= factor[i];
}

/* P = e^(s - L) weight from s and dS = P (dP - D) from dP, in place, for one key and all queries;
 * D: g.out of each query. */
ALWAYS_INLINE void score_gradients(bool weighted, Real *restrict P, Real *restrict dS,
                                   const Real *restrict L, const Real *restrict D,
                                   const Real *restrict weight, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        Real power = real_exp(P[i] - L[i]);
        if (weighted)
            power *= weight[i];
        const Real dscore = power * (dS[i] - D[i]);
        P[i] = !weighted || weight[i] > 0 ? power : 0;
        dS[i] = !weighted || weight[i] > 0 ? dscore : 0;
    }
}

#endif
