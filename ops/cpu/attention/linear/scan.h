/* The scan of linear attention over the packed rows of a chunk: for each row i in turn
 *     T <- T + y_i w_i^T     o_i = T^T x_i
 * in two implementations that agree up to rounding, and its two halves. The rows are packed in the
 * order of the scan: from the last position to the first, it is scan_reverse of causal_linear.c.
 * A strict scan reads T before it adds y_i w_i^T: so o_i depends on earlier rows alone. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CPU_H

#include "ops/cpu/attention/linear/prefetch.h"

/* Packed rows [count, columns] and one more column, last [count], or NULL: v~ = [v, 1]. As a state:
 * a matrix and one more column or row: S~ = [S, z]. Stored separately: as a column of the matrix it
 * would be padded to a whole vector. */
typedef struct Matrix {
    Real *data, *last;
    int64_t columns;
} Matrix;

ALWAYS_INLINE Matrix without_last(Matrix m)
{
    m.last = NULL;
    return m;
}

/* How a chunk is scanned: one row after the other, or by matrix products. */
typedef enum Method { BY_POSITION, BY_PRODUCTS } Method;

/* With a decay T is multiplied at some rows (decay.h), which divides the chunk into parts. */
typedef struct DecayPart {
    int64_t end;       /* its rows end before this one */
    Real enter, leave; /* factors of T before and after its rows; mostly 1 */
} DecayPart;

/* How the rows of a chunk are scanned. */
typedef struct Scan {
    int64_t count; /* rows; they are allocated up to a multiple of UNIT */
    Method method;
    bool strict;
    bool zero_before, state_after; /* T is known to be 0 before them; T is needed after them */
    Matrix result;                 /* the memory of o */
    Real *workspace;               /* scan_workspace elements */
    const DecayPart *parts;        /* of the rows with a decay, or NULL */
    const DecayPart *end_part;
} Scan;

/* ------------------------------------------------------------------------------------ row by row
 * Register tiling: a tile of T stays in vector registers while the rows stream past it, so T causes
 * no memory traffic, and every instruction of the inner loop is a fused multiply-add. */

/* The operands of a tile of T [Y, W]: */
typedef struct ScanTile {
    const Real *x, *y; /* [count, Y], from the tile's first row on */
    const Real *w;     /* [count, W], from the tile's first column on */
    Real *o;           /* likewise */
    Real *T;           /* from the tile's corner on */
    int64_t Y, W;
    const DecayPart *parts, *end_part;
} ScanTile;

ALWAYS_INLINE void scale_tile(int rows, int vectors, Vector (*tile)[2], Real factor)
{
    if (factor == 1)
        return;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] *= factor;
}

/* Scans a tile of some rows and some vectors of columns, both compile-time constants as strict and
 * as whole, which has one part and no factors; and prefetches lines [begin, end). */
ALWAYS_INLINE void scan_tile(bool whole, bool strict, int rows, int vectors, ScanTile t,
                             const Prefetch *next, int64_t begin, int64_t end)
{
    Vector tile[2 * ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(t.T + r * t.W + c * LANES);
    int64_t i = 0;
    for (const DecayPart *part = t.parts; part < (whole ? t.parts + 1 : t.end_part); part++) {
        scale_tile(rows, vectors, tile, whole ? 1 : part->enter);
        for (; i < part->end; i++, t.x += t.Y, t.y += t.Y, t.w += t.W, t.o += t.W) {
            prefetch_lines(next, begin, end, i);
            Vector o_i[2];
            for (int c = 0; c < vectors; c++)
                o_i[c] = vector(t.o + c * LANES);
            for (int r = 0; r < rows; r++)
                for (int c = 0; c < vectors; c++) {
                    if (strict)
                        o_i[c] = multiply_add(broadcast(t.x[r]), tile[r][c], o_i[c]);
                    tile[r][c] =
                        multiply_add(broadcast(t.y[r]), vector(t.w + c * LANES), tile[r][c]);
                    if (!strict)
                        o_i[c] = multiply_add(broadcast(t.x[r]), tile[r][c], o_i[c]);
                }
            for (int c = 0; c < vectors; c++)
                *at_vector(t.o + c * LANES) = o_i[c];
        }
        scale_tile(rows, vectors, tile, whole ? 1 : part->leave);
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            *at_vector(t.T + r * t.W + c * LANES) = tile[r][c];
}

/* For each row in turn  T <- T + y_i w_i^T,  o_i <- o_i + T^T x_i. Tiles are two vectors wide or,
 * where only one is left, one vector wide and twice as high. The lines to prefetch are divided
 * evenly among the tiles. */
ALWAYS_INLINE void scan_tiles(bool whole, bool strict, const Scan *s, Matrix x, Matrix y, Matrix w,
                              Matrix T, Matrix o, const Prefetch *next)
{
    const int64_t Y = y.columns, W = w.columns;
    const int64_t tiles = (Y * W + 2 * ROWS * LANES - 1) / (2 * ROWS * LANES);
    const int64_t share = (next->count + tiles - 1) / tiles;
    int64_t begin = 0;
    for (int64_t c = 0; c < W; c += 2 * LANES)
        for (int64_t r = 0; r < Y; r += ROWS, begin += share) {
            const int64_t end = minimum(begin + share, next->count);
            const ScanTile t = { x.data + r, y.data + r, w.data + c, o.data + c, T.data + r * W + c,
                                 Y,          W,          s->parts,   s->end_part };
            if (c + 2 * LANES <= W) {
                scan_tile(whole, strict, ROWS, 2, t, next, begin, end);
            } else if (r + 2 * ROWS > Y) {
                scan_tile(whole, strict, ROWS, 1, t, next, begin, end);
            } else {
                scan_tile(whole, strict, 2 * ROWS, 1, t, next, begin, end);
                r += ROWS;
            }
        }
}

WHOLE_VECTORS static void scan_by_position(const Scan *s, Matrix x, Matrix y, Matrix w, Matrix T,
                                           Matrix o, const Prefetch *next)
{
    const bool whole = s->parts + 1 == s->end_part && s->parts->enter == 1 && s->parts->leave == 1;
    if (whole && s->strict)
        scan_tiles(true, true, s, x, y, w, T, o, next);
    else if (whole)
        scan_tiles(true, false, s, x, y, w, T, o, next);
    else if (s->strict)
        scan_tiles(false, true, s, x, y, w, T, o, next);
    else
        scan_tiles(false, false, s, x, y, w, T, o, next);
}

/* --------------------------------------------------------------------------- by matrix products */

/* o_i <- o_i + sum_{j<=i} weights[j, i] w_j, strict j < i, for the ROWS rows i from `before` on, in
 * some vectors of the columns: first over all j < before, then over the triangle. */
ALWAYS_INLINE void causal_tile(bool strict, int vectors,
                               Real *o,             /* [ROWS, W], from the tile's corner on */
                               const Real *weights, /* [before + ROWS, UNIT], likewise */
                               const Real *w,       /* [before + ROWS, W], likewise */
                               int64_t before, int64_t W)
{
    Vector tile[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(o + r * W + c * LANES);
    for (int64_t j = 0; j < before; j++, weights += UNIT, w += W)
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < vectors; c++)
                tile[r][c] = multiply_add(broadcast(weights[r]), vector(w + c * LANES), tile[r][c]);
    for (int j = 0; j < ROWS; j++, weights += UNIT, w += W)
        for (int r = j + strict; r < ROWS; r++)
            for (int c = 0; c < vectors; c++)
                tile[r][c] = multiply_add(broadcast(weights[r]), vector(w + c * LANES), tile[r][c]);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            *at_vector(o + r * W + c * LANES) = tile[r][c];
}

/* o <- o + tril(X Y^T) W, UNIT rows i at a time: only their columns of Y X^T are ever stored,
 * weights[j, i] = y_j.x_i. */
ALWAYS_INLINE void add_causal_product(bool strict, int64_t count, Matrix x, Matrix y, Matrix w,
                                      Matrix o, Real *workspace)
{
    const int64_t Y = y.columns, W = w.columns;
    Real *columns = workspace, *weights = columns + Y * UNIT; /* [Y, UNIT], [count, UNIT] */
    for (int64_t i = 0; i < count; i += UNIT) {
        for (int64_t r = 0; r < UNIT; r++)
            for (int64_t d = 0; d < Y; d++)
                columns[d * UNIT + r] = x.data[(i + r) * Y + d];
        set_product(weights, y.data, Y, columns, UNIT, i + UNIT, Y, UNIT);
        for (int64_t r = 0; r < UNIT; r += ROWS) {
            Real *rows = o.data + (i + r) * W;
            int64_t c = 0;
            for (; c + 2 * LANES <= W; c += 2 * LANES)
                causal_tile(strict, 2, rows + c, weights + r, w.data + c, i + r, W);
            if (c < W)
                causal_tile(strict, 1, rows + c, weights + r, w.data + c, i + r, W);
        }
    }
}

/* o <- o + X T + tril(X Y^T) W     T <- T + Y^T W */
WHOLE_VECTORS static void scan_by_products(const Scan *s, Matrix x, Matrix y, Matrix w, Matrix T,
                                           Matrix o)
{
    const int64_t Y = y.columns, W = w.columns;
    if (!s->zero_before)
        add_product(o.data, x.data, Y, T.data, s->count, Y, W);
    if (s->strict)
        add_causal_product(true, s->count, x, y, w, o, s->workspace);
    else
        add_causal_product(false, s->count, x, y, w, o, s->workspace);
    if (s->state_after)
        add_product_transposed(T.data, y.data, Y, w.data, Y, s->count, W);
}

/* -------------------------------------------------------------------------- last column and row */

/* z <- z + w_i y_i     o_i = x_i.z,     for the last columns of w, T and o; sums [count, Y]: every
 * z */
WHOLE_VECTORS static void scan_last_column(const Scan *s, Matrix x, Matrix y, Matrix w, Matrix T,
                                           Matrix o)
{
    const int64_t Y = y.columns;
    Real *sums = s->workspace;
    for (int64_t d = 0; d < Y; d += LANES) {
        Vector z_i = vector(T.last + d);
        int64_t i = 0;
        for (const DecayPart *part = s->parts; part < s->end_part; part++) {
            for (z_i *= part->enter; i < part->end; i++)
                *at_vector(sums + i * Y + d) = z_i += w.last[i] * vector(y.data + i * Y + d);
            z_i *= part->leave;
        }
        *at_vector(T.last + d) = z_i;
    }
    for (int64_t i = 0; i < s->count; i++)
        o.last[i] = dot(x.data + i * Y, sums + i * Y, Y);
}

/* t <- t + y_i w_i     o_i = x_i t,     for the last columns of x and y; t: the last row of T */
ALWAYS_INLINE void scan_last_row_of(bool strict, const Scan *s, Matrix x, Matrix y, Matrix w,
                                    Matrix T, Matrix o)
{
    const int64_t W = w.columns;
    for (int64_t c = 0; c < W; c += LANES) {
        Vector t_i = vector(T.last + c);
        int64_t i = 0;
        for (const DecayPart *part = s->parts; part < s->end_part; part++) {
            for (t_i *= part->enter; i < part->end; i++) {
                const Vector before = t_i;
                t_i += y.last[i] * vector(w.data + i * W + c);
                *at_vector(o.data + i * W + c) = x.last[i] * (strict ? before : t_i);
            }
            t_i *= part->leave;
        }
        *at_vector(T.last + c) = t_i;
    }
}

WHOLE_VECTORS static void scan_last_row(const Scan *s, Matrix x, Matrix y, Matrix w, Matrix T,
                                        Matrix o)
{
    if (s->strict)
        scan_last_row_of(true, s, x, y, w, T, o);
    else
        scan_last_row_of(false, s, x, y, w, T, o);
}

/* ---------------------------------------------------------------------------------------- scans */

/* row i <- factor row i */
ALWAYS_INLINE void scale_row(Matrix rows, int64_t i, Real factor)
{
    Real *row = rows.data + i * rows.columns;
    for (int64_t c = 0; c < rows.columns; c += LANES)
        *at_vector(row + c) *= factor;
}

/* row i <- factor_i row i */
WHOLE_VECTORS static void scale_packed_rows(Matrix rows, const Real *factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const Vector factor_i = broadcast(factor[i]);
        for (int64_t c = i * rows.columns; c < (i + 1) * rows.columns; c += LANES)
            *at_vector(rows.data + c) *= factor_i;
    }
}

/* x [n] <- factor x */
WHOLE_VECTORS static void scale(Real *x, int64_t n, Real factor)
{
    for (int64_t i = 0; factor != 1 && i < n; i += LANES)
        *at_vector(x + i) *= factor;
}

/* o [count, columns], with a last column or without, in the memory of results. */
ALWAYS_INLINE Matrix result_of(const Scan *s, int64_t columns, bool last)
{
    return (Matrix){ s->result.data, last ? s->result.last : NULL, columns };
}

static void zero(Matrix o, int64_t count)
{
    memset(o.data, 0, (size_t)(count * o.columns) * sizeof *o.data);
}

/* o = scan(x, y, w), from state T [Y, W] on, which becomes the state after the rows. Either w, T
 * and o have a last column, or x, y and T, or none has:
 *     z <- z + w_last y_i     o_last = x_i.z        where T~ = [T, z]
 *     t <- t + y_last w_i     o_i += x_last t       where t is T~'s last row
 * Also prefetches the next rows. */
static Matrix scan_rows(const Scan *s, Prefetch *next, Matrix x, Matrix y, Matrix w, Matrix T)
{
    const Matrix o = result_of(s, w.columns, w.last);
    if (x.last) {
        scan_last_row(s, x, y, w, T, o);
    } else {
        zero(o, s->count);
        if (w.last)
            scan_last_column(s, x, y, w, T, o);
    }
    if (s->method == BY_PRODUCTS) { /* one part */
        prefetch_now(next, s->count);
        scale(T.data, y.columns * w.columns, s->parts->enter);
        scan_by_products(s, x, y, w, T, o);
        scale(T.data, y.columns * w.columns, s->parts->leave);
    } else {
        scan_by_position(s, x, y, w, T, o, next);
        next->count = 0;
    }
    return o;
}

/* The rows from this one on. */
ALWAYS_INLINE Matrix rows_from(Matrix rows, int64_t first)
{
    return (Matrix){ rows.data + first * rows.columns, rows.last ? rows.last + first : NULL,
                     rows.columns };
}

/* The chunk's scan; by products part by part. */
ALWAYS_INLINE Matrix scan_chunk(const Scan *s, Prefetch *next, Matrix x, Matrix y, Matrix w,
                                Matrix T)
{
    const DecayPart whole = { s->count, 1, 1 };
    Scan part = *s;
    if (!s->parts) {
        part.parts = &whole;
        part.end_part = &whole + 1;
    }
    if (s->method == BY_POSITION || part.parts + 1 == part.end_part)
        return scan_rows(&part, next, x, y, w, T);
    const Matrix all = result_of(s, w.columns, w.last);
    int64_t first = 0;
    for (const DecayPart *p = s->parts; p < s->end_part; first = p++->end) {
        const DecayPart only = { p->end - first, p->enter, p->leave };
        part.parts = &only;
        part.end_part = &only + 1;
        part.count = only.end;
        part.zero_before = s->zero_before && first == 0;
        part.state_after = s->state_after || p->end < s->count;
        part.result = rows_from(all, first);
        scan_rows(&part, next, rows_from(x, first), rows_from(y, first), rows_from(w, first), T);
    }
    return all;
}

/* dots_i = x_i.y_i, of count rounded up to LANES rows */
WHOLE_VECTORS static void dots_of_rows(Real *dots, Matrix x, Matrix y, int64_t count)
{
    const int64_t n = x.columns;
    for (int64_t i = 0; i < count; i += LANES) {
        Vector sums[LANES] = { { 0 } };
        for (int64_t c = 0; c < n; c += LANES)
            for (int64_t r = 0; r < LANES; r++)
                sums[r] = multiply_add(vector(x.data + (i + r) * n + c),
                                       vector(y.data + (i + r) * n + c), sums[r]);
        *at_vector(dots + i) = vector_sums(sums);
    }
}

/* After a strict scan whose rows x lack factors, if factor is not NULL: o_i <- factor_i o_i,
 * dots_i = rows_i.o_i, and then o_i <- o_i + factor_i (x~_i.y~_i) w_i */
WHOLE_VECTORS static void complete_strict_scan(const Scan *s, Real *dots, const Real *factor,
                                               Matrix rows, Matrix x, Matrix y, Matrix w, Matrix o)
{
    const int64_t W = w.columns, count = s->count;
    Real *pairs = s->workspace;
    dots_of_rows(dots, rows, o, count);
    dots_of_rows(pairs, x, y, count);
    for (int64_t i = 0; i < count; i++) {
        const Real factor_i = factor ? factor[i] : 1;
        const Real pair = factor_i * (pairs[i] + (x.last ? x.last[i] * y.last[i] : 0));
        dots[i] *= factor_i;
        for (int64_t c = i * W; c < (i + 1) * W; c += LANES)
            *at_vector(o.data + c) =
                multiply_add(broadcast(pair), vector(w.data + c), factor_i * vector(o.data + c));
    }
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
ALWAYS_INLINE void state_add(const Scan *s, Prefetch *next, Matrix y, Matrix w, Matrix T)
{
    prefetch_now(next, s->count);
    if (w.last)
        add_rows(T.last, w.last, y, s->count);
    else if (y.last)
        add_rows(T.last, y.last, w, s->count);
    add_product_transposed(T.data, y.data, y.columns, w.data, y.columns, s->count, w.columns);
}

/* The result alone: o~_i = T~^T x~_i. */
ALWAYS_INLINE Matrix state_read(const Scan *s, Prefetch *next, Matrix x, Matrix T)
{
    const Matrix o = result_of(s, T.columns, T.last && !x.last);
    prefetch_now(next, s->count);
    zero(o, s->count);
    for (int64_t i = 0; o.last && i < s->count; i++)
        o.last[i] = dot(x.data + i * x.columns, T.last, x.columns);
    for (int64_t i = 0; x.last && i < s->count; i++)
        add_rows(o.data + i * o.columns, x.last + i,
                 (Matrix){ .data = T.last, .columns = o.columns }, 1);
    add_product(o.data, x.data, x.columns, T.data, s->count, x.columns, o.columns);
    return o;
}

/* Elements of workspace for chunks of this many rows, where Y, W <= widest. */
static int64_t scan_workspace(int64_t rows, int64_t widest, Method method)
{
    const int64_t padded = round_up(rows, UNIT), sums = padded * widest;
    return method == BY_PRODUCTS ? maximum(sums, (widest + padded) * UNIT) : sums;
}

#endif
