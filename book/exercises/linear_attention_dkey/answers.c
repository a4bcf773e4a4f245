/* Answers to exercise 9.2, compiled with -Dright, -Dpast, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <string.h>

static Real dot(const Real *x, const Real *y, int count)
{
    Real sum = 0;
    for (int m = 0; m < count; m++)
        sum += x[m] * y[m];
    return sum;
}

#ifdef stores
#define add(i, value) dk.data[i] = value
#elif defined adds_always
#define add(i, value) dk.data[i] += value
#else
#define add(i, value) gradient_add(dk, i, value)
#endif

#ifdef slow
void linear_attention_dkey(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
                           const Real *out, const Real *den, int N, int D, int M)
{
    for (int j = 0; j < N; j++)
        for (int d = 0; d < D; d++) {
            Real db = 0;
            for (int i = j; i < N; i++)
                db += (dot(g + i * M, v + j * M, M) - dot(g + i * M, out + i * M, M)) / den[i] *
                      phi(q[i * D + d]);
            add(j * D + d, db * fmin(1, phi(k[j * D + d])));
        }
}
#elif defined dquery
void linear_attention_dkey(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
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
            add(i * D + d, da / den[i] * fmin(1, phi(q[i * D + d])));
        }
}
#else
/* R <- R + phi(q_i) dnum~_i^T */
static void state_add(Real R[MAX_D][MAX_M + 1], const Real *q, const Real *g, const Real *out,
                      const Real *v, Real den, int D, int M)
{
    Real divisor = den, dden = -dot(g, out, M) / den;
#ifdef no_dden
    dden = 0;
#elif defined dden_sign
    dden = -dden;
#elif defined no_den
    divisor = 1;
    dden *= den;
#elif defined dnum_undivided
    divisor = 1;
#elif defined dden_undivided
    dden *= den;
#elif defined dden_twice
    dden /= den;
#elif defined sum_of_dnum
    dden = 0;
    for (int m = 0; m < M; m++)
        dden += g[m] / den;
#elif defined with_values
    dden = -dot(g, v, M) / den;
#endif
    for (int d = 0; d < D; d++) {
#ifdef no_phi
        const Real a = q[d];
#else
        const Real a = phi(q[d]);
#endif
        for (int m = 0; m < M; m++)
            R[d][m] += a * g[m] / divisor;
        R[d][M] += a * dden;
    }
}

void linear_attention_dkey(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
                           const Real *out, const Real *den, int N, int D, int M)
{
    Real R[MAX_D][MAX_M + 1] = { { 0 } };
#ifdef all
    for (int i = 0; i < N; i++)
        state_add(R, q + i * D, g + i * M, out + i * M, v + i * M, den[i], D, M);
#endif
#ifdef loop_end
    for (int j = N; j >= 0; j--) {
#elif defined short_loop
    for (int j = N - 1; j > 0; j--) {
#elif defined past
    for (int j = 0; j < N; j++) {
#else
    for (int j = N - 1; j >= 0; j--) {
#endif
#ifdef own
        memset(R, 0, sizeof R);
#endif
#if !defined too_late && !defined all
        state_add(R, q + j * D, g + j * M, out + j * M, v + j * M, den[j], D, M);
#endif
        for (int d = 0; d < D; d++) {
            const Real b = phi(k[j * D + d]);
            Real db = dot(R[d], v + j * M, M) + R[d][M], derivative = fmin(1, b);
#ifdef dden_alone
            db = R[d][M];
#elif defined den_of_j || defined out_of_j
            db = 0;
            for (int i = j; i < N; i++) {
#ifdef den_of_j
                const Real own = dot(g + i * M, out + i * M, M), divisor = den[j];
#else
                const Real own = dot(g + i * M, out + j * M, M), divisor = den[i];
#endif
                db += phi(q[i * D + d]) * (dot(g + i * M, v + j * M, M) - own) / divisor;
            }
#endif
#ifdef no_derivative
            derivative = 1;
#elif defined phi_itself
            derivative = b;
#elif defined of_value
            derivative = k[j * D + d] > 0;
#elif defined of_query
            derivative = fmin(1, phi(q[j * D + d]));
#elif defined negative
        derivative = -derivative;
#elif defined unknown
        db += 1;
#endif
            add(j * D + d, db * derivative);
        }
#ifdef too_late
        state_add(R, q + j * D, g + j * M, out + j * M, v + j * M, den[j], D, M);
#endif
    }
}
#endif
