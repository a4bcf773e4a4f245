/* The scan of linear attention by matrix products: see scan.h. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_BY_PRODUCTS_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_BY_PRODUCTS_CPU_H

#include "ops/cpu/attention/linear/scan_operands.h"

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

#endif
