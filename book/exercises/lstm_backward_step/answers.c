/* Answers to exercise 11.1 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static Real tanh_derivative(Real c)
{
    return is("no_derivative") ? 1
           : is("not_squared") ? 1 - tanh(c)
           : is("bare_cell")   ? 1 - c * c
                               : 1 - tanh(c) * tanh(c);
}

static Real of_sigmoid(Real s)
{
    return is("no_functions") ? 1 : is("only_s") ? s : is("only_rest") ? 1 - s : s * (1 - s);
}

static Real of_candidate(Real n)
{
    return is("no_functions")        ? 1
           : is("candidate_linear")  ? 1 - n
           : is("candidate_sigmoid") ? n * (1 - n)
                                     : 1 - n * n;
}

void lstm_backward_step(Real *da, Real *dc_before, Step s, int H)
{
    const int i_row = is("f_i_order"), o_row = is("o_c_order") ? 2 : 3;
    const bool exchanged = is("factors_exchanged");
    for (int j = 0; j < H; j++) {
        const Real i = s.i[j], f = s.f[j], candidate = s.candidate[j], o = s.o[j], c = s.c[j];
        const Real before = s.c_before[j], dh = s.dh[j], after = s.dc_after[j];
        const Real by_h = dh * (is("no_output_gate") ? 1 : o) * tanh_derivative(c);
        const Real dc = (is("output_dropped") ? 0 : by_h) + (is("dropped") ? 0 : after);
        const Real of_gates = is("by_dh") ? dh : is("too_early") ? dc * f : dc;
        const Real of_f = exchanged ? candidate : is("late_cell") ? c : before;
        const Real of_n = is("candidate_by_f") ? f : is("candidate_alone") ? 1 : i;
        const Real of_o = is("o_bare") ? c : tanh(c);
        da[i_row * H + j] = of_gates * (exchanged ? before : candidate) * of_sigmoid(i);
        da[(1 - i_row) * H + j] = of_gates * of_f * of_sigmoid(f);
        da[(5 - o_row) * H + j] = of_gates * of_n * of_candidate(candidate);
        da[o_row * H + j] = (is("o_by_dc") ? dc : dh) * of_o * of_sigmoid(o);
        dc_before[j] = is("before_by_i")        ? dc * i
                       : is("before_without_f") ? dc
                       : is("before_dropped")   ? after * f
                       : is("unknown")          ? dc * f * 3
                                                : dc * f;
    }
}
