/* Answers to exercise 9.2 */
#include "exercise.h"
#include "../answer.h"

static Real dot(const Real *x, const Real *y, int count)
{
    Real sum = 0;
    for (int m = 0; m < count; m++)
        sum += x[m] * y[m];
    return sum;
}

/* Sums over all pairs: right in O(N^2), or with den or out of the wrong position */
static void by_pairs(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
                     const Real *out, const Real *den, int N, int D, int M)
{
    const bool den_of_j = is("den_of_j"), out_of_j = is("out_of_j");
    for (int j = 0; j < N; j++)
        for (int d = 0; d < D; d++) {
            Real db = 0;
            for (int i = j; i < N; i++) {
                const Real own = dot(g + i * M, out + (out_of_j ? j : i) * M, M);
                db += (dot(g + i * M, v + j * M, M) - own) / den[den_of_j ? j : i] *
                      phi(q[i * D + d]);
            }
            add(dk, j * D + d, db * fmin(1, phi(k[j * D + d])));
        }
}

static void dquery(Gradient dq, const Real *q, const Real *k, const Real *v, const Real *g,
                   const Real *out, const Real *den, int N, int D, int M)
{
    Real S[MAX_D][MAX_M + 1] = { { 0 } };
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) {
            const Real b = phi(k[i * D + d]);
            for (int m = 0; m < M; m++)
                S[d][m] += b * v[i * M + m];
            S[d][M] += b;
            const Real da = dot(S[d], g + i * M, M) - S[d][M] * dot(g + i * M, out + i * M, M);
            add(dq, i * D + d, da / den[i] * fmin(1, phi(q[i * D + d])));
        }
}

static Real dden_of(const Real *g, const Real *out, const Real *v, Real den, int M)
{
    static const Real ones[MAX_M] = { 1, 1, 1, 1 };
    return is("no_dden")                          ? 0
           : is("dden_sign")                      ? dot(g, out, M) / den
           : is("no_den") || is("dden_undivided") ? -dot(g, out, M)
           : is("dden_twice")                     ? -dot(g, out, M) / den / den
           : is("sum_of_dnum")                    ? dot(g, ones, M) / den
           : is("with_values")                    ? -dot(g, v, M) / den
                                                  : -dot(g, out, M) / den;
}

/* R <- R + phi(q_i) dnum~_i^T */
static void state_add(Real R[MAX_D][MAX_M + 1], const Real *q, const Real *g, const Real *out,
                      const Real *v, Real den, int D, int M)
{
    const Real divisor = is("no_den") || is("dnum_undivided") ? 1 : den;
    for (int d = 0; d < D; d++) {
        const Real a = is("no_phi") ? q[d] : phi(q[d]);
        for (int m = 0; m < M; m++)
            R[d][m] += a * g[m] / divisor;
        R[d][M] += a * dden_of(g, out, v, den, M);
    }
}

static Real derivative(Real k, Real q)
{
    return is("no_derivative") ? 1
           : is("phi_itself")  ? phi(k)
           : is("of_value")    ? k > 0
           : is("of_query")    ? fmin(1, phi(q))
           : is("negative")    ? -fmin(1, phi(k))
           : is("unknown")     ? 3 * fmin(1, phi(k))
                               : fmin(1, phi(k));
}

static void by_states(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
                      const Real *out, const Real *den, int N, int D, int M)
{
    const bool past = is("past"), all = is("all"), own = is("own"), too_late = is("too_late");
    Real R[MAX_D][MAX_M + 1] = { { 0 } };
    for (int i = 0; i < N && all; i++)
        state_add(R, q + i * D, g + i * M, out + i * M, v + i * M, den[i], D, M);
    for (int n = is("loop_end") ? -1 : 0; n < N - is("short_loop"); n++) {
        const int j = past ? n : N - 1 - n;
        if (own)
            memset(R, 0, sizeof R);
        if (!too_late && !all)
            state_add(R, q + j * D, g + j * M, out + j * M, v + j * M, den[j], D, M);
        for (int d = 0; d < D; d++) {
            const Real of_values = is("dden_alone") ? 0 : dot(R[d], v + j * M, M);
            const Real db = of_values + R[d][M];
            add(dk, j * D + d, db * derivative(k[j * D + d], q[j * D + d]));
        }
        if (too_late)
            state_add(R, q + j * D, g + j * M, out + j * M, v + j * M, den[j], D, M);
    }
}

void linear_attention_dkey(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
                           const Real *out, const Real *den, int N, int D, int M)
{
    const bool pairs = is("slow") || is("den_of_j") || is("out_of_j");
    (pairs ? by_pairs : is("dquery") ? dquery : by_states)(dk, q, k, v, g, out, den, N, D, M);
}
