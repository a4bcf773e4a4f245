/* For program.c and row.c: causal attention of one head in tiles, forward and backward. The N x N
 * matrices of the page do not exist here, only their tiles of T x T. */
#ifndef TILES_ATTENTION_H
#define TILES_ATTENTION_H

#include <math.h>
#include <string.h>

enum { N = 4, T = 2, D = 2, M = 2 };

typedef struct Head {
    double q[N][D], k[N][D], v[N][M];
    double out[N][M], m[N], inverse[N]; /* inverse: 1 / l */
} Head;

static inline double dot(const double *x, const double *y, int n)
{
    double sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* One step of online softmax: adds a tile of n scores and their values to m, l and o. */
static inline void add_tile(double *m, double *l, double *o, const double *s, const double (*v)[M],
                            int n)
{
    double larger = *m;
    for (int j = 0; j < n; j++)
        larger = fmax(larger, s[j]);
    const double factor = exp(*m - larger);
    *m = larger;
    *l *= factor;
    for (int c = 0; c < M; c++)
        o[c] *= factor;
    for (int j = 0; j < n; j++) {
        const double power = exp(s[j] - *m);
        *l += power;
        for (int c = 0; c < M; c++)
            o[c] += power * v[j][c];
    }
}

/* s = the scores of query i and the keys j <= i of the tile from `first` on; returns how many. */
static inline int score_row(double *s, const Head *a, int i, int first)
{
    int n = 0;
    for (int j = first; j < first + T && j <= i; j++)
        s[n++] = dot(a->q[i], a->k[j], D) / sqrt(D);
    return n;
}

/* Computes out, m and 1 / l from q, k and v. */
static inline void attention_forward(Head *a)
{
    memset(a->out, 0, sizeof a->out); /* o, then o / l */
    for (int query = 0; query < N; query += T) {
        double l[T] = { 0 };
        for (int i = query; i < query + T; i++)
            a->m[i] = -INFINITY;
        for (int key = 0; key <= query; key += T) /* the tiles up to the diagonal */
            for (int i = query; i < query + T; i++) {
                double s[T];
                const int n = score_row(s, a, i, key);
                add_tile(&a->m[i], &l[i - query], a->out[i], s, &a->v[key], n);
            }
        for (int i = query; i < query + T; i++) {
            a->inverse[i] = 1 / l[i - query];
            for (int c = 0; c < M; c++)
                a->out[i][c] *= a->inverse[i];
        }
    }
}

/* dq, dk, dv of d <- from g = dL/dout, tile by tile */
static inline void attention_backward(Head *d, const Head *a, const double (*g)[M])
{
    for (int query = 0; query < N; query += T)
        for (int key = 0; key <= query; key += T)
            for (int i = query; i < query + T; i++) {
                double s[T];
                const int n = score_row(s, a, i, key);
                const double delta = dot(g[i], a->out[i], M);
                for (int j = key; j < key + n; j++) {
                    const double P = exp(s[j - key] - a->m[i]) * a->inverse[i];
                    const double dS = P * (dot(g[i], a->v[j], M) - delta);
                    for (int c = 0; c < M; c++)
                        d->v[j][c] += P * g[i][c];
                    for (int c = 0; c < D; c++) {
                        d->q[i][c] += dS * a->k[j][c] / sqrt(D);
                        d->k[j][c] += dS * a->q[i][c] / sqrt(D);
                    }
                }
            }
}

#endif
