/* CTC's kernels, the layout of its states and their sums in logarithms; ctc.c has the
 * derivation. */
#ifndef TAPEGRAD_CTC_KERNELS_H
#define TAPEGRAD_CTC_KERNELS_H

#include "extend.h"

typedef struct Ctc {
    int64_t B, T, C, S;            /* sequences, frames, symbols, symbols of a target */
    const Real *logits;            /* [B, T, C] */
    const int32_t *targets;        /* [B, S] */
    const int32_t *lengths;        /* [B], in frames, or NULL: T each */
    const int32_t *target_lengths; /* [B], in symbols, or NULL: S each */
    bool ignore_infeasible;        /* an infeasible target has loss and gradient 0 */
    Real *states;                  /* [B, T + 2, ctc_states(S)]; row 0 is before frame 0 */
    LogSumExp *log_sums;           /* [B, T] */
} Ctc;

typedef struct CtcKernels {
    /* losses [B], the states and log_sums */
    void (*forward)(Real *losses, Ctc ctc);
    /* dlogits [B, T, C] <- from dlosses [B]; overwrites the states */
    void (*backward)(Gradient dlogits, const Real *dlosses, Ctc ctc);
} CtcKernels;
extern const CtcKernels ctc_plain, ctc_cuda;
C_FUNCTION const CtcKernels *ctc_kernels(const Tensor *tensor);

SHARED_FUNCTION int64_t ctc_frames(const Ctc *ctc, int64_t b)
{
    return ctc->lengths ? ctc->lengths[b] : ctc->T;
}
SHARED_FUNCTION int64_t ctc_symbols(const Ctc *ctc, int64_t b)
{
    return ctc->target_lengths ? ctc->target_lengths[b] : ctc->S;
}

/* One value per state of a target of n symbols:
 *   blank_0 .. blank_n   -inf   symbol_0 .. symbol_{n-1}   -inf
 * so that symbol_-1 and symbol_n are read as -inf. */
typedef struct CtcRow {
    Real *blank, *symbol;
} CtcRow;
SHARED_FUNCTION int64_t ctc_states(int64_t n)
{
    return 2 * n + 3;
}
SHARED_FUNCTION CtcRow ctc_row_at(Real *states, int64_t n)
{
    const CtcRow row = { states, states + n + 2 };
    return row;
}
/* The row of frame t of sequence b; -1 <= t <= T */
SHARED_FUNCTION CtcRow ctc_row(const Ctc *ctc, int64_t b, int64_t t)
{
    return ctc_row_at(ctc->states + (b * (ctc->T + 2) + t + 1) * ctc_states(ctc->S),
                      ctc_symbols(ctc, b));
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
