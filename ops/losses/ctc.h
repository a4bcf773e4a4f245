/* The states of op_ctc and their sums in logarithms, shared by its CPU and CUDA kernels; ctc.c has
 * the derivation. */
#ifndef TAPEGRAD_OPS_LOSSES_CTC_H
#define TAPEGRAD_OPS_LOSSES_CTC_H

#include "ops/losses/kernels.h"
#include "ops/shared/math.h"

/* One value per state of a target of n symbols:
 *   blank_0 .. blank_n   -inf   symbol_0 .. symbol_n-1   -inf
 * so that symbol_-1 and symbol_n are read as -inf. */
typedef struct CtcRow {
    Real *blank, *symbol;
} CtcRow;
MATH_FUNCTION int64_t ctc_states(int64_t n)
{
    return 2 * n + 3;
}
MATH_FUNCTION CtcRow ctc_row(Real *states, int64_t n)
{
    const CtcRow row = { states, states + n + 2 };
    return row;
}

/* The parts of a sequence's workspace: two rows of states, skip [S + 1], occupancy [C]. */
typedef struct CtcWorkspace {
    Real *states, *sums, *skip, *occupancy;
} CtcWorkspace;
MATH_FUNCTION CtcWorkspace ctc_workspace(Real *workspace, int64_t b, CtcSizes size)
{
    const int64_t W = ctc_states(size.S), start = b * (2 * W + size.S + 1 + size.C);
    const CtcWorkspace parts = { workspace + start, workspace + start + W,
                                 workspace + start + 2 * W,
                                 workspace + start + 2 * W + size.S + 1 };
    return parts;
}

/* ln(e^a + e^b) and ln(e^a + e^b + e^c); minus infinity is ln 0. */
MATH_FUNCTION Real log_add(Real a, Real b)
{
    Real m = a > b ? a : b;
    m = m > -(Real)INFINITY ? m : 0;
    return m + real_log(real_exp(a - m) + real_exp(b - m));
}
MATH_FUNCTION Real log_add_3(Real a, Real b, Real c)
{
    Real m = a > b ? a : b;
    m = c > m ? c : m;
    m = m > -(Real)INFINITY ? m : 0;
    return m + real_log(real_exp(a - m) + real_exp(b - m) + real_exp(c - m));
}

#endif
