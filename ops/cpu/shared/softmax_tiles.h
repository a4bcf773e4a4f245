/* Tiles of online softmax on the CPU, for all positions of a head or a sorted selection: a tile of
 * queries iterates over tiles of keys, without the matrix [N, N]. The derivation is in
 * ops/attention/softmax/softmax.c.
 *
 * Operands are packed rows, padded with zeros to whole vectors: one kernel without edge cases,
 * product, computes all seven products. A score tile is stored transposed, [keys, queries]: the
 * maxima and sums of consecutive queries are contiguous, and no vector is summed
 * horizontally. In the backward pass g is divided by l (load_upstream), so that e^(s - m) serves as
 * P: dv_j = sum_i e^(s_ij - m_i) (g_i / l_i). */
#ifndef TAPEGRAD_OPS_SHARED_SOFTMAX_TILES_CPU_H
#define TAPEGRAD_OPS_SHARED_SOFTMAX_TILES_CPU_H

#include "ops/attention/shared/arguments.h"
#include "ops/cpu/shared/online_softmax.h"
#include "ops/cpu/shared/packing.h"

/* One head of one sequence. Its rows are numbered by rank: in their order, or sorted. */
typedef struct AttentionHead {
    int type; /* of the inputs, out and their gradients */
    const AttentionInputs *a;
    int64_t b, h;
    int64_t positions;           /* keys that are not masked */
    const int32_t *sorted_index; /* the position of each rank; NULL: rank i is position i */
} AttentionHead;

/* Queries of consecutive ranks, and their buffers. */
typedef struct QueryTile {
    AttentionHead head;
    int64_t first, count;           /* ranks first to first + count - 1 */
    int64_t columns;                /* count, padded */
    int64_t D, M;                   /* padded to whole vectors */
    Real *query, *query_transposed; /* [columns, D], [D, columns] */
    Real *P;                        /* [keys, columns]: the score tile s, then e^(s - m) */
    Real *m, *l, *factor;           /* [columns]: of online softmax; factor: its buffer */
    Real *out;                      /* [columns, M]: o */
    Real *A, *A_rest;               /* c_i = A[i] + A_rest[i] of all positions; set with a decay */
    /* The backward pass: */
    Real *D_i;                    /* [columns]: D_i / l_i, in the memory of l */
    Real *dout, *dout_transposed; /* [columns, M], [M, columns]: g / l; dout in out's memory */
    Real *dS;                     /* [keys, columns]: dP, then dS */
} QueryTile;

/* A tile of keys, and the queries of the query tile that attend to any of its keys: all but the
 * first `skip`. Of s, P and dS only these [keys, queries] are computed, padded to [rows,
 * columns]. Masked pairs are those above the diagonal, or, if begin is not NULL, those of key j and
 * the queries outside of begin[j] <= i < end[j], counted from the first that is not skipped. */
typedef struct KeyTile {
    bool diagonal;              /* of the causal mask */
    const int32_t *begin, *end; /* [rows], or NULL */
    int64_t start, keys, rows;
    int64_t skip, queries, columns;
    const Real *key, *value;      /* [rows, D], [rows, M] */
    const Real *weight;           /* [keys, columns], see online_softmax; or NULL */
    Real *dquery, *dkey, *dvalue; /* sums of [queries, D], [rows, D], [rows, M]; or NULL */
    Real *dc;                     /* of all positions, or NULL */
} KeyTile;

/* Assigns the buffers of tiles of at most this size in scratch memory, or NULL. */
static void allocate_tile(QueryTile *t, const AttentionInputs *a, int64_t queries, int64_t keys,
                          Real *scratch, int64_t *used, bool backward)
{
    t->D = round_up(a->D, LANES);
    t->M = round_up(a->M, LANES);
    t->query = allocate(scratch, used, queries * t->D);
    t->query_transposed = allocate(scratch, used, queries * t->D);
    t->P = allocate(scratch, used, keys * queries);
    t->m = allocate(scratch, used, queries);
    t->l = t->D_i = allocate(scratch, used, queries);
    t->factor = allocate(scratch, used, queries);
    t->out = t->dout = allocate(scratch, used, queries * t->M);
    if (!backward)
        return;
    t->dout_transposed = allocate(scratch, used, queries * t->M);
    t->dS = allocate(scratch, used, keys * queries);
}

static Real score_scale(const AttentionInputs *a)
{
    return 1 / (Real)sqrt((double)a->D);
}

/* ----------------------------------------------------------------------------------------- rows */

/* The head with this index in [B, H], in the order of the positions. */
static AttentionHead head_at(int type, const AttentionInputs *a, int64_t index)
{
    const int64_t b = index / a->H;
    return (AttentionHead){ .type = type,
                            .a = a,
                            .b = b,
                            .h = index % a->H,
                            .positions = a->key_lengths ? a->key_lengths[b] : a->keys };
}

static inline int64_t position_at(const AttentionHead *head, int64_t rank)
{
    return head->sorted_index ? head->sorted_index[rank] : rank;
}

/* Offsets of a position's rows in the arguments, and the index of its row in [B, N, H]. */
static inline int64_t query_at(const AttentionHead *head, int64_t position)
{
    return attention_query_at(head->a, head->b, head->h, position);
}
static inline int64_t key_at(const AttentionHead *head, int64_t position)
{
    return attention_key_at(head->a, head->b, head->h, position);
}
static inline int64_t value_at(const AttentionHead *head, int64_t position)
{
    return attention_value_at(head->a, head->b, head->h, position);
}
static inline int64_t row_of(const AttentionHead *head, int64_t position)
{
    return attention_row_at(head->a, head->b, head->h, position);
}

/* The index of a position's m and 1 / l, which this backend keeps as [B, H, N]: those of a tile are
 * contiguous, so threads that work at different heads write to different cache lines. */
static inline int64_t sums_at(const AttentionHead *head, int64_t position)
{
    return (head->b * head->a->H + head->h) * head->a->N + position;
}

/* to [rows.count, padded] = factor times the rows at the positions sorted_index, padded with zeros.
 * rows: all rows of the head; ranks: the number of elements of sorted_index. */
ALWAYS_INLINE void pack_sorted(int T, Real *to, const Rows *rows, const int32_t *sorted_index,
                               int64_t ranks, int64_t padded, Real factor)
{
    const Real *data = rows->data;
    const int64_t stride = rows->stride, columns = rows->columns;
    for (int64_t i = 0; i < rows->count; i++, to += padded) {
        if (i + AHEAD < ranks)
            for (int64_t c = 0; c < columns; c += elements_per_line(T))
                __builtin_prefetch(elements_at(T, data, sorted_index[i + AHEAD] * stride + c));
        pack_row(T, to, elements_at(T, data, sorted_index[i] * stride), columns, padded, factor);
    }
}

/* to [round_up(rows.count, ROWS), padded] = factor times the rows of ranks first, first + 1, ...,
 * padded with zeros. rows: all rows of the head. */
WHOLE_VECTORS static void load_ranks(Real *to, const AttentionHead *head, Rows rows, int64_t first,
                                     Real factor)
{
    const int64_t padded = round_up(rows.columns, LANES);
    if (!head->sorted_index) {
        rows.data = elements_at(rows.type, rows.data, first * rows.stride);
        pack_tile(to, &rows, padded, factor);
        return;
    }
    BY_STORAGE(rows.type, T,
               pack_sorted(T, to, &rows, head->sorted_index + first, head->positions - first,
                           padded, factor));
    zero_missing(to, rows.count, padded);
}

/* key, value = the rows of ranks first, first + 1, ... */
static void load_keys(Real *key, Real *value, const AttentionHead *head, int64_t first,
                      int64_t count)
{
    const AttentionInputs *a = head->a;
    const Real *k = elements_at(head->type, a->key, key_at(head, 0));
    const Real *v = elements_at(head->type, a->value, value_at(head, 0));
    load_ranks(key, head, (Rows){ head->type, k, a->key_stride, count, a->D }, first, 1);
    load_ranks(value, head, (Rows){ head->type, v, a->value_stride, count, a->M }, first, 1);
}

static void load_queries(QueryTile *t, Real factor)
{
    const AttentionInputs *a = t->head.a;
    const Real *q = elements_at(t->head.type, a->query, query_at(&t->head, 0));
    load_ranks(t->query, &t->head, (Rows){ t->head.type, q, a->query_stride, t->count, a->D },
               t->first, factor);
    transpose(t->query_transposed, t->query, t->D, t->count, a->D, t->columns);
}

/* Loads m_i, g_i / l_i and D_i / l_i = (g_i / l_i).out_i of the tile's queries. */
static void load_upstream(QueryTile *t, const Real *dout, const Real *out, const Real *m,
                          const Real *inverse)
{
    const AttentionHead *head = &t->head;
    const int64_t M = head->a->M, stride = head->a->H * M;
    const Real *g = elements_at(head->type, dout, row_of(head, 0) * M);
    load_ranks(t->dout, head, (Rows){ head->type, g, stride, t->count, M }, t->first, 1);
    memset(t->m, 0, (size_t)t->columns * sizeof(Real));
    memset(t->D_i, 0, (size_t)t->columns * sizeof(Real));
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t position = position_at(head, t->first + i), at = sums_at(head, position);
        const Real *out_i = elements_at(head->type, out, row_of(head, position) * M);
        Real *g_i = t->dout + i * t->M;
        for (int64_t c = 0; c < M; c++)
            g_i[c] *= inverse[at];
        t->m[i] = m[at];
        BY_STORAGE(head->type, T, t->D_i[i] = dot_with(T, out_i, g_i, M));
    }
    transpose(t->dout_transposed, t->dout, t->M, t->count, M, t->columns);
}

/* sum += x */
static void add_sums(Real *restrict sum, const Real *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sum[i] += x[i];
}

/* d <- factor * the rows of sums, which are padded to whole vectors; row i is stored at
 * at + i stride. */
static void contribute_head(int type, Gradient d, int64_t at, int64_t stride, const Real *sums,
                            int64_t count, int64_t columns, Real factor)
{
    if (!d.data)
        return;
    d.data = elements_at(type, d.data, at);
    unpack(&(GradientRows){ type, d, stride, count, columns }, sums, round_up(columns, LANES),
           factor, AHEAD);
}

/* out [M] = o_i / l_i, of this dtype; returns 1 / l_i. Both are 0 if all keys of the query are
 * masked. */
static Real store_out(int type, Real *out, const QueryTile *t, int64_t i)
{
    const GradientRows row = { type, { out, false }, 0, 1, t->head.a->M };
    const Real inverse = t->l[i] == 0 ? 0 : 1 / t->l[i];
    unpack(&row, t->out + i * t->M, t->M, inverse, 0);
    return inverse;
}

/* ----------------------------------------------------------------------------------------- tiles
 * weighted is a compile-time constant. */

/* s += mask. Not inlined: see backward_tile. */
__attribute__((noinline)) static void add_mask(QueryTile *t, const KeyTile *k)
{
    const AttentionInputs *a = t->head.a;
    const int64_t keys = k->keys, columns = k->columns;
    const Real *mask =
        a->mask + k->start + attention_mask_at(a, t->head.b, t->head.h, t->first + k->skip);
    for (int64_t i = 0; i < k->queries; i++)
        for (int64_t j = 0; j < keys; j++)
            t->P[j * columns + i] += mask[i * a->keys + j];
}

/* s_ij += c_i - c_j. The differences of A[i] and A[j] are exact or have a small relative error. */
__attribute__((noinline)) static void add_decay(QueryTile *t, const KeyTile *k)
{
    const Real *A = t->A + t->first + k->skip, *A_rest = t->A_rest + t->first + k->skip;
    for (int64_t j = 0; j < k->keys; j++) {
        const Real A_j = t->A[k->start + j], A_j_rest = t->A_rest[k->start + j];
        Real *restrict s = t->P + j * k->columns;
        for (int64_t i = 0; i < k->queries; i++)
            s[i] += A[i] - A_j + (A_rest[i] - A_j_rest);
    }
}

/* x [keys, columns] = value at masked pairs */
__attribute__((noinline)) static void mask_pairs(const KeyTile *k, Real *x, Real value)
{
    for (int64_t j = 0; j < k->keys; j++, x += k->columns) {
        for (int64_t i = 0; i < (k->begin ? k->begin[j] : minimum(j, k->columns)); i++)
            x[i] = value;
        for (int64_t i = k->begin ? k->end[j] : k->columns; i < k->columns; i++)
            x[i] = value;
    }
}

/* dc_i += dS_ij, dc_j -= dS_ij. Zeroes dS of masked pairs, which may be NaN. */
__attribute__((noinline)) WHOLE_VECTORS static void add_decay_gradients(QueryTile *t,
                                                                        const KeyTile *k)
{
    Real *restrict rows = t->factor;
    memset(rows, 0, (size_t)k->columns * sizeof *rows);
    if (k->diagonal || k->begin)
        mask_pairs(k, t->dS, 0);
    for (int64_t j = 0; j < k->keys; j++) {
        const Real *dS = t->dS + j * k->columns;
        Vector sum = { 0 };
        for (int64_t i = 0; i < k->columns; i += LANES) {
            *at_vector(rows + i) += vector(dS + i);
            sum += vector(dS + i);
        }
        k->dc[k->start + j] -= vector_sum(sum);
    }
    for (int64_t i = 0; i < k->queries; i++)
        k->dc[t->first + k->skip + i] += rows[i];
}

/* P [keys, columns] = the score tile s */
ALWAYS_INLINE void score_tile(QueryTile *t, const KeyTile *k)
{
    set_product(t->P, k->key, t->D, t->query_transposed + k->skip, t->columns, k->rows,
                t->head.a->D, k->columns);
    if (t->head.a->mask)
        add_mask(t, k);
    if (t->head.a->log_decay)
        add_decay(t, k);
    if (k->diagonal || k->begin)
        mask_pairs(k, t->P, -INFINITY);
}

/* c [columns] += factor x */
ALWAYS_INLINE void add_scaled_row(Real *c, Real factor, const Real *x, int64_t columns)
{
    for (int64_t v = 0; v < columns; v += LANES)
        *at_vector(c + v) = multiply_add(broadcast(factor), vector(x + v), vector(c + v));
}

/* add_queries and add_keys of a tile with masked pairs. ROWS rows of the sums at once take the
 * terms that all of them see; the others are added row by row. */
__attribute__((noinline)) WHOLE_VECTORS static void add_visible_queries(const KeyTile *k,
                                                                        Real *sums, MatrixView P,
                                                                        MatrixView of_keys,
                                                                        int64_t columns)
{
    const int32_t *begin = k->begin, *end = k->end;
    for (int64_t i = 0; i < k->queries; i += ROWS)
        for (int64_t j = 0, next; j < k->keys; j = next) {
            for (next = j; next < k->keys && begin[next] <= i && i + ROWS <= end[next];)
                next++;
            if (next > j) {
                tiled_product(true, false, sums + i * columns, view_from(P, i, j),
                              view_from(of_keys, j, 0), ROWS, next - j, columns);
                continue;
            }
            for (int64_t row = maximum(i, begin[j]); row < minimum(i + ROWS, end[j]); row++)
                add_scaled_row(sums + row * columns, P.data[row * P.row + j * P.column],
                               of_keys.data + j * of_keys.row, columns);
            next++;
        }
}
__attribute__((noinline)) WHOLE_VECTORS static void add_visible_keys(const KeyTile *k, Real *sums,
                                                                     MatrixView P,
                                                                     MatrixView of_queries,
                                                                     int64_t columns)
{
    for (int64_t j = 0; j < k->rows; j += ROWS) {
        int64_t begin = 0, end = k->queries; /* seen by all ROWS keys */
        for (int64_t row = j; row < j + ROWS; row++) {
            begin = maximum(begin, k->begin[row]);
            end = minimum(end, k->end[row]);
        }
        if (begin < end)
            tiled_product(true, false, sums + j * columns, view_from(P, j, begin),
                          view_from(of_queries, begin, 0), ROWS, end - begin, columns);
        else
            begin = end = 0;
        for (int64_t row = j; row < j + ROWS; row++)
            for (int64_t i = k->begin[row]; i < minimum(k->end[row], k->queries); i++)
                if (i < begin || i >= end)
                    add_scaled_row(sums + row * columns, P.data[row * P.row + i * P.column],
                                   of_queries.data + i * of_queries.row, columns);
    }
}

/* sums [queries, columns] += P^T of_keys, and sums [keys, columns] += P of_queries. A masked pair
 * adds nothing, even if its row is infinite or NaN. */
WHOLE_VECTORS static void add_queries(const KeyTile *k, Real *sums, const Real *P,
                                      const Real *of_keys, int64_t columns)
{
    const int64_t rows = round_up(k->queries, ROWS);
    const MatrixView transposed = { P, 1, k->columns }, b = { of_keys, columns, 1 };
    if (k->begin)
        add_visible_queries(k, sums, transposed, b, columns);
    else if (k->diagonal)
        triangle_product(true, sums, transposed, b, rows, k->keys, columns);
    else
        tiled_product(true, false, sums, transposed, b, rows, k->keys, columns);
}
WHOLE_VECTORS static void add_keys(const KeyTile *k, Real *sums, const Real *P,
                                   const Real *of_queries, int64_t columns)
{
    const MatrixView a = { P, k->columns, 1 }, b = { of_queries, columns, 1 };
    if (k->begin)
        add_visible_keys(k, sums, a, b, columns);
    else if (k->diagonal)
        triangle_product(false, sums, a, b, k->rows, k->queries, columns);
    else
        tiled_product(true, false, sums, a, b, k->rows, k->queries, columns);
}

/* One step of online softmax: adds the keys' terms to m, l and o. */
ALWAYS_INLINE void forward_tile(bool weighted, QueryTile *t, const KeyTile *k)
{
    const OnlineSoftmax q = { .m = t->m + k->skip,
                              .l = t->l + k->skip,
                              .out = t->out + k->skip * t->M,
                              .queries = k->queries,
                              .columns = k->columns,
                              .M = t->M,
                              .buffer = t->factor };
    score_tile(t, k);
    online_softmax(weighted, q, t->P, k->weight, k->keys);
    add_queries(k, q.out, t->P, k->value, t->M);
}

/* Adds the contributions of the queries and keys to dq, dk and dv. Not inlined: then nothing else
 * competes with its loops for registers. */
__attribute__((noinline)) WHOLE_VECTORS static void backward_tile(bool weighted, QueryTile *t,
                                                                  const KeyTile *k)
{
    const int64_t columns = k->columns;
    score_tile(t, k);
    set_product(t->dS, k->value, t->M, t->dout_transposed + k->skip, t->columns, k->rows,
                t->head.a->M, columns);
    for (int64_t j = 0; j < k->keys; j++)
        score_gradients(weighted, t->P + j * columns, t->dS + j * columns, t->m + k->skip,
                        t->D_i + k->skip, weighted ? k->weight + j * columns : NULL, columns);
    if (k->dc)
        add_decay_gradients(t, k);
    if (k->dquery)
        add_queries(k, k->dquery, t->dS, k->key, t->D);
    if (k->dkey) {
        add_keys(k, k->dkey, t->dS, t->query + k->skip * t->D, t->D);
        add_keys(k, k->dvalue, t->P, t->dout + k->skip * t->M, t->M);
    }
}

#endif
