/* Positions are hashed and sorted as lsh_sort.cuh says.
 *
 * Attention: a block takes 64 neighbouring places of the sorted order as queries and goes through the
 * places that they see; for dk and dv it takes 64 places as keys and goes through those that see them.
 * A launch is one round, and adds to what the rounds before have left in scratch memory: every row
 * has one owner in it. */
#include "ops/attention.cuh"
#include "ops/lsh_attention.h"
#include "ops/lsh_sort.cuh"

#define LOWEST ((Real)-1e30) /* the maximum of no scores */

/* ---------------------------------------------------------------------------------------- scratch */

struct Scratch {
    Real *R;             /* [rounds, H, D, columns] */
    Key *keys[2];        /* [B, H, rounds, N] */
    Real *length;        /* [B, N, H]: of x */
    Real *out, *logs[2]; /* between rounds: out [B, N, H, M] and L [B, N, H] */
    Real *delta;         /* [B, N, H]: -g.out */
    Real *dq, *dk, *dv;  /* [B, N, H, D or M]: sums over the rounds; dk = dL/du */
};

static Real *take(Real *scratch, int64_t *used, int64_t count)
{
    Real *const taken = scratch ? scratch + *used : NULL;
    *used += (count + 15) / 16 * 16;
    return taken;
}

/* Cuts scratch memory up; returns how many numbers it takes. */
static int64_t lay_out(Scratch *s, const LshRounds *a, Real *scratch, bool backward)
{
    const int64_t rows = a->B * a->N * a->H;
    int64_t used = 0;
    s->length = take(scratch, &used, rows);
    if (backward) {
        s->delta = take(scratch, &used, rows);
        s->dq = take(scratch, &used, rows * a->D);
        s->dk = take(scratch, &used, rows * a->D);
        s->dv = take(scratch, &used, rows * a->M);
        return used;
    }
    s->R = take(scratch, &used, lsh_random_numbers(a));
    for (int i = 0; i < 2; i++)
        s->keys[i] =
            (Key *)take(scratch, &used, rows * a->rounds * (int64_t)(sizeof(Key) / sizeof(Real)));
    if (a->rounds > 1) {
        s->out = take(scratch, &used, rows * a->M);
        for (int i = 0; i < 2; i++)
            s->logs[i] = take(scratch, &used, rows);
    }
    return used;
}

extern "C" int64_t lsh_attention_scratch_cuda(const LshRounds *a, bool backward)
{
    Scratch scratch;
    return lay_out(&scratch, a, NULL, backward);
}

/* ------------------------------------------------------------------------------- rows by their places */

/* An argument [B, N, H, columns], divided by length [B, N, H] or not. */
template <typename T> struct SortedRows {
    const T *data;
    int64_t stride, columns;
    const Real *length;
};

/* What a launch works on: a round of all heads. */
template <typename T> struct LshRound {
    SortedRows<T> query, key, value;
    const int32_t *places; /* [B, H, rounds, N] of each kind */
    const int32_t *lengths;
    int64_t B, N, H, rounds, round;
    Real scale; /* 1 / sqrt D */
};

/* Some places of a head's sorted order, CHUNK at most. */
struct Places {
    int64_t b, h, first;
    const int32_t *order; /* of the first of them, and so on */
    int count;
};

/* A head, the first of the places that the block owns, the first of the columns of its results. */
struct Item {
    int64_t b, h, head, first, column;
};

template <int SIZE>
__device__ static inline Item item_at(int64_t index, int64_t column_tiles, int64_t tiles, int64_t H)
{
    const int64_t rest = index / column_tiles, head = rest / tiles;
    return { head / H, head % H, head, rest % tiles * CHUNK, index % column_tiles * SIZE };
}

/* A head's part of places, in some round. */
template <typename T>
__device__ static inline const int32_t *places_at(const LshRound<T> &a, int kind, int64_t head,
                                                  int64_t round)
{
    return a.places + ((kind * a.B * a.H + head) * a.rounds + round) * a.N;
}

/* How many positions of a sequence are not left out. */
template <typename T> __device__ static inline int64_t positions_of(const LshRound<T> &a, int64_t b)
{
    return a.lengths ? a.lengths[b] : a.N;
}

/* The item's head's places from first on, before end. */
template <typename T>
__device__ static inline Places places_from(const LshRound<T> &a, const Item &item, int64_t first,
                                            int64_t end)
{
    const int64_t left = end - first;
    const int32_t *order = places_at(a, PLACES_ORDER, item.head, a.round) + first;
    return { item.b, item.h, first, order, left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK };
}

/* Where the row of the i-th place is, in arrays [B, N, H]. */
template <typename T>
__device__ static inline int64_t row_at(const LshRound<T> &a, const Places &places, int i)
{
    return (places.b * a.N + places.order[i]) * a.H + places.h;
}

/* A tile of the places' rows, from a column on; zeros where there are none. */
template <int SIZE, typename T>
__device__ static inline void load_places(Real *tile, int pitch, const LshRound<T> &a,
                                          const SortedRows<T> &rows, const Places &places,
                                          int64_t first_column)
{
    enum { STEP = TILE_THREADS / SIZE, BATCH = 8 };
    const int column = (int)threadIdx.x % SIZE;
    const int count = first_column + column < rows.columns ? places.count : 0;
    const T *from =
        rows.data + places.b * a.N * rows.stride + places.h * rows.columns + first_column + column;
    for (int first = (int)threadIdx.x / SIZE; first < CHUNK; first += BATCH * STEP) {
        Real x[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            x[i] = row < count ? load(from + places.order[row] * rows.stride) : (Real)0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            if (row < count && rows.length)
                x[i] /= rows.length[row_at(a, places, row)];
            tile[row * pitch + column] = x[i];
        }
    }
}

/* What the places see, into shared memory; nothing where there are none. */
template <typename T>
__device__ static inline void load_bounds(int32_t *low, int32_t *high, const LshRound<T> &a,
                                          const Places &places, int64_t head)
{
    const int i = (int)threadIdx.x;
    if (i < CHUNK) {
        const bool there = i < places.count;
        const int32_t *lows = places_at(a, PLACES_LOW, head, a.round);
        const int32_t *highs = places_at(a, PLACES_HIGH, head, a.round);
        low[i] = there ? lows[places.order[i]] : 0;
        high[i] = there ? highs[places.order[i]] : 0;
    }
}

/* Whether the i-th query, with these bounds, sees the j-th key in this round. */
__device__ static inline bool sees(const int32_t *low, const int32_t *high, const Places &queries,
                                   int i, const Places &keys, int j)
{
    const int64_t place = keys.first + j;
    return j < keys.count && low[i] <= place && place < high[i] && place != queries.first + i;
}

/* N_ij */
template <typename T>
__device__ static inline int rounds_seen(const LshRound<T> &a, int64_t head, int32_t query,
                                         int32_t key)
{
    int count = 0;
    for (int64_t round = 0; round < a.rounds; round++) {
        const int32_t place = places_at(a, PLACES_PLACE, head, round)[key];
        count += places_at(a, PLACES_LOW, head, round)[query] <= place &&
                 place < places_at(a, PLACES_HIGH, head, round)[query];
    }
    return count;
}

/* s_ij - ln N_ij of the i-th query and the j-th key, which it sees. */
template <typename T>
__device__ static inline Real shared_score(const LshRound<T> &a, int64_t head, Real score,
                                           const Places &queries, int i, const Places &keys, int j)
{
    score *= a.scale;
    if (a.rounds > 1)
        score -= log((Real)rounds_seen(a, head, queries.order[i], keys.order[j]));
    return score;
}

/* ---------------------------------------------------------------------------------------- forward */

/* What the rounds before have left and this one leaves. */
template <typename T> struct ForwardRound {
    LshRound<T> a;
    const Real *out_before, *log_before; /* NULL in the first round */
    Real *out_after, *log_after;         /* out_after NULL in the last one, */
    T *out;                              /* which writes here */
};

struct ForwardMemory {
    Real *query, *key;   /* [CHUNK, SIZE], padded */
    Real *value;         /* [CHUNK, SIZE] */
    Real *scores;        /* [CHUNK, CHUNK], padded */
    Real *factor;        /* [CHUNK] */
    int32_t *low, *high; /* [CHUNK] */
};

template <int SIZE> __device__ static inline ForwardMemory forward_layout(Real *memory)
{
    ForwardMemory m;
    m.query = memory;
    m.key = m.query + CHUNK * Tile<SIZE>::PITCH;
    m.value = m.key + CHUNK * Tile<SIZE>::PITCH;
    m.scores = m.value + CHUNK * SIZE;
    m.factor = m.scores + CHUNK * SCORE_PITCH;
    m.low = (int32_t *)(m.factor + CHUNK);
    m.high = m.low + CHUNK;
    return m;
}

template <int SIZE> static int64_t forward_memory(void)
{
    return CHUNK * (2 * Tile<SIZE>::PITCH + SIZE + SCORE_PITCH + 3);
}

/* The scores of the places into shared memory, -infinity where a query does not see the key. */
template <typename T, int SIZE>
__device__ static inline void forward_scores(const LshRound<T> &a, const ForwardMemory &m,
                                             int64_t head, const Places &queries,
                                             const Places &keys, bool first)
{
    Real scores[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    const int64_t D = a.query.columns;
    for (int64_t d = 0; d < D; d += SIZE) {
        if (d > 0)
            __syncthreads(); /* the tiles before have been read */
        if (first || D > SIZE)
            load_places<SIZE>(m.query, Tile<SIZE>::PITCH, a, a.query, queries, d);
        load_places<SIZE>(m.key, Tile<SIZE>::PITCH, a, a.key, keys, d);
        __syncthreads();
        add_scores<SIZE>(scores, m.query, m.key, tile_inner<SIZE>(D, d), keys.count);
    }
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int j = score_column<SIZE>(c);
            m.scores[i * SCORE_PITCH + j] =
                sees(m.low, m.high, queries, i, keys, j)
                    ? shared_score(a, head, scores[r][c], queries, i, keys, j)
                    : (Real)-INFINITY;
        }
    }
}

/* The sums of the rounds before: of the thread's row, and its part of o. */
template <typename T, int SIZE>
__device__ static inline RowSums load_sums(Real (*sums)[4], const ForwardRound<T> &f,
                                           const Places &queries, int64_t column)
{
    RowSums of_row = { LOWEST, 0 };
    if (!f.log_before)
        return of_row;
    const int row = (int)threadIdx.x / 2;
    if (row < queries.count) {
        of_row.m = f.log_before[row_at(f.a, queries, row)];
        of_row.l = of_row.m == LOWEST ? 0 : 1;
    }
    const int64_t M = f.a.value.columns, c = column + tile_column<SIZE>();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (i < queries.count) {
            const Pack<Real, 4> four =
                load_four(f.out_before + row_at(f.a, queries, i) * M + c, M - c);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[r][k] = four.at[k];
        }
    }
    return of_row;
}

/* o / l, or in the last round v where nothing was seen; factor: 1 / l, or 0 there. */
template <typename T, int SIZE>
__device__ static inline void store_sums(const ForwardRound<T> &f, const Places &queries,
                                         int64_t column, Real (*sums)[4], const Real *factor)
{
    const int64_t M = f.a.value.columns, c = column + tile_column<SIZE>();
    multiply_rows<SIZE>(sums, factor);
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (i >= queries.count)
            continue;
        const int64_t to = row_at(f.a, queries, i) * M + c;
        if (f.out_after) {
            contribute_four(f.out_after + to, false, sums[r], M - c);
        } else if (factor[i] == 0) {
            const T *value = f.a.value.data +
                             (queries.b * f.a.N + queries.order[i]) * f.a.value.stride +
                             queries.h * M + c;
            contribute_four(f.out + to, false, load_four(value, M - c).at, M - c);
        } else {
            contribute_four(f.out + to, false, sums[r], M - c);
        }
    }
}

/* L of a row's sums; infinity where nothing was seen in all rounds. */
__device__ static inline Real log_of(RowSums sums, bool last)
{
    const Real nothing = last ? (Real)INFINITY : LOWEST;
    return sums.l == 0 ? nothing : sums.m + log(sums.l);
}

template <typename T, int SIZE>
__device__ static inline void forward_item(const ForwardRound<T> &f, const Item &item,
                                           const ForwardMemory &m)
{
    const LshRound<T> &a = f.a;
    const Places queries = places_from(a, item, item.first, positions_of(a, item.b));
    const int row = (int)threadIdx.x / 2;
    const bool first_half = threadIdx.x % 2 == 0;
    Real sums[Tile<SIZE>::ROWS][4] = {};
    RowSums sums_of_row = load_sums<T, SIZE>(sums, f, queries, item.column);
    load_bounds(m.low, m.high, a, queries, item.head);
    __syncthreads();
    const int64_t begin = m.low[0], end = queries.count > 0 ? m.high[queries.count - 1] : 0;
    for (int64_t first = begin; first < end; first += CHUNK) {
        const Places keys = places_from(a, item, first, end);
        const int filled = fill_up(keys.count);
        __syncthreads(); /* the tiles before have been read */
        load_places<SIZE>(m.value, SIZE, a, a.value, keys, item.column);
        forward_scores<T, SIZE>(a, m, item.head, queries, keys, first == begin);
        __syncthreads();
        const Real factor = online_softmax(&sums_of_row, m.scores + row * SCORE_PITCH, filled);
        if (first_half)
            m.factor[row] = factor;
        __syncthreads();
        multiply_rows<SIZE>(sums, m.factor);
        add_product<SIZE>(sums, m.scores, SCORE_PITCH, m.value, SIZE, filled);
    }
    __syncthreads();
    if (first_half)
        m.factor[row] = sums_of_row.l == 0 ? (Real)0 : 1 / sums_of_row.l;
    if (first_half && item.column == 0 && row < queries.count)
        f.log_after[row_at(a, queries, row)] = log_of(sums_of_row, !f.out_after);
    __syncthreads();
    store_sums<T, SIZE>(f, queries, item.column, sums, m.factor);
}

template <typename T, int SIZE>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    lsh_forward(const __grid_constant__ ForwardRound<T> f, int64_t column_tiles, int64_t tiles,
                int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const ForwardMemory m = forward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        forward_item<T, SIZE>(f, item_at<SIZE>(i, column_tiles, tiles, f.a.H), m);
}

/* The results of positions that are left out. */
template <typename T>
__global__ void leave_out(T *out, Real *log_sum, const int32_t *lengths, int64_t N, int64_t H,
                          int64_t M, int64_t rows)
{
    GRID_FOR(i, rows * M) {
        const int64_t row = i / M, position = row / H % N;
        if (position >= lengths[row / (N * H)]) {
            store(&out[i], 0);
            log_sum[row] = 0;
        }
    }
}

/* --------------------------------------------------------------------------------------- backward
 * In the terms of both kinds of blocks, as in softmax_attention.cu: rows are the places that the block
 * owns, with x1 = x, x2 = g (or x1 = u, x2 = v), columns the keys (or queries) that it goes through,
 * with y1, y2 likewise.
 *     s = x1.y1 / sqrt D    dP = x2.y2    P = e^(s - ln N - L)    dS = P (dP + delta)
 *     dx1 <- dS y1 / sqrt D    and of keys dx2 = dv <- P y2 */

template <typename T> struct BackwardRound {
    LshRound<T> a;
    SortedRows<T> x1, x2, y1, y2;
    Real *dx1, *dx2;             /* [B, N, H, D or M], NULL where not wanted */
    const Real *log_sum, *delta; /* [B, N, H] */
};

struct BackwardMemory {
    Real *x1, *x2, *y1, *y2; /* [CHUNK, SIZE], padded */
    Real *scores;            /* [CHUNK, CHUNK], padded: P, then dS */
    Real *log_sum, *delta;   /* [CHUNK], of the queries */
    int32_t *low, *high;     /* likewise */
};

template <int SIZE> __device__ static inline BackwardMemory backward_layout(Real *memory)
{
    enum { TILE = CHUNK * Tile<SIZE>::PITCH };
    BackwardMemory m;
    m.x1 = memory;
    m.x2 = m.x1 + TILE;
    m.y1 = m.x2 + TILE;
    m.y2 = m.y1 + TILE;
    m.scores = m.y2 + TILE;
    m.log_sum = m.scores + CHUNK * SCORE_PITCH;
    m.delta = m.log_sum + CHUNK;
    m.low = (int32_t *)(m.delta + CHUNK);
    m.high = m.low + CHUNK;
    return m;
}

template <int SIZE> static int64_t backward_memory(void)
{
    return CHUNK * (4 * Tile<SIZE>::PITCH + SCORE_PITCH + 4);
}

/* The queries' numbers and bounds into shared memory. */
template <typename T>
__device__ static inline void load_queries(const BackwardMemory &m, const BackwardRound<T> &b,
                                           const Places &queries, int64_t head)
{
    const int i = (int)threadIdx.x;
    if (i < CHUNK) {
        const int64_t row = i < queries.count ? row_at(b.a, queries, i) : 0;
        m.log_sum[i] = i < queries.count ? b.log_sum[row] : (Real)0;
        m.delta[i] = i < queries.count ? b.delta[row] : (Real)0;
    }
    load_bounds(m.low, m.high, b.a, queries, head);
}

/* s into P and dP into dS; 0 where the query does not see the key. */
template <typename T, int SIZE, bool KEYS>
__device__ static inline void backward_scores(Real (*s)[Tile<SIZE>::SCORES],
                                              Real (*dP)[Tile<SIZE>::SCORES], const LshRound<T> &a,
                                              const BackwardMemory &m, int64_t head,
                                              const Places &queries, const Places &keys)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int row = tile_row<SIZE>(r), column = score_column<SIZE>(c);
            const int i = KEYS ? column : row, j = KEYS ? row : column;
            const bool seen = sees(m.low, m.high, queries, i, keys, j);
            s[r][c] = seen ? exp(shared_score(a, head, s[r][c], queries, i, keys, j) - m.log_sum[i])
                           : (Real)0;
            dP[r][c] = seen ? s[r][c] * (dP[r][c] + m.delta[i]) : (Real)0;
        }
}

/* Adds what these columns contribute to dx1 and dx2. */
template <typename T, int SIZE, bool KEYS>
__device__ static inline void backward_columns(Real (*dx1)[4], Real (*dx2)[4],
                                               const BackwardRound<T> &b, const Item &item,
                                               const BackwardMemory &m, const Places &rows,
                                               const Places &columns, bool first)
{
    enum { PITCH = Tile<SIZE>::PITCH };
    const int64_t D = b.x1.columns, M = b.x2.columns;
    const Places &queries = KEYS ? columns : rows, &keys = KEYS ? rows : columns;
    const int filled = fill_up(columns.count);
    Real s[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    Real dP[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    for (int64_t k = 0; k < D || k < M; k += SIZE) {
        __syncthreads(); /* the tiles before have been read */
        if (k < D && (first || D > SIZE))
            load_places<SIZE>(m.x1, PITCH, b.a, b.x1, rows, k);
        if (k < M && (first || M > SIZE))
            load_places<SIZE>(m.x2, PITCH, b.a, b.x2, rows, k);
        if (k < D)
            load_places<SIZE>(m.y1, PITCH, b.a, b.y1, columns, k);
        if (k < M)
            load_places<SIZE>(m.y2, PITCH, b.a, b.y2, columns, k);
        if (k == 0 && (KEYS || first))
            load_queries(m, b, queries, item.head);
        __syncthreads();
        if (k < D)
            add_scores<SIZE>(s, m.x1, m.y1, tile_inner<SIZE>(D, k), columns.count);
        if (k < M)
            add_scores<SIZE>(dP, m.x2, m.y2, tile_inner<SIZE>(M, k), columns.count);
    }
    backward_scores<T, SIZE, KEYS>(s, dP, b.a, m, item.head, queries, keys);
    if (D > SIZE || M > SIZE) { /* other tiles lie there, or these are further on */
        __syncthreads();
        load_places<SIZE>(m.y1, PITCH, b.a, b.y1, columns, item.column);
        if (KEYS)
            load_places<SIZE>(m.y2, PITCH, b.a, b.y2, columns, item.column);
    }
    if (KEYS) {
        store_scores<SIZE>(m.scores, s);
        __syncthreads();
        if (b.dx2)
            add_product<SIZE>(dx2, m.scores, SCORE_PITCH, m.y2, PITCH, filled);
        __syncthreads();
    }
    store_scores<SIZE>(m.scores, dP);
    __syncthreads();
    if (b.dx1)
        add_product<SIZE>(dx1, m.scores, SCORE_PITCH, m.y1, PITCH, filled);
}

/* The first place of a head whose bound, one of an ascending kind, is not below the limit. */
template <typename T>
__device__ static inline int64_t first_place(const LshRound<T> &a, int kind, const Item &item,
                                             int64_t limit)
{
    const int32_t *order = places_at(a, PLACES_ORDER, item.head, a.round);
    const int32_t *bound = places_at(a, kind, item.head, a.round);
    int64_t from = 0, to = positions_of(a, item.b);
    while (from < to) {
        const int64_t middle = (from + to) / 2;
        if (bound[order[middle]] < limit)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* To the sums of the rounds before adds those of this one. */
template <typename T, int SIZE>
__device__ static inline void add_rows(Real *d, int64_t columns, const LshRound<T> &a,
                                       const Places &places, int64_t column, Real (*sums)[4],
                                       Real factor)
{
    const int64_t c = column + tile_column<SIZE>();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (!d || i >= places.count)
            continue;
#pragma unroll
        for (int k = 0; k < 4; k++)
            sums[r][k] *= factor;
        contribute_four(d + row_at(a, places, i) * columns + c, a.round > 0, sums[r], columns - c);
    }
}

template <typename T, int SIZE, bool KEYS>
__device__ static inline void backward_item(const BackwardRound<T> &b, const Item &item,
                                            const BackwardMemory &m)
{
    const LshRound<T> &a = b.a;
    const int64_t positions = positions_of(a, item.b);
    const Places rows = places_from(a, item, item.first, positions);
    int64_t begin = 0, end = 0;
    if (rows.count > 0 && KEYS) {
        begin = first_place(a, PLACES_HIGH, item, rows.first + 1);
        end = first_place(a, PLACES_LOW, item, rows.first + rows.count);
    } else if (rows.count > 0) {
        begin = places_at(a, PLACES_LOW, item.head, a.round)[rows.order[0]];
        end = places_at(a, PLACES_HIGH, item.head, a.round)[rows.order[rows.count - 1]];
    }
    Real dx1[Tile<SIZE>::ROWS][4] = {}, dx2[Tile<SIZE>::ROWS][4] = {};
    for (int64_t first = begin; first < end; first += CHUNK)
        backward_columns<T, SIZE, KEYS>(dx1, dx2, b, item, m, rows,
                                        places_from(a, item, first, end), first == begin);
    add_rows<T, SIZE>(b.dx1, b.x1.columns, a, rows, item.column, dx1, a.scale);
    if (KEYS)
        add_rows<T, SIZE>(b.dx2, b.x2.columns, a, rows, item.column, dx2, 1);
}

template <typename T, int SIZE, bool KEYS>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    lsh_backward(const __grid_constant__ BackwardRound<T> b, int64_t column_tiles, int64_t tiles,
                 int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const BackwardMemory m = backward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        backward_item<T, SIZE, KEYS>(b, item_at<SIZE>(i, column_tiles, tiles, b.a.H), m);
}

/* sqrt(x.x + eps): a row a warp */
template <typename T>
__global__ void row_lengths(Real *length, const T *x, int64_t stride, int64_t H, int64_t D,
                            int64_t rows)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t warps = THREADS / WARP;
    for (int64_t row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const T *x_row = x + row / H * stride + row % H * D;
        Real sum = 0;
        for (int64_t c = lane; c < D; c += WARP)
            sum += load(x_row + c) * load(x_row + c);
        sum = warp_sum(sum);
        if (lane == 0)
            length[row] = sqrt(sum + LSH_EPS);
    }
}

/* The sums over all rounds, and what they become. */
template <typename T> struct Finish {
    const T *x, *dout;
    const Real *dq, *dk, *dv, *length, *log_sum;
    const int32_t *lengths;
    T *dx, *dvalue;
    bool accumulate_x, accumulate_value;
    int64_t x_stride, value_stride, N, H, D, M, rows;
};

/* dx = dq + (dk - u (u.dk)) / n, dv = dv + g where nothing was seen: a row a warp */
template <typename T> __global__ void finish_gradients(const __grid_constant__ Finish<T> f)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t warps = THREADS / WARP;
    for (int64_t row = blockIdx.x * warps + warp; row < f.rows; row += gridDim.x * warps) {
        const int64_t b_n = row / f.H, h = row % f.H, x_at = b_n * f.x_stride + h * f.D;
        const bool counts = !f.lengths || b_n % f.N < f.lengths[b_n / f.N];
        const Real inverse = 1 / f.length[row];
        Real along = 0;
        for (int64_t c = lane; c < f.D && counts && f.dx; c += WARP)
            along += load(f.x + x_at + c) * f.dk[row * f.D + c];
        along = warp_sum(along) * inverse * inverse;
        for (int64_t c = lane; c < f.D && f.dx; c += WARP) {
            const Real dk = counts ? f.dk[row * f.D + c] - along * load(f.x + x_at + c) : (Real)0;
            contribute(f.dx + x_at + c, f.accumulate_x,
                       counts ? f.dq[row * f.D + c] + inverse * dk : (Real)0);
        }
        const bool alone = counts && f.log_sum[row] == (Real)INFINITY;
        for (int64_t c = lane; c < f.M && f.dvalue; c += WARP) {
            const Real dv = counts ? f.dv[row * f.M + c] : (Real)0;
            contribute(f.dvalue + b_n * f.value_stride + h * f.M + c, f.accumulate_value,
                       alone ? dv + load(f.dout + row * f.M + c) : dv);
        }
    }
}

/* -------------------------------------------------------------------------------------- launching */

template <typename T>
static LshRound<T> round_of(const LshRounds *a, const int32_t *places, const Real *length,
                            int64_t round)
{
    const T *x = (const T *)a->x;
    return { { x, a->x_stride, a->D, NULL },
             { x, a->x_stride, a->D, length },
             { (const T *)a->value, a->value_stride, a->M, NULL },
             places,
             a->lengths,
             a->B,
             a->N,
             a->H,
             a->rounds,
             round,
             1 / (Real)sqrt((double)a->D) };
}

template <typename T> static void find_lengths(Real *length, const LshRounds *a)
{
    const int64_t rows = a->B * a->N * a->H;
    LAUNCH(row_lengths<T>, blocks_for(rows, THREADS / WARP), THREADS, 0, length, (const T *)a->x,
           a->x_stride, a->H, a->D, rows);
}

template <typename T, int SIZE>
static void forward_sized(T *out, Real *log_sum, const int32_t *places, const Scratch &s,
                          const LshRounds *a)
{
    const int64_t column_tiles = tiles_for(a->M, SIZE), tiles = tiles_for(a->N, CHUNK);
    const int64_t items = a->B * a->H * column_tiles * tiles;
    for (int64_t round = 0; round < a->rounds; round++) {
        const bool first = round == 0, last = round + 1 == a->rounds;
        const ForwardRound<T> f = { round_of<T>(a, places, s.length, round), first ? NULL : s.out,
                                    first ? NULL : s.logs[(round + 1) % 2],  last ? NULL : s.out,
                                    last ? log_sum : s.logs[round % 2],      out };
        LAUNCH_TILES((lsh_forward<T, SIZE>), items, forward_memory<SIZE>(), f, column_tiles, tiles,
                     items);
    }
}

template <typename T>
static void forward(Real *out, Real *log_sum, int32_t *places, Real *scratch, const LshRounds *a)
{
    Scratch s;
    lay_out(&s, a, scratch, false);
    sort_positions<T>(places, s.R, s.keys, a);
    find_lengths<T>(s.length, a);
    if (tile_size(a->D, a->M) == 32)
        forward_sized<T, 32>((T *)out, log_sum, places, s, a);
    else
        forward_sized<T, WIDEST>((T *)out, log_sum, places, s, a);
    const int64_t rows = a->B * a->N * a->H;
    if (a->lengths)
        LAUNCH(leave_out<T>, blocks_for(rows * a->M), THREADS, 0, (T *)out, log_sum, a->lengths,
               a->N, a->H, a->M, rows);
}

template <typename T, int SIZE, bool KEYS> static void backward_half(const BackwardRound<T> &b)
{
    const int64_t D = b.x1.columns, M = b.x2.columns;
    const int64_t column_tiles = tiles_for(KEYS && M > D ? M : D, SIZE);
    const int64_t tiles = tiles_for(b.a.N, CHUNK);
    const int64_t items = b.a.B * b.a.H * column_tiles * tiles;
    if (b.dx1 || b.dx2)
        LAUNCH_TILES((lsh_backward<T, SIZE, KEYS>), items, backward_memory<SIZE>(), b, column_tiles,
                     tiles, items);
}

template <typename T, int SIZE>
static void backward_sized(const LshGradient &d, const Real *dout, const Real *log_sum,
                           const int32_t *places, const Scratch &s, const LshRounds *a)
{
    const SortedRows<T> g = { (const T *)dout, a->H * a->M, a->M, NULL };
    Real *const dq = d.x.data ? s.dq : NULL, *const dk = d.x.data ? s.dk : NULL;
    Real *const dv = d.value.data ? s.dv : NULL;
    for (int64_t round = 0; round < a->rounds; round++) {
        const LshRound<T> r = round_of<T>(a, places, s.length, round);
        backward_half<T, SIZE, false>(
            { r, r.query, g, r.key, r.value, dq, NULL, log_sum, s.delta });
        backward_half<T, SIZE, true>({ r, r.key, r.value, r.query, g, dk, dv, log_sum, s.delta });
    }
}

template <typename T>
static void backward(const LshGradient &d, const Real *dout, const Real *out, const Real *log_sum,
                     const int32_t *places, Real *scratch, const LshRounds *a)
{
    Scratch s;
    lay_out(&s, a, scratch, true);
    const int64_t rows = a->B * a->N * a->H;
    const unsigned blocks = blocks_for(rows, THREADS / WARP);
    find_lengths<T>(s.length, a);
    LAUNCH(row_deltas<T>, blocks, THREADS, 0, s.delta, (const T *)dout, (const T *)out,
           (const Real *)NULL, rows, a->M);
    if (tile_size(a->D, a->M) == 32)
        backward_sized<T, 32>(d, dout, log_sum, places, s, a);
    else
        backward_sized<T, WIDEST>(d, dout, log_sum, places, s, a);
    const Finish<T> finish = { (const T *)a->x,
                               (const T *)dout,
                               s.dq,
                               s.dk,
                               s.dv,
                               s.length,
                               log_sum,
                               a->lengths,
                               (T *)d.x.data,
                               (T *)d.value.data,
                               d.x.accumulate,
                               d.value.accumulate,
                               a->x_stride,
                               a->value_stride,
                               a->N,
                               a->H,
                               a->D,
                               a->M,
                               rows };
    LAUNCH(finish_gradients<T>, blocks, THREADS, 0, finish);
}

extern "C" void lsh_attention_forward_cuda(Real *out, Real *log_sum, int32_t *places, Real *scratch,
                                           const LshRounds *a)
{
    BY_STORAGE(T, forward<T>(out, log_sum, places, scratch, a));
}

extern "C" void lsh_attention_backward_cuda(LshGradient d, const Real *dout, const Real *out,
                                            const Real *log_sum, const int32_t *places,
                                            Real *scratch, const LshRounds *a)
{
    BY_STORAGE(T, backward<T>(d, dout, out, log_sum, places, scratch, a));
}
