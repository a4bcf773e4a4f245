/* The chunks of linear attention on the CPU, in the order of a scan, and their rows of tensors. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_CPU_H

#include "ops/cpu/attention/linear/items.h"

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

#endif
