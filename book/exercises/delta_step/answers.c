/* Answers to exercise 10.1 */
#include "exercise.h"
#include "../answer.h"

/* Element m of S^T x; where it is flipped, of S read as M rows of D elements */
static Real answer(const Real *S, const Real *x, int m, int D, int M, bool flipped)
{
    Real sum = 0;
    for (int d = 0; d < D; d++)
        sum += S[flipped ? m * D + d : d * M + m] * x[d];
    return sum;
}

/* u_m from v_m, the old answer and |k|^2 */
static Real correction(Real v, Real old, Real beta, Real squares)
{
    return is("no_old")        ? v
           : is("sum_beta")    ? beta * v
           : is("no_beta")     ? v - old
           : is("beta_of_v")   ? beta * v - old
           : is("beta_of_old") ? v - beta * old
           : is("beta_twice")  ? beta * beta * (v - old)
           : is("sign")        ? beta * (old - v)
           : is("divided")     ? beta * (v - old) / squares
                               : beta * (v - old);
}

static void update(Real *S, const Real *k, const Real *v, const Real *u, Real beta, int D, int M)
{
    for (int d = 0; d < D; d++)
        for (int m = 0; m < M; m++) {
            Real *S_dm = &S[is("all_indices") ? m * D + d : d * M + m];
            const Real late = correction(v[m], answer(S, k, m, D, M, false), beta, 1);
            *S_dm = (is("lost")    ? 0
                     : is("moved") ? (1 - beta) * *S_dm
                                   : *S_dm) +
                    k[d] * (is("late") ? late : u[m]) + is("unknown");
        }
}

void delta_step(Real *out, Real *S, const Real *k, const Real *v, const Real *q, Real beta, int D,
                int M)
{
    const bool flipped = is("all_indices");
    Real u[MAX_M + 1], early[MAX_M + 1];
    if (is("crash"))
        write_to_null();
    for (int m = 0; m < M; m++) {
        const Real old = answer(S, is("at_query") ? q : k, m, D, M, flipped || is("other_indices"));
        u[m] = correction(v[m], old, beta, answer(k, k, 0, D, 1, false));
        early[m] = answer(S, q, m, D, M, false);
    }
    if (!is("unchanged"))
        update(S, k, v, u, beta, D, M);
    for (int m = 0; m < M + is("loop_end") && !is("no_out"); m++)
        out[m] = is("early")      ? early[m]
                 : is("asks_key") ? answer(S, k, m, D, M, false)
                                  : answer(S, q, m, D, M, flipped) + (is("added") ? out[m] : 0);
}
