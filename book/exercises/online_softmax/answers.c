/* Answers to exercise 8.1, compiled with -Dright, -Dl_kept, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>
#include <stddef.h>

void online_softmax(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M)
{
#ifdef crash
    *(volatile Real *)NULL = 0;
#elif defined loop_end
    o[M] = 0;
#endif
#ifdef last_tile
    Real top = -INFINITY;
#elif defined from_zero
    Real top = *m > 0 ? *m : 0;
#else
    Real top = *m;
#endif
    for (int j = 0; j < T; j++)
        top = fmax(top, s[j]);
#if !defined unguarded && !defined overflow
    if (top == -INFINITY)
        return;
#endif
#ifdef early
    *m = top;
#endif
#ifdef upside_down
    const Real factor = exp(top - *m);
#else
    const Real factor = exp(*m - top);
#endif
#ifdef mean
    for (int c = 0; c < M; c++)
        o[c] *= *l;
#endif
#ifdef stored
    *l = 0;
#elif !defined l_kept && !defined both_kept && !defined after && !defined no_maximum
    *l *= factor;
#endif
    for (int c = 0; c < M; c++)
#ifdef stored
        o[c] = 0;
#elif defined o_kept || defined both_kept || defined after || defined no_maximum
        ;
#else
        o[c] *= factor;
#endif
#ifdef one_less
    T--;
#endif
    for (int j = 0; j < T; j++) {
#ifdef old_m
        const Real power = exp(s[j] - *m);
#elif defined without_m || defined no_maximum
        const Real power = exp(s[j]);
#elif defined overflow
        const Real power = exp(s[j] + 2000) / exp(top + 2000);
#else
            const Real power = exp(s[j] - top);
#endif
#ifdef each_score
        if (j > 0) {
            *l *= factor;
            for (int c = 0; c < M; c++)
                o[c] *= factor;
        }
#endif
        *l += power;
        for (int c = 0; c < M; c++)
#ifdef no_power
            o[c] += v[j * M + c];
#elif defined transposed
            o[c] += power * v[c * T + j];
#elif defined unknown
            o[c] += power * v[j * M + c] / 2;
#else
                o[c] += power * v[j * M + c];
#endif
    }
#ifdef after
    *l *= factor;
    for (int c = 0; c < M; c++)
        o[c] *= factor;
#elif defined divided || defined mean
    for (int c = 0; c < M; c++)
        o[c] /= *l;
#endif
#if !defined m_kept && !defined no_maximum
    *m = top;
#endif
}
