/* Shared by the operations along the last axis: one row of C elements. */
#ifndef TAPEGRAD_OPS_CPU_ROWS_ROWS_H
#define TAPEGRAD_OPS_CPU_ROWS_ROWS_H

#include "ops/cpu/shared/storage.h"
#include "ops/shared/internal.h"
#include "ops/shared/math.h"
#include "ops/shared/rows.h"

/* max_c x_c of x [C] of dtype T, ignoring NaN: in 16 independent lanes, which the compiler
 * vectorizes, then reduced. */
ALWAYS_INLINE Real row_max(int T, const Real *x, int64_t C)
{
    enum { AT_ONCE = 16 };
    Real m[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        m[i] = -(Real)INFINITY;
    int64_t c = 0;
    for (; c + AT_ONCE <= C; c += AT_ONCE) {
#pragma omp simd
        for (int i = 0; i < AT_ONCE; i++)
            m[i] = load(T, x, c + i) > m[i] ? load(T, x, c + i) : m[i];
    }
    for (; c < C; c++)
        m[0] = load(T, x, c) > m[0] ? load(T, x, c) : m[0];
    for (int i = 1; i < AT_ONCE; i++)
        m[0] = m[i] > m[0] ? m[i] : m[0];
    return m[0];
}

/* One of the sums below over start <= c < end of x [C] of dtype T. */
typedef Real RowPiece(int T, Real *power, const Real *x, Real shift, int64_t start, int64_t end);

/* sum_c x_c */
ALWAYS_INLINE Real sum_of_values(int T, Real *power, const Real *x, Real shift, int64_t start,
                                 int64_t end)
{
    Real sum = 0;
    (void)power, (void)shift;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = start; c < end; c++)
        sum += load(T, x, c);
    return sum;
}

/* sum_c (x_c - shift)^2 */
ALWAYS_INLINE Real sum_of_squares(int T, Real *power, const Real *x, Real shift, int64_t start,
                                  int64_t end)
{
    Real sum = 0;
    (void)power;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = start; c < end; c++)
        sum += (load(T, x, c) - shift) * (load(T, x, c) - shift);
    return sum;
}

/* sum_c e^(x_c - shift); stores the powers unless power is NULL; power may be x. */
ALWAYS_INLINE Real sum_of_powers(int T, Real *power, const Real *x, Real shift, int64_t start,
                                 int64_t end)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = start; c < end; c++) {
        const Real e = real_exp(load(T, x, c) - shift);
        if (power)
            power[c] = e;
        sum += e;
    }
    return sum;
}

/* A long row is summed in pieces, and the pieces' sums are added in double precision: the error of
 * one float sum grows with the length. */
ALWAYS_INLINE Real row_sum_by(RowPiece *piece, int T, Real *power, const Real *x, Real shift,
                              int64_t C)
{
    enum { PIECE = 4096 };
    if (C <= PIECE)
        return piece(T, power, x, shift, 0, C);
    double sum = 0;
    for (int64_t start = 0; start < C; start += PIECE)
        sum += (double)piece(T, power, x, shift, start, C - start < PIECE ? C : start + PIECE);
    return (Real)sum;
}

#endif
