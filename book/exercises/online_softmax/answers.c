/* Answers to exercise 8.1 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static Real power_of(Real s, Real old_m, Real top)
{
    return is("old_m")                           ? exp(s - old_m)
           : is("without_m") || is("no_maximum") ? exp(s)
           : is("overflow")                      ? exp(s + 2000) / exp(top + 2000)
                                                 : exp(s - top);
}

static void scale(Real *l, Real *o, Real of_l, Real of_o, int M)
{
    *l *= of_l;
    for (int c = 0; c < M; c++)
        o[c] *= of_o;
}

void online_softmax(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M)
{
    if (is("crash"))
        write_to_null();
    if (is("loop_end"))
        o[M] = 0;
    Real top = is("last_tile") ? -INFINITY : is("from_zero") ? fmax(*m, 0) : *m;
    for (int j = 0; j < T; j++)
        top = fmax(top, s[j]);
    if (top == -INFINITY && !is("unguarded") && !is("overflow"))
        return;
    if (is("early"))
        *m = top;
    const Real factor = is("upside_down") ? exp(top - *m) : exp(*m - top);
    const bool kept = is("both_kept") || is("after") || is("no_maximum");
    scale(l, o, 1, is("mean") ? *l : 1, M);
    scale(l, o,
          is("stored")           ? 0
          : kept || is("l_kept") ? 1
                                 : factor,
          is("stored")           ? 0
          : kept || is("o_kept") ? 1
                                 : factor,
          M);
    for (int j = 0; j < T - is("one_less"); j++) {
        const Real power = power_of(s[j], *m, top);
        if (is("each_score") && j > 0)
            scale(l, o, factor, factor, M);
        *l += power;
        for (int c = 0; c < M; c++)
            o[c] += (is("no_power")  ? 1
                     : is("unknown") ? power / 2
                                     : power) *
                    v[is("transposed") ? c * T + j : j * M + c];
    }
    if (is("after"))
        scale(l, o, factor, factor, M);
    else if (is("divided") || is("mean"))
        scale(l, o, 1, 1 / *l, M);
    if (!is("m_kept") && !is("no_maximum"))
        *m = top;
}
