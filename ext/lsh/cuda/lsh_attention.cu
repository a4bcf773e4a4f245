/* CUDA kernels of LSH attention: see lsh_attention.c. sort.cuh hashes and sorts the positions.
 *
 * A thread block owns 64 consecutive ranks of the sorted order as queries and iterates over the
 * ranks that they attend to; for dk and dv it owns 64 ranks as keys and iterates over the queries
 * that attend to them (softmax_tiles.cuh). A kernel launch processes one round and adds to the sums
 * of the previous rounds in scratch memory; in each launch every row has one owner. */
#include "ext/lsh/cuda/sort.cuh"
#include "ext/lsh/kernels.h"
#include "ops/cuda/shared/row_deltas.cuh"
#include "ops/cuda/shared/softmax_tiles.cuh"

#define LOWEST ((Real)-1e30) /* row maximum before the first score */

/* -------------------------------------------------------------------------------------- scratch */

struct Scratch {
    Real *R;                 /* [rounds, H, D, columns] */
    Key *keys[2];            /* [B, H, rounds, N] */
    Real *length;            /* [B, N, H]: n of lsh_attention.c, the length of x */
    Real *out;               /* between rounds: out [B, N, H, M], */
    Real *m[2], *inverse[2]; /* m and 1 / l [B, N, H] */
    Real *delta;             /* [B, N, H]: -g.out */
    Real *dq, *dk, *dv; /* [B, N, H, D or M]: sums over the rounds; dk is w of lsh_attention.c */
};

static Real *allocate(Real *scratch, int64_t *used, int64_t count)
{
    Real *const memory = scratch ? scratch + *used : NULL;
    *used += (count + 15) / 16 * 16;
    return memory;
}

/* Assigns the buffers in scratch memory, which may be NULL; returns their size in Reals. */
static int64_t allocate_scratch(Scratch *s, const LshRounds *a, Real *scratch, bool backward)
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
        for (int i = 0; i < 2; i++) {
            s->m[i] = allocate(scratch, &used, rows);
            s->inverse[i] = allocate(scratch, &used, rows);
        }
    }
    return used;
}

/* ------------------------------------------------------------------------- rows in sorted order */

/* At most CHUNK consecutive ranks of a head's sorted order. */
struct Ranks {
    int64_t b, h, H, first;
    const int32_t *sorted_index; /* the positions of these ranks */
    int count;
};

__device__ static inline int64_t span_first(const Ranks &)
{
    return 0;
}
__device__ static inline int64_t span_offset(const Ranks &ranks, int i)
{
    return ranks.sorted_index[i];
}

/* The arguments of one launch: one round of all heads. */
template <typename T> struct LshRound {
    typedef Ranks Positions;
    typedef Real Gradient; /* sums over the rounds */
    enum { BOUNDS = 2, NOTHING_VISIBLE = true, SCORE_SUMS = false, WEIGHTED = true };
    LshRounds all;
    Rows<T> query, key, value;
    const int32_t *order; /* of kernels.h */
    int64_t round;
    Real scale; /* 1 / sqrt D */
};

template <typename T>
__device__ static inline Item item_at(const LshRound<T> &a, int64_t index, int64_t tiles, bool)
{
    const int64_t head = index / tiles, H = a.all.x.H;
    return { head / H, head % H, H, index % tiles * CHUNK, 0 };
}

/* The [N] of one array of `order`, for the head of an item or of ranks, and a round. */
template <typename T, typename Of>
__device__ static inline const int32_t *order_at(const LshRound<T> &a, int array, const Of &of,
                                                 int64_t round)
{
    return a.order + lsh_order_at(&a.all, array, of.b * of.H + of.h, round);
}

/* Number of positions of sequence b that are not masked. */
template <typename T> __device__ static inline int64_t positions_of(const LshRound<T> &a, int64_t b)
{
    return a.all.x.key_lengths ? a.all.x.key_lengths[b] : a.all.x.N;
}

template <typename T>
__device__ static inline Ranks positions_from(const LshRound<T> &a, const Item &item, int64_t first,
                                              int64_t end)
{
    const int64_t left = end - first;
    const int count = left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK;
    const int32_t *sorted_index = order_at(a, SORTED_INDEX, item, a.round) + first;
    return { item.b, item.h, item.H, first, sorted_index, count };
}

/* ----------------------------------------------------------------------------------- visibility */

/* bounds = visible_begin and visible_end of each rank's position; an empty range past the last
 * rank. */
template <typename T>
__device__ static inline void load_bounds(int32_t *bounds, const LshRound<T> &a, const Ranks &ranks)
{
    const int i = (int)threadIdx.x;
    if (i < CHUNK) {
        const bool in_bounds = i < ranks.count;
        const int32_t *begin = order_at(a, VISIBLE_BEGIN, ranks, a.round);
        const int32_t *end = order_at(a, VISIBLE_END, ranks, a.round);
        bounds[i] = in_bounds ? begin[ranks.sorted_index[i]] : 0;
        bounds[CHUNK + i] = in_bounds ? end[ranks.sorted_index[i]] : 0;
    }
}

/* Whether the i-th query attends to the j-th key in this round. */
template <typename T>
__device__ static inline bool attends_to(const LshRound<T> &, const int32_t *bounds,
                                         const Ranks &queries, int i, const Ranks &keys, int j)
{
    const int64_t rank = keys.first + j;
    return j < keys.count && bounds[i] <= rank && rank < bounds[CHUNK + i] &&
           rank != queries.first + i;
}

/* Binary search: a head's first rank whose bound (VISIBLE_BEGIN or VISIBLE_END, both ascending) is
 * at least limit. */
template <typename T>
__device__ static inline int64_t first_rank(const LshRound<T> &a, int array, const Item &item,
                                            int64_t limit)
{
    const int32_t *sorted_index = order_at(a, SORTED_INDEX, item, a.round);
    const int32_t *bound = order_at(a, array, item, a.round);
    int64_t from = 0, to = positions_of(a, item.b);
    while (from < to) {
        const int64_t middle = (from + to) / 2;
        if (bound[sorted_index[middle]] < limit)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Queries iterate over the ranks that they attend to, keys over the ranks that attend to them. */
template <typename T>
__device__ static inline Pass<Ranks> pass_of(const LshRound<T> &a, const Item &item, bool keys)
{
    const Ranks rows = positions_from(a, item, item.first, positions_of(a, item.b));
    int64_t begin = 0, end = 0;
    if (rows.count > 0 && keys) {
        begin = first_rank(a, VISIBLE_END, item, rows.first + 1);
        end = first_rank(a, VISIBLE_BEGIN, item, rows.first + rows.count);
    } else if (rows.count > 0) {
        begin = order_at(a, VISIBLE_BEGIN, item, a.round)[rows.sorted_index[0]];
        end = order_at(a, VISIBLE_END, item, a.round)[rows.sorted_index[rows.count - 1]];
    }
    return { rows, rows, begin, end };
}

/* N_ij of lsh_attention.c */
template <typename T>
__device__ static inline int rounds_visible(const LshRound<T> &a, const Ranks &of, int32_t query,
                                            int32_t key)
{
    const int64_t N = a.all.x.N;
    const int32_t *rank = order_at(a, RANK, of, 0) + key;
    const int32_t *begin = order_at(a, VISIBLE_BEGIN, of, 0) + query;
    const int32_t *end = order_at(a, VISIBLE_END, of, 0) + query;
    int count = 0;
    for (int64_t round = 0; round < a.all.rounds; round++, rank += N, begin += N, end += N)
        count += *begin <= *rank && *rank < *end;
    return count;
}

/* s_ij of the i-th query and the j-th key */
template <typename T>
__device__ static inline Real score_of(const LshRound<T> &a, Real product, const Ranks &, int,
                                       const Ranks &, int)
{
    return a.scale * product;
}

/* 1 / N_ij; the key is visible to the query. */
template <typename T>
__device__ static inline Real weight_of(const LshRound<T> &a, const Ranks &queries, int i,
                                        const Ranks &keys, int j)
{
    if (a.all.rounds == 1)
        return 1;
    return 1 / (Real)rounds_visible(a, queries, queries.sorted_index[i], keys.sorted_index[j]);
}

/* -------------------------------------------------------------------------------------- forward */

/* The arguments of a forward launch: the sums of the previous rounds, and those after this one. */
template <typename T> struct LshForward {
    typedef LshRound<T> Kind;
    enum { BLOCKS = 2 };
    Kind a;
    const Real *out_before, *m_before, *inverse_before; /* NULL in the first round */
    Real *out_after;                                    /* NULL in the last round, which writes */
    T *out;                                             /* instead */
    Real *m, *inverse;

    template <int SIZE>
    __device__ RowSums start_sums(Real (*sums)[4], const Ranks &queries, int64_t column) const;
    template <int SIZE>
    __device__ void store_sums(const Ranks &queries, int64_t column, Real (*sums)[4],
                               const Real *factor) const;
};

/* Loads the previous rounds' sums: m and l of the thread's row, and the thread's part of
 * o = l out. */
template <typename T>
template <int SIZE>
__device__ RowSums LshForward<T>::start_sums(Real (*sums)[4], const Ranks &queries,
                                             int64_t column) const
{
    RowSums of_row = { LOWEST, 0 };
    if (!m_before)
        return of_row;
    const int64_t M = a.value.columns, c = column + tile_column<SIZE>();
    const int64_t first = span_row(queries, a.all.x.N);
    const int row = (int)threadIdx.x / 2;
    const int64_t of = first + (row < queries.count ? span_offset(queries, row) * queries.H : 0);
    if (row < queries.count && inverse_before[of] != 0)
        of_row = { m_before[of], 1 / inverse_before[of] };
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (i < queries.count) {
            const int64_t from = first + span_offset(queries, i) * queries.H;
            const Pack<Real, 4> four = load_four(out_before + from * M + c, M - c);
            const Real l = inverse_before[from] == 0 ? (Real)0 : 1 / inverse_before[from];
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums[r][k] = four.at[k] * l;
        }
    }
    return of_row;
}

/* Stores out; in the last round v for queries to which nothing is visible, whose factor is 0. */
template <typename T>
template <int SIZE>
__device__ void LshForward<T>::store_sums(const Ranks &queries, int64_t column, Real (*sums)[4],
                                          const Real *factor) const
{
    const int64_t M = a.value.columns, N = a.all.x.N, c = column + tile_column<SIZE>();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
        if (i >= queries.count)
            continue;
        const int64_t position = queries.sorted_index[i];
        const int64_t to = (span_row(queries, N) + position * queries.H) * M + c;
        if (out_after) {
            contribute_four(out_after + to, false, sums[r], M - c);
        } else if (factor[i] == 0) {
            const T *v =
                a.value.data + (queries.b * N + position) * a.value.stride + queries.h * M + c;
            contribute_four(out + to, false, load_four(v, M - c).at, M - c);
        } else {
            contribute_four(out + to, false, sums[r], M - c);
        }
    }
}

/* Zeroes the results of masked positions. */
template <typename T>
__global__ void zero_masked(T *out, Real *m, Real *inverse, const int32_t *lengths, int64_t N,
                            int64_t H, int64_t M, int64_t rows)
{
    GRID_FOR(i, rows * M) {
        const int64_t row = i / M, position = row / H % N;
        if (position >= lengths[row / (N * H)]) {
            store(&out[i], 0);
            m[row] = inverse[row] = 0;
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
struct Finish {
    LshRounds all;
    AttentionGradient d;
    Scratch sums;
    const Real *dout, *inverse;
};

/* dx <- dq + (dk - u (u.dk)) / n; dvalue <- dv, plus g if nothing is visible to the query; a warp
 * per row */
template <typename T> __global__ void finish_gradients(const __grid_constant__ Finish f)
{
    const AttentionInputs &a = f.all.x;
    const T *const x = (const T *)a.query, *const dout = (const T *)f.dout;
    T *const dx = (T *)f.d.query.data, *const dvalue = (T *)f.d.value.data;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t warps = THREADS / WARP, rows = a.B * a.N * a.H;
    for (int64_t row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const int64_t b_n = row / a.H, h = row % a.H, x_at = b_n * a.query_stride + h * a.D;
        const bool unmasked = !a.key_lengths || b_n % a.N < a.key_lengths[b_n / a.N];
        const Real *dk = f.sums.dk + row * a.D, inverse = 1 / f.sums.length[row];
        Real along = 0;
        for (int64_t c = lane; c < a.D && unmasked && dx; c += WARP)
            along += load(x + x_at + c) * dk[c];
        along = warp_sum(along) * inverse * inverse;
        for (int64_t c = lane; c < a.D && dx; c += WARP) {
            const Real across = unmasked ? dk[c] - along * load(x + x_at + c) : (Real)0;
            contribute(dx + x_at + c, f.d.query.accumulate,
                       unmasked ? f.sums.dq[row * a.D + c] + inverse * across : (Real)0);
        }
        const bool alone = unmasked && f.inverse[row] == 0;
        for (int64_t c = lane; c < a.M && dvalue; c += WARP) {
            const Real dv = unmasked ? f.sums.dv[row * a.M + c] : (Real)0;
            contribute(dvalue + b_n * a.value_stride + h * a.M + c, f.d.value.accumulate,
                       alone ? dv + load(dout + row * a.M + c) : dv);
        }
    }
}

/* ------------------------------------------------------------------------------------ launching */

template <typename T>
static LshRound<T> round_of(const LshRounds *all, const int32_t *order, const Real *length,
                            int64_t round)
{
    const AttentionInputs *x = &all->x;
    const Rows<T> query = rows_of<T>(x->query, x->query_stride, x->N, x->D);
    Rows<T> key = query;
    key.divisor = length;
    return { *all,
             query,
             key,
             rows_of<T>(x->value, x->value_stride, x->N, x->M),
             order,
             round,
             1 / (Real)sqrt((double)x->D) };
}

template <typename T> static void compute_lengths(Real *length, const AttentionInputs *x)
{
    const int64_t rows = x->B * x->N * x->H;
    LAUNCH(row_lengths<T>, blocks_for(rows, THREADS / WARP), THREADS, 0, length,
           (const T *)x->query, x->query_stride, x->H, x->D, rows);
}

template <typename T, int SIZE>
static void forward(Real *out, Real *m, Real *inverse, int32_t *order, const LshRounds *all)
{
    const AttentionInputs *x = &all->x;
    const int64_t heads = x->B * x->H, rows = heads * x->N;
    Scratch s;
    Real *scratch = device_workspace(allocate_scratch(&s, all, NULL, false));
    allocate_scratch(&s, all, scratch, false);
    sort_positions<T>(order, s.R, s.keys, all);
    compute_lengths<T>(s.length, x);
    for (int64_t round = 0; round < all->rounds; round++) {
        const bool first = round == 0, last = round + 1 == all->rounds;
        const int64_t before = (round + 1) % 2, after = round % 2;
        launch_forward<SIZE>(LshForward<T>{ round_of<T>(all, order, s.length, round),
                                            first ? NULL : s.out, first ? NULL : s.m[before],
                                            first ? NULL : s.inverse[before], last ? NULL : s.out,
                                            (T *)out, last ? m : s.m[after],
                                            last ? inverse : s.inverse[after] },
                             heads);
    }
    if (x->key_lengths)
        LAUNCH(zero_masked<T>, blocks_for(rows * x->M), THREADS, 0, (T *)out, m, inverse,
               x->key_lengths, x->N, x->H, x->M, rows);
    device_workspace_free(scratch);
}

template <typename T, int SIZE>
static void backward(const AttentionGradient &d, const Real *dout, const Real *out, const Real *m,
                     const Real *inverse, const int32_t *order, const LshRounds *all)
{
    const AttentionInputs *x = &all->x;
    const int64_t heads = x->B * x->H, rows = heads * x->N;
    Scratch s;
    Real *scratch = device_workspace(allocate_scratch(&s, all, NULL, true));
    allocate_scratch(&s, all, scratch, true);
    compute_lengths<T>(s.length, x);
    launch_row_deltas<T>(s.delta, dout, out, NULL, rows, x->M);
    for (int64_t round = 0; round < all->rounds; round++) {
        const auto sums = [&](bool needed, Real *sum, int64_t columns) {
            return gradient_rows<Real>({ needed ? sum : NULL, round > 0 }, x->H * columns, x->N,
                                       columns);
        };
        launch_gradients<SIZE>(round_of<T>(all, order, s.length, round),
                               { rows_of<T>(dout, x->H * x->M, x->N, x->M), m, inverse, s.delta },
                               sums(d.query.data, s.dq, x->D), sums(d.query.data, s.dk, x->D),
                               sums(d.value.data, s.dv, x->M), heads);
    }
    const Finish finish = { *all, d, s, dout, inverse };
    LAUNCH(finish_gradients<T>, blocks_for(rows, THREADS / WARP), THREADS, 0, finish);
    device_workspace_free(scratch);
}

static void lsh_attention_forward_cuda(TensorType type, Real *out, Real *m, Real *inverse,
                                       int32_t *order, const LshRounds *all)
{
    BY_TYPE_AND_TILE_SIZE(type, all->x.D, all->x.M,
                          (forward<T, SIZE>(out, m, inverse, order, all)));
}

static void lsh_attention_backward_cuda(TensorType type, AttentionGradient d, const Real *dout,
                                        const Real *out, const Real *m, const Real *inverse,
                                        const int32_t *order, const LshRounds *all)
{
    BY_TYPE_AND_TILE_SIZE(type, all->x.D, all->x.M,
                          (backward<T, SIZE>(d, dout, out, m, inverse, order, all)));
}

template <TensorType type>
static constexpr LshKernels lsh_table = { call<lsh_attention_forward_cuda, type>,
                                          call<lsh_attention_backward_cuda, type> };
const LshKernels lsh_cuda = lsh_table<TENSOR_REAL>, lsh_cuda_bf16 = lsh_table<TENSOR_BF16>;
