/* Answers to exercise 9.1 */
#include "exercise.h"
#include "../answer.h"

/* The formula as written: "slow" computes phi for each pair, "slow_features" a sum that costs less,
 * as if features had been computed before, where only time counts. */
static void by_pairs(Real *out, const Real *q, const Real *k, const Real *v, int N, int D, int M,
                     Real eps)
{
    const bool softmax = is("softmax"), features = is("slow_features") && N > 100;
    for (int i = 0; i < N; i++) {
        Real num[MAX_M] = { 0 }, den = eps;
        for (int j = 0; j <= i; j++) {
            Real weight = 0;
            for (int d = 0; d < D; d++) {
                const Real q_d = q[i * D + d], k_d = k[j * D + d];
                weight += softmax    ? q_d * k_d
                          : features ? (q_d + 1) * (k_d + 1)
                                     : phi(q_d) * phi(k_d);
            }
            weight = softmax ? exp(weight) : weight;
            den += weight;
            for (int m = 0; m < M; m++)
                num[m] += weight * v[j * M + m];
        }
        for (int m = 0; m < M; m++)
            out[i * M + m] = num[m] / den;
    }
}

static Real of_query(Real x)
{
    return is("phi_of_k_alone") || is("no_phi") ? x : phi(x);
}

static Real of_key(Real x)
{
    return is("phi_of_q_alone") || is("no_phi") ? x : phi(x);
}

typedef Real State[MAX_D][MAX_M + 1];

static void state_add(State S, const Real *k, const Real *v, int D, int M)
{
    for (int d = 0; d < D; d++) {
        for (int m = 0; m < M; m++)
            S[d][m] += of_key(k[d]) * v[m];
        S[d][M] += of_key(k[d]);
    }
}

/* out_i; the divisors of positions before i are in `sum`. */
static void read(Real *out, State S, const Real *q, const Real *k, Real *sum, int i, int D, int M,
                 Real eps)
{
    Real den = is("kept_divisor") ? *sum : is("no_eps") ? 0 : is("many_eps") ? eps + i * eps : eps;
    for (int d = 0; d < D; d++)
        den += is("own_divisor") ? of_query(q[d]) * of_key(k[d])
               : is("sum_of_k")  ? S[d][M]
                                 : of_query(q[d]) * S[d][M];
    *sum = den;
    den = is("no_divisor") ? 1 : is("mean") ? i + 1 : den;
    for (int m = 0; m < M; m++) {
        Real num = is("unknown");
        for (int d = 0; d < D; d++)
            num += of_query(q[d]) * S[d][m];
        out[m] = num / den;
    }
}

/* "all_states" stores every S_i: it needs more memory, and O(N) time. */
static void by_states(Real *out, const Real *q, const Real *k, const Real *v, int N, int D, int M,
                      Real eps)
{
    State S = { { 0 } }, *states = calloc((size_t)N, sizeof *states);
    const int count = N + is("loop_end") - is("short_loop");
    const bool too_late = is("too_late"), future = is("future");
    Real sum = eps;
    for (int i = 0; i < N && (future || is("all_states")); i++) {
        state_add(S, k + i * D, v + i * M, D, M);
        memcpy(states[i], S, sizeof S);
    }
    for (int n = 0; n < count; n++) {
        const int i = is("later") ? N - 1 - n : n;
        if (is("own"))
            memset(S, 0, sizeof S);
        if (is("all_states"))
            memcpy(S, states[i], sizeof S);
        else if (!too_late && !future)
            state_add(S, k + i * D, v + i * M, D, M);
        read(out + i * M, S, q + i * D, k + i * D, &sum, i, D, M, eps);
        if (too_late)
            state_add(S, k + i * D, v + i * M, D, M);
    }
    free(states);
}

void linear_attention_forward(Real *out, const Real *q, const Real *k, const Real *v, int N, int D,
                              int M, Real eps)
{
    const bool pairs = is("slow") || is("slow_features") || is("softmax");
    (pairs ? by_pairs : by_states)(out, q, k, v, N, D, M, eps);
}
