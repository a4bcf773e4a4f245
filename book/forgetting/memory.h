/* A state S [D, M], row-major, that maps keys of D elements to values of M elements. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

static bool failed;

static inline double dot(const double *x, const double *y, int n)
{
    double sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* S <- factor S + k u^T */
static inline void update(double *S, double factor, const double *k, const double *u, int D, int M)
{
    for (int d = 0; d < D; d++)
        for (int m = 0; m < M; m++)
            S[d * M + m] = factor * S[d * M + m] + k[d] * u[m];
}

/* out = S^T k */
static inline void answer(double *out, const double *S, const double *k, int D, int M)
{
    for (int m = 0; m < M; m++) {
        out[m] = 0;
        for (int d = 0; d < D; d++)
            out[m] += S[d * M + m] * k[d];
    }
}

/* out = S u */
static inline void apply(double *out, const double *S, const double *u, int D, int M)
{
    for (int d = 0; d < D; d++)
        out[d] = dot(S + d * M, u, M);
}

/* u = beta (v - S^T k)      S <- S + k u^T */
static inline void correct(double *S, double *u, const double *k, const double *v, double beta,
                           int D, int M)
{
    answer(u, S, k, D, M);
    for (int m = 0; m < M; m++)
        u[m] = beta * (v[m] - u[m]);
    update(S, 1, k, u, D, M);
}
