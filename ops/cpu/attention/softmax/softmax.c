/* CPU kernels of softmax attention; softmax.c has the derivation.
 *
 * A unit of work is one head of one sequence or, where heads are few (segments_of), every
 * segments-th query tile of a head. A unit iterates over its query tiles and, for each, over the
 * key tiles (softmax_tiles.h) with keys that any of its queries sees (visible.h). It packs the keys
 * and values that a query tile sees and no earlier one did. */
#include "ops/attention/softmax/visible.h"
#include "ops/cpu/shared/softmax_tiles.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

/* Queries and keys per tile. Tiles with masked pairs, as on the diagonal of the causal mask, have
 * only DIAGONAL keys, because half of such a tile is masked. */
enum { SOFTMAX_QUERIES = 64, SOFTMAX_KEYS = 64, DIAGONAL = 32 };
_Static_assert(SOFTMAX_QUERIES % SOFTMAX_KEYS == 0 && SOFTMAX_KEYS % DIAGONAL == 0,
               "tiles begin on the diagonal");
/* Keys per block: sums over all keys are sums over blocks, so that rounding errors stay those of
 * short sums. */
enum { KEY_BLOCK = 4096 };
_Static_assert(DIAGONAL % UNIT == 0, "diagonal tiles are whole vectors");

/* ----------------------------------------------------------------------------------------- plan */
typedef struct SoftmaxPlan {
    int type; /* of the inputs, out and their gradients */
    const AttentionInputs *a;
    bool causal, limited; /* attention_is_limited */
    int64_t keys;         /* padded to whole tiles */
    int64_t segments;     /* units per head */
    int64_t units;        /* B H segments */
    int64_t workspaces;   /* one per thread, or one per unit if a head has several units */
    int64_t size;         /* Reals per workspace */
} SoftmaxPlan;

/* A unit of work: its current query tile, and the head's keys and values. */
typedef struct SoftmaxUnit {
    const SoftmaxPlan *p;
    QueryTile tile;
    Visibility visibility;
    VisibleColumns visible;     /* to any of the tile's queries; the end padded to whole rows */
    VisibleColumns first, last; /* visible to its first and to its last query */
    int64_t packed;             /* keys and values in the buffers: the first ones */
    int32_t begin[SOFTMAX_KEYS], end[SOFTMAX_KEYS]; /* of the key tile */
    Real *key, *value;                              /* [keys, D], [keys, M] */
    struct {
        Real *m, *l, *out;
    } previous;                /* of the tile's queries: m, l, o over the previous blocks */
    Real *dquery, *dquery_sum; /* [SOFTMAX_QUERIES, D]: of a block, and of all blocks so far */
    Real *dkey, *dvalue;       /* [keys, D], [keys, M]: sums of the unit, zeroed when packed */
    int64_t contributed;       /* keys whose dk and dv are: the first ones */
    Real *dc;                  /* [keys]: likewise, with a decay */
} SoftmaxUnit;

/* Assigns a unit's buffers in scratch memory, or NULL; returns their size in Reals. */
static int64_t allocate_unit(SoftmaxUnit *u, const SoftmaxPlan *p, Real *scratch, bool backward)
{
    int64_t used = 0;
    u->p = p;
    allocate_tile(&u->tile, p->a, SOFTMAX_QUERIES, SOFTMAX_KEYS, scratch, &used, backward);
    u->key = allocate(scratch, &used, p->keys * u->tile.D);
    u->value = allocate(scratch, &used, p->keys * u->tile.M);
    if (p->a->log_decay) {
        u->tile.A = allocate(scratch, &used, p->keys);
        u->tile.A_rest = allocate(scratch, &used, p->keys);
        u->dc = allocate(scratch, &used, backward ? p->keys : 0);
    }
    if (!backward) {
        u->previous.m = allocate(scratch, &used, SOFTMAX_QUERIES);
        u->previous.l = allocate(scratch, &used, SOFTMAX_QUERIES);
        u->previous.out = allocate(scratch, &used, SOFTMAX_QUERIES * u->tile.M);
        return used;
    }
    u->dquery = allocate(scratch, &used, SOFTMAX_QUERIES * u->tile.D);
    u->dquery_sum = allocate(scratch, &used, SOFTMAX_QUERIES * u->tile.D);
    u->dkey = allocate(scratch, &used, p->keys * u->tile.D);
    u->dvalue = allocate(scratch, &used, p->keys * u->tile.M);
    return used;
}

/* Units per head, at most one per query tile, so that all heads have a unit per thread; on a
 * repeatable device 4 units, since their number decides the order in which a head's dk and dv are
 * added up. */
static int64_t segments_of(const AttentionInputs *a)
{
    const int64_t heads = a->B * a->H, tiles = (a->N + SOFTMAX_QUERIES - 1) / SOFTMAX_QUERIES;
    const int64_t units = device_is_repeatable(device_current()) ? 4 : device_threads();
    return minimum((units + heads - 1) / heads, tiles);
}

static SoftmaxPlan plan_softmax(TensorType type, const AttentionInputs *a, bool causal,
                                bool backward)
{
    SoftmaxPlan p = { .type = (int)type,
                      .a = a,
                      .causal = causal,
                      .limited = attention_is_limited(a),
                      .keys = round_up(a->keys, SOFTMAX_KEYS),
                      .segments = segments_of(a) };
    p.units = a->B * a->H * p.segments;
    p.workspaces = p.segments > 1 ? p.units : device_threads();
    p.size = allocate_unit(&(SoftmaxUnit){ 0 }, &p, NULL, backward);
    return p;
}

static int softmax_threads(const AttentionInputs *a)
{
    return device_threads_for(a->B * a->H * a->N * a->keys, 0.04 * (double)(a->D + a->M));
}

/* ---------------------------------------------------------------------------------------- tiles */

/* The sums of the head's log decays: c_i = A[i] + A_rest[i] has twice the digits of A[i]. Scores do
 * not differ by 10^4, so there a decay is as good as -infinity, and c_i - c_j stays a number. */
static void sum_decays(QueryTile *t)
{
    const AttentionHead *head = &t->head;
    const double lowest = -1e4;
    double A = 0;
    for (int64_t i = 0; i < head->a->N; i++) {
        const double l = i < head->positions ? head->a->log_decay[row_of(head, i)] : 0;
        A += l < lowest ? lowest : l;
        t->A[i] = (Real)A;
        t->A_rest[i] = (Real)(A - t->A[i]);
    }
}

/* A unit before its first query tile. */
static SoftmaxUnit unit_at(const SoftmaxPlan *p, Real *scratch, int64_t unit, bool backward)
{
    SoftmaxUnit u = { .tile.head = head_at(p->type, p->a, unit / p->segments) };
    u.visibility = visibility_of(p->a, p->causal, u.tile.head.b);
    const int64_t workspace = p->segments > 1 ? unit : omp_get_thread_num();
    allocate_unit(&u, p, scratch + workspace * p->size, backward);
    if (p->a->log_decay)
        sum_decays(&u.tile);
    return u;
}

/* Packs the keys and values before `end`, whose sums of dk and dv begin at 0. */
static void pack_keys(SoftmaxUnit *u, int64_t end)
{
    const QueryTile *t = &u->tile;
    const int64_t first = u->packed, count = end - first;
    if (count <= 0)
        return;
    load_keys(u->key + first * t->D, u->value + first * t->M, &t->head, first, count);
    if (u->dkey) {
        const int64_t rows = round_up(count, ROWS);
        memset(u->dkey + first * t->D, 0, (size_t)(rows * t->D) * sizeof(Real));
        memset(u->dvalue + first * t->M, 0, (size_t)(rows * t->M) * sizeof(Real));
    }
    u->packed = end;
}

/* Moves to the unit's query tile that starts at `first`. */
static void select_softmax_tile(SoftmaxUnit *u, int64_t first)
{
    QueryTile *t = &u->tile;
    t->first = first;
    t->count = minimum(SOFTMAX_QUERIES, u->p->a->N - first);
    t->columns = round_up(t->count, UNIT);
    u->first = u->visible = visible_columns(&u->visibility, first);
    u->last = visible_columns(&u->visibility, first + t->count - 1);
    u->visible.end = minimum(round_up(u->last.end, ROWS), t->head.positions);
    load_queries(t, score_scale(u->p->a));
    pack_keys(u, u->visible.end);
}

/* The queries of the tile that see each key of k: skips those before and drops those after all of
 * them. Padded queries see the keys of the last one. */
static void mask_tile(SoftmaxUnit *u, KeyTile *k)
{
    const QueryTile *t = &u->tile;
    const int64_t end = t->first + t->count;
    int64_t last = 0;
    for (int64_t j = 0; j < k->rows; j++) {
        const PositionRange rows =
            visible_rows(&u->visibility, minimum(k->start + j, t->head.positions - 1));
        u->begin[j] = (int32_t)(minimum(maximum(rows.begin, t->first), end) - t->first);
        u->end[j] = (int32_t)(minimum(maximum(rows.end, t->first), end) - t->first);
        last = maximum(last, u->end[j]);
    }
    k->skip = u->begin[0] / UNIT * UNIT;
    k->queries = maximum(last - k->skip, 0);
    k->columns = round_up(k->queries, UNIT);
    for (int64_t j = 0; j < k->rows; j++) {
        u->begin[j] -= (int32_t)k->skip;
        u->end[j] -= (int32_t)k->skip;
        if (u->end[j] == t->count - k->skip)
            u->end[j] = (int32_t)k->columns;
    }
    k->begin = u->begin;
    k->end = u->end;
}

/* The tile of keys from `start` on; without keys at the end. */
static KeyTile key_tile_at(SoftmaxUnit *u, int64_t start)
{
    const QueryTile *t = &u->tile;
    const VisibleColumns *v = &u->visible;
    int64_t end = v->end;
    if (start < v->sinks_end)
        end = minimum(end, round_up(v->sinks_end, ROWS));
    if (u->p->causal && start < t->first)
        end = minimum(end, t->first);
    KeyTile k = { .start = start, .keys = minimum(SOFTMAX_KEYS, end - start) };
    if (u->p->limited && !all_visible(&u->first, &u->last, start, start + k.keys))
        k.keys = minimum(DIAGONAL, k.keys);
    k.diagonal = !u->p->limited && u->p->causal && start >= t->first;
    if (k.diagonal)
        k.keys = minimum(DIAGONAL, k.keys);
    k.rows = round_up(k.keys, ROWS);
    k.skip = k.diagonal ? start - t->first : 0;
    k.queries = t->count - k.skip;
    k.columns = t->columns - k.skip;
    k.key = u->key + start * t->D;
    k.value = u->value + start * t->M;
    if (u->p->limited && k.keys > 0 && !all_visible(&u->first, &u->last, start, start + k.keys))
        mask_tile(u, &k);
    return k;
}

/* The first tile, and the next one: after the sinks, from a multiple of DIAGONAL on. */
static KeyTile first_key_tile(SoftmaxUnit *u)
{
    return key_tile_at(u, u->visible.first / DIAGONAL * DIAGONAL);
}
static KeyTile next_key_tile(SoftmaxUnit *u, const KeyTile *k)
{
    const int64_t start = k->start + k->keys;
    if (start < u->visible.sinks_end)
        return key_tile_at(u, start);
    return key_tile_at(u, maximum(start, u->visible.begin / DIAGONAL * DIAGONAL));
}

/* -------------------------------------------------------------------------------------- forward */

/* Not inlined: then nothing else competes with its loops for registers. */
__attribute__((noinline)) WHOLE_VECTORS static void forward_step(QueryTile *t, const KeyTile *k)
{
    forward_tile(false, t, k);
}

/* l <- l + e^(m' - m) l' and the same of o, where ' is of the previous blocks. */
static void add_previous_blocks(SoftmaxUnit *u)
{
    const QueryTile *t = &u->tile;
    for (int64_t i = 0; i < t->count; i++) {
        const Real m = u->previous.m[i], factor = m == t->m[i] ? 1 : real_exp(m - t->m[i]);
        t->l[i] += factor * u->previous.l[i];
        for (int64_t c = 0; c < t->M; c++)
            t->out[i * t->M + c] += factor * u->previous.out[i * t->M + c];
    }
}

/* The sums so far become those of the previous blocks. */
static void save_blocks(SoftmaxUnit *u)
{
    const QueryTile *t = &u->tile;
    memcpy(u->previous.m, t->m, (size_t)SOFTMAX_QUERIES * sizeof *t->m);
    memcpy(u->previous.l, t->l, (size_t)SOFTMAX_QUERIES * sizeof *t->l);
    memcpy(u->previous.out, t->out, (size_t)(SOFTMAX_QUERIES * t->M) * sizeof *t->out);
}

static void clear_block(QueryTile *t)
{
    memset(t->l, 0, (size_t)SOFTMAX_QUERIES * sizeof *t->l);
    memset(t->out, 0, (size_t)(SOFTMAX_QUERIES * t->M) * sizeof *t->out);
}

static void softmax_forward_tile(Real *out, Real *m, Real *inverse, SoftmaxUnit *u)
{
    QueryTile *t = &u->tile;
    const AttentionInputs *a = u->p->a;
    const RowStart start = row_start(a->sink_logits, t->head.h, attention_lowest(a));
    int64_t keys = 0; /* in this block */
    bool previous = false;
    clear_block(t);
    for (int64_t i = 0; i < t->columns; i++) {
        t->m[i] = start.m;
        t->l[i] = start.l;
    }
    for (KeyTile k = first_key_tile(u); k.keys > 0; k = next_key_tile(u, &k)) {
        if (keys >= KEY_BLOCK) {
            if (previous)
                add_previous_blocks(u);
            save_blocks(u);
            clear_block(t);
            previous = true;
            keys = 0;
        }
        forward_step(t, &k);
        keys += k.keys;
    }
    if (previous)
        add_previous_blocks(u);
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t row = row_of(&t->head, t->first + i), at = sums_at(&t->head, t->first + i);
        m[at] = t->m[i];
        inverse[at] = store_out(u->p->type, elements_at(u->p->type, out, row * a->M), t, i);
    }
}

static void softmax_forward_units(TensorType type, Real *out, Real *m, Real *inverse,
                                  const AttentionInputs *a, bool causal)
{
    const SoftmaxPlan p = plan_softmax(type, a, causal, false);
    Real *scratch = device_workspace(p.workspaces * p.size);
#pragma omp parallel for schedule(dynamic) num_threads(softmax_threads(a))
    for (int64_t unit = 0; unit < p.units; unit++) {
        SoftmaxUnit u = unit_at(&p, scratch, unit, false);
        for (int64_t first = unit % p.segments * SOFTMAX_QUERIES; first < a->N;
             first += p.segments * SOFTMAX_QUERIES) {
            select_softmax_tile(&u, first);
            softmax_forward_tile(out, m, inverse, &u);
        }
    }
    device_workspace_free(scratch);
}

void softmax_attention_forward_cpu(Real *out, Real *m, Real *inverse, const AttentionInputs *a,
                                   bool causal)
{
    softmax_forward_units(TENSOR_REAL, out, m, inverse, a, causal);
}

void softmax_attention_forward_bf16(Real *out, Real *m, Real *inverse, const AttentionInputs *a,
                                    bool causal)
{
    softmax_forward_units(TENSOR_BF16, out, m, inverse, a, causal);
}

/* ------------------------------------------------------------------------------------- backward */

/* dquery_sum = dq sqrt D of the tile's queries; adds to dk and dv of the unit. */
static void softmax_backward_tile(SoftmaxUnit *u)
{
    QueryTile *t = &u->tile;
    const int64_t size = SOFTMAX_QUERIES * t->D;
    memset(u->dquery_sum, 0, (size_t)size * sizeof(Real));
    memset(u->dquery, 0, (size_t)size * sizeof(Real));
    int64_t keys = 0; /* in this block */
    for (KeyTile k = first_key_tile(u); k.keys > 0; k = next_key_tile(u, &k)) {
        if (keys >= KEY_BLOCK) {
            add_sums(u->dquery_sum, u->dquery, size);
            memset(u->dquery, 0, (size_t)size * sizeof(Real));
            keys = 0;
        }
        k.dquery = u->dquery + k.skip * t->D;
        k.dkey = u->dkey + k.start * t->D;
        k.dvalue = u->dvalue + k.start * t->M;
        k.dc = u->dc;
        backward_tile(false, t, &k);
        keys += k.keys;
    }
    add_sums(u->dquery_sum, u->dquery, size);
}

/* -p_i D_i of the tile's queries; D_i is divided by l already. */
static void store_sink_gradients(Real *dsink, const QueryTile *t)
{
    const Real sink = t->head.a->sink_logits[t->head.h];
    for (int64_t i = 0; i < t->count; i++)
        dsink[row_of(&t->head, t->first + i)] = -real_exp(sink - t->m[i]) * t->D_i[i];
}

/* Contributes dk and dv of the keys before `end`. */
static void contribute_keys(AttentionGradient d, SoftmaxUnit *u, int64_t end)
{
    const SoftmaxPlan *p = u->p;
    const AttentionHead *head = &u->tile.head;
    const int64_t first = u->contributed, D = u->tile.D, M = u->tile.M;
    if (end <= first)
        return;
    contribute_head(p->type, d.key, key_at(head, first), p->a->key_stride, u->dkey + first * D,
                    end - first, p->a->D, 1);
    contribute_head(p->type, d.value, value_at(head, first), p->a->value_stride,
                    u->dvalue + first * M, end - first, p->a->M, 1);
    u->contributed = end;
}

/* dq of a unit's queries, and the unit's sums of dk and dv. The only unit of a head contributes
 * those of keys that no later query sees, while they are in the cache. */
static void softmax_backward_unit(AttentionGradient d, Real *dsink, SoftmaxUnit *u,
                                  const Real *dout, const Real *out, const Real *m,
                                  const Real *inverse, int64_t first)
{
    QueryTile *t = &u->tile;
    const SoftmaxPlan *p = u->p;
    const int64_t N = p->a->N, step = p->segments * SOFTMAX_QUERIES;
    if (u->dc)
        memset(u->dc, 0, (size_t)p->keys * sizeof(Real));
    for (; first < N; first += step) {
        select_softmax_tile(u, first);
        load_upstream(t, dout, out, m, inverse);
        if (dsink)
            store_sink_gradients(dsink, t);
        softmax_backward_tile(u);
        contribute_head(p->type, d.query, query_at(&t->head, first), p->a->query_stride,
                        u->dquery_sum, t->count, p->a->D, score_scale(p->a));
        if (p->segments == 1 && first + step < N)
            contribute_keys(
                d, u, minimum(visible_columns(&u->visibility, first + step).first, u->packed));
    }
    /* Keys that no query of the unit sees have sums of 0. */
    memset(u->dkey + u->packed * t->D, 0, (size_t)((p->keys - u->packed) * t->D) * sizeof(Real));
    memset(u->dvalue + u->packed * t->M, 0, (size_t)((p->keys - u->packed) * t->M) * sizeof(Real));
}

/* dc of a head, and dk and dv that are not contributed yet. */
static void contribute_rest(AttentionGradient d, Real *dc, SoftmaxUnit *u)
{
    const AttentionInputs *a = u->p->a;
    for (int64_t i = 0; dc && i < a->N; i++)
        dc[row_of(&u->tile.head, i)] = u->dc[i];
    contribute_keys(d, u, a->keys);
}

/* The same of a head with several units: adds their sums in a fixed order. */
static void contribute_sums(AttentionGradient d, Real *dc, Real *scratch, const SoftmaxPlan *p,
                            int64_t index)
{
    SoftmaxUnit u = { .tile.head = head_at(p->type, p->a, index) }, other = { 0 };
    allocate_unit(&u, p, scratch, true);
    for (int64_t s = 1; s < p->segments; s++) {
        allocate_unit(&other, p, scratch + s * p->size, true);
        add_sums(u.dkey, other.dkey, p->keys * u.tile.D);
        add_sums(u.dvalue, other.dvalue, p->keys * u.tile.M);
        add_sums(u.dc, other.dc, u.dc ? p->keys : 0);
    }
    contribute_rest(d, dc, &u);
}

static void softmax_backward_units(const SoftmaxPlan *p, AttentionGradient d, Real *dc, Real *dsink,
                                   const Real *dout, const Real *out, const Real *m,
                                   const Real *inverse)
{
    const int64_t heads = p->a->B * p->a->H;
    Real *scratch = device_workspace(p->workspaces * p->size);
#pragma omp parallel num_threads(softmax_threads(p->a))
    {
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < p->units; unit++) {
            SoftmaxUnit u = unit_at(p, scratch, unit, true);
            softmax_backward_unit(d, dsink, &u, dout, out, m, inverse,
                                  unit % p->segments * SOFTMAX_QUERIES);
            if (p->segments == 1)
                contribute_rest(d, dc, &u);
        }
        if (p->segments > 1) {
#pragma omp for
            for (int64_t head = 0; head < heads; head++)
                contribute_sums(d, dc, scratch + head * p->segments * p->size, p, head);
        }
    }
    device_workspace_free(scratch);
}

void softmax_attention_backward_cpu(AttentionGradient d, Real *dc, Real *dsink, const Real *dout,
                                    const Real *out, const Real *m, const Real *inverse,
                                    const AttentionInputs *a, bool causal)
{
    const SoftmaxPlan p = plan_softmax(TENSOR_REAL, a, causal, true);
    softmax_backward_units(&p, d, dc, dsink, dout, out, m, inverse);
}

void softmax_attention_backward_bf16(AttentionGradient d, Real *dc, Real *dsink, const Real *dout,
                                     const Real *out, const Real *m, const Real *inverse,
                                     const AttentionInputs *a, bool causal)
{
    const SoftmaxPlan p = plan_softmax(TENSOR_BF16, a, causal, true);
    softmax_backward_units(&p, d, dc, dsink, dout, out, m, inverse);
}
