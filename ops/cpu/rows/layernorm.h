/* The CPU kernels of layernorm and residual_layernorm: one row, and the partial sums of the
 * gradients of weight and bias. ops/rows/layernorm.c has the derivation. */
#ifndef TAPEGRAD_OPS_CPU_ROWS_LAYERNORM_H
#define TAPEGRAD_OPS_CPU_ROWS_LAYERNORM_H

#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/cpu/rows/rows.h"

/* Below, T is the dtype of out and dout, S that of x and dx. */

/* Forward pass of one row; out [C] may be x [C] if T is S. */
ALWAYS_INLINE Statistics layernorm_row(int T, Real *out, int S, const Real *x, const Real *weight,
                                       const Real *bias, Real eps, int64_t C)
{
    const Real mean = row_sum_by(sum_of_values, S, x, 0, C) / (Real)C;
    const Real variance = row_sum_by(sum_of_squares, S, x, mean, C) / (Real)C;
    const Real r = inverse_deviation(variance, eps);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        store(T, out, c, (load(S, x, c) - mean) * r * weight[c] + bias[c]);
    return (Statistics){ mean, r };
}

/* Sums over the rows of one block, or both NULL. */
typedef struct WeightRows {
    Real *dweight, *dbias; /* [C] */
} WeightRows;

/* What a row's gradients are computed from. */
typedef struct NormRow {
    const Real *dout, *x; /* [C], of dtypes T and S */
    const Real *weight;
    Statistics k;
    int64_t C;
} NormRow;

ALWAYS_INLINE void layernorm_weight_row(WeightRows sums, int T, int S, NormRow row)
{
#pragma omp simd
    for (int64_t c = 0; c < row.C; c++) {
        const Real g = load(T, row.dout, c);
        sums.dweight[c] += g * (load(S, row.x, c) - row.k.mean) * row.k.r;
        sums.dbias[c] += g;
    }
}

ALWAYS_INLINE void layernorm_input_row(Gradient dx, int T, int S, NormRow row)
{
    const Statistics k = row.k;
    Real sum_h = 0, sum_hn = 0;
#pragma omp simd reduction(+ : sum_h, sum_hn)
    for (int64_t c = 0; c < row.C; c++) {
        Real h = load(T, row.dout, c) * row.weight[c];
        sum_h += h;
        sum_hn += h * (load(S, row.x, c) - k.mean) * k.r;
    }
    Real mean_h = sum_h / (Real)row.C, mean_hn = sum_hn / (Real)row.C;
#pragma omp simd
    for (int64_t c = 0; c < row.C; c++) {
        Real n = (load(S, row.x, c) - k.mean) * k.r;
        contribute(S, dx.data, c, dx.accumulate,
                   k.r * (load(T, row.dout, c) * row.weight[c] - mean_h - n * mean_hn));
    }
}

/* Backward pass of one row; dx [C] of dtype S may be row.x, its data NULL. */
ALWAYS_INLINE void layernorm_row_backward(Gradient dx, WeightRows sums, int T, int S, NormRow row)
{
    if (sums.dweight)
        layernorm_weight_row(sums, T, S, row);
    if (dx.data)
        layernorm_input_row(dx, T, S, row);
}

/* Partial sums of dweight and dbias, [row_blocks(R), C] each, in a workspace: NULL where neither
 * requires a gradient. */
typedef struct WeightSums {
    Gradient dweight, dbias;
    Real *partial;
    int64_t blocks, C;
} WeightSums;

WeightSums weight_sums_begin(Gradient dweight, Gradient dbias, NormArguments norm);
/* The sums of a block of rows, zero-filled. */
WeightRows weight_rows(const WeightSums *sums, int64_t block);
/* dweight, dbias <- the sums over the blocks; frees the workspace. */
void weight_sums_end(const WeightSums *sums);

#endif
