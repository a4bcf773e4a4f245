/* layernorm on the CPU, in Real and in bf16. Each block of rows has its own sums of dweight and
 * dbias, which are added in order. The blocks depend on R alone, so the sums do not depend on the
 * number of threads. */
#include "ops/cpu/shared/storage.h"
#include "ops/cpu/rows/layernorm.h"

static void layernorm_forward_as(TensorType type, Real *out, const NormArguments *norm)
{
    const int64_t R = norm->R, C = norm->C;
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.2))
    for (int64_t row = 0; row < R; row++)
        BY_STORAGE(type, T,
                   norm->statistics[row] = layernorm_row(T, elements_at(T, out, row * C), T,
                                                         elements_at(T, norm->x, row * C),
                                                         norm->weight, norm->bias, norm->eps, C));
}

void layernorm_forward_cpu(Real *out, NormArguments norm)
{
    layernorm_forward_as(TENSOR_REAL, out, &norm);
}

void layernorm_forward_bf16(Real *out, NormArguments norm)
{
    layernorm_forward_as(TENSOR_BF16, out, &norm);
}

static void layernorm_backward_as(TensorType type, Gradient dx, WeightSums sums, const Real *dout,
                                  const NormArguments *norm)
{
    const int64_t R = norm->R, C = norm->C;
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.3))
    for (int64_t i = 0; i < sums.blocks; i++) {
        const WeightRows rows = weight_rows(&sums, i);
        for (int64_t row = row_block_start(i, R); row < row_block_start(i + 1, R); row++)
            BY_STORAGE(type, T,
                       layernorm_row_backward(dx.data ? elements_at(T, dx.data, row * C) : NULL,
                                              dx.accumulate, rows, T, elements_at(T, dout, row * C),
                                              T, elements_at(T, norm->x, row * C), norm->weight,
                                              norm->statistics[row], C));
    }
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
    WeightSums sums = { dweight, dbias, NULL, row_blocks(norm.R), norm.C };
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
