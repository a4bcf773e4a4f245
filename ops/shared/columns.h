/* Sums over the rows of a matrix, per column. Backends sum blocks of rows separately and add the
 * blocks' sums in order; the number of rows alone determines the blocks, so that sums are bitwise
 * the same for any number of threads. */
#ifndef TAPEGRAD_OPS_SHARED_COLUMNS_H
#define TAPEGRAD_OPS_SHARED_COLUMNS_H

#include "autograd/tape.h"
#include "tensor/kernel.h"

/* Number of blocks for R rows. Block i starts at row_block_start(i, R) and ends before
 * row_block_start(i + 1, R). */
SHARED_FUNCTION int64_t row_blocks(int64_t R)
{
    const int64_t MAX_BLOCKS = 64, MIN_ROWS = 32, blocks = (R + MIN_ROWS - 1) / MIN_ROWS;
    return blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS;
}
SHARED_FUNCTION int64_t row_block_start(int64_t i, int64_t R)
{
    return i * R / row_blocks(R);
}

#endif
