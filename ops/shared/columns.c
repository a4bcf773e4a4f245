#include "ops/shared/columns.h"
#include "ops/shared/internal.h"

static void add_parts_to(Gradient dw, const Real *partial, int64_t parts, int64_t C)
{
    for (int64_t i = 0; dw.data && i < parts; i++) {
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            contribute(TENSOR_REAL, dw.data, c, dw.accumulate || i > 0, partial[i * C + c]);
    }
}

void add_part_pairs_cpu(Gradient first, Gradient second, const Real *partial, int64_t parts,
                        int64_t C)
{
    add_parts_to(first, partial, parts, C);
    add_parts_to(second, partial + parts * C, parts, C);
}

void add_part_pairs(Device *device, Gradient first, Gradient second, const Real *partial,
                    int64_t parts, int64_t C)
{
    if (first.data || second.data)
        DEVICE_CALL(device, add_part_pairs, (first, second, partial, parts, C));
}

void add_parts(Device *device, Gradient dw, const Real *partial, int64_t parts, int64_t C)
{
    add_part_pairs(device, dw, (Gradient){ NULL, false }, partial, parts, C);
}

/* sum [C] += x [C] */
ALWAYS_INLINE void add_row(int T, Real *sum, const Real *x, int64_t C)
{
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        sum[c] += load(T, x, c);
}

void column_sums_cpu(TensorType type, Real *partial, const Real *x, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.1))
    for (int64_t i = 0; i < row_blocks(R); i++) {
        Real *sum = partial + i * C;
        memset(sum, 0, (size_t)C * sizeof *sum);
        for (int64_t r = row_block_start(i, R); r < row_block_start(i + 1, R); r++)
            BY_STORAGE(type, T, add_row(T, sum, elements_at(T, x, r * C), C));
    }
}

void column_sums(Tape *tape, const Tensor *like, Gradient dw, const Real *x, int64_t R, int64_t C)
{
    Tensor *partial = tape_scratch(tape, shape(row_blocks(R), C));
    KERNEL_CALL(like, column_sums, (partial->data, x, R, C));
    add_parts(partial->device, dw, partial->data, row_blocks(R), C);
    tape_scratch_free(tape, partial);
}
