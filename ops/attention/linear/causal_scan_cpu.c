#include "ops/attention/linear/causal_scan_cpu.h"

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
                             int64_t count, int64_t Y, int64_t W, const Lines *next, int64_t begin,
                             int64_t end)
{
    Vector tile[2 * ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(T + r * W + c * LANES);
    for (int64_t i = 0; i < count; i++, x += Y, y += Y, w += W, o += W) {
        ask_for_lines(next, begin, end, i);
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

/* Tiles are two vectors wide or, where only one is left, one vector wide and twice as high. The
 * prefetches are divided evenly among the tiles. */
WHOLE_VECTORS void scan_by_position(const Real *x, const Real *y, const Real *w, Real *o, Real *T,
                                    int64_t count, int64_t Y, int64_t W, const Lines *next)
{
    const int64_t tiles = (Y * W + 2 * ROWS * LANES - 1) / (2 * ROWS * LANES);
    const int64_t share = (next->count + tiles - 1) / tiles;
    int64_t begin = 0;
    for (int64_t c = 0; c < W; c += 2 * LANES)
        for (int64_t r = 0; r < Y; r += ROWS) {
            const int64_t end = smaller(begin + share, next->count);
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
                                      int64_t count, int64_t Y, int64_t W, Real *memory)
{
    Real *columns = memory, *weights = columns + Y * UNIT; /* [Y, UNIT], [count, UNIT] */
    for (int64_t i = 0; i < count; i += UNIT) {
        for (int64_t r = 0; r < UNIT; r++)
            for (int64_t d = 0; d < Y; d++)
                columns[d * UNIT + r] = x[(i + r) * Y + d];
        zero_rows(weights, i + UNIT, UNIT);
        add_product(weights, y, Y, 1, columns, i + UNIT, Y, UNIT);
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

WHOLE_VECTORS void scan_by_products(const Real *x, const Real *y, const Real *w, Real *o, Real *T,
                                    int64_t count, int64_t Y, int64_t W, bool first, bool last,
                                    Real *memory)
{
    if (!first)
        add_product(o, x, Y, 1, T, count, Y, W);
    add_causal_product(x, y, w, o, count, Y, W, memory);
    if (!last)
        add_outer(T, y, w, count, Y, W);
}

int64_t scan_by_products_memory(int64_t count, int64_t widest)
{
    return (widest + padded_size(count)) * UNIT;
}
