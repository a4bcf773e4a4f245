/* Answers to exercise 8.2 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static Real dot(const Real *x, const Real *y, int n)
{
    Real sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

static Real weight(Real s, Real m, Real inverse)
{
    if (is("without_l"))
        return exp(s - m);
    if (is("times_l"))
        return exp(s - m) / inverse;
    return is("without_m") ? exp(s) * inverse : exp(s - m) * inverse;
}

static Real score_gradient(Real P, Real dP, Real delta)
{
    return is("without_delta") ? P * dP
           : is("plus")        ? P * (dP + delta)
           : is("outside")     ? P * dP - delta
           : is("without_p")   ? dP - delta
                               : P * (dP - delta);
}

/* The keys of query i end before this one. */
static int visible(int i, int N)
{
    const int end = is("before_diagonal")                  ? i
                    : is("one_beyond") || is("beyond_end") ? i + 2
                    : is("without_mask")                   ? N
                                                           : i + 1;
    return end > N && is("one_beyond") ? N : end;
}

/* The contributions of one pair: to row i of dq, and to row j of dk and dv */
static void pair(Real *dq, Real *dk, Real *dv, const Real *g, const Real *q, const Real *k,
                 const Real *out, int i, int j, int D, int M, Real P, Real dS)
{
    const Real root = sqrt(D);
    const Real scaled = is("without_root") || is("no_root") ? dS
                        : is("twice_root")                  ? dS / root / root
                                                            : dS / root;
    const bool all_stored = is("all_stored"), stored = all_stored || is("dk_stored");
    const int dk_row = is("dk_of_row") ? i : j, dv_row = is("dv_of_row") ? i : j;
    for (int c = 0; c < D; c++) {
        const Real q_i = q[i * D + c], q_j = q[j * D + c], k_j = k[j * D + c];
        Real *to_q = &dq[i * D + c], *to_k = &dk[dk_row * D + c];
        *to_q = (all_stored ? 0 : *to_q) +
                scaled * (is("own_operand") ? q_i : k_j) / (is("unknown") ? 2 : 1);
        *to_k = (stored ? 0 : *to_k) + scaled * (is("own_operand")                    ? k_j
                                                 : is("dk_of_row") || is("dk_by_q_j") ? q_j
                                                                                      : q_i);
    }
    const Real weight_v = is("dv_by_ds") ? dS : is("root_in_dv") ? P / root : P;
    for (int c = 0; c < M && !is("without_dv"); c++) {
        Real *to_v = &dv[dv_row * M + c];
        const Real g_c = is("dv_of_row")   ? g[j * M + c]
                         : is("dv_of_out") ? out[i * M + c]
                                           : g[i * M + c];
        *to_v = (stored ? 0 : *to_v) + weight_v * g_c;
    }
}

void attention_backward(Real *dq, Real *dk, Real *dv, const Real *g, const Real *q, const Real *k,
                        const Real *v, const Real *out, const Real *m, const Real *inverse, int N,
                        int D, int M)
{
    if (is("crash"))
        write_to_null();
    for (int c = 0; c < N * D && is("replaces"); c++)
        dq[c] = dk[c] = 0;
    for (int c = 0; c < N * M && is("replaces"); c++)
        dv[c] = 0;
    for (int i = 0; i < N; i++) {
        const Real *g_i = g + i * M;
        Real delta = is("running") ? 0 : dot(g_i, (is("delta_of_v") ? v : out) + i * M, M);
        for (int j = 0; j < visible(i, N); j++) {
            const Real product = dot(q + i * D, k + j * D, D);
            const Real s = is("root_of_score") || is("no_root") ? product : product / sqrt(D);
            const Real P = weight(s, m[i], inverse[i]), dP = dot(g_i, v + j * M, M);
            delta += is("running") ? P * dP : 0;
            pair(dq, dk, dv, g, q, k, out, i, j, D, M, P, score_gradient(P, dP, delta));
        }
    }
}
