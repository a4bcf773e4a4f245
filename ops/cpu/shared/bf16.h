/* Kernels of Real for activations in bf16: a block of rows is converted into buffers, a
 * kernel of Real computes on the buffers, and its results are converted back.
 *
 *     void softmax_forward_bf16(Real *out, const Real *x, int64_t R, int64_t C)
 *     {
 *         BF16_BLOCKS(block, R, C, 2) {
 *             const Real *x_rows = bf16_read(&block, x, C);
 *             Real *out_rows = bf16_buffer(&block, C);
 *             softmax_forward_plain(out_rows, x_rows, block.rows, C);
 *             bf16_write(&block, out, out_rows, C);
 *         }
 *     }
 *
 * BF16_BLOCKS(block, R, C, per_row) divides R rows among the threads, in blocks for which `per_row`
 * buffers of C Reals per row fit in the cache. The blocks depend on the sizes alone. */
#ifndef TAPEGRAD_OPS_CPU_SHARED_BF16_H
#define TAPEGRAD_OPS_CPU_SHARED_BF16_H

#include "ops/shared/internal.h"

typedef struct Bf16Block {
    int64_t first, rows; /* its rows of the operands */
    Real *next;          /* the buffers that are not used yet */
} Bf16Block;

typedef struct Bf16Blocks {
    int64_t all_rows, rows; /* all, and per block */
    int64_t size;           /* Reals per thread */
    Real *buffers;          /* of all threads; NULL: the loop has ended */
} Bf16Blocks;

Bf16Blocks bf16_blocks_begin(int64_t R, int64_t width);
void bf16_blocks_end(Bf16Blocks *blocks);
Bf16Block bf16_block(const Bf16Blocks *blocks, int64_t first);

#define BF16_BLOCKS(block, R, C, per_row)                                                          \
    for (Bf16Blocks block##s = bf16_blocks_begin(R, (per_row) * (C)); block##s.buffers;            \
         bf16_blocks_end(&block##s))                                                               \
        PRAGMA(omp parallel for schedule(static)                                                   \
                   num_threads(device_threads_for((R) * (C), 0.3)))                                \
    for (int64_t first_row = 0; first_row < block##s.all_rows; first_row += block##s.rows)         \
        for (Bf16Block block = bf16_block(&block##s, first_row); block.next; block.next = NULL)

/* A buffer of C Reals per row of the block: not initialized; or with the block's rows of x. */
Real *bf16_buffer(Bf16Block *block, int64_t C);
Real *bf16_read(Bf16Block *block, const Real *x, int64_t C);
void bf16_write(const Bf16Block *block, Real *out, const Real *buffer, int64_t C);

/* The block's rows of a gradient: their earlier contributions are read if it accumulates. */
Gradient bf16_gradient(Bf16Block *block, Gradient dx, int64_t C);

/* x's n elements as Reals, in a workspace: for kernels that have no rows to convert one by one. */
Real *bf16_reals(const Real *x, int64_t n);

#endif
