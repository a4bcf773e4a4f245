/* layernorm in bf16, and its gradients in both dtypes. Each block of rows has its own sums of
 * dweight and dbias, which are added in order. The blocks depend on R alone, so the sums do not
 * depend on the number of threads. */
#include "ops/cpu/rows/layernorm.h"
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/storage.h"

void layernorm_forward_bf16(Real *out, NormArguments norm)
{
    BF16_BLOCKS(block, norm.R, norm.C, 2) {
        NormArguments rows = norm;
        rows.x = bf16_read(&block, norm.x, norm.C);
        rows.statistics += block.first;
        rows.R = block.rows;
        Real *out_rows = bf16_buffer(&block, norm.C);
        layernorm_forward_plain(out_rows, rows);
        bf16_write(&block, out, out_rows, norm.C);
    }
}

/* Block i of the rows. */
ALWAYS_INLINE void block_backward(int T, Gradient dx, const WeightSums *sums, const Real *dout,
                                  const NormArguments *norm, int64_t i)
{
    const int64_t C = norm->C, end = sum_block_start(i + 1, norm->R);
    const WeightRows of_block = weight_rows(sums, i);
    for (int64_t row = sum_block_start(i, norm->R); row < end; row++) {
        const Gradient dx_row = { dx.data ? elements_at(T, dx.data, row * C) : NULL,
                                  dx.accumulate };
        const NormRow inputs = { elements_at(T, dout, row * C), elements_at(T, norm->x, row * C),
                                 norm->weight, norm->statistics[row], C };
        layernorm_row_backward(dx_row, of_block, T, T, inputs);
    }
}

static void layernorm_backward_as(TensorType type, Gradient dx, WeightSums sums, const Real *dout,
                                  const NormArguments *norm)
{
#pragma omp parallel for schedule(static) num_threads(device_threads_for(norm->R * norm->C, 0.3))
    for (int64_t i = 0; i < sums.blocks; i++)
        BY_STORAGE(type, T, block_backward(T, dx, &sums, dout, norm, i));
    weight_sums_end(&sums);
}

void layernorm_backward_cpu(Gradient dx, Gradient dweight, Gradient dbias, const Real *dout,
                            NormArguments norm)
{
    layernorm_backward_as(TENSOR_REAL, dx, weight_sums_begin(dweight, dbias, norm), dout, &norm);
}

void layernorm_backward_bf16(Gradient dx, Gradient dweight, Gradient dbias, const Real *dout,
                             NormArguments norm)
{
    layernorm_backward_as(TENSOR_BF16, dx, weight_sums_begin(dweight, dbias, norm), dout, &norm);
}

/* ------------------------------------------------------------ shared with residual_layernorm */

WeightSums weight_sums_begin(Gradient dweight, Gradient dbias, NormArguments norm)
{
    WeightSums sums = { dweight, dbias, NULL, sum_blocks(norm.R), norm.C };
    if (dweight.data || dbias.data)
        sums.partial = device_workspace(2 * sums.blocks * norm.C);
    return sums;
}

WeightRows weight_rows(const WeightSums *sums, int64_t block)
{
    if (!sums->partial)
        return (WeightRows){ NULL, NULL };
    WeightRows rows = { sums->partial + block * sums->C,
                        sums->partial + (sums->blocks + block) * sums->C };
    memset(rows.dweight, 0, (size_t)sums->C * sizeof(Real));
    memset(rows.dbias, 0, (size_t)sums->C * sizeof(Real));
    return rows;
}

void weight_sums_end(const WeightSums *sums)
{
    if (!sums->partial)
        return;
    add_blocks(sums->dweight, sums->partial, sums->blocks, sums->C);
    add_blocks(sums->dbias, sums->partial + sums->blocks * sums->C, sums->blocks, sums->C);
    device_workspace_free(sums->partial);
}
