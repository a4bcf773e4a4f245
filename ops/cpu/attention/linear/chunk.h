/* The chunks of linear attention on the CPU: loading their rows, and storing their results. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_CPU_H

#include "ops/cpu/shared/feature_map.h"
#include "ops/cpu/attention/linear/plan.h"

/* The order in which positions are scanned: scan and scan_reverse of causal_linear.c. */
typedef enum Direction { SCAN = 1, SCAN_REVERSE = -1 } Direction;

/* Positions [begin, end) of an item's sequence, to be scanned. */
typedef struct ScanRange {
    int64_t begin, end;
    Direction direction;
    bool zero_before, state_after; /* of the whole range, as in Scan */
} ScanRange;

/* Some of these positions, in one head. Rows are packed in the order of the scan. */
typedef struct HeadChunk {
    const ScanItem *item;
    ScanRange range;
    int64_t head, position;     /* the first position in the order of the scan */
    int64_t first_key, end_key; /* the packed rows whose keys are unmasked */
    bool is_first, is_last;     /* of the range */
    Scan scan;
} HeadChunk;

/* n clamped to [0, count] */
static int64_t clamp_count(int64_t n, int64_t count)
{
    return minimum(maximum(n, 0), count);
}

/* Moves to the positions after the first `done` ones of the range. */
static void select_positions(HeadChunk *c, int64_t done)
{
    const ScanRange r = c->range;
    const int64_t left = r.end - r.begin - done, rows = c->item->plan->rows;
    const int64_t count = clamp_count(left, rows), keys = c->item->keys;
    const bool reverse = r.direction == SCAN_REVERSE;
    c->position = reverse ? r.end - 1 - done : r.begin + done;
    c->first_key = reverse ? clamp_count(c->position + 1 - keys, count) : 0;
    c->end_key = reverse ? count : clamp_count(keys - c->position, count);
    c->scan.count = count;
    c->is_first = done == 0;
    c->is_last = left <= rows;
    c->scan.zero_before = r.zero_before && c->is_first;
    c->scan.state_after = r.state_after || !c->is_last;
}

/* The chunks of a range in the order of the scan, each one for every head of the item. The last
 * call leaves a chunk without positions. */
static HeadChunk first_chunk(const ScanItem *item, ScanRange range)
{
    HeadChunk c = { .item = item, .range = range, .head = item->first_head };
    c.scan.method = item->plan->method;
    c.scan.result = item->buffers.result;
    c.scan.workspace = item->buffers.workspace;
    select_positions(&c, 0);
    return c;
}

static void next_chunk(HeadChunk *c)
{
    c->head++;
    if (c->head < c->item->end_head)
        return;
    const ScanRange r = c->range;
    const int64_t done =
        r.direction == SCAN_REVERSE ? r.end - 1 - c->position : c->position - r.begin;
    c->head = c->item->first_head;
    select_positions(c, done + c->scan.count);
}

/* ------------------------------------------------------------------------------ rows of tensors */

/* The chunk's rows of a tensor with `columns` elements per head; start: the sequence's first row */
ALWAYS_INLINE Rows chunk_rows(const HeadChunk *c, const Real *data, int64_t start, int64_t stride,
                              int64_t columns)
{
    const int type = c->item->plan->type;
    const int64_t at = (start + c->position) * stride + c->head * columns;
    return (Rows){ type, elements_at(type, data, at), c->range.direction * stride, c->scan.count,
                   columns };
}

/* The chunk's rows of a tensor like query, key, value, out. */
static Rows query_rows(const HeadChunk *c, const Real *query)
{
    const AttentionInputs *x = c->item->plan->x;
    return chunk_rows(c, query, c->item->query_row, x->query_stride, x->D);
}
static Rows key_rows(const HeadChunk *c, const Real *key)
{
    const AttentionInputs *x = c->item->plan->x;
    return chunk_rows(c, key, c->item->key_row, x->key_stride, x->D);
}
static Rows value_rows(const HeadChunk *c, const Real *value)
{
    const AttentionInputs *x = c->item->plan->x;
    return chunk_rows(c, value, c->item->key_row, x->value_stride, x->M);
}
static Rows out_rows(const HeadChunk *c, const Real *out)
{
    const AttentionInputs *x = c->item->plan->x;
    return chunk_rows(c, out, c->item->query_row, x->H * x->M, x->M);
}

/* The offset of the chunk's first row in den [B, N, H], and the stride of its rows. */
ALWAYS_INLINE int64_t den_at(const HeadChunk *c)
{
    return (c->item->query_row + c->position) * c->item->plan->x->H + c->head;
}
ALWAYS_INLINE int64_t den_stride(const HeadChunk *c)
{
    return c->range.direction * c->item->plan->x->H;
}

/* Those of the chunk's rows whose keys are unmasked. */
static Rows unmasked(const HeadChunk *c, Rows rows)
{
    rows.data = elements_at(rows.type, rows.data, c->first_key * rows.stride);
    rows.count = c->end_key - c->first_key;
    return rows;
}

static void zero_masked_keys(const HeadChunk *c, Matrix rows)
{
    const size_t row = (size_t)rows.columns * sizeof(Real);
    memset(rows.data, 0, (size_t)c->first_key * row);
    memset(rows.data + c->end_key * rows.columns, 0, (size_t)(c->scan.count - c->end_key) * row);
}

/* ---------------------------------------------------------------------------------------- loads */

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

/* --------------------------------------------------------------------------------------- stores */

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
