/* Softmax attention's kernels for the CPU: the mathematics is in softmax.c.
 *
 * A unit of work is one head of one sequence, or, when there are fewer heads than threads, every
 * segments-th tile of its queries. A unit goes through its tiles of queries, and for each through
 * the tiles of keys. A tile of scores lies transposed, [keys, queries]: then maximum, sum and L_i
 * of neighbouring queries are neighbours, and no vector is ever summed across.
 *
 * All that is multiplied lies in packed rows, filled up with zeros to whole vectors, so that one
 * kernel, product, serves all seven products, without edges. */
#include "ops/attention/softmax/softmax.h"
#include "ops/attention/shared/packed_cpu.h"

#include <omp.h>

/* A tile's queries and keys; fewer keys where a causal tile meets the diagonal. */
enum { QUERIES = 64, KEYS = 64, DIAGONAL = 32 };
_Static_assert(QUERIES % KEYS == 0 && KEYS % DIAGONAL == 0, "tiles begin on the diagonal");
_Static_assert(DIAGONAL % LANES == 0 && DIAGONAL % ROWS == 0, "parts of tiles are whole vectors");

/* ----------------------------------------------------------------------------------------- plan */
typedef struct Plan {
    int64_t D, M;       /* filled up to whole vectors */
    int64_t keys;       /* filled up to whole tiles */
    int64_t segments;   /* units a head */
    int64_t units;      /* B H segments */
    int64_t workspaces; /* one a thread, or one a unit when a head has several */
    int64_t size;       /* numbers a workspace */
} Plan;

/* What a unit works on. */
typedef struct Workspace {
    Real *key, *value;              /* [keys, D], [keys, M]: the head's */
    Real *query, *query_transposed; /* [QUERIES, D], [D, QUERIES]: a tile's, over sqrt D */
    Real *P;                        /* [KEYS, QUERIES]: s, then e^(s - m) or P */
    Real *row[3];                   /* [QUERIES] each: m, l and factors, or L and D */
    Real *out;                      /* [QUERIES, M]: o */
    Real *dout, *dout_transposed;   /* [QUERIES, M], [M, QUERIES]: g */
    Real *dS;                       /* [KEYS, QUERIES]: dP, then dS */
    Real *dquery;                   /* [QUERIES, D] */
    Real *dkey, *dvalue;            /* [keys, D], [keys, M]: the unit's sums */
} Workspace;

/* Cuts a workspace out of scratch memory; returns how many numbers it takes. */
static int64_t lay_out(Workspace *w, const Plan *p, Real *scratch, bool backward)
{
    int64_t used = 0;
    w->key = take(scratch, &used, p->keys * p->D);
    w->value = take(scratch, &used, p->keys * p->M);
    w->query = take(scratch, &used, QUERIES * p->D);
    w->query_transposed = take(scratch, &used, QUERIES * p->D);
    w->P = take(scratch, &used, KEYS * QUERIES);
    for (int i = 0; i < 3; i++)
        w->row[i] = take(scratch, &used, QUERIES);
    if (!backward) {
        w->out = take(scratch, &used, QUERIES * p->M);
        return used;
    }
    w->dout = take(scratch, &used, QUERIES * p->M);
    w->dout_transposed = take(scratch, &used, QUERIES * p->M);
    w->dS = take(scratch, &used, KEYS * QUERIES);
    w->dquery = take(scratch, &used, QUERIES * p->D);
    w->dkey = take(scratch, &used, p->keys * p->D);
    w->dvalue = take(scratch, &used, p->keys * p->M);
    return used;
}

static Plan plan(const Attention *a, bool backward)
{
    int64_t threads = device_threads(), heads = a->B * a->H;
    Plan p = { .D = round_up(a->D, LANES),
               .M = round_up(a->M, LANES),
               .keys = round_up(a->keys, KEYS),
               .segments = minimum((threads + heads - 1) / heads, (a->N + QUERIES - 1) / QUERIES) };
    p.units = heads * p.segments;
    p.workspaces = p.segments > 1 ? p.units : threads;
    p.size = lay_out(&(Workspace){ 0 }, &p, NULL, backward);
    return p;
}

int64_t softmax_attention_scratch_cpu(const Attention *attention, bool backward)
{
    Plan p = plan(attention, backward);
    return p.workspaces * p.size;
}

/* A head of a sequence, and the tile of its queries at hand. */
typedef struct Tile {
    const Attention *a;
    const Plan *p;
    bool causal;
    int64_t b, h;
    int64_t first, count; /* the tile's queries; they see the keys j < visible */
    int64_t columns;      /* count, filled up */
    int64_t visible;
} Tile;

static Tile tile_at(const Attention *a, const Plan *p, bool causal, int64_t head, int64_t first)
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

/* Where the tile begins in [B, N, H]. */
static int64_t tile_row(const Tile *t)
{
    return (t->b * t->a->N + t->first) * t->a->H + t->h;
}

static void load_keys(Workspace *w, const Tile *t)
{
    const Attention *a = t->a;
    int64_t row = t->b * a->keys, count = a->key_lengths ? a->key_lengths[t->b] : a->keys;
    Rows key = { a->key + row * a->key_stride + t->h * a->D, a->key_stride, count, a->D };
    Rows value = { a->value + row * a->value_stride + t->h * a->M, a->value_stride, count, a->M };
    pack(w->key, key, t->p->D, 1);
    pack(w->value, value, t->p->M, 1);
}

static Real score_scale(const Attention *a)
{
    return 1 / (Real)sqrt((double)a->D);
}

static void load_queries(Workspace *w, const Tile *t)
{
    const Attention *a = t->a;
    Rows query = { a->query + (t->b * a->N + t->first) * a->query_stride + t->h * a->D,
                   a->query_stride, t->count, a->D };
    pack(w->query, query, t->p->D, score_scale(a));
    transpose(w->query_transposed, w->query, t->p->D, t->count, a->D, t->columns);
}

/* A tile of keys, and those of the queries that see one of them: all but the first skip. Of s, P
 * and dS their [keys, queries] are computed, filled up to [rows, columns]. On the diagonal of a
 * causal head the tiles are smaller, because half of such a tile is computed in vain. */
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

/* P [keys, columns] = the scores s_ij; those of keys that a query does not see are -infinity. */
static void scores(Workspace *w, const Tile *t, const KeyTile *k)
{
    set_product(w->P, w->key + k->start * t->p->D, t->p->D, w->query_transposed + k->skip,
                t->columns, k->rows, t->a->D, k->columns);
    for (int64_t j = 0; k->diagonal && j < k->keys; j++)
        for (int64_t i = 0; i < minimum(j, k->columns); i++)
            w->P[j * k->columns + i] = -INFINITY;
}

/* -------------------------------------------------------------------------------------- forward */

/* One key's scores s_j of all queries enter the maximum m. */
WHOLE_VECTORS static void maximum_with(Real *restrict m, const Real *restrict s, int64_t columns)
{
    for (int64_t i = 0; i < columns; i++)
        m[i] = s[i] > m[i] ? s[i] : m[i];
}

/* s_j becomes e^(s_j - m) and enters the sum l. */
WHOLE_VECTORS static void exponentials(Real *restrict s, Real *restrict l, const Real *restrict m,
                                       int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        s[i] = real_exp(s[i] - m[i]);
        l[i] += s[i];
    }
}

/* s becomes e^(s - m); the sums l and o are brought to the new maximum, l gets its terms. */
static void online_softmax(Workspace *w, const Tile *t, const KeyTile *k)
{
    Real *m = w->row[0] + k->skip, *l = w->row[1] + k->skip, *factor = w->row[2];
    int64_t M = t->p->M;
    memcpy(factor, m, (size_t)k->columns * sizeof *m);
    for (int64_t j = 0; j < k->keys; j++)
        maximum_with(m, w->P + j * k->columns, k->columns);
    for (int64_t i = 0; i < k->columns; i++) {
        factor[i] = real_exp(factor[i] - m[i]);
        l[i] *= factor[i];
    }
    for (int64_t j = 0; j < k->keys; j++)
        exponentials(w->P + j * k->columns, l, m, k->columns);
    for (int64_t i = 0; i < k->queries; i++)
        for (int64_t c = 0; c < M; c++)
            w->out[(k->skip + i) * M + c] *= factor[i];
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
        online_softmax(w, t, &k);
        add_product_transposed(w->out + k.skip * M, w->P, k.columns, w->value + k.start * M,
                               round_up(k.queries, ROWS), k.keys, M);
    }
    for (int64_t i = 0; i < t->count; i++, row += H) {
        Gradient out_i = { out + row * t->a->M, false };
        unpack(out_i, 0, w->out + i * M, 1, t->a->M, M, 1 / l[i]);
        log_sum[row] = m[i] + (Real)log((double)l[i]);
    }
}

void softmax_attention_forward_cpu(Real *out, Real *log_sum, Real *scratch, const Attention *a,
                                   bool causal)
{
    Plan p = plan(a, false);
#pragma omp parallel for schedule(dynamic) if (a->B * a->H * a->N * a->keys >= PARALLEL_MINIMUM)
    for (int64_t unit = 0; unit < p.units; unit++) {
        Workspace w;
        lay_out(&w, &p, scratch + (p.segments > 1 ? unit : omp_get_thread_num()) * p.size, false);
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

/* g, D_i = g_i.out_i and L_i of the tile's queries. */
static void load_rows(Workspace *w, const Tile *t, const Real *dout, const Real *out,
                      const Real *log_sum)
{
    int64_t H = t->a->H, M = t->a->M, row = tile_row(t);
    pack(w->dout, (Rows){ dout + row * M, H * M, t->count, M }, t->p->M, 1);
    transpose(w->dout_transposed, w->dout, t->p->M, t->count, M, t->columns);
    memset(w->row[0], 0, (size_t)t->columns * sizeof(Real));
    memset(w->row[1], 0, (size_t)t->columns * sizeof(Real));
    for (int64_t i = 0; i < t->count; i++, row += H) {
        w->row[0][i] = log_sum[row];
        w->row[1][i] = dot(dout + row * M, out + row * M, M);
    }
}

/* One key's column of P and dS: P_ij = e^(s_ij - L_i), dS_ij = P_ij (dP_ij - D_i). */
WHOLE_VECTORS static void softmax_backward(Real *restrict P, Real *restrict dS,
                                           const Real *restrict L, const Real *restrict D,
                                           int64_t columns)
{
    for (int64_t i = 0; i < columns; i++) {
        P[i] = real_exp(P[i] - L[i]);
        dS[i] = P[i] * (dS[i] - D[i]);
    }
}

static void backward_tile(Workspace *w, const Tile *t)
{
    int64_t D = t->p->D, M = t->p->M;
    const Real *L_row = w->row[0], *D_row = w->row[1];
    memset(w->dquery, 0, (size_t)(QUERIES * D) * sizeof(Real));
    for (KeyTile k = key_tile_at(t, 0); k.keys > 0; k = key_tile_at(t, k.start + k.keys)) {
        Real *key = w->key + k.start * D, *value = w->value + k.start * M;
        scores(w, t, &k);
        set_product(w->dS, value, M, w->dout_transposed + k.skip, t->columns, k.rows, t->a->M,
                    k.columns);
        for (int64_t j = 0; j < k.keys; j++)
            softmax_backward(w->P + j * k.columns, w->dS + j * k.columns, L_row + k.skip,
                             D_row + k.skip, k.columns);
        add_product_transposed(w->dquery + k.skip * D, w->dS, k.columns, key,
                               round_up(k.queries, ROWS), k.keys, D);
        add_product(w->dkey + k.start * D, w->dS, k.columns, w->query + k.skip * D, k.rows,
                    k.queries, D);
        add_product(w->dvalue + k.start * M, w->P, k.columns, w->dout + k.skip * M, k.rows,
                    k.queries, M);
    }
}

/* dq of a unit's queries; its sums for dk and dv. */
static void backward_unit(AttentionGradient d, Workspace *w, const Real *dout, const Real *out,
                          const Real *log_sum, const Attention *a, const Plan *p, bool causal,
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
            unpack(dquery, a->query_stride, w->dquery, t.count, a->D, p->D, score_scale(a));
        }
    }
}

/* dk and dv of a head: its units' sums, added in their order. */
static void contribute_keys(AttentionGradient d, Real *scratch, const Attention *a, const Plan *p,
                            int64_t head)
{
    Workspace w, other;
    lay_out(&w, p, scratch, true);
    for (int64_t s = 1; s < p->segments; s++) {
        lay_out(&other, p, scratch + s * p->size, true);
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
        unpack(d.key, a->key_stride, w.dkey, a->keys, a->D, p->D, 1);
    }
    if (d.value.data) {
        d.value.data += b * a->keys * a->value_stride + h * a->M;
        unpack(d.value, a->value_stride, w.dvalue, a->keys, a->M, p->M, 1);
    }
}

void softmax_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                    const Real *log_sum, Real *scratch, const Attention *a,
                                    bool causal)
{
    Plan p = plan(a, true);
#pragma omp parallel if (a->B * a->H * a->N * a->keys >= PARALLEL_MINIMUM)
    {
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < p.units; unit++) {
            Real *own = scratch + (p.segments > 1 ? unit : omp_get_thread_num()) * p.size;
            Workspace w;
            lay_out(&w, &p, own, true);
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
