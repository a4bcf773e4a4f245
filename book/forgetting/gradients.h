/* The page's gradients of a decay and of the delta rule, for one small example. */
#include "memory.h"

enum { N = 4, D = 2, M = 2, INPUTS = N * (2 * D + M + 2) };
typedef struct Inputs { /* or their gradients */
    double q[N][D], k[N][D], v[N][M], beta[N], l[N];
} Inputs;
typedef double State[D * M];

static const Inputs X = { .q = { { 1, 0 }, { 0, 1 }, { 1, 1 }, { 1, -1 } },
                          .k = { { 1, 0 }, { 0.6, 0.8 }, { 0, 1 }, { 1, 0 } },
                          .v = { { 1, 2 }, { -1, 1 }, { 2, 0 }, { 0, -1 } },
                          .beta = { 1, 0.5, 1, 0.8 },
                          .l = { -1, -0.5, -0.1, -0.2 } };
static const double G[N][M] = { { 1, 0 }, { -1, 1 }, { 0.5, -1 }, { 1, 1 } }; /* dL/dout */

/* Returns L. S[i + 1] is the state after position i; Z[i] the decayed state before it. */
static double forward(bool delta, const Inputs *x, State S[N + 1], State Z[N], double u[N][M])
{
    double out[M], L = 0;
    memset(S[0], 0, sizeof S[0]);
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < D * M; c++)
            S[i + 1][c] = Z[i][c] = exp(x->l[i]) * S[i][c];
        memcpy(u[i], x->v[i], sizeof u[i]);
        if (delta)
            correct(S[i + 1], u[i], x->k[i], x->v[i], x->beta[i], D, M);
        else
            update(S[i + 1], 1, x->k[i], u[i], D, M);
        answer(out, S[i + 1], x->q[i], D, M);
        L += dot(G[i], out, M);
    }
    return L;
}

/* The formulas of the page; telescoped and strict are dl in the two other ways. */
static void decay_backward(const Inputs *x, Inputs *d, double *telescoped, double *strict)
{
    State S[N + 1], Z[N], R[N + 1] = { { 0 } }; /* R[i]: R'_i, then R_i */
    double u[N][M], Zg[D], Rv[D], sum = 0;
    forward(false, x, S, Z, u);
    for (int i = N - 1; i >= 0; i--) {
        for (int c = 0; c < D * M; c++)
            R[i][c] = i < N - 1 ? exp(x->l[i + 1]) * R[i + 1][c] : 0;
        apply(Zg, Z[i], G[i], D, M);
        apply(Rv, R[i], x->v[i], D, M);
        strict[i] = dot(x->k[i], Rv, D) - dot(x->q[i], Zg, D); /* dl_{i+1} - dl_i */
        update(R[i], 1, x->q[i], G[i], D, M);
        apply(d->q[i], S[i + 1], G[i], D, M);
        apply(d->k[i], R[i], x->v[i], D, M);
        answer(d->v[i], R[i], x->k[i], D, M);
        d->l[i] = dot(Z[i], R[i], D * M);
        telescoped[i] = sum += dot(x->q[i], d->q[i], D) - dot(x->k[i], d->k[i], D);
    }
    double dl = dot(Z[0], R[0], D * M);
    for (int i = 0; i < N; i++) {
        const double difference = strict[i];
        strict[i] = dl;
        dl += difference;
    }
}

static void delta_backward(const Inputs *x, Inputs *d)
{
    State S[N + 1], Z[N], R = { 0 };
    double u[N][M], du[M], Zdv[D];
    forward(true, x, S, Z, u);
    for (int i = N - 1; i >= 0; i--) {
        update(R, 1, x->q[i], G[i], D, M);
        apply(d->q[i], S[i + 1], G[i], D, M);
        answer(du, R, x->k[i], D, M);
        answer(d->v[i], Z[i], x->k[i], D, M); /* for now the old answer */
        d->beta[i] = dot(du, x->v[i], M) - dot(du, d->v[i], M);
        for (int m = 0; m < M; m++)
            d->v[i][m] = x->beta[i] * du[m];
        apply(d->k[i], R, u[i], D, M);
        apply(Zdv, Z[i], d->v[i], D, M);
        for (int c = 0; c < D; c++)
            d->k[i][c] -= Zdv[c];
        for (int c = 0; c < D * M; c++)
            R[c] -= x->k[i][c / M] * d->v[i][c % M];
        d->l[i] = dot(Z[i], R, D * M);
        for (int c = 0; c < D * M; c++)
            R[c] *= exp(x->l[i]);
    }
}
