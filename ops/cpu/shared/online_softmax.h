/* Online softmax of score tiles.
 *
 * A score tile is stored transposed, [keys, columns]: the maxima m and sums l of consecutive
 * queries are contiguous, and no vector is summed horizontally. The derivation is in
 * ops/attention/softmax/softmax.c. weight [keys, columns]: each term's factor, 0 where the query
 * does not see the key; without it, all are 1. weighted is a compile-time constant. */
#ifndef TAPEGRAD_OPS_SHARED_ONLINE_SOFTMAX_CPU_H
#define TAPEGRAD_OPS_SHARED_ONLINE_SOFTMAX_CPU_H

#include "ops/cpu/shared/tiles.h"

/* m = max(m, s), for one key and all queries. */
ALWAYS_INLINE void raise_maxima(bool weighted, Real *restrict m, const Real *restrict s,
                                const Real *restrict weight, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++)
        m[i] = ((!weighted || weight[i] > 0) & (s[i] > m[i])) ? s[i] : m[i];
}

/* s = e^(s - m) weight and l += s, for one key and all queries. */
ALWAYS_INLINE void exponentiate(bool weighted, Real *restrict s, Real *restrict l,
                                const Real *restrict m, const Real *restrict weight,
                                int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        Real power = flush_factor(real_exp(s[i] - m[i]));
        if (weighted) {
            power *= weight[i];
            power = weight[i] > 0 ? power : 0;
        }
        s[i] = power;
        l[i] += power;
    }
}

/* What online softmax knows of consecutive queries after some of their keys. */
typedef struct OnlineSoftmax {
    Real *m, *l; /* [columns] */
    Real *out;   /* [queries, M] */
    int64_t queries, columns, M;
    Real *buffer; /* [columns] */
} OnlineSoftmax;

/* One step of online softmax: updates m, P = e^(s - m) weight, rescales l and out to the new m, and
 * adds the tile's terms to l. */
ALWAYS_INLINE void online_softmax(bool weighted, OnlineSoftmax q, Real *P, const Real *weight,
                                  int64_t keys)
{
    const int64_t columns = q.columns;
    Real *restrict factor = q.buffer;
    memcpy(factor, q.m, (size_t)columns * sizeof *q.m);
    for (int64_t j = 0; j < keys; j++)
        raise_maxima(weighted, q.m, P + j * columns, weighted ? weight + j * columns : NULL,
                     columns);
    for (int64_t i = 0; i < columns; i++) {
        factor[i] = real_exp(factor[i] - q.m[i]);
        q.l[i] *= factor[i];
    }
    for (int64_t j = 0; j < keys; j++)
        exponentiate(weighted, P + j * columns, q.l, q.m, weighted ? weight + j * columns : NULL,
                     columns);
    for (int64_t i = 0; i < q.queries; i++)
        for (int64_t c = 0; c < q.M; c++)
            q.out[i * q.M + c] *= factor[i];
}

/* P = e^(s - m) weight from s and dS = P (dP - D) from dP, in place, for one key and all queries;
 * D: g.out of each query, where g is divided by l, and so are dP and D. */
ALWAYS_INLINE void score_gradients(bool weighted, Real *restrict P, Real *restrict dS,
                                   const Real *restrict m, const Real *restrict D,
                                   const Real *restrict weight, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        Real power = flush_factor(real_exp(P[i] - m[i]));
        if (weighted)
            power *= weight[i];
        const Real dscore = power * (dS[i] - D[i]);
        P[i] = !weighted || weight[i] > 0 ? power : 0;
        dS[i] = !weighted || weight[i] > 0 ? dscore : 0;
    }
}

#endif
