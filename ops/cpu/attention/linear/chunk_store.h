/* The results of a chunk's scan: from packed rows to out and gradients. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_STORE_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_STORE_CPU_H

#include "ops/cpu/attention/linear/chunk.h"
#include "ops/cpu/shared/feature_map.h"

/* These rows of a gradient or result <- from. */
ALWAYS_INLINE void store_rows(Rows rows, bool accumulate, Matrix from)
{
    const Gradient d = { elements_at(rows.type, rows.data, 0), accumulate };
    unpack(&(GradientRows){ rows.type, d, rows.stride, rows.count, rows.columns }, from.data,
           from.columns, 1, 0);
}

/* den_i = num~_i[M] + eps     out_i = num_i / den_i, or num_i if there is no divisor;
 * with a decay num~ is yet to be raised */
static void store_num_over_den(const HeadChunk *c, Real *out, Real *new_den, Matrix num)
{
    const Real eps = c->item->plan->options->eps;
    const Real *factor = c->item->buffers.raise;
    const int64_t count = c->scan.count, stride = den_stride(c);
    for (int64_t i = 0; (num.last || factor) && i < count; i++) {
        const Real raise = factor ? factor[i] : 1;
        const Real den = num.last ? num.last[i] * raise + eps : 1;
        if (num.last)
            new_den[den_at(c) + i * stride] = den;
        scale_row(num, i, raise / den);
    }
    store_rows(out_rows(c, out), false, num);
}

/* dq_i <- da_i phi'(q_i) */
static void store_dquery(const HeadChunk *c, Gradient dquery, Matrix da, Matrix a)
{
    if (!dquery.data)
        return;
    feature_map_backward(c->item->plan->options->features, da.data, a.data,
                         c->scan.count * a.columns);
    store_rows(query_rows(c, dquery.data), dquery.accumulate, da);
}

/* dk_j <- db_j phi'(k_j), and 0 for masked keys */
static void store_dkey(const HeadChunk *c, Gradient dkey, Matrix db, Matrix b)
{
    if (!dkey.data)
        return;
    feature_map_backward(c->item->plan->options->features, db.data, b.data,
                         c->scan.count * b.columns);
    zero_masked_keys(c, db);
    store_rows(key_rows(c, dkey.data), dkey.accumulate, db);
}

/* dv_j, and 0 for masked keys */
static void store_dvalue(const HeadChunk *c, Gradient dvalue, Matrix dv)
{
    if (!dvalue.data)
        return;
    zero_masked_keys(c, dv);
    store_rows(value_rows(c, dvalue.data), dvalue.accumulate, dv);
}

#endif
