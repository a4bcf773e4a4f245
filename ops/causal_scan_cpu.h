/* The scan of causal linear attention over packed positions, in two ways that give the same but for
 * rounding: for each position i in turn  T <- T + y_i w_i^T,  o_i <- o_i + T^T x_i.
 * Rows are padded as attention_cpu.h pads them, and so is their number: what lies in the rows from
 * count on counts for nothing. */
#ifndef TAPEGRAD_OPS_CAUSAL_SCAN_CPU_H
#define TAPEGRAD_OPS_CAUSAL_SCAN_CPU_H

#include "ops/attention_cpu.h"

/* Position by position. */
void scan_by_position(const Real *x, /* [count, Y] */
                      const Real *y, /* [count, Y] */
                      const Real *w, /* [count, W] */
                      Real *o,       /* [count, W] */
                      Real *T,       /* [Y, W] */
                      int64_t count, int64_t Y, int64_t W);

/* All at once, with products of matrices: o <- o + X T + tril(X Y^T) W, T <- T + Y^T W; without the
 * first of the products where T is known to be 0, and the last where nothing comes after. */
void scan_by_products(const Real *x, const Real *y, const Real *w, Real *o, Real *T, int64_t count,
                      int64_t Y, int64_t W, bool first, bool last, Real *memory);

/* How many numbers of memory that takes for Y <= widest. */
int64_t scan_by_products_memory(int64_t count, int64_t widest);

#endif
