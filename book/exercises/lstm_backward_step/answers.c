/* Answers to exercise 11.1, compiled with -Dright, -Ddropped, ...; expected.txt has the grader's
 * sentences. A macro of these changes one of the expressions. */
#include "exercise.h"

#include <math.h>

#define DERIVATIVE (1 - tanh_c * tanh_c)
#define BY_H (dh * o * DERIVATIVE)
#define DC (BY_H + after)
#define DA_DC dc /* the dc that gates i, f, c~ use */
#define DI candidate
#define DF before
#define DN i
#define DO dh *tanh_c
#define SIGMOID(s) (s * (1 - s))
#define CANDIDATE (1 - candidate * candidate)
#define BEFORE dc *f

#ifdef dropped
#undef DC
#define DC BY_H
#elif defined output_dropped
#undef DC
#define DC after
#elif defined no_derivative
#undef DERIVATIVE
#define DERIVATIVE 1
#elif defined not_squared
#undef DERIVATIVE
#define DERIVATIVE (1 - tanh_c)
#elif defined bare_cell
#undef DERIVATIVE
#define DERIVATIVE (1 - s.c[j] * s.c[j])
#elif defined no_output_gate
#undef BY_H
#define BY_H (dh * DERIVATIVE)
#elif defined o_bare
#undef DO
#define DO dh *s.c[j]
#elif defined o_by_dc
#undef DO
#define DO dc *tanh_c
#elif defined by_dh
#undef DA_DC
#define DA_DC dh
#elif defined too_early
#undef DA_DC
#define DA_DC (dc * f)
#elif defined no_functions
#undef SIGMOID
#undef CANDIDATE
#define SIGMOID(s) 1
#define CANDIDATE 1
#elif defined only_s
#undef SIGMOID
#define SIGMOID(s) s
#elif defined only_rest
#undef SIGMOID
#define SIGMOID(s) (1 - s)
#elif defined candidate_linear
#undef CANDIDATE
#define CANDIDATE (1 - candidate)
#elif defined candidate_sigmoid
#undef CANDIDATE
#define CANDIDATE (candidate * (1 - candidate))
#elif defined factors_exchanged
#undef DI
#undef DF
#define DI before
#define DF candidate
#elif defined late_cell
#undef DF
#define DF s.c[j]
#elif defined candidate_by_f
#undef DN
#define DN f
#elif defined candidate_alone
#undef DN
#define DN 1
#elif defined before_by_i
#undef BEFORE
#define BEFORE dc *i
#elif defined before_without_f
#undef BEFORE
#define BEFORE dc
#elif defined before_dropped
#undef BEFORE
#define BEFORE after *f
#elif defined unknown
#undef BEFORE
#define BEFORE dc *f * 3
#elif defined f_i_order
#define ROWS 1, 0, 2, 3
#elif defined o_c_order
#define ROWS 0, 1, 3, 2
#endif

#ifndef ROWS
#define ROWS 0, 1, 2, 3
#endif

void lstm_backward_step(Real *da, Real *dc_before, Step s, int H)
{
    static const int row[] = { ROWS };
    for (int j = 0; j < H; j++) {
        const Real i = s.i[j], f = s.f[j], candidate = s.candidate[j], o = s.o[j];
        const Real before = s.c_before[j], dh = s.dh[j], after = s.dc_after[j];
        const Real tanh_c = tanh(s.c[j]), dc = DC;
        da[row[0] * H + j] = DA_DC * DI * SIGMOID(i);
        da[row[1] * H + j] = DA_DC * DF * SIGMOID(f);
        da[row[2] * H + j] = DA_DC * DN * CANDIDATE;
        da[row[3] * H + j] = DO * SIGMOID(o);
        dc_before[j] = BEFORE;
    }
}
