/* Shared by the operations along the last axis: one row of C elements. */
#ifndef TAPEGRAD_OPS_CPU_ROWS_ROWS_H
#define TAPEGRAD_OPS_CPU_ROWS_ROWS_H

#include "ops/cpu/shared/storage.h"
#include "ops/shared/internal.h"
#include "ops/shared/math.h"
#include "ops/shared/rows.h"

/* One of the sums below over start <= c < end of x [C] of dtype T. */
typedef Real RowPiece(int T, const Real *x, Real shift, int64_t start, int64_t end);

/* sum_c x_c */
ALWAYS_INLINE Real sum_of_values(int T, const Real *x, Real shift, int64_t start, int64_t end)
{
    Real sum = 0;
    (void)shift;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = start; c < end; c++)
        sum += load(T, x, c);
    return sum;
}

/* sum_c (x_c - shift)^2 */
ALWAYS_INLINE Real sum_of_squares(int T, const Real *x, Real shift, int64_t start, int64_t end)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = start; c < end; c++)
        sum += (load(T, x, c) - shift) * (load(T, x, c) - shift);
    return sum;
}

/* A long row is summed in pieces, and the pieces' sums are added in double precision: the error of
 * one float sum grows with the length. */
ALWAYS_INLINE Real row_sum_by(RowPiece *piece, int T, const Real *x, Real shift, int64_t C)
{
    enum { PIECE = 4096 };
    if (C <= PIECE)
        return piece(T, x, shift, 0, C);
    double sum = 0;
    for (int64_t start = 0; start < C; start += PIECE)
        sum += (double)piece(T, x, shift, start, C - start < PIECE ? C : start + PIECE);
    return (Real)sum;
}

#endif
