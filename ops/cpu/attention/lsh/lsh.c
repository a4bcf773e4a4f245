/* CPU kernels of LSH attention; lsh.c has the derivation.
 *
 * In the sorted order of a round the visible keys of a query are contiguous. A tile of LSH_QUERIES
 * consecutive ranks therefore iterates over the keys from the first that is visible to its first
 * query to the last that is visible to its last query, across chunks; keys that are not visible to
 * a query get weight 0 in its row (softmax_tiles.h).
 *
 * Several rounds add up out and the gradients in Real: in the destination itself or, if that is
 * bf16, in scratch memory, from which the last round stores the sums. */
#include "ops/attention/lsh/lsh.h"
#include "ops/cpu/attention/shared/softmax_tiles.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

/* Queries and keys per tile; ranks whose gradients one unit of the backward pass owns. */
enum { LSH_QUERIES = 32, LSH_KEYS = 64, OWNED = 128 };
_Static_assert(LSH_QUERIES % UNIT == 0 && LSH_KEYS % ROWS == 0, "tiles are whole vectors");
_Static_assert(OWNED % LSH_QUERIES == 0, "units are whole tiles");

/* Row maximum before the first score. It is finite, because -infinity - -infinity is NaN. */
static const Real LOWEST = (Real)-1e30;

/* ----------------------------------------------------------------------------------- workspaces */

/* The sums over the rounds so far. Forward: out [B, N, H, M]. Backward, of several rounds in bf16:
 * dx [B, N, H, D] and dv [B, N, H, M], else NULL. */
typedef struct RoundSums {
    Real *out, *dx, *dv;
} RoundSums;

/* A thread's current query tile in one round, and its buffers. */
typedef struct LshWorkspace {
    QueryTile tile;
    const LshRounds *rounds;
    const int32_t *order;   /* of lsh.h */
    int64_t head, round;    /* head: its index in [B, H] */
    int64_t begin, end;     /* the visible keys of the tile's queries have ranks begin to end - 1 */
    Real *key, *value;      /* [LSH_KEYS, D], [LSH_KEYS, M]: u / sqrt D, v */
    Real *weight;           /* [LSH_KEYS, LSH_QUERIES]: 1 / N if the key is visible, else 0 */
    int32_t *visible_begin; /* [rounds, LSH_QUERIES] */
    int32_t *visible_end;   /* [rounds, LSH_QUERIES] */
    Real *projections;      /* [columns of R, LSH_QUERIES] */
    int32_t *count;         /* [buckets + 1] */
    Real *dquery, *dkey, *dvalue; /* [OWNED + ROWS, D or M]: sums of the unit */
    RoundSums sums;
} LshWorkspace;

static int64_t buckets_of(const LshRounds *a)
{
    return a->factor[0] * a->factor[1];
}

static int32_t *allocate_integers(Real *scratch, int64_t *used, int64_t count)
{
    return (int32_t *)(void *)allocate(scratch, used, count);
}

/* Assigns a workspace's buffers in scratch memory, or NULL; returns their size in Reals. */
static int64_t allocate_workspace(LshWorkspace *w, const LshRounds *rounds, Real *scratch,
                                  bool backward)
{
    int64_t used = 0;
    w->rounds = rounds;
    allocate_tile(&w->tile, &rounds->x, LSH_QUERIES, LSH_KEYS, scratch, &used, backward);
    const int64_t D = w->tile.D, M = w->tile.M;
    w->key = allocate(scratch, &used, LSH_KEYS * D);
    w->value = allocate(scratch, &used, LSH_KEYS * M);
    w->weight = allocate(scratch, &used, LSH_KEYS * LSH_QUERIES);
    w->visible_begin = allocate_integers(scratch, &used, rounds->rounds * LSH_QUERIES);
    w->visible_end = allocate_integers(scratch, &used, rounds->rounds * LSH_QUERIES);
    if (!backward) {
        w->projections =
            allocate(scratch, &used, round_up(lsh_columns(rounds), ROWS) * LSH_QUERIES);
        w->count = allocate_integers(scratch, &used, buckets_of(rounds) + 1);
        return used;
    }
    w->dquery = allocate(scratch, &used, (OWNED + ROWS) * D);
    w->dkey = allocate(scratch, &used, (OWNED + ROWS) * D);
    w->dvalue = allocate(scratch, &used, (OWNED + ROWS) * M);
    return used;
}

static int64_t workspace_size(const LshRounds *rounds, bool backward)
{
    return allocate_workspace(&(LshWorkspace){ 0 }, rounds, NULL, backward);
}

/* The thread's workspace, in the memory of all threads' workspaces. */
static LshWorkspace lsh_workspace(TensorType type, const LshRounds *rounds, const int32_t *order,
                                  Real *scratch, bool backward)
{
    LshWorkspace w = { .order = order, .tile.type = (int)type };
    scratch += omp_get_thread_num() * workspace_size(rounds, backward);
    allocate_workspace(&w, rounds, scratch, backward);
    w.tile.columns = LSH_QUERIES;
    return w;
}

/* A query meets up to two chunks of keys per round. */
static int lsh_threads(const LshRounds *rounds)
{
    const AttentionInputs *x = &rounds->x;
    const int64_t pairs = x->B * x->H * x->N * minimum(x->N, 2 * rounds->chunk) * rounds->rounds;
    return threads_for(pairs, 0.04 * (double)(x->D + x->M));
}

/* One array of `order` in a round, [N]. */
static const int32_t *order_of(const LshWorkspace *w, int array, int64_t round)
{
    return w->order + lsh_order_at(w->rounds, array, w->head, round);
}

/* Moves to a head of a sequence in one round. */
static void select_lsh_head(LshWorkspace *w, int64_t head, int64_t round)
{
    const AttentionInputs *x = &w->rounds->x;
    QueryTile *t = &w->tile;
    w->head = head;
    w->round = round;
    t->b = head / x->H;
    t->h = head % x->H;
    t->sorted_index = order_of(w, SORTED_INDEX, round);
    t->positions = x->key_lengths ? x->key_lengths[t->b] : x->N;
}

/* The last round stores the results in their own dtype. */
static bool is_last_round(const LshWorkspace *w)
{
    return w->round + 1 == w->rounds->rounds;
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

/* -------------------------------------------------------------------------------------- hashing */

/* One Philox counter yields four elements. R is padded by rows that a product reads past its
 * end. */
static void draw_matrices(Real *R, const LshRounds *rounds)
{
    enum { PIECE = 1024 };
    int64_t n = lsh_random_numbers(rounds);
#pragma omp parallel for schedule(static) num_threads(threads_for(n, 5))
    for (int64_t start = 0; start < n; start += PIECE) {
        Random random = rounds->random;
        random.counter += (uint64_t)start / 4;
        random_normal(&random, R + start, minimum(PIECE, n - start));
    }
    memset(R + n, 0, (size_t)(ROWS * rounds->x.D) * sizeof *R);
}

/* bucket = bucket * count + argmax([p; -p]) for each query's p: count / 2 values, LSH_QUERIES
 * apart. */
static void add_hash(int32_t *restrict bucket, const Real *restrict p, int64_t count)
{
    Real most[LSH_QUERIES], least[LSH_QUERIES];
    int32_t most_at[LSH_QUERIES], least_at[LSH_QUERIES];
    for (int i = 0; i < LSH_QUERIES; i++) {
        most[i] = -INFINITY;
        least[i] = INFINITY;
        most_at[i] = least_at[i] = 0;
    }
    int32_t half = (int32_t)(count / 2);
    for (int32_t c = 0; c < half; c++, p += LSH_QUERIES)
#pragma omp simd
        for (int i = 0; i < LSH_QUERIES; i++) {
            most_at[i] = p[i] > most[i] ? c : most_at[i];
            most[i] = p[i] > most[i] ? p[i] : most[i];
            least_at[i] = p[i] < least[i] ? c : least_at[i];
            least[i] = p[i] < least[i] ? p[i] : least[i];
        }
    for (int i = 0; i < LSH_QUERIES; i++)
        bucket[i] =
            bucket[i] * (2 * half) + (-least[i] > most[i] ? half + least_at[i] : most_at[i]);
}

/* Stores the buckets of a tile of positions in VISIBLE_BEGIN, for all rounds. */
static void hash_tile(int32_t *order, LshWorkspace *w, const Real *R, int64_t head, int64_t first)
{
    const LshRounds *rounds = w->rounds;
    const int64_t columns = lsh_columns(rounds), D = rounds->x.D, *factor = rounds->factor;
    QueryTile *t = &w->tile;
    select_lsh_head(w, head, 0);
    t->sorted_index = NULL;
    t->first = first;
    t->count = minimum(LSH_QUERIES, rounds->x.N - first);
    load_queries(t, 1);
    for (int64_t round = 0; round < rounds->rounds; round++) {
        set_product(w->projections, R + (round * rounds->x.H + t->h) * columns * D, D,
                    t->query_transposed, LSH_QUERIES, round_up(columns, ROWS), D, LSH_QUERIES);
        int32_t bucket[LSH_QUERIES] = { 0 };
        if (factor[0] > 1)
            add_hash(bucket, w->projections, factor[0]);
        if (factor[1] > 1)
            add_hash(bucket, w->projections + factor[0] / 2 * LSH_QUERIES, factor[1]);
        memcpy(order + lsh_order_at(rounds, VISIBLE_BEGIN, head, round) + first, bucket,
               (size_t)t->count * sizeof *bucket);
    }
}

/* Sorts a head's positions by (bucket, position) with a counting sort. After the prefix sum
 * count[bucket] is the bucket's first rank, after the assignment of ranks the bucket's end. */
static void sort_head(int32_t *order, LshWorkspace *w, int64_t head, int64_t round)
{
    const LshRounds *rounds = w->rounds;
    int32_t *sorted_index = order + lsh_order_at(rounds, SORTED_INDEX, head, round);
    int32_t *rank = order + lsh_order_at(rounds, RANK, head, round);
    int32_t *begin = order + lsh_order_at(rounds, VISIBLE_BEGIN, head, round);
    int32_t *end = order + lsh_order_at(rounds, VISIBLE_END, head, round);
    const int32_t *bucket = begin; /* stored there by hash_tile */
    int32_t *count = w->count;
    const int64_t buckets = buckets_of(rounds);
    select_lsh_head(w, head, round);
    memset(count, 0, (size_t)(buckets + 1) * sizeof *count);
    for (int64_t i = 0; i < w->tile.positions; i++)
        count[bucket[i] + 1]++;
    for (int64_t k = 0; k < buckets; k++)
        count[k + 1] += count[k];
    for (int64_t i = 0; i < w->tile.positions; i++)
        rank[i] = count[bucket[i]]++;
    for (int64_t i = 0; i < w->tile.positions; i++) {
        const int64_t chunk = rank[i] / rounds->chunk;
        const int64_t last = count[bucket[i]], first = bucket[i] ? count[bucket[i] - 1] : 0;
        sorted_index[rank[i]] = (int32_t)i;
        begin[i] = (int32_t)maximum(first, (chunk - 1) * rounds->chunk);
        end[i] = rounds->causal ? rank[i] : (int32_t)minimum(last, (chunk + 1) * rounds->chunk);
    }
}

/* Fills `order` (lsh.h). workspaces: of all threads */
static void sort_positions(TensorType type, int32_t *order, Real *workspaces,
                           const LshRounds *rounds)
{
    Real *R = device_workspace(lsh_random_numbers(rounds) + ROWS * rounds->x.D);
    draw_matrices(R, rounds);
    int64_t heads = rounds->x.B * rounds->x.H,
            tiles = (rounds->x.N + LSH_QUERIES - 1) / LSH_QUERIES;
#pragma omp parallel num_threads(lsh_threads(rounds))
    {
        LshWorkspace w = lsh_workspace(type, rounds, order, workspaces, false);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < heads * tiles; unit++)
            hash_tile(order, &w, R, unit / tiles, unit % tiles * LSH_QUERIES);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < heads * rounds->rounds; unit++)
            sort_head(order, &w, unit / rounds->rounds, unit % rounds->rounds);
    }
    device_workspace_free(R);
}

/* ---------------------------------------------------------------------------------------- tiles */

/* Moves to the queries of ranks from `first` on. */
static void select_lsh_tile(LshWorkspace *w, int64_t first)
{
    QueryTile *t = &w->tile;
    t->first = first;
    t->count = minimum(LSH_QUERIES, t->positions - first);
    w->begin = order_of(w, VISIBLE_BEGIN, w->round)[t->sorted_index[first]];
    w->end = order_of(w, VISIBLE_END, w->round)[t->sorted_index[first + t->count - 1]];
}

/* Loads the tile's queries, and their visible range in each round. */
static void load_lsh_tile(LshWorkspace *w)
{
    QueryTile *t = &w->tile;
    load_queries(t, 1);
    for (int64_t round = 0; round < w->rounds->rounds; round++) {
        const int32_t *begin = order_of(w, VISIBLE_BEGIN, round);
        const int32_t *end = order_of(w, VISIBLE_END, round);
        for (int64_t i = 0; i < LSH_QUERIES; i++) {
            const int32_t position = i < t->count ? t->sorted_index[t->first + i] : -1;
            w->visible_begin[round * LSH_QUERIES + i] = position < 0 ? 0 : begin[position];
            w->visible_end[round * LSH_QUERIES + i] = position < 0 ? 0 : end[position];
        }
    }
}

/* N_ij: the number of rounds in which each query attends to this position. */
static void count_rounds(int32_t *restrict count, const LshWorkspace *w, int64_t position)
{
    for (int i = 0; i < LSH_QUERIES; i++)
        count[i] = 0;
    const int64_t rounds = w->rounds->rounds, N = w->rounds->x.N;
    const int32_t *ranks = order_of(w, RANK, 0), *begin = w->visible_begin, *end = w->visible_end;
    for (int64_t round = 0; round < rounds; round++, begin += LSH_QUERIES, end += LSH_QUERIES) {
        int32_t rank = ranks[round * N + position];
#pragma omp simd
        for (int i = 0; i < LSH_QUERIES; i++)
            count[i] += (begin[i] <= rank) & (rank < end[i]);
    }
}

/* weight [keys, LSH_QUERIES] = 1 / N_ij if the key is visible in this round, else 0 */
static void load_weights(LshWorkspace *w, int64_t start, int64_t keys)
{
    const int32_t *begin = w->visible_begin + w->round * LSH_QUERIES;
    const int32_t *end = w->visible_end + w->round * LSH_QUERIES;
    for (int64_t j = 0; j < keys; j++) {
        Real *weight = w->weight + j * LSH_QUERIES;
        int32_t rank = (int32_t)(start + j);
#pragma omp simd
        for (int i = 0; i < LSH_QUERIES; i++)
            weight[i] = (Real)((begin[i] <= rank) & (rank < end[i]));
        int64_t self = rank - w->tile.first;
        if (self >= 0 && self < LSH_QUERIES)
            weight[self] = 0;
        if (w->rounds->rounds == 1)
            continue;
        int32_t count[LSH_QUERIES];
        count_rounds(count, w, w->tile.sorted_index[rank]);
#pragma omp simd
        for (int i = 0; i < LSH_QUERIES; i++)
            weight[i] /= (Real)(count[i] > 0 ? count[i] : 1);
    }
}

/* Loads the keys of ranks start, start + 1, ... as u / sqrt D, their values and weights. */
ALWAYS_INLINE KeyTile load_key_tile(LshWorkspace *w, int64_t start, int64_t keys)
{
    const QueryTile *t = &w->tile;
    load_keys(w->key, w->value, t, start, keys);
    for (int64_t j = 0; j < keys; j++) {
        Real *key = w->key + j * t->D;
        const Real factor = score_scale(t->a) * inverse_length(TENSOR_REAL, key, t->D);
#pragma omp simd
        for (int64_t c = 0; c < t->D; c++)
            key[c] *= factor;
    }
    load_weights(w, start, keys);
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

/* Loads the sums of the previous rounds. */
static void load_sums(LshWorkspace *w, const Real *log_sum)
{
    QueryTile *t = &w->tile;
    const int64_t M = t->a->M;
    memset(t->out, 0, (size_t)(LSH_QUERIES * t->M) * sizeof *t->out);
    for (int64_t i = 0; i < LSH_QUERIES; i++) {
        t->m[i] = LOWEST;
        t->l[i] = 0;
        if (w->round == 0 || i >= t->count)
            continue;
        int64_t row = row_of(t, t->sorted_index[t->first + i]);
        if (log_sum[row] == LOWEST)
            continue;
        t->m[i] = log_sum[row];
        t->l[i] = 1;
        memcpy(t->out + i * t->M, w->sums.out + row * M, (size_t)M * sizeof *t->out);
    }
}

/* Stores out and L of the rounds so far; after the last round also out = v and L = infinity of
 * queries to which nothing is visible. */
static void store_lsh_sums(Real *out, Real *log_sum, const LshWorkspace *w)
{
    const QueryTile *t = &w->tile;
    const bool last = is_last_round(w);
    const int type = t->type;
    const int64_t M = t->a->M;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t position = t->sorted_index[t->first + i], row = row_of(t, position);
        if (t->l[i] != 0) {
            store_out(last ? type : TENSOR_REAL, last ? out : w->sums.out, log_sum, t, i);
            continue;
        }
        log_sum[row] = last ? (Real)INFINITY : LOWEST;
        if (last)
            memcpy(elements_at(type, out, row * M),
                   elements_at(type, t->a->value, value_at(t, position)),
                   (size_t)M * element_bytes(type));
    }
}

WHOLE_VECTORS static void lsh_forward_tile(Real *out, Real *log_sum, LshWorkspace *w)
{
    load_lsh_tile(w);
    load_sums(w, log_sum);
    for (int64_t start = w->begin; start < w->end; start += LSH_KEYS) {
        KeyTile k = load_key_tile(w, start, minimum(LSH_KEYS, w->end - start));
        forward_tile(true, &w->tile, &k);
    }
    store_lsh_sums(out, log_sum, w);
}

/* Zeroes the results of masked positions. */
static void zero_masked(Real *out, Real *log_sum, const QueryTile *t)
{
    for (int64_t position = t->positions; position < t->a->N; position++) {
        int64_t row = row_of(t, position);
        memset(elements_at(t->type, out, row * t->a->M), 0,
               (size_t)t->a->M * element_bytes(t->type));
        log_sum[row] = 0;
    }
}

static void lsh_forward_tiles(TensorType type, Real *out, Real *log_sum, int32_t *order,
                              const LshRounds *rounds)
{
    const int64_t rows = rounds->x.B * rounds->x.N * rounds->x.H;
    const bool separate = type == TENSOR_BF16 && rounds->rounds > 1;
    Real *workspaces = device_workspace(device_threads() * workspace_size(rounds, false));
    sort_positions(type, order, workspaces, rounds);
    RoundSums sums = { .out = separate ? device_workspace(rows * rounds->x.M) : out };
    int64_t heads = rounds->x.B * rounds->x.H,
            tiles = (rounds->x.N + LSH_QUERIES - 1) / LSH_QUERIES;
#pragma omp parallel num_threads(lsh_threads(rounds))
    {
        LshWorkspace w = lsh_workspace(type, rounds, order, workspaces, false);
        w.sums = sums;
        for (int64_t round = 0; round < rounds->rounds; round++) {
#pragma omp for schedule(dynamic, 4)
            for (int64_t unit = 0; unit < heads * tiles; unit++) {
                int64_t first = unit % tiles * LSH_QUERIES;
                select_lsh_head(&w, unit / tiles, round);
                if (first < w.tile.positions) {
                    select_lsh_tile(&w, first);
                    lsh_forward_tile(out, log_sum, &w);
                }
                if (first == 0 && round == 0)
                    zero_masked(out, log_sum, &w.tile);
            }
        }
    }
    device_workspace_free(separate ? sums.out : NULL);
    device_workspace_free(workspaces);
}

void lsh_attention_forward_cpu(Real *out, Real *log_sum, int32_t *order, const LshRounds *rounds)
{
    lsh_forward_tiles(TENSOR_REAL, out, log_sum, order, rounds);
}

void lsh_attention_forward_bf16(Real *out, Real *log_sum, int32_t *order, const LshRounds *rounds)
{
    lsh_forward_tiles(TENSOR_BF16, out, log_sum, order, rounds);
}

/* ------------------------------------------------------------------------------------- backward */

/* The ranks whose gradients a unit owns. */
typedef struct Owned {
    int64_t first, end;
} Owned;

static bool owns(Owned owned, int64_t rank)
{
    return owned.first <= rank && rank < owned.end;
}

/* Adds the contributions of the tile's queries and of their visible keys to the sums of owned
 * ranks; if the tile is not owned, of the owned keys only. No step crosses a boundary of the owned
 * ranks. */
WHOLE_VECTORS static void lsh_backward_tile(LshWorkspace *w, Owned owned)
{
    QueryTile *t = &w->tile;
    const bool own = owns(owned, t->first);
    int64_t begin = own ? w->begin : maximum(w->begin, owned.first);
    int64_t end = own ? w->end : minimum(w->end, owned.end);
    for (int64_t start = begin, keys; start < end; start += keys) {
        int64_t boundary = start < owned.first ? owned.first : start < owned.end ? owned.end : end;
        keys = minimum(minimum(LSH_KEYS, end - start), boundary - start);
        KeyTile k = load_key_tile(w, start, keys);
        if (own)
            k.dquery = w->dquery + (t->first - owned.first) * t->D;
        if (owns(owned, start)) {
            k.dkey = w->dkey + (start - owned.first) * t->D;
            k.dvalue = w->dvalue + (start - owned.first) * t->M;
        }
        backward_tile(true, t, &k);
    }
}

/* dx, a row of x's gradient in this round, from its sums as a query, in dx, and as a key,
 * dk = w sqrt D (w of lsh.c). */
ALWAYS_INLINE void add_key_gradient(int T, Real *dx, const Real *dk, const Real *x, int64_t D,
                                    Real scale)
{
    Real inverse = inverse_length(T, x, D), factor = scale * inverse;
    Real along = dot_with(T, x, dk, D) * inverse * inverse;
#pragma omp simd
    for (int64_t c = 0; c < D; c++)
        dx[c] += factor * (dk[c] - along * load(T, x, c));
}

/* d[at], ... <- row, n elements of a round. The first round may store; later rounds add. With sums,
 * the rounds add to the sums, which the last round contributes. */
ALWAYS_INLINE void contribute_row(int T, const LshWorkspace *w, Gradient d, int64_t at, Real *sums,
                                  const Real *row, int64_t n)
{
    const bool later = w->round > 0, accumulate = d.accumulate || (later && !sums);
    if (sums) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            contribute(TENSOR_REAL, sums, c, later, row[c]);
        if (!is_last_round(w))
            return;
        row = sums;
    }
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        contribute(T, d.data, at + c, accumulate, row[c]);
}

/* Contributes the gradients of the position of a rank from its sums, plus g if it is alone: a
 * query to which nothing is visible in any round. */
ALWAYS_INLINE void contribute_rank(int T, AttentionGradient d, const LshWorkspace *w, Owned owned,
                                   int64_t rank, const Real *dout, const Real *log_sum)
{
    const QueryTile *t = &w->tile;
    const int64_t D = t->a->D, M = t->a->M, own = rank - owned.first;
    const int64_t position = t->sorted_index[rank], row = row_of(t, position);
    const RoundSums sums = w->sums;
    Real *dx = w->dquery + own * t->D, *dv = w->dvalue + own * t->M;
    if (d.query.data) {
        const int64_t at = query_at(t, position);
        add_key_gradient(T, dx, w->dkey + own * t->D, elements_at(T, t->a->query, at), D,
                         score_scale(t->a));
        contribute_row(T, w, d.query, at, sums.dx ? sums.dx + row * D : NULL, dx, D);
    }
    if (d.value.data) {
        const bool alone = w->round == 0 && log_sum[row] == INFINITY;
        for (int64_t c = 0; alone && c < M; c++)
            dv[c] += load(T, dout, row * M + c);
        contribute_row(T, w, d.value, value_at(t, position), sums.dv ? sums.dv + row * M : NULL, dv,
                       M);
    }
}

/* The gradients of OWNED ranks, from their own tiles and from tiles whose queries attend to
 * them. */
static void lsh_backward_unit(AttentionGradient d, LshWorkspace *w, int64_t first, const Real *dout,
                              const Real *out, const Real *log_sum)
{
    QueryTile *t = &w->tile;
    const int32_t *end = order_of(w, VISIBLE_END, w->round);
    Owned owned = { first, minimum(first + OWNED, t->positions) };
    size_t rows = OWNED + ROWS, real = sizeof(Real);
    memset(w->dquery, 0, rows * (size_t)t->D * real);
    memset(w->dkey, 0, rows * (size_t)t->D * real);
    memset(w->dvalue, 0, rows * (size_t)t->M * real);
    while (first > 0 && end[t->sorted_index[first - 1]] > owned.first)
        first -= LSH_QUERIES;
    for (; first < t->positions; first += LSH_QUERIES) {
        select_lsh_tile(w, first);
        if (w->begin >= owned.end && first >= owned.end)
            break;
        load_lsh_tile(w);
        load_upstream(t, dout, out, log_sum);
        lsh_backward_tile(w, owned);
    }
    for (int64_t rank = owned.first; rank < owned.end; rank++)
        BY_STORAGE(t->type, T, contribute_rank(T, d, w, owned, rank, dout, log_sum));
}

static void contribute_zeros(int type, Gradient d, int64_t at, int64_t count)
{
    BY_STORAGE(type, T,
               for (int64_t c = 0; d.data && c < count; c++)
                   contribute(T, d.data, at + c, d.accumulate, 0));
}

/* Masked positions contribute 0. */
static void contribute_masked(AttentionGradient d, const QueryTile *t)
{
    for (int64_t position = t->positions; position < t->a->N; position++) {
        contribute_zeros(t->type, d.query, query_at(t, position), t->a->D);
        contribute_zeros(t->type, d.value, value_at(t, position), t->a->M);
    }
}

static void lsh_backward_units(TensorType type, AttentionGradient d, const Real *dout,
                               const Real *out, const Real *log_sum, const int32_t *order,
                               const LshRounds *rounds)
{
    const int64_t rows = rounds->x.B * rounds->x.N * rounds->x.H;
    Real *workspaces = device_workspace(device_threads() * workspace_size(rounds, true));
    RoundSums sums = { 0 };
    if (type == TENSOR_BF16 && rounds->rounds > 1) {
        sums.dx = device_workspace(rows * rounds->x.D);
        sums.dv = device_workspace(rows * rounds->x.M);
    }
    int64_t heads = rounds->x.B * rounds->x.H, units = (rounds->x.N + OWNED - 1) / OWNED;
#pragma omp parallel num_threads(lsh_threads(rounds))
    {
        LshWorkspace w = lsh_workspace(type, rounds, order, workspaces, true);
        w.sums = sums;
        for (int64_t round = 0; round < rounds->rounds; round++) {
#pragma omp for schedule(dynamic)
            for (int64_t unit = 0; unit < heads * units; unit++) {
                int64_t first = unit % units * OWNED;
                select_lsh_head(&w, unit / units, round);
                if (first < w.tile.positions)
                    lsh_backward_unit(d, &w, first, dout, out, log_sum);
                if (first == 0 && round == 0)
                    contribute_masked(d, &w.tile);
            }
        }
    }
    device_workspace_free(sums.dv);
    device_workspace_free(sums.dx);
    device_workspace_free(workspaces);
}

void lsh_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                const Real *log_sum, const int32_t *order, const LshRounds *rounds)
{
    lsh_backward_units(TENSOR_REAL, d, dout, out, log_sum, order, rounds);
}

void lsh_attention_backward_bf16(AttentionGradient d, const Real *dout, const Real *out,
                                 const Real *log_sum, const int32_t *order, const LshRounds *rounds)
{
    lsh_backward_units(TENSOR_BF16, d, dout, out, log_sum, order, rounds);
}
