/* The scan of causal linear attention over packed positions, in two ways that give the same but for
 * rounding: for each position i in turn  T <- T + y_i w_i^T,  o_i <- o_i + T^T x_i.
 * Rows are padded as tiles_cpu.h pads them, and so is their number: what lies in the rows from
 * count on counts for nothing. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_SCAN_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CAUSAL_SCAN_CPU_H

#include "ops/attention/linear/tiles_cpu.h"

/* Memory that is wanted next: cache lines of rows, of which the i-th row has them i steps further on.
 * The processor does not foresee them, because rows lie far apart, and waits for a few at a time only:
 * so they are asked for one by one while something is computed. Very long rows are not asked for to
 * their ends. */
enum { MOST_LINES = 64 };
typedef struct Lines {
    int64_t count;
    const Real *first[MOST_LINES];
    int64_t step[MOST_LINES];
} Lines;

/* Asks, into the second cache, for those from begin on before end of the i-th row. */
ALWAYS_INLINE void ask_for_lines(const Lines *lines, int64_t begin, int64_t end, int64_t i)
{
    for (int64_t n = begin; n < end; n++)
        __builtin_prefetch(lines->first[n] + i * lines->step[n], 0, 2);
}

/* Position by position, meanwhile asking for the lines of as many rows. */
void scan_by_position(const Real *x, /* [count, Y] */
                      const Real *y, /* [count, Y] */
                      const Real *w, /* [count, W] */
                      Real *o,       /* [count, W] */
                      Real *T,       /* [Y, W] */
                      int64_t count, int64_t Y, int64_t W, const Lines *next);

/* All at once, with products of matrices: o <- o + X T + tril(X Y^T) W, T <- T + Y^T W; without the
 * first of the products where T is known to be 0, and the last where nothing comes after. */
void scan_by_products(const Real *x, const Real *y, const Real *w, Real *o, Real *T, int64_t count,
                      int64_t Y, int64_t W, bool first, bool last, Real *memory);

/* How many numbers of memory that takes for Y <= widest. */
int64_t scan_by_products_memory(int64_t count, int64_t widest);

#endif
