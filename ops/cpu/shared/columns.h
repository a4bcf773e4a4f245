/* Sums over blocks of rows, for kernels of the CPU backend. */
#ifndef TAPEGRAD_OPS_CPU_SHARED_COLUMNS_H
#define TAPEGRAD_OPS_CPU_SHARED_COLUMNS_H

#include "ops/shared/columns.h"

/* Blocks of rows for sums in Real: row_blocks(R), or more, so that none has more than MAX_SUM_ROWS
 * rows, over which rounding errors stay below 2e-5. */
enum { MAX_SUM_ROWS = 256 };
static inline int64_t sum_blocks(int64_t R)
{
    const int64_t few = row_blocks(R), many = (R + MAX_SUM_ROWS - 1) / MAX_SUM_ROWS;
    return few > many ? few : many;
}
static inline int64_t sum_block_start(int64_t i, int64_t R)
{
    return i * R / sum_blocks(R);
}

/* dw [C] <- the sum over the blocks of partial [blocks, C], in order: in Real over 64 blocks, and
 * of these runs in double. dw.data may be NULL. */
void add_blocks(Gradient dw, const Real *partial, int64_t blocks, int64_t C);

#endif
