/* CPU kernels of LSH attention; ops/attention/lsh/lsh.c has the derivation.
 *
 * sort.h hashes and sorts the positions. In the sorted order of a round the visible keys of a query
 * are contiguous. A tile of LSH_QUERIES consecutive ranks therefore iterates over the keys from the
 * first that is visible to its first query to the last that is visible to its last query, across
 * chunks; keys that are not visible to a query get weight 0 in its row (softmax_tiles.h).
 *
 * A unit of work is one head of one sequence, with all its rounds. */
#include "ops/attention/lsh/lsh.h"
#include "ops/cpu/attention/lsh/sort.h"
#include "ops/cpu/attention/shared/softmax_tiles.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

enum { LSH_QUERIES = 32, LSH_KEYS = 64 }; /* per tile */
_Static_assert(LSH_QUERIES % UNIT == 0 && LSH_KEYS % ROWS == 0, "tiles are whole vectors");

/* Row maximum before the first score. It is finite, because -infinity - -infinity is NaN. */
static const Real LOWEST = (Real)-1e30;

/* One round of a head. */
typedef struct LshRound {
    const LshRounds *all;
    const int32_t *order; /* of lsh.h */
    int64_t index, round; /* index: the head's in [B, H] */
    AttentionHead head;   /* in the sorted order of this round */
} LshRound;

/* One array of `order` in a round of the head, [N]. */
static const int32_t *order_of(const LshRound *r, int array, int64_t round)
{
    return r->order + lsh_order_at(r->all, array, r->index, round);
}

static LshRound lsh_round_at(int type, const LshRounds *all, const int32_t *order, int64_t index,
                             int64_t round)
{
    LshRound r = { all, order, index, round, head_at(type, &all->x, index) };
    r.head.sorted_index = order_of(&r, SORTED_INDEX, round);
    return r;
}

/* A thread's buffers. */
typedef struct LshWorkspace {
    QueryTile tile;
    int32_t *visible_begin, *visible_end; /* [rounds, LSH_QUERIES]: of the tile's queries */
    Real *key, *value;                    /* [LSH_KEYS, D], [LSH_KEYS, M]: u / sqrt D, v */
    Real *weight;                         /* [LSH_KEYS, LSH_QUERIES]: 1 / N_ij, 0 if not visible */
    Real *out;                            /* [N, M]: of the rounds so far */
    Real *dquery, *dkey, *dvalue;         /* [N + ROWS, D or M]: of each rank in this round */
    Real *dx, *dv; /* [N, D or M]: of each position, sums of the rounds so far */
} LshWorkspace;

/* Assigns the buffers in scratch memory, or NULL; returns their size in Reals. */
static int64_t allocate_lsh_workspace(LshWorkspace *w, const LshRounds *all, Real *scratch,
                                      bool backward)
{
    const int64_t N = all->x.N, bounds = all->rounds * LSH_QUERIES;
    int64_t used = 0;
    allocate_tile(&w->tile, &all->x, LSH_QUERIES, LSH_KEYS, scratch, &used, backward);
    const int64_t D = w->tile.D, M = w->tile.M;
    w->visible_begin = (int32_t *)(void *)allocate(scratch, &used, bounds);
    w->visible_end = (int32_t *)(void *)allocate(scratch, &used, bounds);
    w->key = allocate(scratch, &used, LSH_KEYS * D);
    w->value = allocate(scratch, &used, LSH_KEYS * M);
    w->weight = allocate(scratch, &used, LSH_KEYS * LSH_QUERIES);
    if (!backward) {
        w->out = allocate(scratch, &used, N * M);
        return used;
    }
    w->dquery = allocate(scratch, &used, (N + ROWS) * D);
    w->dkey = allocate(scratch, &used, (N + ROWS) * D);
    w->dvalue = allocate(scratch, &used, (N + ROWS) * M);
    w->dx = allocate(scratch, &used, N * D);
    w->dv = allocate(scratch, &used, N * M);
    return used;
}

/* A query meets up to two chunks of keys per round. */
static int lsh_threads(const LshRounds *all)
{
    const AttentionInputs *x = &all->x;
    const int64_t pairs = x->B * x->H * x->N * minimum(x->N, 2 * all->chunk) * all->rounds;
    return device_threads_for(pairs, 0.04 * (double)(x->D + x->M));
}

/* ---------------------------------------------------------------------------------------- tiles */

/* Ranks begin to end - 1. */
typedef struct Ranks {
    int64_t begin, end;
} Ranks;

/* Loads the queries of a tile, and their visible range in each round; it is empty past the last
 * query. Returns the keys that are visible to any of the queries. */
static Ranks load_query_tile(LshWorkspace *w, const LshRound *r, int64_t first)
{
    QueryTile *t = &w->tile;
    t->head = r->head;
    t->first = first;
    t->count = minimum(LSH_QUERIES, r->head.positions - first);
    t->columns = LSH_QUERIES;
    load_queries(t, 1);
    for (int64_t round = 0; round < r->all->rounds; round++) {
        const int32_t *begin = order_of(r, VISIBLE_BEGIN, round);
        const int32_t *end = order_of(r, VISIBLE_END, round);
        for (int64_t i = 0; i < LSH_QUERIES; i++) {
            const int32_t position = i < t->count ? r->head.sorted_index[first + i] : -1;
            w->visible_begin[round * LSH_QUERIES + i] = position < 0 ? 0 : begin[position];
            w->visible_end[round * LSH_QUERIES + i] = position < 0 ? 0 : end[position];
        }
    }
    const int64_t queries = r->round * LSH_QUERIES;
    return (Ranks){ w->visible_begin[queries], w->visible_end[queries + t->count - 1] };
}

/* weight_i /= N_ij for each query i and the key of this position. */
static void divide_by_rounds(Real *restrict weight, const LshWorkspace *w, const LshRound *r,
                             int64_t position)
{
    const int32_t *ranks = order_of(r, RANK, 0) + position;
    const int32_t *begin = w->visible_begin, *end = w->visible_end;
    int32_t N_ij[LSH_QUERIES] = { 0 };
    for (int64_t round = 0; round < r->all->rounds; round++) {
        const int32_t rank = ranks[round * r->all->x.N];
#pragma omp simd
        for (int i = 0; i < LSH_QUERIES; i++)
            N_ij[i] += (begin[i] <= rank) & (rank < end[i]);
        begin += LSH_QUERIES;
        end += LSH_QUERIES;
    }
#pragma omp simd
    for (int i = 0; i < LSH_QUERIES; i++)
        weight[i] /= (Real)(N_ij[i] > 0 ? N_ij[i] : 1);
}

/* The weights of the keys of ranks start, start + 1, ...: 1 / N_ij if the key is visible in this
 * round, else 0. */
static void compute_weights(LshWorkspace *w, const LshRound *r, int64_t start, int64_t keys)
{
    const int32_t *begin = w->visible_begin + r->round * LSH_QUERIES;
    const int32_t *end = w->visible_end + r->round * LSH_QUERIES;
    for (int64_t j = 0; j < keys; j++) {
        Real *weight = w->weight + j * LSH_QUERIES;
        const int32_t rank = (int32_t)(start + j);
#pragma omp simd
        for (int i = 0; i < LSH_QUERIES; i++)
            weight[i] = (Real)((begin[i] <= rank) & (rank < end[i]));
        const int64_t self = rank - w->tile.first;
        if (self >= 0 && self < LSH_QUERIES)
            weight[self] = 0;
        if (r->all->rounds > 1)
            divide_by_rounds(weight, w, r, r->head.sorted_index[rank]);
    }
}

/* 1 / n of lsh.c: 1 / sqrt(x.x + eps) */
ALWAYS_INLINE Real inverse_length(int T, const Real *x, int64_t n)
{
    Real sum = LSH_EPS;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += load(T, x, c) * load(T, x, c);
    return 1 / (Real)sqrt((double)sum);
}

/* Loads the keys of ranks start, start + 1, ... as u / sqrt D, their values and weights. */
ALWAYS_INLINE KeyTile load_key_tile(LshWorkspace *w, const LshRound *r, int64_t start, int64_t keys)
{
    const QueryTile *t = &w->tile;
    load_keys(w->key, w->value, &r->head, start, keys);
    for (int64_t j = 0; j < keys; j++) {
        Real *key = w->key + j * t->D;
        const Real factor = score_scale(&r->all->x) * inverse_length(TENSOR_REAL, key, t->D);
#pragma omp simd
        for (int64_t c = 0; c < t->D; c++)
            key[c] *= factor;
    }
    compute_weights(w, r, start, keys);
    return (KeyTile){ .start = start,
                      .keys = keys,
                      .rows = round_up(keys, ROWS),
                      .queries = t->count,
                      .columns = LSH_QUERIES,
                      .key = w->key,
                      .value = w->value,
                      .weight = w->weight };
}

/* -------------------------------------------------------------------------------------- forward */

/* m, l and o = l out of the previous rounds */
static void load_sums(LshWorkspace *w, int64_t round, const Real *m, const Real *inverse)
{
    QueryTile *t = &w->tile;
    memset(t->out, 0, (size_t)(LSH_QUERIES * t->M) * sizeof *t->out);
    for (int64_t i = 0; i < LSH_QUERIES; i++) {
        t->m[i] = LOWEST;
        t->l[i] = 0;
    }
    for (int64_t i = 0; i < t->count && round > 0; i++) {
        const int64_t position = position_at(&t->head, t->first + i);
        const int64_t at = sums_at(&t->head, position);
        if (inverse[at] == 0)
            continue; /* nothing was visible */
        t->m[i] = m[at];
        t->l[i] = 1 / inverse[at];
        for (int64_t c = 0; c < t->head.a->M; c++)
            t->out[i * t->M + c] = t->l[i] * w->out[position * t->M + c];
    }
}

/* Stores out, m and 1 / l of the rounds so far; of queries to which nothing is visible out = v, and
 * 1 / l counts as 0. */
static void store_sums(LshWorkspace *w, Real *m, Real *inverse)
{
    const QueryTile *t = &w->tile;
    const AttentionInputs *a = t->head.a;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t position = position_at(&t->head, t->first + i);
        const Real *v = elements_at(t->head.type, a->value, value_at(&t->head, position));
        Real *out = w->out + position * t->M;
        const int64_t at = sums_at(&t->head, position);
        m[at] = t->m[i];
        inverse[at] = store_out(TENSOR_REAL, out, t, i);
        if (inverse[at] == 0)
            pack(out, &(Rows){ t->head.type, v, 0, 1, a->M }, t->M, 1, 0);
    }
}

WHOLE_VECTORS static void lsh_forward_round(Real *m, Real *inverse, LshWorkspace *w,
                                            const LshRound *r)
{
    for (int64_t first = 0; first < r->head.positions; first += LSH_QUERIES) {
        const Ranks visible = load_query_tile(w, r, first);
        load_sums(w, r->round, m, inverse);
        for (int64_t start = visible.begin; start < visible.end; start += LSH_KEYS) {
            const KeyTile k = load_key_tile(w, r, start, minimum(LSH_KEYS, visible.end - start));
            forward_tile(true, &w->tile, &k);
        }
        store_sums(w, m, inverse);
    }
}

static void lsh_forward(int type, Real *out, Real *m, Real *inverse, int32_t *order,
                        const LshRounds *all)
{
    const AttentionInputs *x = &all->x;
    const int64_t heads = x->B * x->H, threads = minimum(lsh_threads(all), heads);
    const int64_t size = allocate_lsh_workspace(&(LshWorkspace){ 0 }, all, NULL, false);
    sort_positions(type, order, all, lsh_threads(all));
    Real *scratch = device_workspace(minimum(device_threads(), heads) * size);
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
    for (int64_t index = 0; index < heads; index++) {
        LshWorkspace w;
        allocate_lsh_workspace(&w, all, scratch + omp_get_thread_num() * size, false);
        const AttentionHead head = head_at(type, x, index);
        for (int64_t round = 0; round < all->rounds; round++) {
            const LshRound r = lsh_round_at(type, all, order, index, round);
            lsh_forward_round(m, inverse, &w, &r);
        }
        for (int64_t n = head.positions; n < x->N; n++) { /* masked positions */
            m[sums_at(&head, n)] = inverse[sums_at(&head, n)] = 0;
            memset(w.out + n * w.tile.M, 0, (size_t)w.tile.M * sizeof *w.out);
        }
        contribute_head(type, (Gradient){ out, false }, row_of(&head, 0) * x->M, x->H * x->M, w.out,
                        x->N, x->M, 1);
    }
    device_workspace_free(scratch);
}

void lsh_attention_forward_cpu(Real *out, Real *m, Real *inverse, int32_t *order,
                               const LshRounds *all)
{
    lsh_forward(TENSOR_REAL, out, m, inverse, order, all);
}

void lsh_attention_forward_bf16(Real *out, Real *m, Real *inverse, int32_t *order,
                                const LshRounds *all)
{
    lsh_forward(TENSOR_BF16, out, m, inverse, order, all);
}

/* ------------------------------------------------------------------------------------- backward */

/* dquery, dkey, dvalue = the gradients of each rank in this round. */
WHOLE_VECTORS static void lsh_backward_round(LshWorkspace *w, const LshRound *r, const Real *dout,
                                             const Real *out, const Real *m, const Real *inverse)
{
    QueryTile *t = &w->tile;
    const size_t rows = (size_t)(r->head.positions + ROWS);
    memset(w->dquery, 0, rows * (size_t)t->D * sizeof(Real));
    memset(w->dkey, 0, rows * (size_t)t->D * sizeof(Real));
    memset(w->dvalue, 0, rows * (size_t)t->M * sizeof(Real));
    for (int64_t first = 0; first < r->head.positions; first += LSH_QUERIES) {
        const Ranks visible = load_query_tile(w, r, first);
        load_upstream(t, dout, out, m, inverse);
        for (int64_t start = visible.begin; start < visible.end; start += LSH_KEYS) {
            KeyTile k = load_key_tile(w, r, start, minimum(LSH_KEYS, visible.end - start));
            k.dquery = w->dquery + first * t->D;
            k.dkey = w->dkey + start * t->D;
            k.dvalue = w->dvalue + start * t->M;
            backward_tile(true, t, &k);
        }
    }
}

/* dx <- dquery + (dkey - u (u.dkey)) / n of a position with x [D]; dkey = w sqrt D, w of lsh.c */
ALWAYS_INLINE void add_x_gradient(int T, Real *dx, Real *dquery, const Real *dkey, const Real *x,
                                  int64_t D, Real scale)
{
    const Real inverse = inverse_length(T, x, D), factor = scale * inverse;
    const Real along = dot_with(T, x, dkey, D) * inverse * inverse;
#pragma omp simd
    for (int64_t c = 0; c < D; c++) {
        dquery[c] += factor * (dkey[c] - along * load(T, x, c));
        dx[c] += dquery[c];
    }
}

/* Adds the gradients of the round's ranks to those of their positions. A query that is alone,
 * because nothing is visible to it in any round, adds g to dv. */
static void add_round(LshWorkspace *w, const LshRound *r, const Real *dout, const Real *inverse)
{
    const AttentionHead *head = &r->head;
    const AttentionInputs *a = head->a;
    const int64_t D = w->tile.D, M = w->tile.M;
    for (int64_t rank = 0; rank < head->positions; rank++) {
        const int64_t position = position_at(head, rank), row = row_of(head, position);
        const Real *x = elements_at(head->type, a->query, query_at(head, position));
        const Real *g = elements_at(head->type, dout, row * a->M);
        Real *dx = w->dx + position * D, *dv = w->dv + position * M, *dquery = w->dquery + rank * D;
        BY_STORAGE(head->type, T,
                   add_x_gradient(T, dx, dquery, w->dkey + rank * D, x, a->D, score_scale(a)));
        if (r->round == 0 && inverse[sums_at(head, position)] == 0)
            pack(dv, &(Rows){ head->type, g, 0, 1, a->M }, M, 1, 0);
        add_sums(dv, w->dvalue + rank * M, M);
    }
}

static void lsh_backward(int type, AttentionGradient d, const Real *dout, const Real *out,
                         const Real *m, const Real *inverse, const int32_t *order,
                         const LshRounds *all)
{
    const AttentionInputs *x = &all->x;
    const int64_t heads = x->B * x->H, threads = minimum(lsh_threads(all), heads);
    const int64_t size = allocate_lsh_workspace(&(LshWorkspace){ 0 }, all, NULL, true);
    Real *scratch = device_workspace(minimum(device_threads(), heads) * size);
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
    for (int64_t index = 0; index < heads; index++) {
        LshWorkspace w;
        allocate_lsh_workspace(&w, all, scratch + omp_get_thread_num() * size, true);
        const AttentionHead head = head_at(type, x, index);
        memset(w.dx, 0, (size_t)(x->N * w.tile.D) * sizeof *w.dx);
        memset(w.dv, 0, (size_t)(x->N * w.tile.M) * sizeof *w.dv);
        for (int64_t round = 0; round < all->rounds; round++) {
            const LshRound r = lsh_round_at(type, all, order, index, round);
            lsh_backward_round(&w, &r, dout, out, m, inverse);
            add_round(&w, &r, dout, inverse);
        }
        contribute_head(type, d.query, query_at(&head, 0), x->query_stride, w.dx, x->N, x->D, 1);
        contribute_head(type, d.value, value_at(&head, 0), x->value_stride, w.dv, x->N, x->M, 1);
    }
    device_workspace_free(scratch);
}

void lsh_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                const Real *m, const Real *inverse, const int32_t *order,
                                const LshRounds *all)
{
    lsh_backward(TENSOR_REAL, d, dout, out, m, inverse, order, all);
}

void lsh_attention_backward_bf16(AttentionGradient d, const Real *dout, const Real *out,
                                 const Real *m, const Real *inverse, const int32_t *order,
                                 const LshRounds *all)
{
    lsh_backward(TENSOR_BF16, d, dout, out, m, inverse, order, all);
}
