/* CUDA kernels of LSH attention: see lsh.c. lsh_sort.cuh hashes and sorts the positions.
 *
 * A thread block owns 64 consecutive places of the sorted order as queries and iterates over the
 * places that they see; for dk and dv it owns 64 places as keys and iterates over the queries that
 * see them (softmax_tiles.cuh). A kernel launch processes one round and adds to the sums of the
 * previous rounds in scratch memory; in each launch every row has one owner. */
#include "ops/attention/lsh/lsh.h"
#include "ops/attention/lsh/lsh_sort.cuh"
#include "ops/attention/shared/softmax_tiles.cuh"

#define LOWEST ((Real)-1e30) /* row maximum before the first score */

/* -------------------------------------------------------------------------------------- scratch */

struct Scratch {
    Real *R;             /* [rounds, H, D, columns] */
    Key *keys[2];        /* [B, H, rounds, N] */
    Real *length;        /* [B, N, H]: n of lsh.c, the length of x */
    Real *out, *logs[2]; /* between rounds: out [B, N, H, M] and L [B, N, H] */
    Real *delta;         /* [B, N, H]: -g.out */
    Real *dq, *dk, *dv;  /* [B, N, H, D or M]: sums over the rounds; dk is w of lsh.c */
};

static Real *allocate(Real *scratch, int64_t *used, int64_t count)
{
    Real *const memory = scratch ? scratch + *used : NULL;
    *used += (count + 15) / 16 * 16;
    return memory;
}

/* Assigns the buffers in scratch memory, which may be NULL; returns their size in Reals. */
static int64_t lay_out(Scratch *s, const LshRounds *a, Real *scratch, bool backward)
{
    const int64_t rows = a->x.B * a->x.N * a->x.H;
    int64_t used = 0;
    s->length = allocate(scratch, &used, rows);
    if (backward) {
        s->delta = allocate(scratch, &used, rows);
        s->dq = allocate(scratch, &used, rows * a->x.D);
        s->dk = allocate(scratch, &used, rows * a->x.D);
        s->dv = allocate(scratch, &used, rows * a->x.M);
        return used;
    }
    s->R = allocate(scratch, &used, lsh_random_numbers(a));
    for (int i = 0; i < 2; i++)
        s->keys[i] = (Key *)allocate(scratch, &used,
                                     rows * a->rounds * (int64_t)(sizeof(Key) / sizeof(Real)));
    if (a->rounds > 1) {
        s->out = allocate(scratch, &used, rows * a->x.M);
        for (int i = 0; i < 2; i++)
            s->logs[i] = allocate(scratch, &used, rows);
    }
    return used;
}

extern "C" int64_t lsh_attention_scratch_cuda(const LshRounds *a, bool backward)
{
    Scratch scratch;
    return lay_out(&scratch, a, NULL, backward);
}

/* ------------------------------------------------------------------------- rows in sorted order */

/* An argument [B, positions, H, columns], divided by length [B, positions, H] unless NULL. */
template <typename T> struct SortedRows {
    const T *data;
    int64_t stride, positions, columns;
    const Real *length;
};

/* At most CHUNK consecutive places of a head's sorted order. */
struct Places {
    int64_t b, h, H, first;
    const int32_t *order; /* the positions at these places */
    int count;
};

/* The arguments of one launch: one round of all heads. */
template <typename T> struct LshRound {
    typedef Places Positions;
    typedef SortedRows<T> Arguments;
    typedef GradientRows<Real> Gradients; /* sums over the rounds */
    enum { BOUNDS = 2 };
    SortedRows<T> query, key, value;
    const int32_t *places; /* [B, H, rounds, N] of each kind */
    const int32_t *lengths;
    int64_t B, N, H, rounds, round;
    Real scale; /* 1 / sqrt D */
};

template <typename T>
__device__ static inline Item item_at(const LshRound<T> &a, int64_t index, int64_t tiles, bool)
{
    const int64_t head = index / tiles;
    return { head / a.H, head % a.H, a.H, index % tiles * CHUNK, 0 };
}

/* Index of an item's or of places' head in [B, H]. */
template <typename Of> __device__ static inline int64_t head_of(const Of &of)
{
    return of.b * of.H + of.h;
}

/* The [N] of one array of `places`, for a head and round. */
template <typename T>
__device__ static inline const int32_t *places_at(const LshRound<T> &a, int kind, int64_t head,
                                                  int64_t round)
{
    return a.places + ((kind * a.B * a.H + head) * a.rounds + round) * a.N;
}

/* Number of positions of sequence b that are not left out. */
template <typename T> __device__ static inline int64_t positions_of(const LshRound<T> &a, int64_t b)
{
    return a.lengths ? a.lengths[b] : a.N;
}

template <typename T>
__device__ static inline Places positions_from(const LshRound<T> &a, const Item &item,
                                               int64_t first, int64_t end)
{
    const int64_t left = end - first;
    const int count = left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK;
    const int32_t *order = places_at(a, PLACES_ORDER, head_of(item), a.round) + first;
    return { item.b, item.h, item.H, first, order, count };
}

/* Offset of the i-th place's row in arrays [B, positions, H]. */
__device__ static inline int64_t row_at(const Places &places, int64_t positions, int i)
{
    return (places.b * positions + places.order[i]) * places.H + places.h;
}

/* load_tile, load_numbers and contribute_tile of tiles.cuh, for Places instead of a Span. */
template <int SIZE, typename T>
__device__ static inline void load_tile(Real *tile, int pitch, const SortedRows<T> &rows,
                                        const Places &places, int64_t first_column)
{
    enum { STEP = TILE_THREADS / SIZE, BATCH = 8 };
    const int column = (int)threadIdx.x % SIZE;
    const int count = first_column + column < rows.columns ? places.count : 0;
    const T *from = rows.data + places.b * rows.positions * rows.stride + places.h * rows.columns +
                    first_column + column;
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
                x[i] /= rows.length[row_at(places, rows.positions, row)];
            tile[row * pitch + column] = x[i];
        }
    }
}

__device__ static inline void load_numbers(Real *to, const Real *from, int64_t positions,
                                           const Places &places)
{
    const int i = (int)threadIdx.x;
    if (i < CHUNK)
        to[i] = i < places.count ? from[row_at(places, positions, i)] : (Real)0;
}

template <int SIZE>
__device__ static inline void contribute_tile(const GradientRows<Real> &d, const Places &places,
                                              int64_t first_column, const Real (*sums)[4])
{
    const int64_t column = first_column + tile_column<SIZE>();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (i < places.count)
            contribute_four(d.data + row_at(places, d.positions, i) * d.columns + column,
                            d.accumulate, sums[r], d.columns - column);
    }
}

/* ----------------------------------------------------------------------------------- visibility */

/* bounds = low and high of each place's position; an empty range past the last place. */
template <typename T>
__device__ static inline void load_bounds(int32_t *bounds, const LshRound<T> &a,
                                          const Places &places)
{
    const int i = (int)threadIdx.x;
    if (i < CHUNK) {
        const bool there = i < places.count;
        const int32_t *lows = places_at(a, PLACES_LOW, head_of(places), a.round);
        const int32_t *highs = places_at(a, PLACES_HIGH, head_of(places), a.round);
        bounds[i] = there ? lows[places.order[i]] : 0;
        bounds[CHUNK + i] = there ? highs[places.order[i]] : 0;
    }
}

/* Whether the i-th query sees the j-th key in this round. */
template <typename T>
__device__ static inline bool sees(const LshRound<T> &, const int32_t *bounds,
                                   const Places &queries, int i, const Places &keys, int j)
{
    const int64_t place = keys.first + j;
    return j < keys.count && bounds[i] <= place && place < bounds[CHUNK + i] &&
           place != queries.first + i;
}

/* Binary search: a head's first place whose bound (PLACES_LOW or PLACES_HIGH, both ascending) is at
 * least limit. */
template <typename T>
__device__ static inline int64_t first_place(const LshRound<T> &a, int kind, const Item &item,
                                             int64_t limit)
{
    const int32_t *order = places_at(a, PLACES_ORDER, head_of(item), a.round);
    const int32_t *bound = places_at(a, kind, head_of(item), a.round);
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

/* Queries iterate over the places that they see, keys over the places that see them. */
template <typename T>
__device__ static inline Pass<Places> pass_of(const LshRound<T> &a, const Item &item, bool keys)
{
    const Places rows = positions_from(a, item, item.first, positions_of(a, item.b));
    int64_t begin = 0, end = 0;
    if (rows.count > 0 && keys) {
        begin = first_place(a, PLACES_HIGH, item, rows.first + 1);
        end = first_place(a, PLACES_LOW, item, rows.first + rows.count);
    } else if (rows.count > 0) {
        begin = places_at(a, PLACES_LOW, head_of(item), a.round)[rows.order[0]];
        end = places_at(a, PLACES_HIGH, head_of(item), a.round)[rows.order[rows.count - 1]];
    }
    return { rows, rows, begin, end };
}

/* N_ij of lsh.c */
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

/* s_ij - ln N_ij of the i-th query and the j-th key, which the query sees. */
template <typename T>
__device__ static inline Real score_of(const LshRound<T> &a, Real product, const Places &queries,
                                       int i, const Places &keys, int j)
{
    Real score = a.scale * product;
    if (a.rounds > 1)
        score -= log((Real)rounds_seen(a, head_of(queries), queries.order[i], keys.order[j]));
    return score;
}

/* -------------------------------------------------------------------------------------- forward */

/* The arguments of a forward launch: the sums of the previous rounds, and those after this one. */
template <typename T> struct ForwardRound {
    LshRound<T> a;
    const Real *out_before, *log_before; /* NULL in the first round */
    Real *out_after, *log_after;         /* out_after is NULL in the last round, */
    T *out;                              /* which writes out instead */
};

/* Loads the previous rounds' sums: m and l of the thread's row, and the thread's part of o. */
template <int SIZE, typename T>
__device__ static inline RowSums load_sums(Real (*sums)[4], const ForwardRound<T> &f,
                                           const Places &queries, int64_t column)
{
    RowSums of_row = { LOWEST, 0 };
    if (!f.log_before)
        return of_row;
    const int row = (int)threadIdx.x / 2;
    if (row < queries.count) {
        of_row.m = f.log_before[row_at(queries, f.a.N, row)];
        of_row.l = of_row.m == LOWEST ? 0 : 1;
    }
    const int64_t M = f.a.value.columns, c = column + tile_column<SIZE>();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (i < queries.count) {
            const Pack<Real, 4> four =
                load_four(f.out_before + row_at(queries, f.a.N, i) * M + c, M - c);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[r][k] = four.at[k];
        }
    }
    return of_row;
}

/* Stores o / l, in the last round v for queries that see nothing. factor: 1 / l, or 0 for these. */
template <int SIZE, typename T>
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
        const int64_t to = row_at(queries, f.a.N, i) * M + c;
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

/* L of a row; infinity if the query sees nothing in any round. */
__device__ static inline Real log_of(RowSums sums, bool last)
{
    const Real nothing = last ? (Real)INFINITY : LOWEST;
    return sums.l == 0 ? nothing : sums.m + log(sums.l);
}

template <int SIZE, typename T>
__device__ static inline void forward_item(const ForwardRound<T> &f, const Item &item,
                                           const ForwardMemory &m)
{
    const LshRound<T> &a = f.a;
    const Pass<Places> pass = pass_of(a, item, false);
    const int row = (int)threadIdx.x / 2;
    const bool first_half = threadIdx.x % 2 == 0;
    Real sums[Tile<SIZE>::ROWS][4] = {};
    RowSums sums_of_row = load_sums<SIZE>(sums, f, pass.rows, item.column);
    add_keys<SIZE>(sums, &sums_of_row, a, item, m, pass);
    if (first_half)
        m.factor[row] = sums_of_row.l == 0 ? (Real)0 : 1 / sums_of_row.l;
    if (first_half && item.column == 0 && row < pass.rows.count)
        f.log_after[row_at(pass.rows, a.N, row)] = log_of(sums_of_row, !f.out_after);
    __syncthreads();
    store_sums<SIZE>(f, pass.rows, item.column, sums, m.factor);
}

template <int SIZE, typename T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    lsh_forward(const __grid_constant__ ForwardRound<T> f, int64_t column_tiles, int64_t tiles,
                int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const ForwardMemory m = forward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        forward_item<SIZE>(f, item_of<SIZE>(f.a, i, column_tiles, tiles, false), m);
}

/* Zeroes the results of positions that are left out. */
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

/* -------------------------------------------------------------------- before and after backward */

/* length = sqrt(x.x + eps), one warp per row */
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

/* The sums over all rounds, and the gradients that they contribute to. */
template <typename T> struct Finish {
    const T *x, *dout;
    const Real *dq, *dk, *dv, *length, *log_sum;
    const int32_t *lengths;
    T *dx, *dvalue;
    bool accumulate_x, accumulate_value;
    int64_t x_stride, value_stride, N, H, D, M, rows;
};

/* dx <- dq + (dk - u (u.dk)) / n; dvalue <- dv, plus g if the query sees nothing; a warp per row */
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

/* ------------------------------------------------------------------------------------ launching */

template <typename T>
static LshRound<T> round_of(const LshRounds *a, const int32_t *places, const Real *length,
                            int64_t round)
{
    const T *x = (const T *)a->x.query;
    return { { x, a->x.query_stride, a->x.N, a->x.D, NULL },
             { x, a->x.query_stride, a->x.N, a->x.D, length },
             { (const T *)a->x.value, a->x.value_stride, a->x.N, a->x.M, NULL },
             places,
             a->x.key_lengths,
             a->x.B,
             a->x.N,
             a->x.H,
             a->rounds,
             round,
             1 / (Real)sqrt((double)a->x.D) };
}

template <typename T> static void find_lengths(Real *length, const LshRounds *a)
{
    const int64_t rows = a->x.B * a->x.N * a->x.H;
    LAUNCH(row_lengths<T>, blocks_for(rows, THREADS / WARP), THREADS, 0, length,
           (const T *)a->x.query, a->x.query_stride, a->x.H, a->x.D, rows);
}

template <typename T, int SIZE>
static void forward_sized(T *out, Real *log_sum, const int32_t *places, const Scratch &s,
                          const LshRounds *a)
{
    const int64_t column_tiles = tiles_for(a->x.M, SIZE), tiles = tiles_for(a->x.N, CHUNK);
    const int64_t items = a->x.B * a->x.H * column_tiles * tiles;
    for (int64_t round = 0; round < a->rounds; round++) {
        const bool first = round == 0, last = round + 1 == a->rounds;
        const ForwardRound<T> f = { round_of<T>(a, places, s.length, round), first ? NULL : s.out,
                                    first ? NULL : s.logs[(round + 1) % 2],  last ? NULL : s.out,
                                    last ? log_sum : s.logs[round % 2],      out };
        LAUNCH_TILES((lsh_forward<SIZE, T>), items, (forward_memory<SIZE, LshRound<T>>()), f,
                     column_tiles, tiles, items);
    }
}

template <typename T>
static void forward(Real *out, Real *log_sum, int32_t *places, Real *scratch, const LshRounds *a)
{
    Scratch s;
    lay_out(&s, a, scratch, false);
    sort_positions<T>(places, s.R, s.keys, a);
    find_lengths<T>(s.length, a);
    if (tile_size(a->x.D, a->x.M) == 32)
        forward_sized<T, 32>((T *)out, log_sum, places, s, a);
    else
        forward_sized<T, WIDEST>((T *)out, log_sum, places, s, a);
    const int64_t rows = a->x.B * a->x.N * a->x.H;
    if (a->x.key_lengths)
        LAUNCH(leave_out<T>, blocks_for(rows * a->x.M), THREADS, 0, (T *)out, log_sum,
               a->x.key_lengths, a->x.N, a->x.H, a->x.M, rows);
}

static GradientRows<Real> sums_over_rounds(Real *d, bool accumulate, const LshRounds *a,
                                           int64_t columns)
{
    return gradient_rows<Real>({ d, accumulate }, a->x.H * columns, a->x.N, columns);
}

template <typename T, int SIZE>
static void backward_sized(const AttentionGradient &d, const Real *dout, const Real *log_sum,
                           const int32_t *places, const Scratch &s, const LshRounds *a)
{
    const SortedRows<T> g = { (const T *)dout, a->x.H * a->x.M, a->x.N, a->x.M, NULL };
    for (int64_t round = 0; round < a->rounds; round++) {
        const LshRound<T> r = round_of<T>(a, places, s.length, round);
        const bool more = round > 0;
        const GradientRows<Real> dq = sums_over_rounds(d.query.data ? s.dq : NULL, more, a, a->x.D);
        const GradientRows<Real> dk = sums_over_rounds(d.query.data ? s.dk : NULL, more, a, a->x.D);
        const GradientRows<Real> dv = sums_over_rounds(d.value.data ? s.dv : NULL, more, a, a->x.M);
        launch_backward<SIZE, false, LshRound<T>>(
            { r, r.query, g, r.key, r.value, dq, {}, log_sum, s.delta });
        launch_backward<SIZE, true, LshRound<T>>(
            { r, r.key, r.value, r.query, g, dk, dv, log_sum, s.delta });
    }
}

template <typename T>
static void backward(const AttentionGradient &d, const Real *dout, const Real *out,
                     const Real *log_sum, const int32_t *places, Real *scratch, const LshRounds *a)
{
    Scratch s;
    lay_out(&s, a, scratch, true);
    const int64_t rows = a->x.B * a->x.N * a->x.H;
    const unsigned blocks = blocks_for(rows, THREADS / WARP);
    find_lengths<T>(s.length, a);
    launch_row_deltas<T>(s.delta, dout, out, NULL, rows, a->x.M);
    if (tile_size(a->x.D, a->x.M) == 32)
        backward_sized<T, 32>(d, dout, log_sum, places, s, a);
    else
        backward_sized<T, WIDEST>(d, dout, log_sum, places, s, a);
    const Finish<T> finish = { (const T *)a->x.query,
                               (const T *)dout,
                               s.dq,
                               s.dk,
                               s.dv,
                               s.length,
                               log_sum,
                               a->x.key_lengths,
                               (T *)d.query.data,
                               (T *)d.value.data,
                               d.query.accumulate,
                               d.value.accumulate,
                               a->x.query_stride,
                               a->x.value_stride,
                               a->x.N,
                               a->x.H,
                               a->x.D,
                               a->x.M,
                               rows };
    LAUNCH(finish_gradients<T>, blocks, THREADS, 0, finish);
}

extern "C" void lsh_attention_forward_cuda(TensorType type, Real *out, Real *log_sum,
                                           int32_t *places, Real *scratch, const LshRounds *a)
{
    BY_STORAGE(type, T, forward<T>(out, log_sum, places, scratch, a));
}

extern "C" void lsh_attention_backward_cuda(TensorType type, AttentionGradient d, const Real *dout,
                                            const Real *out, const Real *log_sum,
                                            const int32_t *places, Real *scratch,
                                            const LshRounds *a)
{
    BY_STORAGE(type, T, backward<T>(d, dout, out, log_sum, places, scratch, a));
}
