/* CPU kernels of softmax attention; softmax.c has the derivation.
 *
 * A unit of work is one head of one sequence or, with fewer heads than threads, every segments-th
 * query tile of a head. A unit iterates over its query tiles and, for each, over the key tiles. A
 * score tile is stored transposed, [keys, queries]: the maxima, sums and L_i of consecutive queries
 * are then contiguous, and no vector is summed horizontally.
 *
 * Operands are packed rows, padded with zeros to whole vectors: one kernel without edge cases,
 * product, computes all seven products. */
#include "ops/attention/softmax/softmax.h"
#include "ops/shared/tiles_cpu.h"

#include <omp.h>

/* Queries and keys per tile; DIAGONAL keys per tile on the diagonal of the causal mask. */
enum { QUERIES = 64, KEYS = 64, DIAGONAL = 32 };
_Static_assert(QUERIES % KEYS == 0 && KEYS % DIAGONAL == 0, "tiles begin on the diagonal");
_Static_assert(DIAGONAL % LANES == 0 && DIAGONAL % ROWS == 0, "parts of tiles are whole vectors");

/* ----------------------------------------------------------------------------------------- plan */
typedef struct Plan {
    int64_t D, M;       /* padded to whole vectors */
    int64_t keys;       /* padded to whole tiles */
    int64_t segments;   /* units per head */
    int64_t units;      /* B H segments */
    int64_t workspaces; /* one per thread, or one per unit if a head has several units */
    int64_t size;       /* Reals per workspace */
} Plan;

/* The buffers of a unit of work. */
typedef struct Workspace {
    Real *key, *value;              /* [keys, D], [keys, M]: of the head */
    Real *query, *query_transposed; /* [QUERIES, D], [D, QUERIES]: of a tile, divided by sqrt D */
    Real *P;                        /* [KEYS, QUERIES]: the score tile s, then e^(s - m) or P */
    Real *row[3];                   /* [QUERIES] each: m, l and factors; backward L_i and D_i */
    Real *out;                      /* [QUERIES, M]: o */
    Real *dout, *dout_transposed;   /* [QUERIES, M], [M, QUERIES]: g */
    Real *dS;                       /* [KEYS, QUERIES]: dP, then dS */
    Real *dquery;                   /* [QUERIES, D] */
    Real *dkey, *dvalue;            /* [keys, D], [keys, M]: sums of the unit */
} Workspace;

/* Assigns a workspace's buffers in scratch memory, or NULL; returns their size in Reals. */
static int64_t allocate_workspace(Workspace *w, const Plan *p, Real *scratch, bool backward)
{
    int64_t used = 0;
    w->key = allocate(scratch, &used, p->keys * p->D);
    w->value = allocate(scratch, &used, p->keys * p->M);
    w->query = allocate(scratch, &used, QUERIES * p->D);
    w->query_transposed = allocate(scratch, &used, QUERIES * p->D);
    w->P = allocate(scratch, &used, KEYS * QUERIES);
    for (int i = 0; i < 3; i++)
        w->row[i] = allocate(scratch, &used, QUERIES);
    if (!backward) {
        w->out = allocate(scratch, &used, QUERIES * p->M);
        return used;
    }
    w->dout = allocate(scratch, &used, QUERIES * p->M);
    w->dout_transposed = allocate(scratch, &used, QUERIES * p->M);
    w->dS = allocate(scratch, &used, KEYS * QUERIES);
    w->dquery = allocate(scratch, &used, QUERIES * p->D);
    w->dkey = allocate(scratch, &used, p->keys * p->D);
    w->dvalue = allocate(scratch, &used, p->keys * p->M);
    return used;
}

static Plan plan(const AttentionInputs *a, bool backward)
{
    int64_t threads = device_threads(), heads = a->B * a->H;
    Plan p = { .D = round_up(a->D, LANES),
               .M = round_up(a->M, LANES),
               .keys = round_up(a->keys, KEYS),
               .segments = minimum((threads + heads - 1) / heads, (a->N + QUERIES - 1) / QUERIES) };
    p.units = heads * p.segments;
    p.workspaces = p.segments > 1 ? p.units : threads;
    p.size = allocate_workspace(&(Workspace){ 0 }, &p, NULL, backward);
    return p;
}

int64_t softmax_attention_scratch_cpu(const AttentionInputs *attention, bool backward)
{
    Plan p = plan(attention, backward);
    return p.workspaces * p.size;
}

/* A head of a sequence, and its current query tile. */
typedef struct Tile {
    const AttentionInputs *a;
    const Plan *p;
    bool causal;
    int64_t b, h;
    int64_t first, count; /* the tile's queries; they see only keys j < visible */
    int64_t columns;      /* count, padded */
    int64_t visible;
} Tile;

static Tile tile_at(const AttentionInputs *a, const Plan *p, bool causal, int64_t head,
                    int64_t first)
{
    Tile t = { .a = a, .p = p, .causal = causal, .b = head / a->H, .h = head % a->H };
    t.first = first;
    t.count = minimum(QUERIES, a->N - first);
    t.columns = round_up(t.count, UNIT);
    t.visible = a->key_lengths ? a->key_lengths[t.b] : a->keys;
    if (causal)
        t.visible = minimum(t.visible, t.first + t.count);
    return t;
}

/* Offset of the tile's first row in [B, N, H]. */
static int64_t tile_row(const Tile *t)
{
    return (t->b * t->a->N + t->first) * t->a->H + t->h;
}

static void load_keys(Workspace *w, const Tile *t)
{
    const AttentionInputs *a = t->a;
    int64_t row = t->b * a->keys, count = a->key_lengths ? a->key_lengths[t->b] : a->keys;
    Rows key = { a->key + row * a->key_stride + t->h * a->D, a->key_stride, count, a->D };
    Rows value = { a->value + row * a->value_stride + t->h * a->M, a->value_stride, count, a->M };
    pack_tile(w->key, &key, t->p->D, 1);
    pack_tile(w->value, &value, t->p->M, 1);
}

static Real score_scale(const AttentionInputs *a)
{
    return 1 / (Real)sqrt((double)a->D);
}

static void load_queries(Workspace *w, const Tile *t)
{
    const AttentionInputs *a = t->a;
    Rows query = { a->query + (t->b * a->N + t->first) * a->query_stride + t->h * a->D,
                   a->query_stride, t->count, a->D };
    pack_tile(w->query, &query, t->p->D, score_scale(a));
    transpose(w->query_transposed, w->query, t->p->D, t->count, a->D, t->columns);
}

/* A key tile, and the queries of the query tile that see any of its keys: all but the first `skip`.
 * Of s, P and dS only these [keys, queries] are computed, padded to [rows, columns]. Tiles on the
 * diagonal of the causal mask are smaller, because half of such a tile is masked. */
typedef struct KeyTile {
    bool diagonal;
    int64_t start, keys, rows;
    int64_t skip, queries, columns;
} KeyTile;

static KeyTile key_tile_at(const Tile *t, int64_t start)
{
    KeyTile k = { .diagonal = t->causal && start >= t->first, .start = start };
    k.keys = minimum(k.diagonal ? DIAGONAL : KEYS, t->visible - start);
    k.rows = round_up(k.keys, ROWS);
    k.skip = k.diagonal ? start - t->first : 0;
    k.queries = t->count - k.skip;
    k.columns = t->columns - k.skip;
    return k;
}

/* Score tile: P [keys, columns] = s_ij, -infinity where the causal mask hides key j. */
static void scores(Workspace *w, const Tile *t, const KeyTile *k)
{
    set_product(w->P, w->key + k->start * t->p->D, t->p->D, w->query_transposed + k->skip,
                t->columns, k->rows, t->a->D, k->columns);
    for (int64_t j = 0; k->diagonal && j < k->keys; j++)
        for (int64_t i = 0; i < minimum(j, k->columns); i++)
            w->P[j * k->columns + i] = -INFINITY;
}

/* -------------------------------------------------------------------------------------- forward */

/* One step of online softmax for the queries that see the key tile. */
WHOLE_VECTORS static void softmax_step(Workspace *w, const Tile *t, const KeyTile *k)
{
    online_softmax(false, w->P, NULL, w->row[0] + k->skip, w->row[1] + k->skip,
                   w->out + k->skip * t->p->M, w->row[2], k->keys, k->queries, k->columns, t->p->M);
}

static void forward_tile(Real *out, Real *log_sum, Workspace *w, const Tile *t)
{
    Real *m = w->row[0], *l = w->row[1];
    int64_t H = t->a->H, M = t->p->M, row = tile_row(t);
    load_queries(w, t);
    for (int64_t i = 0; i < t->columns; i++) {
        m[i] = -INFINITY;
        l[i] = 0;
    }
    memset(w->out, 0, (size_t)(QUERIES * M) * sizeof *w->out);
    for (KeyTile k = key_tile_at(t, 0); k.keys > 0; k = key_tile_at(t, k.start + k.keys)) {
        scores(w, t, &k);
        softmax_step(w, t, &k);
        add_product_transposed(w->out + k.skip * M, w->P, k.columns, w->value + k.start * M,
                               round_up(k.queries, ROWS), k.keys, M);
    }
    for (int64_t i = 0; i < t->count; i++, row += H) {
        Gradient out_i = { out + row * t->a->M, false };
        unpack(out_i, 0, w->out + i * M, 1, t->a->M, M, 1 / l[i], 0);
        log_sum[row] = m[i] + (Real)log((double)l[i]);
    }
}

void softmax_attention_forward_cpu(Real *out, Real *log_sum, Real *scratch,
                                   const AttentionInputs *a, bool causal)
{
    Plan p = plan(a, false);
#pragma omp parallel for schedule(dynamic) if (a->B * a->H * a->N * a->keys >= PARALLEL_MINIMUM)
    for (int64_t unit = 0; unit < p.units; unit++) {
        Workspace w;
        allocate_workspace(
            &w, &p, scratch + (p.segments > 1 ? unit : omp_get_thread_num()) * p.size, false);
        int64_t head = unit / p.segments, first = unit % p.segments * QUERIES;
        Tile t = tile_at(a, &p, causal, head, first);
        load_keys(&w, &t);
        for (; first < a->N; first += p.segments * QUERIES) {
            t = tile_at(a, &p, causal, head, first);
            forward_tile(out, log_sum, &w, &t);
        }
    }
}

/* ------------------------------------------------------------------------------------- backward */

/* Loads g_i, L_i and D_i = g_i.out_i of the tile's queries. */
static void load_rows(Workspace *w, const Tile *t, const Real *dout, const Real *out,
                      const Real *log_sum)
{
    int64_t H = t->a->H, M = t->a->M, row = tile_row(t);
    pack_tile(w->dout, &(Rows){ dout + row * M, H * M, t->count, M }, t->p->M, 1);
    transpose(w->dout_transposed, w->dout, t->p->M, t->count, M, t->columns);
    memset(w->row[0], 0, (size_t)t->columns * sizeof(Real));
    memset(w->row[1], 0, (size_t)t->columns * sizeof(Real));
    for (int64_t i = 0; i < t->count; i++, row += H) {
        w->row[0][i] = log_sum[row];
        w->row[1][i] = dot(dout + row * M, out + row * M, M);
    }
}

/* P and dS from s and dP, for the queries that see the key tile. */
WHOLE_VECTORS static void score_gradients(Workspace *w, const KeyTile *k)
{
    for (int64_t j = 0; j < k->keys; j++)
        softmax_backward(false, w->P + j * k->columns, w->dS + j * k->columns, w->row[0] + k->skip,
                         w->row[1] + k->skip, NULL, k->columns);
}

static void backward_tile(Workspace *w, const Tile *t)
{
    int64_t D = t->p->D, M = t->p->M;
    memset(w->dquery, 0, (size_t)(QUERIES * D) * sizeof(Real));
    for (KeyTile k = key_tile_at(t, 0); k.keys > 0; k = key_tile_at(t, k.start + k.keys)) {
        Real *key = w->key + k.start * D, *value = w->value + k.start * M;
        scores(w, t, &k);
        set_product(w->dS, value, M, w->dout_transposed + k.skip, t->columns, k.rows, t->a->M,
                    k.columns);
        score_gradients(w, &k);
        add_product_transposed(w->dquery + k.skip * D, w->dS, k.columns, key,
                               round_up(k.queries, ROWS), k.keys, D);
        add_product(w->dkey + k.start * D, w->dS, k.columns, w->query + k.skip * D, k.rows,
                    k.queries, D);
        add_product(w->dvalue + k.start * M, w->P, k.columns, w->dout + k.skip * M, k.rows,
                    k.queries, M);
    }
}

/* dq of a unit's queries, and the unit's sums of dk and dv. */
static void backward_unit(AttentionGradient d, Workspace *w, const Real *dout, const Real *out,
                          const Real *log_sum, const AttentionInputs *a, const Plan *p, bool causal,
                          int64_t unit)
{
    int64_t head = unit / p->segments, first = unit % p->segments * QUERIES;
    Tile t = tile_at(a, p, causal, head, first);
    load_keys(w, &t);
    memset(w->dkey, 0, (size_t)(p->keys * p->D) * sizeof(Real));
    memset(w->dvalue, 0, (size_t)(p->keys * p->M) * sizeof(Real));
    for (; first < a->N; first += p->segments * QUERIES) {
        t = tile_at(a, p, causal, head, first);
        load_queries(w, &t);
        load_rows(w, &t, dout, out, log_sum);
        backward_tile(w, &t);
        if (d.query.data) {
            Gradient dquery = d.query;
            dquery.data += (t.b * a->N + first) * a->query_stride + t.h * a->D;
            unpack(dquery, a->query_stride, w->dquery, t.count, a->D, p->D, score_scale(a), AHEAD);
        }
    }
}

/* dk and dv of a head: adds the sums of its units in a fixed order. */
static void contribute_keys(AttentionGradient d, Real *scratch, const AttentionInputs *a,
                            const Plan *p, int64_t head)
{
    Workspace w, other;
    allocate_workspace(&w, p, scratch, true);
    for (int64_t s = 1; s < p->segments; s++) {
        allocate_workspace(&other, p, scratch + s * p->size, true);
#pragma omp simd
        for (int64_t i = 0; i < p->keys * p->D; i++)
            w.dkey[i] += other.dkey[i];
#pragma omp simd
        for (int64_t i = 0; i < p->keys * p->M; i++)
            w.dvalue[i] += other.dvalue[i];
    }
    int64_t b = head / a->H, h = head % a->H;
    if (d.key.data) {
        d.key.data += b * a->keys * a->key_stride + h * a->D;
        unpack(d.key, a->key_stride, w.dkey, a->keys, a->D, p->D, 1, AHEAD);
    }
    if (d.value.data) {
        d.value.data += b * a->keys * a->value_stride + h * a->M;
        unpack(d.value, a->value_stride, w.dvalue, a->keys, a->M, p->M, 1, AHEAD);
    }
}

void softmax_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                    const Real *log_sum, Real *scratch, const AttentionInputs *a,
                                    bool causal)
{
    Plan p = plan(a, true);
#pragma omp parallel if (a->B * a->H * a->N * a->keys >= PARALLEL_MINIMUM)
    {
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < p.units; unit++) {
            Real *own = scratch + (p.segments > 1 ? unit : omp_get_thread_num()) * p.size;
            Workspace w;
            allocate_workspace(&w, &p, own, true);
            backward_unit(d, &w, dout, out, log_sum, a, &p, causal, unit);
            if (p.segments == 1)
                contribute_keys(d, own, a, &p, unit);
        }
        if (p.segments > 1) {
#pragma omp for
            for (int64_t head = 0; head < a->B * a->H; head++)
                contribute_keys(d, scratch + head * p.segments * p.size, a, &p, head);
        }
    }
}
