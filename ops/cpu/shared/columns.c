#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void add_blocks(Gradient dw, const Real *partial, int64_t blocks, int64_t C)
{
    enum { TILE = 256, RUN = 64 };
    for (int64_t start = 0; dw.data && start < C; start += TILE) {
        const int64_t n = C - start < TILE ? C - start : TILE;
        double sum[TILE] = { 0 };
        for (int64_t first = 0; first < blocks; first += RUN) {
            const int64_t end = blocks - first < RUN ? blocks : first + RUN;
            Real run[TILE] = { 0 };
            for (int64_t i = first; i < end; i++)
#pragma omp simd
                for (int64_t c = 0; c < n; c++)
                    run[c] += partial[i * C + start + c];
            for (int64_t c = 0; c < n; c++)
                sum[c] += (double)run[c];
        }
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            gradient_add(dw, start + c, (Real)sum[c]);
    }
}

/* sum [C] += x [C] */
ALWAYS_INLINE void add_row(int T, Real *sum, const Real *x, int64_t C)
{
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        sum[c] += load(T, x, c);
}

static void column_sums_as(TensorType type, Gradient sums, const Real *x, int64_t R, int64_t C)
{
    Real *partial = device_workspace(sum_blocks(R) * C);
#pragma omp parallel for schedule(static) num_threads(device_threads_for(R *C, 0.1))
    for (int64_t i = 0; i < sum_blocks(R); i++) {
        Real *sum = partial + i * C;
        memset(sum, 0, (size_t)C * sizeof *sum);
        for (int64_t r = sum_block_start(i, R); r < sum_block_start(i + 1, R); r++)
            BY_STORAGE(type, T, add_row(T, sum, elements_at(T, x, r * C), C));
    }
    add_blocks(sums, partial, sum_blocks(R), C);
    device_workspace_free(partial);
}

void column_sums_cpu(Gradient sums, const Real *x, int64_t R, int64_t C)
{
    column_sums_as(TENSOR_REAL, sums, x, R, C);
}

void column_sums_bf16(Gradient sums, const Real *x, int64_t R, int64_t C)
{
    column_sums_as(TENSOR_BF16, sums, x, R, C);
}
