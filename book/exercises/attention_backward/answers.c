/* Answers to exercise 8.2, compiled with -Dright, -Dplus, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>
#include <stddef.h>

#ifdef all_stored
#define ADD =
#else
#define ADD +=
#endif
#if defined dk_stored || defined all_stored
#define ADD_K =
#else
#define ADD_K +=
#endif

#ifdef before_diagonal
#define VISIBLE j < i
#elif defined one_beyond
#define VISIBLE j <= i + 1 && j < N
#elif defined beyond_end
#define VISIBLE j <= i + 1
#elif defined without_mask
#define VISIBLE j < N
#else
#define VISIBLE j <= i
#endif

#ifdef without_l
#define P_IJ exp(s - m[i])
#elif defined times_l
#define P_IJ exp(s - m[i]) / inverse[i]
#elif defined without_m
#define P_IJ exp(s) * inverse[i]
#else
#define P_IJ exp(s - m[i]) * inverse[i]
#endif

#ifdef without_delta
#define DS_IJ P *dP
#elif defined plus
#define DS_IJ P *(dP + delta)
#elif defined outside
#define DS_IJ (P * dP - delta)
#elif defined without_p
#define DS_IJ (dP - delta)
#else
#define DS_IJ P *(dP - delta)
#endif

#if defined without_root || defined no_root
#define OF_ROOT
#elif defined twice_root
#define OF_ROOT / D
#else
#define OF_ROOT / sqrt(D)
#endif

static Real dot(const Real *x, const Real *y, int n)
{
    Real sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

#ifdef replaces
static void clear(Real *values, int n)
{
    for (int i = 0; i < n; i++)
        values[i] = 0;
}
#endif

void attention_backward(Real *dq, Real *dk, Real *dv, const Real *g, const Real *q, const Real *k,
                        const Real *v, const Real *out, const Real *m, const Real *inverse, int N,
                        int D, int M)
{
#ifdef replaces
    clear(dq, N * D);
    clear(dk, N * D);
    clear(dv, N * M);
#elif defined crash
    *(volatile Real *)NULL = 0;
#endif
    for (int i = 0; i < N; i++) {
#ifdef delta_of_v
        const Real delta = dot(g + i * M, v + i * M, M);
#elif defined running
        Real delta = 0;
#else
        const Real delta = dot(g + i * M, out + i * M, M);
#endif
        for (int j = 0; VISIBLE; j++) {
#if defined root_of_score || defined no_root
            const Real s = dot(q + i * D, k + j * D, D);
#else
            const Real s = dot(q + i * D, k + j * D, D) / sqrt(D);
#endif
            const Real P = P_IJ, dP = dot(g + i * M, v + j * M, M);
#ifdef running
            delta += P * dP;
#endif
            const Real dS = DS_IJ OF_ROOT;
            for (int c = 0; c < D; c++) {
#ifdef own_operand
                dq[i * D + c] ADD dS *q[i * D + c];
                dk[j * D + c] ADD_K dS *k[j * D + c];
#elif defined dk_of_row
                dq[i * D + c] ADD dS *k[j * D + c];
                dk[i * D + c] ADD_K dS *q[j * D + c];
#elif defined dk_by_q_j
                dq[i * D + c] ADD dS *k[j * D + c];
                dk[j * D + c] ADD_K dS *q[j * D + c];
#elif defined unknown
                dq[i * D + c] ADD dS *k[j * D + c] / 2;
                dk[j * D + c] ADD_K dS *q[i * D + c];
#else
                dq[i * D + c] ADD dS *k[j * D + c];
                dk[j * D + c] ADD_K dS *q[i * D + c];
#endif
            }
            for (int c = 0; c < M; c++) {
#ifdef dv_of_row
                dv[i * M + c] ADD_K P *g[j * M + c];
#elif defined dv_by_ds
                dv[j * M + c] ADD_K DS_IJ *g[i * M + c];
#elif defined root_in_dv
                dv[j * M + c] ADD_K P / sqrt(D) * g[i * M + c];
#elif defined dv_of_out
                dv[j * M + c] ADD_K P *out[i * M + c];
#elif !defined without_dv
                dv[j * M + c] ADD_K P *g[i * M + c];
#endif
            }
        }
    }
}
