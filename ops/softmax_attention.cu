/* A block takes 64 queries of a head and goes through their keys; for dk and dv it takes 64 keys and
 * goes through their queries. Each pass computes the scores anew, and every sum has one owner. */
#include "ops/attention.cuh"
#include "ops/softmax_attention.h"

template <typename T> struct SoftmaxAttention {
    Rows<T> query, key, value;
    const int32_t *key_lengths; /* [B], or NULL */
    bool causal;
    int64_t B, H;
    Real scale; /* 1 / sqrt D */
};

/* What a block works on: 64 of a head's queries or keys, from first on, and some columns of its
 * results, from column on. */
struct Item {
    int64_t b, h, H, first, column;
};

/* The tiles of 64 are counted from the last one, whose queries see the most keys, or from the first,
 * whose keys are seen by the most queries: what takes longest begins first. */
template <typename T, int SIZE>
__device__ static inline Item item_at(const SoftmaxAttention<T> &a, int64_t index,
                                      int64_t column_tiles, int64_t tiles, bool from_last)
{
    const int64_t rest = index / column_tiles, head = rest % (a.B * a.H);
    const int64_t tile = rest / (a.B * a.H), first = (from_last ? tiles - 1 - tile : tile) * CHUNK;
    return { head / a.H, head % a.H, a.H, first, index % column_tiles * SIZE };
}

/* The item's head's positions from first on, before limit, CHUNK at most. */
__device__ static inline Span positions_from(const Item &item, int64_t first, int64_t limit)
{
    const int64_t left = limit - first;
    return { item.b, item.h, item.H, first, 1, left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK };
}

/* How many keys count in a sequence; how many of these some query of the span sees. */
template <typename T>
__device__ static inline int64_t keys_of(const SoftmaxAttention<T> &a, int64_t b)
{
    return a.key_lengths ? a.key_lengths[b] : a.key.positions;
}

template <typename T>
__device__ static inline int64_t keys_seen(const SoftmaxAttention<T> &a, const Span &queries)
{
    const int64_t keys = keys_of(a, queries.b), end = queries.first + queries.count;
    return a.causal && end < keys ? end : keys;
}

/* Whether the i-th of these queries sees the j-th of these keys. */
template <typename T>
__device__ static inline bool sees(const SoftmaxAttention<T> &a, const Span &queries, int i,
                                   const Span &keys, int j)
{
    return i < queries.count && j < keys.count &&
           (!a.causal || keys.first + j <= queries.first + i);
}

/* ---------------------------------------------------------------------------------------- forward */

struct ForwardMemory {
    Real *query, *key; /* [CHUNK, SIZE], padded */
    Real *value;       /* [CHUNK, SIZE] */
    Real *scores;      /* [CHUNK, CHUNK], padded */
    Real *factor;      /* [CHUNK] */
};

template <int SIZE> __device__ static inline ForwardMemory forward_layout(Real *memory)
{
    ForwardMemory m;
    m.query = memory;
    m.key = m.query + CHUNK * Tile<SIZE>::PITCH;
    m.value = m.key + CHUNK * Tile<SIZE>::PITCH;
    m.scores = m.value + CHUNK * SIZE;
    m.factor = m.scores + CHUNK * SCORE_PITCH;
    return m;
}

template <int SIZE> static int64_t forward_memory(void)
{
    return CHUNK * (2 * Tile<SIZE>::PITCH + SIZE + SCORE_PITCH + 1);
}

/* The scores of the spans into shared memory, -infinity where a query does not see the key. */
template <typename T, int SIZE>
__device__ static inline void forward_scores(const SoftmaxAttention<T> &a, const ForwardMemory &m,
                                             const Span &queries, const Span &keys)
{
    Real scores[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    const int64_t D = a.query.columns;
    for (int64_t d = 0; d < D; d += SIZE) {
        if (d > 0)
            __syncthreads(); /* the tiles before have been read */
        if (keys.first == 0 || D > SIZE)
            load_tile<SIZE>(m.query, Tile<SIZE>::PITCH, a.query, queries, d);
        load_tile<SIZE>(m.key, Tile<SIZE>::PITCH, a.key, keys, d);
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
                sees(a, queries, i, keys, j) ? a.scale * scores[r][c] : (Real)-INFINITY;
        }
    }
}

template <typename T, int SIZE>
__device__ static inline void forward_item(const SoftmaxAttention<T> &a, const GradientRows<T> &out,
                                           Real *log_sum, const Item &item, const ForwardMemory &m)
{
    const Span queries = positions_from(item, item.first, a.query.positions);
    const int64_t seen = keys_seen(a, queries);
    const int row = (int)threadIdx.x / 2;
    const bool first_half = threadIdx.x % 2 == 0;
    RowSums sums_of_row = { (Real)-INFINITY, 0 };
    Real sums[Tile<SIZE>::ROWS][4] = {};
    for (int64_t first = 0; first < seen; first += CHUNK) {
        const Span keys = positions_from(item, first, seen);
        const int filled = fill_up(keys.count);
        __syncthreads(); /* the tiles before have been read */
        load_tile<SIZE>(m.value, SIZE, a.value, keys, item.column);
        forward_scores<T, SIZE>(a, m, queries, keys);
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
        m.factor[row] = 1 / sums_of_row.l;
    if (first_half && item.column == 0 && row < queries.count)
        log_sum[span_row(queries, a.query.positions) + row * a.H] =
            sums_of_row.m + log(sums_of_row.l);
    __syncthreads();
    multiply_rows<SIZE>(sums, m.factor);
    contribute_tile<SIZE>(out, queries, item.column, sums);
}

template <typename T, int SIZE>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS_AT_ONCE)
    softmax_forward(const __grid_constant__ SoftmaxAttention<T> a,
                    const __grid_constant__ GradientRows<T> out, Real *log_sum,
                    int64_t column_tiles, int64_t tiles, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const ForwardMemory m = forward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        forward_item<T, SIZE>(a, out, log_sum, item_at<T, SIZE>(a, i, column_tiles, tiles, true),
                              m);
}

/* --------------------------------------------------------------------------------------- backward
 * In the terms of both kinds of blocks: rows are those that the block owns, with x1 = q, x2 = g (or
 * x1 = k, x2 = v), columns the keys (or queries) that it goes through, with y1, y2 likewise.
 *     s = x1.y1 / sqrt D    dP = x2.y2    P = e^(s - L)    dS = P (dP + delta)
 *     dx1 <- dS y1 / sqrt D    and of keys dx2 = dv <- P y2 */

template <typename T> struct SoftmaxBackward {
    SoftmaxAttention<T> a;
    Rows<T> x1, x2, y1, y2;
    GradientRows<T> dx1, dx2;
    const Real *log_sum, *delta; /* [B, N, H] */
};

struct BackwardMemory {
    Real *x1, *x2, *y1, *y2; /* [CHUNK, SIZE], padded */
    Real *scores;            /* [CHUNK, CHUNK], padded: P, then dS */
    Real *log_sum, *delta;   /* [CHUNK], of the queries */
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
    return m;
}

template <int SIZE> static int64_t backward_memory(void)
{
    return CHUNK * (4 * Tile<SIZE>::PITCH + SCORE_PITCH + 2);
}

/* s into P and dP into dS; 0 where the query does not see the key. */
template <typename T, int SIZE, bool KEYS>
__device__ static inline void backward_scores(Real (*s)[Tile<SIZE>::SCORES],
                                              Real (*dP)[Tile<SIZE>::SCORES],
                                              const SoftmaxAttention<T> &a, const BackwardMemory &m,
                                              const Span &rows, const Span &columns)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int row = tile_row<SIZE>(r), column = score_column<SIZE>(c);
            const int i = KEYS ? column : row, j = KEYS ? row : column;
            const bool seen = KEYS ? sees(a, columns, i, rows, j) : sees(a, rows, i, columns, j);
            s[r][c] = seen ? exp(a.scale * s[r][c] - m.log_sum[i]) : (Real)0;
            dP[r][c] = seen ? s[r][c] * (dP[r][c] + m.delta[i]) : (Real)0;
        }
}

/* Adds what these columns contribute to dx1 and dx2. */
template <typename T, int SIZE, bool KEYS>
__device__ static inline void backward_columns(Real (*dx1)[4], Real (*dx2)[4],
                                               const SoftmaxBackward<T> &b, const Item &item,
                                               const BackwardMemory &m, const Span &rows,
                                               const Span &columns, bool first)
{
    enum { PITCH = Tile<SIZE>::PITCH };
    const int64_t D = b.x1.columns, M = b.x2.columns;
    const int filled = fill_up(columns.count);
    Real s[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    Real dP[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    for (int64_t k = 0; k < D || k < M; k += SIZE) {
        __syncthreads(); /* the tiles before have been read */
        if (k < D && (first || D > SIZE))
            load_tile<SIZE>(m.x1, PITCH, b.x1, rows, k);
        if (k < M && (first || M > SIZE))
            load_tile<SIZE>(m.x2, PITCH, b.x2, rows, k);
        if (k < D)
            load_tile<SIZE>(m.y1, PITCH, b.y1, columns, k);
        if (k < M)
            load_tile<SIZE>(m.y2, PITCH, b.y2, columns, k);
        if (k == 0 && (KEYS || first)) {
            load_numbers(m.log_sum, b.log_sum, b.a.query.positions, KEYS ? columns : rows);
            load_numbers(m.delta, b.delta, b.a.query.positions, KEYS ? columns : rows);
        }
        __syncthreads();
        if (k < D)
            add_scores<SIZE>(s, m.x1, m.y1, tile_inner<SIZE>(D, k), columns.count);
        if (k < M)
            add_scores<SIZE>(dP, m.x2, m.y2, tile_inner<SIZE>(M, k), columns.count);
    }
    backward_scores<T, SIZE, KEYS>(s, dP, b.a, m, rows, columns);
    if (D > SIZE || M > SIZE) { /* other tiles lie there, or these are further on */
        __syncthreads();
        load_tile<SIZE>(m.y1, PITCH, b.y1, columns, item.column);
        if (KEYS)
            load_tile<SIZE>(m.y2, PITCH, b.y2, columns, item.column);
    }
    if (KEYS) {
        store_scores<SIZE>(m.scores, s);
        __syncthreads();
        if (b.dx2.data)
            add_product<SIZE>(dx2, m.scores, SCORE_PITCH, m.y2, PITCH, filled);
        __syncthreads();
    }
    store_scores<SIZE>(m.scores, dP);
    __syncthreads();
    if (b.dx1.data)
        add_product<SIZE>(dx1, m.scores, SCORE_PITCH, m.y1, PITCH, filled);
}

/* The contribution of the block's rows: nothing, 0, of keys that do not count. */
template <typename T, int SIZE>
__device__ static inline void contribute_rows(const GradientRows<T> &d, const Item &item,
                                              Real (*sums)[4], int count, Real factor)
{
    if (!d.data || item.column >= d.columns)
        return;
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] = tile_row<SIZE>(r) < count ? factor * sums[r][c] : (Real)0;
    contribute_tile<SIZE>(d, positions_from(item, item.first, d.positions), item.column, sums);
}

template <typename T, int SIZE, bool KEYS>
__device__ static inline void backward_item(const SoftmaxBackward<T> &b, const Item &item,
                                            const BackwardMemory &m)
{
    const SoftmaxAttention<T> &a = b.a;
    const Span rows =
        positions_from(item, item.first, KEYS ? keys_of(a, item.b) : a.query.positions);
    const int64_t begin = KEYS && a.causal ? item.first : 0;
    const int64_t end = !KEYS ? keys_seen(a, rows) : rows.count > 0 ? a.query.positions : 0;
    Real dx1[Tile<SIZE>::ROWS][4] = {}, dx2[Tile<SIZE>::ROWS][4] = {};
    for (int64_t first = begin; first < end; first += CHUNK)
        backward_columns<T, SIZE, KEYS>(dx1, dx2, b, item, m, rows,
                                        positions_from(item, first, end), first == begin);
    contribute_rows<T, SIZE>(b.dx1, item, dx1, rows.count, a.scale);
    if (KEYS)
        contribute_rows<T, SIZE>(b.dx2, item, dx2, rows.count, 1);
}

template <typename T, int SIZE, bool KEYS>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    softmax_backward(const __grid_constant__ SoftmaxBackward<T> b, int64_t column_tiles,
                     int64_t tiles, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const BackwardMemory m = backward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        backward_item<T, SIZE, KEYS>(b, item_at<T, SIZE>(b.a, i, column_tiles, tiles, !KEYS), m);
}

/* -------------------------------------------------------------------------------------- launching */

template <typename T> static SoftmaxAttention<T> arguments_of(const Attention *a, bool causal)
{
    return { rows_of<T>(a->query, a->query_stride, a->N, a->D),
             rows_of<T>(a->key, a->key_stride, a->keys, a->D),
             rows_of<T>(a->value, a->value_stride, a->keys, a->M),
             a->key_lengths,
             causal,
             a->B,
             a->H,
             1 / (Real)sqrt((double)a->D) };
}

template <typename T, int SIZE>
static void forward_sized(Real *out, Real *log_sum, const Attention *a, bool causal)
{
    const GradientRows<T> rows = gradient_rows<T>({ out, false }, a->H * a->M, a->N, a->M);
    const int64_t column_tiles = tiles_for(a->M, SIZE), tiles = tiles_for(a->N, CHUNK);
    const int64_t items = a->B * a->H * column_tiles * tiles;
    LAUNCH_TILES((softmax_forward<T, SIZE>), items, forward_memory<SIZE>(),
                 arguments_of<T>(a, causal), rows, log_sum, column_tiles, tiles, items);
}

template <typename T, int SIZE, bool KEYS> static void backward_half(const SoftmaxBackward<T> &b)
{
    const int64_t D = b.x1.columns, M = b.x2.columns;
    const int64_t column_tiles = tiles_for(KEYS && M > D ? M : D, SIZE);
    const int64_t tiles = tiles_for(b.x1.positions, CHUNK);
    const int64_t items = b.a.B * b.a.H * column_tiles * tiles;
    if (b.dx1.data || b.dx2.data)
        LAUNCH_TILES((softmax_backward<T, SIZE, KEYS>), items, backward_memory<SIZE>(), b,
                     column_tiles, tiles, items);
}

template <typename T, int SIZE>
static void backward_sized(AttentionGradient d, const Real *dout, const Real *log_sum,
                           const Real *delta, const Attention *a, bool causal)
{
    const SoftmaxAttention<T> x = arguments_of<T>(a, causal);
    const Rows<T> g = rows_of<T>(dout, a->H * a->M, a->N, a->M);
    const GradientRows<T> dq = gradient_rows<T>(d.query, a->query_stride, a->N, a->D);
    const GradientRows<T> dk = gradient_rows<T>(d.key, a->key_stride, a->keys, a->D);
    const GradientRows<T> dv = gradient_rows<T>(d.value, a->value_stride, a->keys, a->M);
    backward_half<T, SIZE, false>({ x, x.query, g, x.key, x.value, dq, {}, log_sum, delta });
    backward_half<T, SIZE, true>({ x, x.key, x.value, x.query, g, dk, dv, log_sum, delta });
}

template <typename T>
static void backward(AttentionGradient d, const Real *dout, const Real *out, const Real *log_sum,
                     Real *delta, const Attention *a, bool causal)
{
    const int64_t rows = a->B * a->N * a->H;
    LAUNCH(row_deltas<T>, blocks_for(rows, THREADS / WARP), THREADS, 0, delta, (const T *)dout,
           (const T *)out, (const Real *)NULL, rows, a->M);
    if (tile_size(a->D, a->M) == 32)
        backward_sized<T, 32>(d, dout, log_sum, delta, a, causal);
    else
        backward_sized<T, WIDEST>(d, dout, log_sum, delta, a, causal);
}

/* delta, one number a row */
extern "C" int64_t softmax_attention_scratch_cuda(const Attention *a, bool backward)
{
    return backward ? a->B * a->N * a->H : 1;
}

extern "C" void softmax_attention_forward_cuda(Real *out, Real *log_sum, Real *scratch,
                                               const Attention *a, bool causal)
{
    (void)scratch;
    if (tile_size(a->D, a->M) == 32)
        BY_STORAGE(T, forward_sized<T, 32>(out, log_sum, a, causal));
    else
        BY_STORAGE(T, forward_sized<T, WIDEST>(out, log_sum, a, causal));
}

extern "C" void softmax_attention_backward_cuda(AttentionGradient d, const Real *dout,
                                                const Real *out, const Real *log_sum, Real *scratch,
                                                const Attention *a, bool causal)
{
    BY_STORAGE(T, backward<T>(d, dout, out, log_sum, scratch, a, causal));
}
