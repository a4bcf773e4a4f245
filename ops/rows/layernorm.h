/* Shared by layernorm and residual_layernorm: one row on the CPU, and the gradients of weight and
 * bias. ops/rows/layernorm.c has the derivation. */
#ifndef TAPEGRAD_OPS_ROWS_LAYERNORM_H
#define TAPEGRAD_OPS_ROWS_LAYERNORM_H

#include "ops/rows/kernels.h"
#include "ops/rows/rows.h"
#include "ops/shared/columns.h"
#include "ops/shared/internal.h"

/* Below, T is the dtype of out and dout, S that of x and dx. */

/* Forward pass of one row; out [C] may be x [C] if T is S. */
ALWAYS_INLINE Statistics layernorm_row(int T, Real *out, int S, const Real *x, const Real *weight,
                                       const Real *bias, Real eps, int64_t C)
{
    const Real mean = row_sum(sum_of_values, S, NULL, x, 0, C) / (Real)C;
    const Real variance = row_sum(sum_of_squares, S, NULL, x, mean, C) / (Real)C;
    const Real r = inverse_deviation(variance, eps);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        store(T, out, c, (load(S, x, c) - mean) * r * weight[c] + bias[c]);
    return (Statistics){ mean, r };
}

/* One part's partial sums of dweight and dbias, or both NULL. */
typedef struct WeightRows {
    Real *dweight, *dbias; /* [C] */
} WeightRows;

/* Row `part` of dweight and dbias [parts, C], or both NULL; zero-filled. */
static inline WeightRows weight_rows(Real *dweight, Real *dbias, int64_t part, int64_t C)
{
    if (!dweight)
        return (WeightRows){ NULL, NULL };
    WeightRows rows = { dweight + part * C, dbias + part * C };
    memset(rows.dweight, 0, (size_t)C * sizeof(Real));
    memset(rows.dbias, 0, (size_t)C * sizeof(Real));
    return rows;
}

ALWAYS_INLINE void layernorm_weight_row(WeightRows sums, int T, const Real *dout, int S,
                                        const Real *x, Statistics k, int64_t C)
{
#pragma omp simd
    for (int64_t c = 0; c < C; c++) {
        sums.dweight[c] += load(T, dout, c) * (load(S, x, c) - k.mean) * k.r;
        sums.dbias[c] += load(T, dout, c);
    }
}

ALWAYS_INLINE void layernorm_input_row(Real *dx, bool accumulate, int T, const Real *dout, int S,
                                       const Real *x, const Real *weight, Statistics k, int64_t C)
{
    Real sum_h = 0, sum_hn = 0;
#pragma omp simd reduction(+ : sum_h, sum_hn)
    for (int64_t c = 0; c < C; c++) {
        Real h = load(T, dout, c) * weight[c];
        sum_h += h;
        sum_hn += h * (load(S, x, c) - k.mean) * k.r;
    }
    Real mean_h = sum_h / (Real)C, mean_hn = sum_hn / (Real)C;
#pragma omp simd
    for (int64_t c = 0; c < C; c++) {
        Real n = (load(S, x, c) - k.mean) * k.r;
        contribute(S, dx, c, accumulate,
                   k.r * (load(T, dout, c) * weight[c] - mean_h - n * mean_hn));
    }
}

/* Backward pass of one row; dx [C] may be x [C], or NULL. */
ALWAYS_INLINE void layernorm_row_backward(Real *dx, bool accumulate, WeightRows sums, int T,
                                          const Real *dout, int S, const Real *x,
                                          const Real *weight, Statistics k, int64_t C)
{
    if (sums.dweight)
        layernorm_weight_row(sums, T, dout, S, x, k, C);
    if (dx)
        layernorm_input_row(dx, accumulate, T, dout, S, x, weight, k, C);
}

/* The first of the R rows that belongs to the part. */
static inline int64_t part_start(int64_t part, int64_t parts, int64_t R)
{
    return part * R / parts;
}

/* Raises in the operation's name unless weight and bias are [C], as x's rows, and eps > 0. */
void layernorm_check(Tape *tape, const char *operation, const Tensor *x, const Tensor *weight,
                     const Tensor *bias, double eps);

/* In a backward function: the partial sums of dL/dweight and dL/dbias, each [parts, C], one row per
 * part of x's rows; NULL where neither requires a gradient. The kernel fills them, and
 * weight_sums_end adds the parts. */
typedef struct WeightSums {
    int64_t parts;
    Tensor *scratch; /* [2, parts, C] */
    Real *dweight, *dbias;
} WeightSums;
WeightSums weight_sums_begin(Node *node, Tensor *x, Tensor *weight, Tensor *bias);
void weight_sums_end(Node *node, WeightSums sums, Tensor *weight, Tensor *bias);

#endif
