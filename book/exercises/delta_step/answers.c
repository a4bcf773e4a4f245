/* Answers to exercise 10.1, compiled with -Dright, -Dno_old, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <stddef.h>

static Real answer(const Real *S, const Real *x, int m, int D, int M)
{
    Real sum = 0;
    for (int d = 0; d < D; d++)
#ifdef all_indices
        sum += S[m * D + d] * x[d];
#else
        sum += S[d * M + m] * x[d];
#endif
    return sum;
}

/* The old answer */
static Real old_answer(const Real *S, const Real *k, const Real *q, int m, int D, int M)
{
#ifdef at_query
    return answer(S, q, m, D, M);
#elif defined other_indices
    Real sum = 0;
    for (int d = 0; d < D; d++)
        sum += S[m * D + d] * k[d];
    return sum;
#else
    (void)q;
    return answer(S, k, m, D, M);
#endif
}

static Real squares(const Real *k, int D)
{
    Real sum = 0;
    for (int d = 0; d < D; d++)
        sum += k[d] * k[d];
    return sum;
}

/* u_m from the old answer */
static Real correction(Real v, Real old, Real beta, const Real *k, int D)
{
    const Real length = squares(k, D);
    (void)length;
#ifdef no_old
    return v;
#elif defined sum_beta
    return beta * v;
#elif defined no_beta
    return v - old;
#elif defined beta_of_v
    return beta * v - old;
#elif defined beta_of_old
    return v - beta * old;
#elif defined sign
    return beta * (old - v);
#elif defined divided
    return beta * (v - old) / length;
#else
    return beta * (v - old);
#endif
}

void delta_step(Real *out, Real *S, const Real *k, const Real *v, const Real *q, Real beta, int D,
                int M)
{
#ifdef crash
    *(volatile Real *)NULL = 0;
#endif
    Real u[MAX_M];
    for (int m = 0; m < M; m++)
        u[m] = correction(v[m], old_answer(S, k, q, m, D, M), beta, k, D);
    (void)u;
#ifdef early
    for (int m = 0; m < M; m++)
        out[m] = answer(S, q, m, D, M);
#endif
#ifdef loop_end
    M++;
#endif
#ifndef unchanged
    for (int d = 0; d < D; d++)
        for (int m = 0; m < M; m++)
#ifdef late
            S[d * M + m] += k[d] * correction(v[m], answer(S, k, m, D, M), beta, k, D);
#elif defined all_indices
            S[m * D + d] += k[d] * u[m];
#elif defined beta_twice
            S[d * M + m] += beta * k[d] * u[m];
#elif defined lost
            S[d * M + m] = k[d] * u[m];
#elif defined moved
            S[d * M + m] = (1 - beta) * S[d * M + m] + k[d] * u[m];
#elif defined unknown
            S[d * M + m] += k[d] * u[m] + 1;
#else
            S[d * M + m] += k[d] * u[m];
#endif
#endif
#ifdef no_out
    return;
#endif
#ifndef early
    for (int m = 0; m < M; m++)
#ifdef asks_key
        out[m] = answer(S, k, m, D, M);
#elif defined added
        out[m] += answer(S, q, m, D, M);
#else
        out[m] = answer(S, q, m, D, M);
#endif
#endif
}
