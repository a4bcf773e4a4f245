/* Blocks of rows in bf16, converted to Real and back. */
#include "ops/cpu/shared/storage.h"
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/vectors.h"
#include "ops/kernels.h"

/* Of all buffers: 48 KB, which stay in L2. Buffers in L1 are up to 1.2 times as fast for sums of
 * two operands, but rows and products then pay more for the parallel region of each block. */
enum { BLOCK_REALS = 12288 };

/* to [n] = from [n], between Real and bf16, a vector at a time. The same rows of the next block of
 * `bf16`, which is one of the two, are prefetched: blocks of several operands alternate, so the
 * hardware prefetcher restarts with each. */
ALWAYS_INLINE void convert_vectors(int to_type, Real *to, int from_type, const Real *from,
                                   const Real *bf16, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        if (to_type == TENSOR_BF16)
            __builtin_prefetch(elements_at(TENSOR_BF16, bf16, n + i), 1);
        else
            __builtin_prefetch(elements_at(TENSOR_BF16, bf16, n + i), 0);
        store_vector(to_type, to, i, load_vector(from_type, from, i));
        store_vector(to_type, to, i + LANES, load_vector(from_type, from, i + LANES));
    }
    for (; i < n; i++)
        store(to_type, to, i, load(from_type, from, i));
}

enum { LINE_REALS = 16, MAX_BUFFERS = 8 };

/* Whole cache lines, so that buffers are aligned and threads share no line. */
static int64_t buffer_reals(int64_t n)
{
    return (n + LINE_REALS - 1) / LINE_REALS * LINE_REALS;
}

Bf16Blocks bf16_blocks_begin(int64_t R, int64_t width)
{
    int64_t rows = width > 0 ? BLOCK_REALS / width : R;
    rows = rows < 1 ? 1 : rows > R ? R : rows;
    const int64_t size = buffer_reals(rows * width) + MAX_BUFFERS * LINE_REALS;
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
    block->next += buffer_reals(block->rows * C);
    return buffer;
}

Real *bf16_read(Bf16Block *block, const Real *x, int64_t C)
{
    Real *buffer = bf16_buffer(block, C);
    const Real *from = elements_at(TENSOR_BF16, x, block->first * C);
    convert_vectors(TENSOR_REAL, buffer, TENSOR_BF16, from, from, block->rows * C);
    return buffer;
}

void bf16_write(const Bf16Block *block, Real *out, const Real *buffer, int64_t C)
{
    Real *to = elements_at(TENSOR_BF16, out, block->first * C);
    convert_vectors(TENSOR_BF16, to, TENSOR_REAL, buffer, to, block->rows * C);
}

Gradient bf16_gradient(Bf16Block *block, Gradient dx, int64_t C)
{
    if (!dx.data)
        return dx;
    dx.data = dx.accumulate ? bf16_read(block, dx.data, C) : bf16_buffer(block, C);
    return dx;
}

Real *bf16_reals(const Real *x, int64_t n)
{
    Real *reals = device_workspace(n);
    cast_cpu((Gradient){ reals, false }, x, false, n);
    return reals;
}
