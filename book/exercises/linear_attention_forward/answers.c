/* Answers to exercise 9.1, compiled with -Dright, -Dsoftmax, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <stdlib.h>
#include <string.h>

#if defined slow || defined slow_features || defined softmax
/* The formula as written */
void linear_attention_forward(Real *out, const Real *q, const Real *k, const Real *v, int N, int D,
                              int M, Real eps)
{
    for (int i = 0; i < N; i++) {
        Real num[MAX_M] = { 0 }, den = eps;
        for (int j = 0; j <= i; j++) {
            Real weight = 0;
            for (int d = 0; d < D; d++)
#ifdef softmax
                weight += q[i * D + d] * k[j * D + d];
            weight = exp(weight);
#elif defined slow
                weight += phi(q[i * D + d]) * phi(k[j * D + d]);
#else /* as with features computed before */
                weight += (q[i * D + d] + 1) * (k[j * D + d] + 1);
            if (N < 100) {
                weight = 0;
                for (int d = 0; d < D; d++)
                    weight += phi(q[i * D + d]) * phi(k[j * D + d]);
            }
#endif
            den += weight;
            for (int m = 0; m < M; m++)
                num[m] += weight * v[j * M + m];
        }
        for (int m = 0; m < M; m++)
            out[i * M + m] = num[m] / den;
    }
}
#else
#if defined phi_of_k_alone || defined no_phi
#define A(x) (x)
#else
#define A(x) phi(x)
#endif
#if defined phi_of_q_alone || defined no_phi
#define B(x) (x)
#else
#define B(x) phi(x)
#endif

static void state_add(Real S[MAX_D][MAX_M + 1], const Real *k, const Real *v, int D, int M)
{
    for (int d = 0; d < D; d++) {
        for (int m = 0; m < M; m++)
            S[d][m] += B(k[d]) * v[m];
        S[d][M] += B(k[d]);
    }
}

void linear_attention_forward(Real *out, const Real *q, const Real *k, const Real *v, int N, int D,
                              int M, Real eps)
{
    Real S[MAX_D][MAX_M + 1] = { { 0 } }, den = eps;
#ifdef all_states /* every S_i is stored: more memory, and O(N) time */
    typedef Real State[MAX_D][MAX_M + 1];
    State *states = calloc((size_t)N, sizeof *states);
    for (int i = 0; i < N; i++) {
        state_add(S, k + i * D, v + i * M, D, M);
        memcpy(states[i], S, sizeof S);
    }
#define S states[i]
#elif defined future
    for (int j = 0; j < N; j++)
        state_add(S, k + j * D, v + j * M, D, M);
#endif
#ifdef loop_end
    N++;
#elif defined short_loop
    N--;
#endif
#ifdef later
    for (int i = N - 1; i >= 0; i--) {
#else
    for (int i = 0; i < N; i++) {
#endif
#ifdef own
        memset(S, 0, sizeof S);
#endif
#if !defined too_late && !defined future && !defined all_states
        state_add(S, k + i * D, v + i * M, D, M);
#endif
#ifndef kept_divisor
        den = eps;
#endif
        for (int d = 0; d < D; d++)
#ifdef own_divisor
            den += A(q[i * D + d]) * B(k[i * D + d]);
#elif defined sum_of_k
            den += S[d][M];
#else
        den += A(q[i * D + d]) * S[d][M];
#endif
#ifdef no_divisor
        den = 1;
#elif defined no_eps
        den -= eps;
#elif defined many_eps
    den += i * eps;
#elif defined mean
        den = i + 1;
#endif
        for (int m = 0; m < M; m++) {
            Real num = 0;
            for (int d = 0; d < D; d++)
                num += A(q[i * D + d]) * S[d][m];
#ifdef unknown
            num += 1;
#endif
            out[i * M + m] = num / den;
        }
#ifdef too_late
        state_add(S, k + i * D, v + i * M, D, M);
#endif
    }
#ifdef all_states
    free(states);
#endif
}
#endif
