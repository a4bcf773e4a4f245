/* The scan of linear attention over the packed rows of a chunk: for each row i in turn
 *     T <- T + y_i w_i^T     o_i = T^T x_i
 * in two implementations that agree up to rounding, and its two halves. The rows are packed in the
 * order of the scan: from the last position to the first, it is scan_reverse of causal_linear.c.
 * A strict scan reads T before it adds y_i w_i^T: so o_i depends on earlier rows alone. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CPU_H

#include "ops/cpu/attention/linear/scan_by_position.h"
#include "ops/cpu/attention/linear/scan_by_products.h"

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
