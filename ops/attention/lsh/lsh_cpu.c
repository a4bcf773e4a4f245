/* CPU kernels of LSH attention; lsh.c has the derivation.
 *
 * In the sorted order of a round the keys that a query sees are contiguous. A tile of QUERIES
 * consecutive places therefore iterates over the keys from the first that its first query sees to
 * the last that its last query sees, across chunks; keys that a query does not see get weight 0 in
 * its row. As in softmax_cpu.c, score tiles are stored transposed, [keys, queries], and rows are
 * packed. */
#include "ops/attention/lsh/lsh.h"
#include "ops/shared/tiles_cpu.h"

#include <omp.h>

/* Queries and keys per tile; places whose gradients one unit of the backward pass owns. */
enum { QUERIES = 32, KEYS = 64, OWNED = 128 };
_Static_assert(QUERIES % UNIT == 0 && KEYS % ROWS == 0, "tiles are whole vectors");
_Static_assert(OWNED % QUERIES == 0, "units are whole tiles");

/* Row maximum before the first score. It is finite, because -infinity - -infinity is NaN. */
static const Real LOWEST = (Real)-1e30;

/* ----------------------------------------------------------------------------------- workspaces */

/* The buffers of a thread. */
typedef struct Workspace {
    Real *query, *query_transposed; /* [QUERIES, D], [D, QUERIES] */
    Real *key, *value;              /* [KEYS, D], [KEYS, M]: u / sqrt D, v */
    Real *P;             /* [KEYS, QUERIES]: the score tile s, then e^(s - m) / N or P / N */
    Real *weight;        /* [KEYS, QUERIES]: 1 / N if the query sees the key, else 0 */
    Real *row[3];        /* [QUERIES] each: m, l and factors; backward L and g.out */
    int32_t *low, *high; /* [rounds, QUERIES]: the queries see low <= place < high */
    Real *out;           /* [QUERIES, M]: o */
    Real *projections;   /* [columns of R, QUERIES] */
    int32_t *count;      /* [buckets + 1] */
    Real *dout, *dout_transposed; /* [QUERIES, M], [M, QUERIES]: g */
    Real *dS;                     /* [KEYS, QUERIES]: dP, then dS */
    Real *dquery, *dkey, *dvalue; /* [OWNED + ROWS, D or M]: sums of the unit */
} Workspace;

static int64_t buckets_of(const LshRounds *a)
{
    return a->factor[0] * a->factor[1];
}

static int32_t *allocate_integers(Real *scratch, int64_t *used, int64_t count)
{
    return (int32_t *)(void *)allocate(scratch, used, count);
}

/* Assigns a workspace's buffers in scratch memory, or NULL; returns their size in Reals. */
static int64_t allocate_workspace(Workspace *w, const LshRounds *a, Real *scratch, bool backward)
{
    int64_t used = 0, D = round_up(a->D, LANES), M = round_up(a->M, LANES);
    w->query = allocate(scratch, &used, QUERIES * D);
    w->query_transposed = allocate(scratch, &used, QUERIES * D);
    w->key = allocate(scratch, &used, KEYS * D);
    w->value = allocate(scratch, &used, KEYS * M);
    w->P = allocate(scratch, &used, KEYS * QUERIES);
    w->weight = allocate(scratch, &used, KEYS * QUERIES);
    for (int i = 0; i < 3; i++)
        w->row[i] = allocate(scratch, &used, QUERIES);
    w->low = allocate_integers(scratch, &used, a->rounds * QUERIES);
    w->high = allocate_integers(scratch, &used, a->rounds * QUERIES);
    if (!backward) {
        w->out = allocate(scratch, &used, QUERIES * M);
        w->projections = allocate(scratch, &used, round_up(lsh_columns(a), ROWS) * QUERIES);
        w->count = allocate_integers(scratch, &used, buckets_of(a) + 1);
        return used;
    }
    w->dout = allocate(scratch, &used, QUERIES * M);
    w->dout_transposed = allocate(scratch, &used, QUERIES * M);
    w->dS = allocate(scratch, &used, KEYS * QUERIES);
    w->dquery = allocate(scratch, &used, (OWNED + ROWS) * D);
    w->dkey = allocate(scratch, &used, (OWNED + ROWS) * D);
    w->dvalue = allocate(scratch, &used, (OWNED + ROWS) * M);
    return used;
}

static int64_t workspace_size(const LshRounds *a, bool backward)
{
    return allocate_workspace(&(Workspace){ 0 }, a, NULL, backward);
}

static Workspace workspace(const LshRounds *a, Real *scratch, bool backward)
{
    Workspace w;
    allocate_workspace(&w, a, scratch + omp_get_thread_num() * workspace_size(a, backward),
                       backward);
    return w;
}

/* Size of the matrices R, with the rows that a product reads past their end. */
static int64_t matrices_size(const LshRounds *a)
{
    return round_up(lsh_random_numbers(a) + ROWS * a->D, LANES);
}

int64_t lsh_attention_scratch_cpu(const LshRounds *a, bool backward)
{
    return (backward ? 0 : matrices_size(a)) + device_threads() * workspace_size(a, backward);
}

static bool worth_threads(const LshRounds *a)
{
    return a->B * a->H * a->N * minimum(a->N, a->chunk) >= PARALLEL_MINIMUM;
}

/* ----------------------------------------------------------------------------------------- head */

/* A head of a sequence in one round. */
typedef struct Head {
    const LshRounds *a;
    int64_t b, h, index, round;
    int64_t count; /* positions that are not left out */
    const int32_t *order, *low, *high;
} Head;

static Head head_at(const LshRounds *a, const int32_t *places, int64_t index, int64_t round)
{
    int64_t b = index / a->H;
    return (Head){ .a = a,
                   .b = b,
                   .h = index % a->H,
                   .index = index,
                   .round = round,
                   .count = a->lengths ? a->lengths[b] : a->N,
                   .order = places + lsh_places_at(a, PLACES_ORDER, index, round),
                   .low = places + lsh_places_at(a, PLACES_LOW, index, round),
                   .high = places + lsh_places_at(a, PLACES_HIGH, index, round) };
}

/* A position's row of x and of value, and the index of its row in [B, N, H]. */
static const Real *x_row(const Head *t, int64_t position)
{
    return t->a->x + (t->b * t->a->N + position) * t->a->x_stride + t->h * t->a->D;
}
static const Real *value_row(const Head *t, int64_t position)
{
    return t->a->value + (t->b * t->a->N + position) * t->a->value_stride + t->h * t->a->M;
}
static int64_t row_of(const Head *t, int64_t position)
{
    return (t->b * t->a->N + position) * t->a->H + t->h;
}

/* to [round_up(count, ROWS), padded] = the rows at places first, first + 1, ..., padded with zeros.
 * The head's rows are stored at from, stride apart. */
WHOLE_VECTORS static void gather(Real *to, const Real *from, int64_t stride, int64_t columns,
                                 int64_t padded, const Head *t, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += padded) {
        if (first + i + AHEAD < t->count)
            for (int64_t c = 0; c < columns; c += LINE)
                __builtin_prefetch(from + t->order[first + i + AHEAD] * stride + c);
        pack_row(to, from + t->order[first + i] * stride, columns, padded, 1);
    }
    memset(to, 0, (size_t)((round_up(count, ROWS) - count) * padded) * sizeof *to);
}

/* 1 / n of lsh.c: 1 / sqrt(x.x + eps) */
static Real inverse_length(const Real *x, int64_t n)
{
    Real sum = LSH_EPS;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * x[c];
    return 1 / (Real)sqrt((double)sum);
}

static Real score_scale(const LshRounds *a)
{
    return 1 / (Real)sqrt((double)a->D);
}

/* -------------------------------------------------------------------------------------- hashing */

/* One Philox counter yields four elements. */
static void draw_matrices(Real *R, const LshRounds *a)
{
    enum { PIECE = 1024 };
    int64_t n = lsh_random_numbers(a);
#pragma omp parallel for schedule(static) if (n >= 2 * PIECE)
    for (int64_t start = 0; start < n; start += PIECE) {
        Random random = a->random;
        random.counter += (uint64_t)start / 4;
        random_normal(&random, R + start, minimum(PIECE, n - start));
    }
    memset(R + n, 0, (size_t)(ROWS * a->D) * sizeof *R);
}

/* bucket = bucket * count + argmax([p; -p]) for each query's p: count / 2 values, QUERIES apart. */
static void add_hash(int32_t *restrict bucket, const Real *restrict p, int64_t count)
{
    Real most[QUERIES], least[QUERIES];
    int32_t most_at[QUERIES], least_at[QUERIES];
    for (int i = 0; i < QUERIES; i++) {
        most[i] = -INFINITY;
        least[i] = INFINITY;
        most_at[i] = least_at[i] = 0;
    }
    int32_t half = (int32_t)(count / 2);
    for (int32_t c = 0; c < half; c++, p += QUERIES)
#pragma omp simd
        for (int i = 0; i < QUERIES; i++) {
            most_at[i] = p[i] > most[i] ? c : most_at[i];
            most[i] = p[i] > most[i] ? p[i] : most[i];
            least_at[i] = p[i] < least[i] ? c : least_at[i];
            least[i] = p[i] < least[i] ? p[i] : least[i];
        }
    for (int i = 0; i < QUERIES; i++)
        bucket[i] =
            bucket[i] * (2 * half) + (-least[i] > most[i] ? half + least_at[i] : most_at[i]);
}

/* Stores the buckets of a tile of positions in PLACES_LOW, for all rounds. */
static void hash_tile(int32_t *places, Workspace *w, const Real *R, const LshRounds *a,
                      int64_t index, int64_t first)
{
    int64_t columns = lsh_columns(a), count = minimum(QUERIES, a->N - first);
    int64_t D = round_up(a->D, LANES);
    Head t = head_at(a, places, index, 0);
    pack_tile(w->query, &(Rows){ x_row(&t, first), a->x_stride, count, a->D }, D, 1);
    transpose(w->query_transposed, w->query, D, count, a->D, QUERIES);
    for (int64_t round = 0; round < a->rounds; round++) {
        set_product(w->projections, R + (round * a->H + t.h) * columns * a->D, a->D,
                    w->query_transposed, QUERIES, round_up(columns, ROWS), a->D, QUERIES);
        int32_t bucket[QUERIES] = { 0 };
        if (a->factor[0] > 1)
            add_hash(bucket, w->projections, a->factor[0]);
        if (a->factor[1] > 1)
            add_hash(bucket, w->projections + a->factor[0] / 2 * QUERIES, a->factor[1]);
        memcpy(places + lsh_places_at(a, PLACES_LOW, index, round) + first, bucket,
               (size_t)count * sizeof *bucket);
    }
}

/* Sorts a head's positions by (bucket, position) with a counting sort. After the prefix sum
 * count[bucket] is the bucket's first place, after the assignment of places the bucket's end. */
static void sort_head(int32_t *places, int32_t *count, const LshRounds *a, int64_t index,
                      int64_t round)
{
    Head t = head_at(a, places, index, round);
    int32_t *order = places + lsh_places_at(a, PLACES_ORDER, index, round);
    int32_t *place = places + lsh_places_at(a, PLACES_PLACE, index, round);
    int32_t *low = places + lsh_places_at(a, PLACES_LOW, index, round);
    int32_t *high = places + lsh_places_at(a, PLACES_HIGH, index, round);
    int64_t buckets = buckets_of(a);
    memset(count, 0, (size_t)(buckets + 1) * sizeof *count);
    for (int64_t i = 0; i < t.count; i++)
        count[low[i] + 1]++;
    for (int64_t bucket = 0; bucket < buckets; bucket++)
        count[bucket + 1] += count[bucket];
    for (int64_t i = 0; i < t.count; i++)
        place[i] = count[low[i]]++;
    for (int64_t i = 0; i < t.count; i++) {
        int64_t chunk = place[i] / a->chunk;
        int64_t end = count[low[i]], start = low[i] ? count[low[i] - 1] : 0;
        order[place[i]] = (int32_t)i;
        low[i] = (int32_t)maximum(start, (chunk - 1) * a->chunk);
        high[i] = a->causal ? place[i] : (int32_t)minimum(end, (chunk + 1) * a->chunk);
    }
}

/* Fills `places` (lsh.h). */
static void sort_positions(int32_t *places, Real *scratch, const LshRounds *a)
{
    Real *R = scratch;
    draw_matrices(R, a);
    scratch += matrices_size(a);
    int64_t heads = a->B * a->H, tiles = (a->N + QUERIES - 1) / QUERIES;
#pragma omp parallel if (worth_threads(a))
    {
        Workspace w = workspace(a, scratch, false);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < heads * tiles; unit++)
            hash_tile(places, &w, R, a, unit / tiles, unit % tiles * QUERIES);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < heads * a->rounds; unit++)
            sort_head(places, w.count, a, unit / a->rounds, unit % a->rounds);
    }
}

/* ---------------------------------------------------------------------------------------- tiles */

/* Queries at consecutive places. All keys that they see are at places begin <= place < end. */
typedef struct Tile {
    Head head;
    const int32_t *places;
    int64_t first, count, begin, end;
} Tile;

static Tile tile_at(const Head *head, const int32_t *places, int64_t first)
{
    Tile t = { .head = *head, .places = places, .first = first };
    t.count = minimum(QUERIES, head->count - first);
    t.begin = head->low[head->order[first]];
    t.end = head->high[head->order[first + t.count - 1]];
    return t;
}

static void load_queries(Workspace *w, const Tile *t)
{
    const LshRounds *a = t->head.a;
    int64_t D = round_up(a->D, LANES);
    gather(w->query, x_row(&t->head, 0), a->x_stride, a->D, D, &t->head, t->first, t->count);
    transpose(w->query_transposed, w->query, D, t->count, a->D, QUERIES);
    for (int64_t round = 0; round < a->rounds; round++) {
        Head in_round = head_at(a, t->places, t->head.index, round);
        int32_t *low = w->low + round * QUERIES, *high = w->high + round * QUERIES;
        for (int64_t i = 0; i < QUERIES; i++) {
            bool there = i < t->count;
            low[i] = there ? in_round.low[t->head.order[t->first + i]] : 0;
            high[i] = there ? in_round.high[t->head.order[t->first + i]] : 0;
        }
    }
}

static void load_keys(Workspace *w, const Tile *t, int64_t start, int64_t keys)
{
    const LshRounds *a = t->head.a;
    int64_t D = round_up(a->D, LANES), M = round_up(a->M, LANES);
    gather(w->key, x_row(&t->head, 0), a->x_stride, a->D, D, &t->head, start, keys);
    for (int64_t j = 0; j < keys; j++) {
        Real *key = w->key + j * D, factor = score_scale(a) * inverse_length(key, D);
#pragma omp simd
        for (int64_t c = 0; c < D; c++)
            key[c] *= factor;
    }
    gather(w->value, value_row(&t->head, 0), a->value_stride, a->M, M, &t->head, start, keys);
}

/* N_ij: the number of rounds in which each query sees this position. */
static void count_rounds(int32_t *restrict count, const Workspace *w, const Tile *t,
                         int64_t position)
{
    const LshRounds *a = t->head.a;
    for (int i = 0; i < QUERIES; i++)
        count[i] = 0;
    for (int64_t round = 0; round < a->rounds; round++) {
        int32_t place = t->places[lsh_places_at(a, PLACES_PLACE, t->head.index, round) + position];
        const int32_t *low = w->low + round * QUERIES, *high = w->high + round * QUERIES;
#pragma omp simd
        for (int i = 0; i < QUERIES; i++)
            count[i] += (low[i] <= place) & (place < high[i]);
    }
}

/* weight [keys, QUERIES] = 1 / N_ij if the query sees the key in this round, else 0 */
static void load_weights(Workspace *w, const Tile *t, int64_t start, int64_t keys)
{
    const int32_t *low = w->low + t->head.round * QUERIES,
                  *high = w->high + t->head.round * QUERIES;
    for (int64_t j = 0; j < keys; j++) {
        Real *weight = w->weight + j * QUERIES;
        int32_t place = (int32_t)(start + j);
#pragma omp simd
        for (int i = 0; i < QUERIES; i++)
            weight[i] = (Real)((low[i] <= place) & (place < high[i]));
        int64_t self = place - t->first;
        if (self >= 0 && self < QUERIES)
            weight[self] = 0;
        if (t->head.a->rounds == 1)
            continue;
        int32_t count[QUERIES];
        count_rounds(count, w, t, t->head.order[place]);
#pragma omp simd
        for (int i = 0; i < QUERIES; i++)
            weight[i] /= (Real)(count[i] > 0 ? count[i] : 1);
    }
}

/* Loads the keys at places start, start + 1, ...; computes their score tile and weights. */
static void score_tile(Workspace *w, const Tile *t, int64_t start, int64_t keys)
{
    const LshRounds *a = t->head.a;
    load_keys(w, t, start, keys);
    load_weights(w, t, start, keys);
    set_product(w->P, w->key, round_up(a->D, LANES), w->query_transposed, QUERIES,
                round_up(keys, ROWS), a->D, QUERIES);
}

/* -------------------------------------------------------------------------------------- forward */

/* One step of online softmax. */
WHOLE_VECTORS static void softmax_step(Workspace *w, int64_t queries, int64_t keys, int64_t M)
{
    online_softmax(true, w->P, w->weight, w->row[0], w->row[1], w->out, w->row[2], keys, queries,
                   QUERIES, M);
}

/* Loads the sums of the previous rounds. */
static void load_sums(Workspace *w, const Tile *t, const Real *out, const Real *log_sum)
{
    int64_t M = t->head.a->M, padded = round_up(M, LANES);
    memset(w->out, 0, (size_t)(QUERIES * padded) * sizeof *w->out);
    for (int64_t i = 0; i < QUERIES; i++) {
        w->row[0][i] = LOWEST;
        w->row[1][i] = 0;
        if (t->head.round == 0 || i >= t->count)
            continue;
        int64_t row = row_of(&t->head, t->head.order[t->first + i]);
        if (log_sum[row] == LOWEST)
            continue;
        w->row[0][i] = log_sum[row];
        w->row[1][i] = 1;
        memcpy(w->out + i * padded, out + row * M, (size_t)M * sizeof *out);
    }
}

/* Stores out and L of the rounds so far; after the last round also out = v and L = infinity of
 * queries that see nothing. */
static void store_sums(Real *out, Real *log_sum, const Workspace *w, const Tile *t)
{
    const LshRounds *a = t->head.a;
    int64_t M = a->M, padded = round_up(M, LANES);
    for (int64_t i = 0; i < t->count; i++) {
        int64_t position = t->head.order[t->first + i], row = row_of(&t->head, position);
        Real m = w->row[0][i], l = w->row[1][i], *to = out + row * M;
        if (l == 0 && t->head.round + 1 == a->rounds) {
            memcpy(to, value_row(&t->head, position), (size_t)M * sizeof *to);
            log_sum[row] = INFINITY;
        } else if (l == 0) {
            log_sum[row] = LOWEST;
        } else {
            unpack((Gradient){ to, false }, 0, w->out + i * padded, 1, M, padded, 1 / l, 0);
            log_sum[row] = m + (Real)log((double)l);
        }
    }
}

static void forward_tile(Real *out, Real *log_sum, Workspace *w, const Tile *t)
{
    int64_t M = round_up(t->head.a->M, LANES);
    load_queries(w, t);
    load_sums(w, t, out, log_sum);
    for (int64_t start = t->begin; start < t->end; start += KEYS) {
        int64_t keys = minimum(KEYS, t->end - start);
        score_tile(w, t, start, keys);
        softmax_step(w, t->count, keys, M);
        add_product_transposed(w->out, w->P, QUERIES, w->value, round_up(t->count, ROWS), keys, M);
    }
    store_sums(out, log_sum, w, t);
}

/* Zeroes the results of positions that are left out. */
static void leave_out(Real *out, Real *log_sum, const Head *t)
{
    for (int64_t position = t->count; position < t->a->N; position++) {
        int64_t row = row_of(t, position);
        memset(out + row * t->a->M, 0, (size_t)t->a->M * sizeof *out);
        log_sum[row] = 0;
    }
}

void lsh_attention_forward_cpu(Real *out, Real *log_sum, int32_t *places, Real *scratch,
                               const LshRounds *a)
{
    sort_positions(places, scratch, a);
    scratch += matrices_size(a);
    int64_t heads = a->B * a->H, tiles = (a->N + QUERIES - 1) / QUERIES;
#pragma omp parallel if (worth_threads(a))
    {
        Workspace w = workspace(a, scratch, false);
        for (int64_t round = 0; round < a->rounds; round++) {
#pragma omp for schedule(dynamic, 4)
            for (int64_t unit = 0; unit < heads * tiles; unit++) {
                Head head = head_at(a, places, unit / tiles, round);
                int64_t first = unit % tiles * QUERIES;
                if (first < head.count) {
                    Tile t = tile_at(&head, places, first);
                    forward_tile(out, log_sum, &w, &t);
                }
                if (first == 0 && round == 0)
                    leave_out(out, log_sum, &head);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------- backward */

/* Loads g, L and g.out of the tile's queries. */
static void load_rows(Workspace *w, const Tile *t, const Real *dout, const Real *out,
                      const Real *log_sum)
{
    int64_t H = t->head.a->H, M = t->head.a->M, padded = round_up(M, LANES);
    gather(w->dout, dout + row_of(&t->head, 0) * M, H * M, M, padded, &t->head, t->first, t->count);
    transpose(w->dout_transposed, w->dout, padded, t->count, M, QUERIES);
    memset(w->row[0], 0, QUERIES * sizeof(Real));
    memset(w->row[1], 0, QUERIES * sizeof(Real));
    for (int64_t i = 0; i < t->count; i++) {
        int64_t row = row_of(&t->head, t->head.order[t->first + i]);
        w->row[0][i] = log_sum[row];
        w->row[1][i] = dot(dout + row * M, out + row * M, M);
    }
}

/* P / N and dS from s and dP. */
WHOLE_VECTORS static void score_gradients(Workspace *w, int64_t keys)
{
    for (int64_t j = 0; j < keys; j++)
        softmax_backward(true, w->P + j * QUERIES, w->dS + j * QUERIES, w->row[0], w->row[1],
                         w->weight + j * QUERIES, QUERIES);
}

/* The places whose gradients a unit owns. */
typedef struct Owned {
    int64_t first, end;
} Owned;

/* Adds the contributions of the tile's queries and of some keys to the sums of owned places. */
static void backward_keys(Workspace *w, const Tile *t, Owned owned, int64_t start, int64_t keys)
{
    int64_t D = round_up(t->head.a->D, LANES), M = round_up(t->head.a->M, LANES);
    int64_t rows = round_up(keys, ROWS);
    score_tile(w, t, start, keys);
    set_product(w->dS, w->value, M, w->dout_transposed, QUERIES, rows, t->head.a->M, QUERIES);
    score_gradients(w, keys);
    if (owned.first <= t->first && t->first < owned.end)
        add_product_transposed(w->dquery + (t->first - owned.first) * D, w->dS, QUERIES, w->key,
                               round_up(t->count, ROWS), keys, D);
    if (owned.first <= start && start < owned.end) {
        int64_t at = start - owned.first;
        add_product(w->dkey + at * D, w->dS, QUERIES, w->query, rows, t->count, D);
        add_product(w->dvalue + at * M, w->P, QUERIES, w->dout, rows, t->count, M);
    }
}

/* Iterates over the keys that the tile sees; if the tile is not owned, over the owned ones only. No
 * step crosses a boundary of the owned places. */
static void backward_tile(Workspace *w, const Tile *t, Owned owned)
{
    bool own = owned.first <= t->first && t->first < owned.end;
    int64_t begin = own || t->begin > owned.first ? t->begin : owned.first;
    int64_t end = own ? t->end : minimum(t->end, owned.end);
    for (int64_t start = begin, keys; start < end; start += keys) {
        int64_t boundary = start < owned.first ? owned.first : start < owned.end ? owned.end : end;
        keys = minimum(minimum(KEYS, end - start), boundary - start);
        backward_keys(w, t, owned, start, keys);
    }
}

/* dx of a position from its sums as a query, dq, and as a key, dk = w sqrt D (w of lsh.c). */
static void contribute_x(Gradient d, const Head *t, int64_t position, const Real *dq,
                         const Real *dk)
{
    int64_t D = t->a->D;
    const Real *x = x_row(t, position);
    Real inverse = inverse_length(x, D), factor = score_scale(t->a) * inverse;
    Real along = dot(x, dk, D) * inverse * inverse;
    Real *dx = d.data + (x - t->a->x);
#pragma omp simd
    for (int64_t c = 0; c < D; c++)
        contribute(&dx[c], d.accumulate, dq[c] + factor * (dk[c] - along * x[c]));
}

/* dv of a position from its sums, plus g if it is alone: a query that sees nothing in any round. */
static void contribute_value(Gradient d, const Head *t, int64_t position, const Real *dv,
                             const Real *g, bool alone)
{
    Real *to = d.data + (value_row(t, position) - t->a->value);
    for (int64_t c = 0; c < t->a->M; c++)
        contribute(&to[c], d.accumulate, dv[c] + (alone ? g[c] : 0));
}

/* The first round may store; later rounds add. */
static Gradient in_round(Gradient d, int64_t round)
{
    return (Gradient){ d.data, d.accumulate || round > 0 };
}

static void contribute_owned(LshGradient d, const Workspace *w, const Head *t, Owned owned,
                             const Real *dout, const Real *log_sum)
{
    int64_t D = round_up(t->a->D, LANES), M = round_up(t->a->M, LANES);
    for (int64_t place = owned.first; place < owned.end; place++) {
        int64_t position = t->order[place], row = row_of(t, position), at = place - owned.first;
        if (d.x.data)
            contribute_x(in_round(d.x, t->round), t, position, w->dquery + at * D,
                         w->dkey + at * D);
        if (d.value.data)
            contribute_value(in_round(d.value, t->round), t, position, w->dvalue + at * M,
                             dout + row * t->a->M, t->round == 0 && log_sum[row] == INFINITY);
    }
}

/* The gradients of OWNED places, from the tiles there and from the tiles whose queries see them. */
static void backward_unit(LshGradient d, Workspace *w, const Head *head, const int32_t *places,
                          int64_t first, const Real *dout, const Real *out, const Real *log_sum)
{
    Owned owned = { first, minimum(first + OWNED, head->count) };
    size_t rows = OWNED + ROWS, real = sizeof(Real);
    memset(w->dquery, 0, rows * (size_t)round_up(head->a->D, LANES) * real);
    memset(w->dkey, 0, rows * (size_t)round_up(head->a->D, LANES) * real);
    memset(w->dvalue, 0, rows * (size_t)round_up(head->a->M, LANES) * real);
    while (first > 0 && head->high[head->order[first - 1]] > owned.first)
        first -= QUERIES;
    for (; first < head->count; first += QUERIES) {
        Tile t = tile_at(head, places, first);
        if (t.begin >= owned.end && first >= owned.end)
            break;
        load_queries(w, &t);
        load_rows(w, &t, dout, out, log_sum);
        backward_tile(w, &t, owned);
    }
    contribute_owned(d, w, head, owned, dout, log_sum);
}

static void contribute_zeros(Gradient d, int64_t at, int64_t count)
{
    for (int64_t c = 0; d.data && c < count; c++)
        contribute(&d.data[at + c], d.accumulate, 0);
}

/* Positions that are left out contribute 0. */
static void contribute_nothing(LshGradient d, const Head *t)
{
    for (int64_t position = t->count; position < t->a->N; position++) {
        contribute_zeros(d.x, x_row(t, position) - t->a->x, t->a->D);
        contribute_zeros(d.value, value_row(t, position) - t->a->value, t->a->M);
    }
}

void lsh_attention_backward_cpu(LshGradient d, const Real *dout, const Real *out,
                                const Real *log_sum, const int32_t *places, Real *scratch,
                                const LshRounds *a)
{
    int64_t heads = a->B * a->H, units = (a->N + OWNED - 1) / OWNED;
#pragma omp parallel if (worth_threads(a))
    {
        Workspace w = workspace(a, scratch, true);
        for (int64_t round = 0; round < a->rounds; round++) {
#pragma omp for schedule(dynamic)
            for (int64_t unit = 0; unit < heads * units; unit++) {
                Head head = head_at(a, places, unit / units, round);
                int64_t first = unit % units * OWNED;
                if (first < head.count)
                    backward_unit(d, &w, &head, places, first, dout, out, log_sum);
                if (first == 0 && round == 0)
                    contribute_nothing(d, &head);
            }
        }
    }
}
