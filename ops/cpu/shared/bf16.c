/* Blocks of rows in bf16, converted to Real and back. */
#include "ops/cpu/shared/storage.h"
#include "ops/cpu/shared/bf16.h"

enum { BLOCK_REALS = 6144 }; /* of all buffers: 24 KB of 32 KB or more of L1 */

Bf16Blocks bf16_blocks_begin(int64_t R, int64_t width)
{
    int64_t rows = width > 0 ? BLOCK_REALS / width : R;
    rows = rows < 1 ? 1 : rows > R ? R : rows;
    const int64_t size = (rows * width + 31) / 16 * 16; /* threads share no cache line */
    return (Bf16Blocks){ R, rows, size, R > 0 ? device_workspace(size * device_threads()) : NULL };
}

void bf16_blocks_end(Bf16Blocks *blocks)
{
    device_workspace_free(blocks->buffers);
    blocks->buffers = NULL;
}

Bf16Block bf16_block(const Bf16Blocks *blocks, int64_t first)
{
    const int64_t rows =
        blocks->all_rows - first < blocks->rows ? blocks->all_rows - first : blocks->rows;
    return (Bf16Block){ first, rows, blocks->buffers + omp_get_thread_num() * blocks->size };
}

Real *bf16_buffer(Bf16Block *block, int64_t C)
{
    Real *buffer = block->next;
    block->next += block->rows * C;
    return buffer;
}

Real *bf16_read(Bf16Block *block, const Real *x, int64_t C)
{
    Real *buffer = bf16_buffer(block, C);
    convert_elements(TENSOR_REAL, buffer, TENSOR_BF16,
                     elements_at(TENSOR_BF16, x, block->first * C), block->rows * C);
    return buffer;
}

void bf16_write(const Bf16Block *block, Real *out, const Real *buffer, int64_t C)
{
    convert_elements(TENSOR_BF16, elements_at(TENSOR_BF16, out, block->first * C), TENSOR_REAL,
                     buffer, block->rows * C);
}

Gradient bf16_gradient(Bf16Block *block, Gradient dx, int64_t C)
{
    if (!dx.data)
        return dx;
    dx.data = dx.accumulate ? bf16_read(block, dx.data, C) : bf16_buffer(block, C);
    return dx;
}
