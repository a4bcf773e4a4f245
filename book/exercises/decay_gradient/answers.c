/* Answers to exercise 10.2, compiled with -Dright, -Dundecayed_R, ...; expected.txt has the
 * grader's sentences. */
#include "exercise.h"

#include <string.h>

#if defined l_itself
#define DECAY(i) l[i]
#elif defined growing
#define DECAY(i) exp(-l[i])
#else
#define DECAY(i) exp(l[i])
#endif

/* The sum q.dq - k.dk from the last position, and faulty ones */
#if defined telescoped || defined terms || defined minus || defined shifted ||                     \
    defined from_the_first
void decay_gradient(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                    const Real *l, int N, int D, int M)
{
    Real term[MAX_N], S[MAX_DM] = { 0 }, R[MAX_DM] = { 0 }, qg[MAX_DM], kv[MAX_DM], sum = 0;
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < D * M; c++)
            S[c] *= exp(l[i]);
        add_outer_product(S, k + i * D, v + i * M, D, M);
        memset(qg, 0, sizeof qg);
        add_outer_product(qg, q + i * D, g + i * M, D, M);
        term[i] = dot(S, qg, D * M);
    }
    for (int i = N - 1; i >= 0; i--) {
        memset(kv, 0, sizeof kv);
        add_outer_product(kv, k + i * D, v + i * M, D, M);
        add_outer_product(R, q + i * D, g + i * M, D, M);
        term[i] -= dot(R, kv, D * M);
        for (int c = 0; c < D * M; c++)
            R[c] *= exp(l[i]);
    }
#ifdef from_the_first
    for (int i = 0; i < N; i++)
        dl[i] = sum += term[i];
#else
    for (int i = N - 1; i >= 0; i--) {
#ifdef terms
        dl[i] = term[i];
#elif defined minus
        dl[i] = sum -= term[i];
#elif defined shifted
        dl[i] = sum;
        sum += term[i];
#else
        dl[i] = sum += term[i];
#endif
    }
#endif
}
#else

void decay_gradient(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                    const Real *l, int N, int D, int M)
{
    Real Z[MAX_N][MAX_DM], S[MAX_DM] = { 0 }, R[MAX_DM] = { 0 };
#ifdef loop_end
    dl[N] = 0;
#elif defined short_loop
    N--;
#endif
    for (int i = 0; i < N; i++) {
        memcpy(Z[i], S, sizeof S);
        for (int c = 0; c < D * M; c++) {
#if !defined undecayed_S && !defined undecayed && !defined undecayed_but_i
            S[c] *= DECAY(i);
#endif
#ifndef no_factor
            Z[i][c] *= DECAY(i);
#endif
#ifdef undecayed
            Z[i][c] = S[c];
#elif defined twice
            Z[i][c] *= DECAY(i);
#endif
        }
        add_outer_product(S, k + i * D, v + i * M, D, M);
        for (int c = 0; c < D * M; c++) {
#ifdef own_decay
            S[c] = Z[i][c] + (S[c] - Z[i][c]) * DECAY(i);
#elif defined state_after
            Z[i][c] = S[c];
#elif defined factor_state_after
            Z[i][c] = S[c] * DECAY(i);
#endif
        }
    }
#ifdef last_state
    for (int i = 0; i < N; i++)
        memcpy(Z[i], S, sizeof S);
#endif
#ifdef forward_R
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < D * M; c++)
            R[c] *= DECAY(i);
#else
    for (int i = N - 1; i >= 0; i--) {
#endif
#ifdef too_early
        for (int c = 0; c < D * M; c++)
            R[c] *= DECAY(i);
#elif defined own_output
        memset(R, 0, sizeof R);
#elif defined later_outputs
    dl[i] = dot(Z[i], R, D * M);
#endif
        add_outer_product(R, q + i * D, g + i * M, D, M);
#ifndef later_outputs
        dl[i] = dot(Z[i], R, D * M);
#endif
#if !defined undecayed_R && !defined undecayed && !defined undecayed_but_i &&                      \
    !defined too_early && !defined forward_R
        for (int c = 0; c < D * M; c++)
            R[c] *= DECAY(i);
#endif
    }
#ifdef unknown
    dl[0] += 1;
#endif
}
#endif
