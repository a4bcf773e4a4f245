/* CPU kernels of softmax attention; softmax.c has the derivation.
 *
 * A unit of work is one head of one sequence or, with few heads, every segments-th query tile of a
 * head. A unit packs the head's keys and values, and iterates over its query tiles and, for each,
 * over the key tiles (softmax_tiles.h) with keys that any of its queries sees (visible.h).
 *
 * No result depends on the number of threads: a query belongs to one tile, and in the backward pass
 * the units of a head, whose number depends on sizes alone, are added to dk and dv in order. */
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
    int64_t size;         /* Reals per workspace, of which each thread has one */
    Real *workspaces;
    int64_t sums; /* elements of a unit's dkey, dvalue and dc */
    Real *sum;    /* backward with several units per head: their sum */
} SoftmaxPlan;

/* A unit of work: its current query tile, and the head's keys and values. */
typedef struct SoftmaxUnit {
    const SoftmaxPlan *p;
    QueryTile tile;
    Visibility visibility;
    VisibleColumns visible;     /* to any of the tile's queries; the end padded to whole rows */
    VisibleColumns first, last; /* visible to its first and to its last query */
    int32_t begin[SOFTMAX_KEYS], end[SOFTMAX_KEYS]; /* of the key tile */
    Real *key, *value;                              /* [keys, D], [keys, M] */
    struct {
        Real *m, *l, *out;
    } previous;                /* of the tile's queries: m, l, o over the previous blocks */
    Real *dquery, *dquery_sum; /* [SOFTMAX_QUERIES, D]: of a block, and of all blocks so far */
    Real *dkey, *dvalue, *dc;  /* [keys, D], [keys, M] and, with a decay, [keys], one after
                                * another: sums of the unit */
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
    if (p->a->log_decay)
        u->dc = allocate(scratch, &used, p->keys);
    return used;
}

/* Units per head: forward enough for all threads; backward, where their number decides the order
 * of dk's and dv's sums, UNITS of all heads, but of at least TILES tiles of queries each, beside
 * which packing the keys and adding dk and dv cost little. */
static int64_t segments_of(const AttentionInputs *a, bool backward)
{
    enum { UNITS = 32, TILES = 4 };
    const int64_t heads = a->B * a->H, tiles = (a->N + SOFTMAX_QUERIES - 1) / SOFTMAX_QUERIES;
    const int64_t wanted = backward ? UNITS : device_threads();
    return minimum((wanted + heads - 1) / heads, backward ? (tiles + TILES - 1) / TILES : tiles);
}

/* The plan with its memory, until free_softmax. */
static SoftmaxPlan plan_softmax(TensorType type, const AttentionInputs *a, bool causal,
                                bool backward)
{
    SoftmaxPlan p = { .type = (int)type,
                      .a = a,
                      .causal = causal,
                      .limited = attention_is_limited(a),
                      .keys = round_up(a->keys, SOFTMAX_KEYS),
                      .segments = segments_of(a, backward) };
    SoftmaxUnit unit = { 0 };
    p.units = a->B * a->H * p.segments;
    p.size = allocate_unit(&unit, &p, NULL, backward);
    p.sums = p.keys * (unit.tile.D + unit.tile.M + (a->log_decay ? 1 : 0));
    p.workspaces = device_workspace(device_threads() * p.size + (backward ? p.sums : 0));
    p.sum = p.workspaces + device_threads() * p.size;
    return p;
}

static void free_softmax(const SoftmaxPlan *p)
{
    device_workspace_free(p->workspaces);
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

/* A unit with its keys and values. */
static SoftmaxUnit unit_at(const SoftmaxPlan *p, int64_t unit, bool backward)
{
    SoftmaxUnit u = { .tile.head = head_at(p->type, p->a, unit / p->segments) };
    u.visibility = visibility_of(p->a, p->causal, u.tile.head.b);
    allocate_unit(&u, p, p->workspaces + omp_get_thread_num() * p->size, backward);
    load_keys(u.key, u.value, &u.tile.head, 0, u.tile.head.positions);
    if (p->a->log_decay)
        sum_decays(&u.tile);
    return u;
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
    for (int64_t i = 0; i < t->columns; i++)
        t->m[i] = attention_lowest(u->p->a);
    int64_t keys = 0; /* in this block */
    bool previous = false;
    clear_block(t);
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
        inverse[at] = store_out(u->p->type, elements_at(u->p->type, out, row * u->p->a->M), t, i);
    }
}

static void softmax_forward_units(TensorType type, Real *out, Real *m, Real *inverse,
                                  const AttentionInputs *a, bool causal)
{
    const SoftmaxPlan p = plan_softmax(type, a, causal, false);
#pragma omp parallel for schedule(dynamic) num_threads(softmax_threads(a))
    for (int64_t unit = 0; unit < p.units; unit++) {
        SoftmaxUnit u = unit_at(&p, unit, false);
        for (int64_t first = unit % p.segments * SOFTMAX_QUERIES; first < a->N;
             first += p.segments * SOFTMAX_QUERIES) {
            select_softmax_tile(&u, first);
            softmax_forward_tile(out, m, inverse, &u);
        }
    }
    free_softmax(&p);
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

/* dq of a unit's queries, and the unit's sums of dk and dv. */
static void softmax_backward_unit(AttentionGradient d, SoftmaxUnit *u, const Real *dout,
                                  const Real *out, const Real *m, const Real *inverse,
                                  int64_t first)
{
    QueryTile *t = &u->tile;
    const SoftmaxPlan *p = u->p;
    memset(u->dkey, 0, (size_t)p->sums * sizeof(Real));
    for (; first < p->a->N; first += p->segments * SOFTMAX_QUERIES) {
        select_softmax_tile(u, first);
        load_upstream(t, dout, out, m, inverse);
        softmax_backward_tile(u);
        contribute_head(p->type, d.query, query_at(&t->head, first), p->a->query_stride,
                        u->dquery_sum, t->count, p->a->D, score_scale(p->a));
    }
}

/* dk, dv and dc of a head, the sums of its units: those of u. */
static void contribute_keys(AttentionGradient d, Real *dc, const SoftmaxUnit *u)
{
    const SoftmaxPlan *p = u->p;
    const AttentionInputs *a = p->a;
    const AttentionHead *head = &u->tile.head;
    for (int64_t i = 0; dc && i < a->N; i++)
        dc[row_of(head, i)] = u->dc[i];
    contribute_head(p->type, d.key, key_at(head, 0), a->key_stride, u->dkey, a->keys, a->D, 1);
    contribute_head(p->type, d.value, value_at(head, 0), a->value_stride, u->dvalue, a->keys, a->M,
                    1);
}

/* The sum of a head's units, one after another: the first one's becomes the sum, which is complete
 * after the last. */
static void add_unit(AttentionGradient d, Real *dc, const SoftmaxUnit *u, int64_t segment)
{
    const SoftmaxPlan *p = u->p;
    SoftmaxUnit head = *u;
    head.dkey = p->sum;
    head.dvalue = p->sum + (u->dvalue - u->dkey);
    head.dc = u->dc ? p->sum + (u->dc - u->dkey) : NULL;
    if (segment == 0)
        memcpy(p->sum, u->dkey, (size_t)p->sums * sizeof(Real));
    else
        add_sums(p->sum, u->dkey, p->sums);
    if (segment == p->segments - 1)
        contribute_keys(d, dc, &head);
}

static void softmax_backward_units(TensorType type, AttentionGradient d, Real *dc, const Real *dout,
                                   const Real *out, const Real *m, const Real *inverse,
                                   const AttentionInputs *a, bool causal)
{
    const SoftmaxPlan p = plan_softmax(type, a, causal, true);
#pragma omp parallel num_threads(softmax_threads(a))
    if (p.segments == 1) {
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < p.units; unit++) {
            SoftmaxUnit u = unit_at(&p, unit, true);
            softmax_backward_unit(d, &u, dout, out, m, inverse, 0);
            contribute_keys(d, dc, &u);
        }
    } else {
#pragma omp for ordered schedule(dynamic)
        for (int64_t unit = 0; unit < p.units; unit++) {
            const int64_t segment = unit % p.segments;
            SoftmaxUnit u = unit_at(&p, unit, true);
            softmax_backward_unit(d, &u, dout, out, m, inverse, segment * SOFTMAX_QUERIES);
#pragma omp ordered
            add_unit(d, dc, &u, segment);
        }
    }
    free_softmax(&p);
}

void softmax_attention_backward_cpu(AttentionGradient d, Real *dc, const Real *dout,
                                    const Real *out, const Real *m, const Real *inverse,
                                    const AttentionInputs *a, bool causal)
{
    softmax_backward_units(TENSOR_REAL, d, dc, dout, out, m, inverse, a, causal);
}

void softmax_attention_backward_bf16(AttentionGradient d, Real *dc, const Real *dout,
                                     const Real *out, const Real *m, const Real *inverse,
                                     const AttentionInputs *a, bool causal)
{
    softmax_backward_units(TENSOR_BF16, d, dc, dout, out, m, inverse, a, causal);
}
