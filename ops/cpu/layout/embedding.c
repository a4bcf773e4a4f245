/* embedding in bf16: its rows are; the weight and its gradient are Real. */
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

void embedding_forward_bf16(Real *out, const Real *weight, const int32_t *indices, int64_t R,
                            int64_t D)
{
    EACH_ROW(r, R, D) {
        const Real *row = weight + indices[r] * D;
        PRAGMA(omp simd)
        for (int64_t d = 0; d < D; d++)
            store(TENSOR_BF16, out, r * D + d, row[d]);
    }
}

/* As in plain, threads take different columns. */
void embedding_backward_bf16(Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                             int64_t V, int64_t D)
{
    enum { COLUMNS = 128 };
    if (!dweight.accumulate)
        EACH(i, V * D)
            dweight.data[i] = 0;
    EACH_ROW(tile, (D + COLUMNS - 1) / COLUMNS, R * COLUMNS) {
        const int64_t start = tile * COLUMNS, end = start + COLUMNS < D ? start + COLUMNS : D;
        for (int64_t r = 0; r < R; r++) {
            Real *row = dweight.data + indices[r] * D;
            PRAGMA(omp simd)
            for (int64_t d = start; d < end; d++)
                row[d] += load(TENSOR_BF16, dout, r * D + d);
        }
    }
}
