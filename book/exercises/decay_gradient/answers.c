/* Answers to exercise 10.2 */
#include "exercise.h"
#include "../answer.h"

static Real decay(Real l)
{
    return is("l_itself") ? l : is("growing") ? exp(-l) : exp(l);
}

static void scale(Real *x, Real factor, int n)
{
    for (int c = 0; c < n; c++)
        x[c] *= factor;
}

/* <X, x y^T> */
static Real form(const Real *X, const Real *x, const Real *y, int D, int M)
{
    Real product[MAX_DM] = { 0 };
    add_outer_product(product, x, y, D, M);
    return dot(X, product, D * M);
}

/* The sum of q.dq - k.dk from the last position, which is right, and faulty ones */
static void telescoped(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                       const Real *l, int N, int D, int M)
{
    Real term[MAX_N], S[MAX_DM] = { 0 }, R[MAX_DM] = { 0 }, sum = 0;
    for (int i = 0; i < N; i++) {
        scale(S, exp(l[i]), D * M);
        add_outer_product(S, k + i * D, v + i * M, D, M);
        term[i] = form(S, q + i * D, g + i * M, D, M);
    }
    for (int i = N - 1; i >= 0; i--) {
        add_outer_product(R, q + i * D, g + i * M, D, M);
        term[i] -= form(R, k + i * D, v + i * M, D, M);
        scale(R, exp(l[i]), D * M);
    }
    for (int n = 0; n < N; n++) {
        const int i = is("from_the_first") ? n : N - 1 - n;
        const Real before = sum;
        sum += term[i];
        dl[i] = is("terms") ? term[i] : is("minus") ? -sum : is("shifted") ? before : sum;
    }
}

/* What multiplies R_i in dl_i; S is the state before position i and becomes the one after it. */
static void state_step(Real *Z, Real *S, const Real *k, const Real *v, Real factor, int D, int M)
{
    const bool undecayed = is("undecayed") || is("undecayed_but_i") || is("undecayed_S");
    memcpy(Z, S, MAX_DM * sizeof *Z);
    scale(Z, is("no_factor") || is("undecayed") ? 1 : factor * (is("twice") ? factor : 1), D * M);
    scale(S, undecayed || is("own_decay") ? 1 : factor, D * M);
    add_outer_product(S, k, v, D, M);
    scale(S, is("own_decay") ? factor : 1, D * M);
    if (is("state_after") || is("factor_state_after")) {
        memcpy(Z, S, MAX_DM * sizeof *Z);
        scale(Z, is("state_after") ? 1 : factor, D * M);
    }
}

static void by_states(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                      const Real *l, int N, int D, int M)
{
    const bool undecayed = is("undecayed") || is("undecayed_but_i") || is("undecayed_R");
    const bool first = is("too_early") || is("forward_R"); /* R decays before it is read */
    Real Z[MAX_N][MAX_DM], S[MAX_DM] = { 0 }, R[MAX_DM] = { 0 };
    for (int i = 0; i < N; i++)
        state_step(Z[i], S, k + i * D, v + i * M, decay(l[i]), D, M);
    for (int n = 0; n < N; n++) {
        const int i = is("forward_R") ? n : N - 1 - n;
        scale(R, is("own_output") ? 0 : first ? decay(l[i]) : 1, D * M);
        const Real later = dot(Z[i], R, D * M);
        add_outer_product(R, q + i * D, g + i * M, D, M);
        dl[i] = is("later_outputs") ? later : dot(is("last_state") ? S : Z[i], R, D * M);
        scale(R, first || undecayed ? 1 : decay(l[i]), D * M);
    }
    dl[0] += is("unknown");
}

void decay_gradient(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                    const Real *l, int N, int D, int M)
{
    const bool sums =
        is("telescoped") || is("terms") || is("minus") || is("shifted") || is("from_the_first");
    if (is("loop_end"))
        dl[N] = 0;
    (sums ? telescoped : by_states)(dl, q, k, v, g, l, N - is("short_loop"), D, M);
}
