/* The scan of causal linear attention over packed positions, in two implementations that agree up
 * to rounding: for each position i in turn  T <- T + y_i w_i^T,  o_i <- o_i + T^T x_i.
 * Rows are padded as in tiles_cpu.h, and so is their number; rows from count on do not matter. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_SCAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_SCAN_CPU_H

#include "ops/attention/linear/tiles_cpu.h"

/* Cache lines to prefetch; in row i, line n is at first[n] + i step[n]. The hardware prefetcher
 * misses widely strided rows, and a core has few loads in flight: so lines are prefetched one by
 * one during computation, at most MOST_LINES per row. */
enum { MOST_LINES = 64 };
typedef struct Lines {
    int64_t count;
    const Real *first[MOST_LINES];
    int64_t step[MOST_LINES];
} Lines;

/* Prefetches lines [begin, end) of row i into L2. */
ALWAYS_INLINE void ask_for_lines(const Lines *lines, int64_t begin, int64_t end, int64_t i)
{
    for (int64_t n = begin; n < end; n++)
        __builtin_prefetch(lines->first[n] + i * lines->step[n], 0, 2);
}

/* Position by position; prefetches one row of `next` per position. */
void scan_by_position(const Real *x, /* [count, Y] */
                      const Real *y, /* [count, Y] */
                      const Real *w, /* [count, W] */
                      Real *o,       /* [count, W] */
                      Real *T,       /* [Y, W] */
                      int64_t count, int64_t Y, int64_t W, const Lines *next);

/* All at once, with matrix products: o <- o + X T + tril(X Y^T) W, T <- T + Y^T W. first: T is
 * known to be 0, so X T is skipped; last: T is not needed afterwards, so its update is. */
void scan_by_products(const Real *x, const Real *y, const Real *w, Real *o, Real *T, int64_t count,
                      int64_t Y, int64_t W, bool first, bool last, Real *memory);

/* Elements of workspace that scan_by_products needs for Y <= widest. */
int64_t scan_by_products_memory(int64_t count, int64_t widest);

#endif
