/* The CPU kernels of layernorm and residual_layernorm: one row, and the partial sums of the
 * gradients of weight and bias. ops/rows/layernorm.c has the derivation. */
#ifndef TAPEGRAD_OPS_CPU_SHARED_LAYERNORM_H
#define TAPEGRAD_OPS_CPU_SHARED_LAYERNORM_H

#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"
#include "ops/shared/math.h"

/* Below, T is the dtype of out and dout, S that of x and dx. */

/* sums of (x_c - shift) and of (x_c - shift)^2. A long row is summed in pieces, and their sums in
 * double precision: the error of one float sum grows with the length. */
typedef struct RowSums {
    double values, squares;
} RowSums;

ALWAYS_INLINE RowSums row_sums(int S, const Real *x, Real shift, int64_t C)
{
    enum { PIECE = 4096 };
    RowSums sums = { 0, 0 };
    for (int64_t start = 0; start < C; start += PIECE) {
        const int64_t end = C - start < PIECE ? C : start + PIECE;
        Real values = 0, squares = 0;
#pragma omp simd reduction(+ : values, squares)
        for (int64_t c = start; c < end; c++) {
            const Real value = load(S, x, c) - shift;
            values += value;
            squares += value * value;
        }
        sums.values += (double)values;
        sums.squares += (double)squares;
    }
    return sums;
}

/* mean and r of one row. Differences from its first element, which are small or 0 where a row is
 * almost constant, give a first mean, m, rounded to Real. Its error d = sum_c (x_c - m) / C would
 * count as deviation:
 *   mean = m + d     variance = sum_c (x_c - m)^2 / C - d^2 */
ALWAYS_INLINE Statistics row_statistics(int S, const Real *x, Real eps, int64_t C)
{
    const double share = 1 / (double)C;
    const Real first = load(S, x, 0);
    const Real m = (Real)((double)first + row_sums(S, x, first, C).values * share);
    const RowSums sums = row_sums(S, x, m, C);
    const double d = sums.values * share, variance = sums.squares * share - d * d;
    return (Statistics){ (Real)((double)m + d),
                         inverse_deviation((Real)(variance < 0 ? 0 : variance), eps) };
}

/* Forward pass of one row; out [C] may be x [C] if T is S. */
ALWAYS_INLINE Statistics layernorm_row(int T, Real *out, int S, const Real *x, const Real *weight,
                                       const Real *bias, Real eps, int64_t C)
{
    const Statistics k = row_statistics(S, x, eps, C);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        store(T, out, c, (load(S, x, c) - k.mean) * k.r * weight[c] + bias[c]);
    return k;
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

/* Partial sums of dweight and dbias, [sum_blocks(R), C] each, in a workspace: NULL where neither
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
