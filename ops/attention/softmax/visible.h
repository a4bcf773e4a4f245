/* Visible pairs of softmax attention: which columns j of the score matrix a row i sees, by the
 * causal mask, key lengths, and the window, sinks, prefix and documents of SoftmaxAttentionOptions
 * (ops.h). All kernels, of rows and of tiles, take them from here.
 *
 * The document of i has the positions start <= j < stop; n = i - start. Row i sees
 *     without the causal mask   start <= j < stop
 *     n < prefix                start <= j < start + prefix
 *     otherwise                 start <= j <= i  with  j < start + sinks  or  i - window < j
 * where also j < stop and j < keys. So there are at most two intervals: the sinks, first <= j <
 * sinks_end, and begin <= j < end, with first <= sinks_end <= begin <= end. Without sinks before
 * begin, first = sinks_end = begin.
 *
 * All four bounds ascend with i. Within a document, rows of the prefix have start, start, start and
 * start + prefix; later rows have start, min(start + sinks, begin), max(start, i + 1 - window) and
 * i + 1 > start + prefix; without sinks, begin in place of the first two. Bounds of the next
 * document are at least its start, the stop of this one. A minimum with keys keeps the order.
 *
 * Columns of a tile, of the rows from i to i': the sinks of row i, and from its begin to the end of
 * row i'. For let a row r of the tile see column j. If j >= begin_i, then j < end_r <= end_i'. Else
 * j < begin_i <= begin_r, so j is a sink of r, and start_r <= j < begin_i <= i <= r: rows i and r
 * are of one document, and j is a sink of row i too. A column that rows i and i' see within the
 * same one of their intervals is visible to all rows of the tile, because the bounds ascend.
 *
 * Rows of a column j, n = j - start: one interval. It begins at start for n < prefix, else at j. It
 * ends at stop for a sink; else at j + window, but for n < prefix not before start + prefix. Begins
 * ascend with j, and so do ends but for those of sinks. So the rows of a tile of columns end where
 * those of its last column do, or those of the first column of the same document in the tile, which
 * is a sink if any of them is. */
#ifndef TAPEGRAD_OPS_ATTENTION_SOFTMAX_VISIBLE_H
#define TAPEGRAD_OPS_ATTENTION_SOFTMAX_VISIBLE_H

#include "ops/attention/shared/arguments.h"

/* Whether more than the causal mask and key lengths decide which pairs are visible. */
static inline bool attention_is_limited(const AttentionInputs *a)
{
    return a->window > 0 || a->prefix > 0 || a->offsets;
}

/* The maximum of no scores. Where a tile may have none of a query's, with a mask or limited, it is
 * finite, because -infinity - -infinity is NaN. */
static inline Real attention_lowest(const AttentionInputs *a)
{
    return a->mask || attention_is_limited(a) ? -(Real)FLT_MAX : -(Real)INFINITY;
}

/* m and l of a row of head h before its first key: the sink's, or of no scores. */
typedef struct RowStart {
    Real m, l;
} RowStart;
SHARED_FUNCTION RowStart row_start(const Real *sink_logits, int64_t h, Real lowest)
{
    RowStart start = { lowest, 0 };
    if (sink_logits) {
        const Real s = sink_logits[h];
        start.m = s > -(Real)FLT_MAX ? s : -(Real)FLT_MAX;
        start.l = s == -(Real)INFINITY ? 0 : s - s + 1; /* 1, or NaN if s is */
    }
    return start;
}

/* What decides which pairs of a sequence are visible. */
typedef struct Visibility {
    bool causal;                   /* N = keys, or fewer keys by a key length */
    int64_t N, keys;               /* rows i < N see columns j < keys */
    int64_t window, sinks, prefix; /* with the causal mask alone; a window of 0: all */
    const int32_t *offsets;        /* [documents + 1], or NULL: one document */
    int64_t documents;
} Visibility;

/* Of sequence b. */
SHARED_FUNCTION Visibility visibility_of(const AttentionInputs *a, bool causal, int64_t b)
{
    const Visibility v = { causal,     a->N,        a->key_lengths ? a->key_lengths[b] : a->keys,
                           a->window,  a->sinks,    a->prefix,
                           a->offsets, a->documents };
    return v;
}

typedef struct VisibleColumns {
    int64_t first, sinks_end, begin, end;
} VisibleColumns;

/* begin <= position < end */
typedef struct PositionRange {
    int64_t begin, end;
} PositionRange;

SHARED_FUNCTION PositionRange document_of(const Visibility *v, int64_t position)
{
    PositionRange all = { 0, v->N > v->keys ? v->N : v->keys };
    if (!v->offsets)
        return all;
    int64_t low = 0, high = v->documents; /* offsets[low] <= position < offsets[high] */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (v->offsets[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    all.begin = v->offsets[low];
    all.end = v->offsets[high];
    return all;
}

/* The columns that row i sees. */
SHARED_FUNCTION VisibleColumns visible_columns(const Visibility *v, int64_t i)
{
    const PositionRange document = document_of(v, i);
    const int64_t start = document.begin, n = i - start;
    int64_t begin = start, end = document.end;
    if (v->causal && n >= v->prefix) {
        end = i + 1;
        begin = v->window > 0 && n >= v->window ? end - v->window : start;
    } else if (v->causal && start + v->prefix < end) {
        end = start + v->prefix;
    }
    end = end < v->keys ? end : v->keys;
    begin = begin < end ? begin : end;
    VisibleColumns columns = { begin, begin, begin, end };
    if (v->sinks > 0 && begin > start) {
        columns.first = start;
        columns.sinks_end = start + v->sinks < begin ? start + v->sinks : begin;
    }
    return columns;
}

/* The columns that the rows i <= row <= last see. */
SHARED_FUNCTION VisibleColumns visible_columns_of_tile(const Visibility *v, int64_t i, int64_t last)
{
    VisibleColumns columns = visible_columns(v, i);
    columns.end = visible_columns(v, last).end;
    return columns;
}

/* The next visible column above and below column j, of which visible_before(columns, end) is the
 * last one; below the first one: a number less than it. */
SHARED_FUNCTION int64_t visible_after(const VisibleColumns *columns, int64_t j)
{
    return j + 1 == columns->sinks_end ? columns->begin : j + 1;
}
SHARED_FUNCTION int64_t visible_before(const VisibleColumns *columns, int64_t j)
{
    return j == columns->begin ? columns->sinks_end - 1 : j - 1;
}

/* Whether all columns begin <= j < end are visible to all rows from the one that sees `first` to
 * the one that sees `last`. */
SHARED_FUNCTION bool all_visible(const VisibleColumns *first, const VisibleColumns *last,
                                 int64_t begin, int64_t end)
{
    return (last->begin <= begin && end <= first->end) ||
           (last->first <= begin && end <= first->sinks_end);
}

/* The rows that see column j < keys. */
SHARED_FUNCTION PositionRange visible_rows(const Visibility *v, int64_t j)
{
    const PositionRange document = document_of(v, j);
    const int64_t start = document.begin, n = j - start;
    PositionRange rows = { v->causal && n >= v->prefix ? j : start, document.end };
    if (v->window > 0 && n >= v->sinks) {
        const int64_t end = j + v->window, prefix_end = start + v->prefix;
        const int64_t later = n < v->prefix && end < prefix_end ? prefix_end : end;
        rows.end = later < rows.end ? later : rows.end;
    }
    rows.end = rows.end < v->N ? rows.end : v->N;
    return rows;
}

/* The rows that see any of the columns j <= column <= last. */
SHARED_FUNCTION PositionRange visible_rows_of_tile(const Visibility *v, int64_t j, int64_t last)
{
    const int64_t start = document_of(v, last).begin;
    const PositionRange of_last = visible_rows(v, last);
    const PositionRange of_first = visible_rows(v, j < start ? start : j);
    PositionRange rows = visible_rows(v, j);
    rows.end = of_last.end > of_first.end ? of_last.end : of_first.end;
    return rows;
}

#endif
