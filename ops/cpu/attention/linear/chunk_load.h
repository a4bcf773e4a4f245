/* The rows of a chunk: from tensors to the packed operands of a scan. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_LOAD_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_LOAD_CPU_H

#include "ops/cpu/attention/linear/chunk.h"
#include "ops/cpu/shared/feature_map.h"

/* a = phi(q) */
static Matrix load_a(const HeadChunk *c)
{
    const ScanPlan *p = c->item->plan;
    const Matrix a = c->item->buffers.a;
    const Rows query = query_rows(c, p->x->query);
    pack_mapped(p->options->features, a.data, &query, a.columns);
    return a;
}

/* b = phi(k); 0 for masked keys, which may be NaN */
static Matrix load_b(const HeadChunk *c)
{
    const ScanPlan *p = c->item->plan;
    const Matrix b = c->item->buffers.b;
    const Rows key = unmasked(c, key_rows(c, p->x->key));
    pack_mapped(p->options->features, b.data + c->first_key * b.columns, &key, b.columns);
    zero_masked_keys(c, b);
    return b;
}

/* v~ = [v, 1], where v is 0 for masked keys, which may be NaN */
static Matrix load_v(const HeadChunk *c)
{
    const Matrix v = c->item->buffers.v;
    const Rows value = unmasked(c, value_rows(c, c->item->plan->x->value));
    pack(v.data + c->first_key * v.columns, &value, v.columns, 1, 0);
    zero_masked_keys(c, v);
    for (int64_t i = 0; v.last && i < c->scan.count; i++)
        v.last[i] = 1;
    return v;
}

/* dnum_i = g_i / den_i, or g_i if there is no divisor, times factor_i if it is not NULL; dden is
 * not set yet */
static Matrix load_dnum(const HeadChunk *c, const Real *dout, const Real *den, const Real *factor)
{
    const Matrix dnum = c->item->buffers.dnum;
    const Rows g = out_rows(c, dout);
    const int64_t stride = den_stride(c);
    pack(dnum.data, &g, dnum.columns, 1, 0);
    for (int64_t i = 0; (den || factor) && i < g.count; i++)
        scale_row(dnum, i,
                  (factor ? factor[i] : 1) / (den ? den[den_at(c) + i * stride] : (Real)1));
    return dnum;
}

/* dden_i = -dnum_i.out_i, the last column of dnum~ */
static void compute_dden(const HeadChunk *c, Matrix dnum, const Real *out)
{
    const int64_t M = dnum.columns;
    const Rows rows = out_rows(c, out);
    Real *packed = c->item->buffers.result.data;
    if (!dnum.last)
        return;
    pack(packed, &rows, M, 1, 0);
    for (int64_t i = 0; i < c->scan.count; i++)
        dnum.last[i] = -dot(dnum.data + i * M, packed + i * M, M);
}

/* Saves dden in the order of positions; load_dden may read it in reverse. */
static Real *saved_dden(const HeadChunk *c)
{
    const ScanItem *item = c->item;
    const int64_t span = dden_span(item->plan);
    return item->buffers.dden + (c->head - item->first_head) * span + c->position % span;
}

static void save_dden(const HeadChunk *c, Matrix dnum)
{
    const Real *lower = c->item->buffers.lower; /* dnum~ is raised */
    for (int64_t i = 0; dnum.last && i < c->scan.count; i++)
        saved_dden(c)[i] = dnum.last[i] * (lower ? lower[i] : 1);
}

static void load_dden(const HeadChunk *c, Matrix dnum)
{
    const Real *dden = saved_dden(c), *lower = c->item->buffers.lower;
    for (int64_t i = 0; dnum.last && i < c->scan.count; i++)
        dnum.last[i] = dden[i * c->range.direction] * (lower ? lower[i] : 1);
}

#endif
