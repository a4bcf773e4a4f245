/* The scan of linear attention row by row: see scan.h.
 *
 * Register tiling: a tile of T stays in vector registers while the rows stream past it, so T causes
 * no memory traffic, and every instruction of the inner loop is a fused multiply-add. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_BY_POSITION_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_BY_POSITION_CPU_H

#include "ops/cpu/attention/linear/scan_operands.h"

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

typedef struct ScanOperands {
    Matrix x, y, w, T, o;
} ScanOperands;

/* For each row in turn  T <- T + y_i w_i^T,  o_i <- o_i + T^T x_i. Tiles are two vectors wide or,
 * where only one is left, one vector wide and twice as high. The lines to prefetch are divided
 * evenly among the tiles. */
ALWAYS_INLINE void scan_tiles(bool whole, bool strict, const Scan *s, ScanOperands m,
                              const Prefetch *next)
{
    const int64_t Y = m.y.columns, W = m.w.columns;
    const int64_t tiles = (Y * W + 2 * ROWS * LANES - 1) / (2 * ROWS * LANES);
    const int64_t share = (next->count + tiles - 1) / tiles;
    int64_t begin = 0;
    for (int64_t c = 0; c < W; c += 2 * LANES)
        for (int64_t r = 0; r < Y; r += ROWS, begin += share) {
            const int64_t end = minimum(begin + share, next->count);
            const ScanTile t = { .x = m.x.data + r,
                                 .y = m.y.data + r,
                                 .w = m.w.data + c,
                                 .o = m.o.data + c,
                                 .T = m.T.data + r * W + c,
                                 .Y = Y,
                                 .W = W,
                                 .parts = s->parts,
                                 .end_part = s->end_part };
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
    const ScanOperands m = { x, y, w, T, o };
    const bool whole = s->parts + 1 == s->end_part && s->parts->enter == 1 && s->parts->leave == 1;
    if (whole && s->strict)
        scan_tiles(true, true, s, m, next);
    else if (whole)
        scan_tiles(true, false, s, m, next);
    else if (s->strict)
        scan_tiles(false, true, s, m, next);
    else
        scan_tiles(false, false, s, m, next);
}

#endif
