/* Gates in linear attention, derived by hand and compared with finite differences, for one sequence
 * and one head: a decay e^(l_i) of the state, l_i <= 0, and the delta rule's beta_i; v~ = [v, 1].
 * Each step is in book/forgetting/page.md.
 *
 *     attention:   S_i = e^(l_i) S_{i-1} + b_i v~_i^T   num~_i = S_i^T a_i   out_i = num_i / den_i
 *     delta rule:  S_i = e^(l_i) S_{i-1} + k_i u_i^T    u_i = beta_i (v_i - e^(l_i) S_{i-1}^T k_i)
 *                  out_i = S_i^T q_i                    (Yang et al. 2024, Gated Delta Networks) */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

enum { N = 6, D = 3, M = 2 };
typedef double State[D][M + 1];
typedef struct Inputs { /* or their gradients. a = phi(q), b = phi(k); of the delta rule: q and k */
    double a[N][D], b[N][D], v[N][M + 1], l[N], beta[N];
} Inputs;
enum { INPUTS = sizeof(Inputs) / sizeof(double) };

static double g[N][M]; /* dL/dout, where L = sum g out */

/* S <- factor S + x y^T */
static void update(State S, double factor, const double *x, const double *y)
{
    for (int c = 0; c < D; c++)
        for (int m = 0; m <= M; m++)
            S[c][m] = factor * S[c][m] + x[c] * y[m];
}

/* out = S^T x */
static void read_columns(State S, const double *x, double *out)
{
    memset(out, 0, (M + 1) * sizeof *out);
    for (int c = 0; c < D; c++)
        for (int m = 0; m <= M; m++)
            out[m] += S[c][m] * x[c];
}

static double dot(const double *x, const double *y, int count)
{
    double sum = 0;
    for (int c = 0; c < count; c++)
        sum += x[c] * y[c];
    return sum;
}

/* out = S y */
static void read_rows(State S, const double *y, double *out)
{
    for (int c = 0; c < D; c++)
        out[c] = dot(S[c], y, M + 1);
}

/* L. Unless d is NULL, *d = its gradients. */
static double attention(const Inputs *x, Inputs *d)
{
    double num[N][M + 1], dnum[N][M + 1], L = 0, dl = 0; /* num~, dL/dnum~ */
    State S[N + 1] = { { { 0 } } }, R = { { 0 } };       /* S[i + 1] follows position i */
    for (int i = 0; i < N; i++) {
        memcpy(S[i + 1], S[i], sizeof(State));
        update(S[i + 1], exp(x->l[i]), x->b[i], x->v[i]);
        read_columns(S[i + 1], x->a[i], num[i]);
        L += dot(g[i], num[i], M) / num[i][M];
        for (int m = 0; m < M; m++)
            dnum[i][m] = g[i][m] / num[i][M];
        dnum[i][M] = -dot(dnum[i], num[i], M) / num[i][M];
    }
    for (int i = N - 1; i >= 0 && d; i--) {
        update(R, i < N - 1 ? exp(x->l[i + 1]) : 0, x->a[i], dnum[i]); /* dL/dS_i */
        read_rows(S[i + 1], dnum[i], d->a[i]);
        read_rows(R, x->v[i], d->b[i]);
        read_columns(R, x->b[i], d->v[i]);
        /* dl_i = <e^(l_i) S_{i-1}, R_i>. Expand <S_i, R_i> by S_i's definition: dl_i + b_i.db_i; by
         * R_i's: a_i.da_i + dl_{i+1}. Hence one reverse cumulative sum: */
        d->l[i] = dl += dot(x->a[i], d->a[i], D) - dot(x->b[i], d->b[i], D);
    }
    return L;
}

/* The same of the delta rule, where the last column of u, S and R is 0. */
static double delta_rule(const Inputs *x, Inputs *d)
{
    double rest[N][M + 1], u[N][M + 1] = { { 0 } }, L = 0, dl = 0; /* rest: v_i - e^(l_i) S^T k_i */
    State S[N + 1] = { { { 0 } } }, R = { { 0 } };
    for (int i = 0; i < N; i++) {
        double out[M + 1];
        memcpy(S[i + 1], S[i], sizeof(State));
        read_columns(S[i], x->b[i], rest[i]);
        for (int m = 0; m < M; m++) {
            rest[i][m] = x->v[i][m] - exp(x->l[i]) * rest[i][m];
            u[i][m] = x->beta[i] * rest[i][m];
        }
        update(S[i + 1], exp(x->l[i]), x->b[i], u[i]);
        read_columns(S[i + 1], x->a[i], out);
        L += dot(g[i], out, M);
    }
    for (int i = N - 1; i >= 0 && d; i--) {
        const double g_i[M + 1] = { g[i][0], g[i][1] }, decay = exp(x->l[i]);
        double du[M + 1], minus_dv[M + 1] = { 0 }, through_u[D];
        update(R, 1, x->a[i], g_i); /* dL/dS_i */
        read_columns(R, x->b[i], du);
        for (int m = 0; m < M; m++)
            minus_dv[m] = -(d->v[i][m] = x->beta[i] * du[m]);
        d->beta[i] = dot(du, rest[i], M);
        read_rows(S[i + 1], g_i, d->a[i]);
        read_rows(R, u[i], d->b[i]); /* dk_i = R u_i - e^(l_i) S_{i-1} dv_i */
        read_rows(S[i], minus_dv, through_u);
        for (int c = 0; c < D; c++)
            d->b[i][c] += decay * through_u[c];
        update(R, 1, x->b[i], minus_dv);              /* dL/d(e^(l_i) S_{i-1}) */
        update(R, decay, (double[D]){ 0 }, minus_dv); /* R <- e^(l_i) R */
        /* S_i is linear in S_{i-1} and v_i together: <S_i, R_i> = dl_i + v_i.dv_i, and as above
         * = q_i.dq_i + dl_{i+1}. */
        d->l[i] = dl += dot(x->a[i], d->a[i], D) - dot(x->v[i], d->v[i], M);
    }
    return L;
}

/* Prints the largest difference of a gradient from (L(x + h) - L(x - h)) / 2h; returns whether it
 * is small. */
static bool check(const char *name, double (*f)(const Inputs *, Inputs *), Inputs x)
{
    const double h = 1e-5;
    Inputs d = { 0 };
    double *value = (double *)&x, *gradient = (double *)&d, largest = 0;
    f(&x, &d);
    for (int e = 0; e < INPUTS; e++) {
        const double saved = value[e];
        value[e] = saved + h;
        const double above = f(&x, NULL);
        value[e] = saved - h;
        largest = fmax(largest, fabs((above - f(&x, NULL)) / (2 * h) - gradient[e]));
        value[e] = saved;
    }
    printf("%-12s largest difference from finite differences %.1e\n", name, largest);
    return largest < 1e-7;
}

int main(void)
{
    Random random = random_new(/*seed*/ 1, random_stream("derive_gates"));
    Real host[INPUTS], upstream[N * M];
    Inputs x;
    random_normal(&random, host, INPUTS);
    random_normal(&random, upstream, N * M);
    for (int e = 0; e < INPUTS; e++)
        ((double *)&x)[e] = (double)host[e];
    for (int i = 0; i < N; i++) {
        x.v[i][M] = 1;
        x.l[i] = -log1p(exp(x.l[i]));          /* -softplus, below 0 */
        x.beta[i] = 2 / (1 + exp(-x.beta[i])); /* in (0, 2) */
        for (int m = 0; m < M; m++)
            g[i][m] = (double)upstream[i * M + m];
    }
    bool ok = check("delta rule", delta_rule, x);
    for (int e = 0; e < 2 * N * D; e++) /* a, b: phi(x) = e^x */
        ((double *)&x)[e] = exp(((double *)&x)[e]);
    ok &= check("attention", attention, x);
    return fflush(stdout) || ferror(stdout) || !ok;
}
