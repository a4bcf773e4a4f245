/* The scan of linear attention over the packed rows of a chunk: for each position i in turn
 *     T <- T + y_i w_i^T     o_i = T^T x_i
 * in two implementations that agree up to rounding, and its two halves. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CPU_H

#include "ops/cpu/attention/linear/prefetch.h"

/* Packed rows [count, columns] and one more column, last [count], or NULL: v~ = [v, 1]. As a state:
 * a matrix and one more column or row: S~ = [S, z]. Kept apart, because one more column of the
 * matrix would be a whole vector of them. */
typedef struct Matrix {
    Real *data, *last;
    int64_t columns;
} Matrix;

/* How a chunk is scanned: one position after the other, or by matrix products. */
typedef enum Method { BY_POSITION, BY_PRODUCTS } Method;

/* What a scan needs besides its operands. */
typedef struct Scan {
    int64_t count; /* positions; the rows are allocated up to a multiple of UNIT */
    Method method;
    bool first, last; /* T is known to be 0 before the chunk; T is not needed after it */
    Real *workspace;  /* scan_workspace elements */
    Prefetch next;    /* rows of the next chunk; the scan empties the list */
} Scan;

/* ------------------------------------------------------------------------- position by position
 * Register tiling: a tile of T stays in vector registers while the positions stream past it, so T
 * causes no memory traffic, and every instruction of the inner loop is a fused multiply-add. */

/* Scans one tile of T: some rows and some vectors of columns, both compile-time constants. */
ALWAYS_INLINE void scan_tile(int rows, int vectors,
                             const Real *x, /* [count, Y], from the tile's first row on */
                             const Real *y, /* [count, Y], likewise */
                             const Real *w, /* [count, W], from the tile's first column on */
                             Real *o,       /* [count, W], likewise */
                             Real *T,       /* [Y, W], from the tile's corner on */
                             int64_t count, int64_t Y, int64_t W, const Prefetch *next,
                             int64_t begin, int64_t end)
{
    Vector tile[2 * ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(T + r * W + c * LANES);
    for (int64_t i = 0; i < count; i++, x += Y, y += Y, w += W, o += W) {
        prefetch_lines(next, begin, end, i);
        Vector o_i[2];
        for (int c = 0; c < vectors; c++)
            o_i[c] = vector(o + c * LANES);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < vectors; c++) {
                tile[r][c] += y[r] * vector(w + c * LANES);
                o_i[c] += x[r] * tile[r][c];
            }
        for (int c = 0; c < vectors; c++)
            *at_vector(o + c * LANES) = o_i[c];
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            *at_vector(T + r * W + c * LANES) = tile[r][c];
}

/* For each position in turn  T <- T + y_i w_i^T,  o_i <- o_i + T^T x_i;  x, y [count, Y],
 * w, o [count, W], T [Y, W]. Tiles are two vectors wide or, where only one is left, one vector wide
 * and twice as high. The prefetches are divided evenly among the tiles. */
WHOLE_VECTORS static void scan_by_position(const Real *x, const Real *y, const Real *w, Real *o,
                                           Real *T, int64_t count, int64_t Y, int64_t W,
                                           const Prefetch *next)
{
    const int64_t tiles = (Y * W + 2 * ROWS * LANES - 1) / (2 * ROWS * LANES);
    const int64_t share = (next->count + tiles - 1) / tiles;
    int64_t begin = 0;
    for (int64_t c = 0; c < W; c += 2 * LANES)
        for (int64_t r = 0; r < Y; r += ROWS) {
            const int64_t end = minimum(begin + share, next->count);
            Real *corner = T + r * W + c;
            if (c + 2 * LANES <= W) {
                scan_tile(ROWS, 2, x + r, y + r, w + c, o + c, corner, count, Y, W, next, begin,
                          end);
            } else if (r + 2 * ROWS > Y) {
                scan_tile(ROWS, 1, x + r, y + r, w + c, o + c, corner, count, Y, W, next, begin,
                          end);
            } else {
                scan_tile(2 * ROWS, 1, x + r, y + r, w + c, o + c, corner, count, Y, W, next, begin,
                          end);
                r += ROWS;
            }
            begin = end;
        }
}

/* --------------------------------------------------------------------------- by matrix products */

/* o_i <- o_i + sum_{j<=i} weights[j, i] w_j for the ROWS positions i from `before` on, in some
 * vectors of the columns: first over all j < before, then over the triangle. */
ALWAYS_INLINE void causal_tile(int vectors, Real *o, /* [ROWS, W], from the tile's corner on */
                               const Real *weights,  /* [before + ROWS, UNIT], likewise */
                               const Real *w,        /* [before + ROWS, W], likewise */
                               int64_t before, int64_t W)
{
    Vector tile[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(o + r * W + c * LANES);
    for (int64_t j = 0; j < before; j++, weights += UNIT, w += W)
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < vectors; c++)
                tile[r][c] += weights[r] * vector(w + c * LANES);
    for (int j = 0; j < ROWS; j++, weights += UNIT, w += W)
        for (int r = j; r < ROWS; r++)
            for (int c = 0; c < vectors; c++)
                tile[r][c] += weights[r] * vector(w + c * LANES);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            *at_vector(o + r * W + c * LANES) = tile[r][c];
}

/* o <- o + tril(X Y^T) W, UNIT positions i at a time: only their columns of Y X^T are ever stored,
 * weights[j, i] = y_j.x_i. */
ALWAYS_INLINE void add_causal_product(const Real *x, const Real *y, const Real *w, Real *o,
                                      int64_t count, int64_t Y, int64_t W, Real *workspace)
{
    Real *columns = workspace, *weights = columns + Y * UNIT; /* [Y, UNIT], [count, UNIT] */
    for (int64_t i = 0; i < count; i += UNIT) {
        for (int64_t r = 0; r < UNIT; r++)
            for (int64_t d = 0; d < Y; d++)
                columns[d * UNIT + r] = x[(i + r) * Y + d];
        set_product(weights, y, Y, columns, UNIT, i + UNIT, Y, UNIT);
        for (int64_t r = 0; r < UNIT; r += ROWS) {
            Real *rows = o + (i + r) * W;
            int64_t c = 0;
            for (; c + 2 * LANES <= W; c += 2 * LANES)
                causal_tile(2, rows + c, weights + r, w + c, i + r, W);
            if (c < W)
                causal_tile(1, rows + c, weights + r, w + c, i + r, W);
        }
    }
}

/* o <- o + X T + tril(X Y^T) W     T <- T + Y^T W */
WHOLE_VECTORS static void scan_by_products(const Scan *s, const Real *x, const Real *y,
                                           const Real *w, Real *o, Real *T, int64_t Y, int64_t W)
{
    if (!s->first)
        add_product(o, x, Y, T, s->count, Y, W);
    add_causal_product(x, y, w, o, s->count, Y, W, s->workspace);
    if (!s->last)
        add_product_transposed(T, y, Y, w, Y, s->count, W);
}

/* -------------------------------------------------------------------------- last column and row */

/* z <- z + w_i y_i     o_i = x_i.z,     for columns w and o; sums [count, Y]: every z */
WHOLE_VECTORS static void scan_last_column(const Real *x, const Real *y, const Real *w, Real *z,
                                           Real *o, Real *sums, int64_t count, int64_t Y)
{
    for (int64_t d = 0; d < Y; d += LANES) {
        Vector z_i = vector(z + d);
        for (int64_t i = 0; i < count; i++)
            *at_vector(sums + i * Y + d) = z_i += w[i] * vector(y + i * Y + d);
        *at_vector(z + d) = z_i;
    }
    for (int64_t i = 0; i < count; i++)
        o[i] = dot(x + i * Y, sums + i * Y, Y);
}

/* t <- t + y_i w_i     o_i = x_i t,     for columns x and y */
WHOLE_VECTORS static void scan_last_row(const Real *x, const Real *y, const Real *w, Real *t,
                                        Real *o, int64_t count, int64_t W)
{
    for (int64_t c = 0; c < W; c += LANES) {
        Vector t_i = vector(t + c);
        for (int64_t i = 0; i < count; i++) {
            t_i += y[i] * vector(w + i * W + c);
            *at_vector(o + i * W + c) = x[i] * t_i;
        }
        *at_vector(t + c) = t_i;
    }
}

static void zero(Matrix o, int64_t count)
{
    memset(o.data, 0, (size_t)(count * o.columns) * sizeof *o.data);
}

/* ---------------------------------------------------------------------------------------- scans */

/* Prefetches all lines at once. */
static void prefetch_all(Scan *s)
{
    for (int64_t i = 0; i < s->count; i++)
        prefetch_lines(&s->next, 0, s->next.count, i);
    s->next.count = 0;
}

/* o = scan(x, y, w), or scan_reverse if the rows were loaded in reverse order, from state T [Y, W]
 * on, which becomes the state after the chunk. Of the last columns either those of w and o are
 * given, or those of x and y, or none:
 *     z <- z + w_last y_i     o_last = x_i.z        where T~ = [T, z]
 *     t <- t + y_last w_i     o_i += x_last t       where t is T~'s last row */
ALWAYS_INLINE void scan_chunk(Scan *s, Matrix x, Matrix y, Matrix w, Matrix T, Matrix o)
{
    const int64_t Y = y.columns, W = w.columns;
    if (x.last) {
        scan_last_row(x.last, y.last, w.data, T.last, o.data, s->count, W);
    } else {
        zero(o, s->count);
        if (w.last)
            scan_last_column(x.data, y.data, w.last, T.last, o.last, s->workspace, s->count, Y);
    }
    if (s->method == BY_POSITION) {
        scan_by_position(x.data, y.data, w.data, o.data, T.data, s->count, Y, W, &s->next);
    } else {
        prefetch_all(s);
        scan_by_products(s, x.data, y.data, w.data, o.data, T.data, Y, W);
    }
    s->next.count = 0;
}

/* to <- to + sum_i factor_i row_i */
WHOLE_VECTORS static void add_rows(Real *to, const Real *factor, Matrix rows, int64_t count)
{
    const int64_t n = rows.columns;
    for (int64_t c = 0; c < n; c += LANES) {
        Vector sum = vector(to + c);
        for (int64_t i = 0; i < count; i++)
            sum += factor[i] * vector(rows.data + i * n + c);
        *at_vector(to + c) = sum;
    }
}

/* The sum alone: T~ <- T~ + sum_i y~_i w~_i^T. */
ALWAYS_INLINE void state_add(Scan *s, Matrix y, Matrix w, Matrix T)
{
    prefetch_all(s);
    if (w.last)
        add_rows(T.last, w.last, y, s->count);
    else
        add_rows(T.last, y.last, w, s->count);
    add_product_transposed(T.data, y.data, y.columns, w.data, y.columns, s->count, w.columns);
}

/* The result alone: o~_i = T~^T x~_i. */
ALWAYS_INLINE void state_read(Scan *s, Matrix x, Matrix T, Matrix o)
{
    prefetch_all(s);
    zero(o, s->count);
    for (int64_t i = 0; o.last && i < s->count; i++)
        o.last[i] = dot(x.data + i * x.columns, T.last, x.columns);
    for (int64_t i = 0; x.last && i < s->count; i++)
        add_rows(o.data + i * o.columns, x.last + i,
                 (Matrix){ .data = T.last, .columns = o.columns }, 1);
    add_product(o.data, x.data, x.columns, T.data, s->count, x.columns, o.columns);
}

/* Elements of workspace for chunks of this many rows, where Y, W <= widest. */
static int64_t scan_workspace(int64_t rows, int64_t widest, Method method)
{
    const int64_t padded = round_up(rows, UNIT), sums = padded * widest;
    return method == BY_PRODUCTS ? maximum(sums, (widest + padded) * UNIT) : sums;
}

#endif
