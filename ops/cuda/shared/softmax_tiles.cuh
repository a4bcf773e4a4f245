/* Online softmax over score tiles, forward and backward, without the matrix [N, N], for any Kind of
 * attention: a struct of arguments and sizes, among them query, key, value (Rows) and scale. Its
 * .cu file defines for it
 *     Positions               the positions of a tile, count of them: a Span, or another type with
 *                             the functions of a Span in tile_rows.cuh
 *     Gradient                the element type of gradients
 *     BOUNDS                  number of int32 per query in shared memory, which attends_to reads
 *     NOTHING_VISIBLE         whether there may be queries without visible keys
 *     SCORE_SUMS              whether there may be dc, to which store_score_sum adds sums of dS
 *     item_at                 the head and the tile of a thread block (its columns: item_of)
 *     positions_from          the next CHUNK positions of a head, or fewer before the end
 *     pass_of                 the rows that a block owns, and the range it iterates over
 *     load_bounds, attends_to whether the i-th query of a tile attends to the j-th key of another
 *     score_of                the score s, from the product q.k
 *     WEIGHTED, weight_of     whether e^s may have a factor; the factor, of a visible pair
 * and a struct Forward, with the Kind as a, and the results, among them m and inverse, 1 / l:
 *     BLOCKS                  min thread blocks per multiprocessor
 *     start_sums, store_sums  load m, l and o before the first key; store out */
#ifndef TAPEGRAD_OPS_CUDA_SHARED_SOFTMAX_TILES_CUH
#define TAPEGRAD_OPS_CUDA_SHARED_SOFTMAX_TILES_CUH

#include "ops/cuda/shared/tile_rows.cuh"

/* The work of a thread block: the tile of a head's queries or keys that starts at first, and the
 * columns of its results that start at column. */
struct Item {
    int64_t b, h, H, first, column;
};

template <int SIZE, typename Kind>
__device__ static inline Item item_of(const Kind &a, int64_t index, int64_t column_tiles,
                                      int64_t tiles, bool keys)
{
    Item item = item_at(a, index / column_tiles, tiles, keys);
    item.column = index % column_tiles * SIZE;
    return item;
}

/* The rows that a block owns: rows that are not masked, and all rows that it writes. For them the
 * block iterates over columns of the score matrix, begin <= column < end, but not those of a gap,
 * gap <= column < resume. */
template <typename Positions> struct Pass {
    Positions rows, written;
    int64_t begin, end;
    int64_t gap = 0, resume = 0;
};

/* The first column of the tile after the one from column `first` on. */
template <typename Positions>
__device__ static inline int64_t next_tile(const Pass<Positions> &pass, int64_t first)
{
    first += CHUNK;
    return first >= pass.gap && first < pass.resume ? pass.resume : first;
}

/* The products require a multiple of 4. */
__device__ static inline int round_up_to_4(int count)
{
    return (count + 3) / 4 * 4;
}

/* Stores a score tile in shared memory. */
template <int SIZE>
__device__ static inline void store_scores(Real *to, const Real (*scores)[Tile<SIZE>::SCORES])
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++)
            to[tile_row<SIZE>(r) * SCORE_PITCH + score_column<SIZE>(c)] = scores[r][c];
}

/* -------------------------------------------------------------------------------------- forward */

/* Online softmax of a row over the keys so far; two adjacent threads share a row. */
struct RowSums {
    Real m, l; /* the maximum of the scores s; the sum of e^(s - m) */
};

/* One step of online softmax: m includes the row's new scores s, which become e^(s - m), times the
 * weight. Returns the factor that rescales sums to the new m. The maximum ignores NaN; e^(s - m)
 * propagates it. */
template <typename Kind, typename Positions>
__device__ static inline Real online_softmax(RowSums *row, Real *scores, const Kind &a,
                                             const Positions &queries, const Positions &keys)
{
    const int half = (int)threadIdx.x % 2, count = round_up_to_4(keys.count);
    Real m = row->m, l = 0;
    for (int j = half; j < count; j += 2)
        m = scores[j] > m ? scores[j] : m;
    const Real other = __shfl_xor_sync(0xffffffffu, m, 1);
    m = other > m ? other : m;
    for (int j = half; j < count; j += 2) {
        scores[j] = exp(scores[j] - m);
        if constexpr (Kind::WEIGHTED)
            if (scores[j] != 0) /* visible */
                scores[j] *= weight_of(a, queries, (int)threadIdx.x / 2, keys, j);
        l += scores[j];
    }
    const Real factor = exp(row->m - m);
    row->m = m;
    row->l = row->l * factor + (l + __shfl_xor_sync(0xffffffffu, l, 1));
    return factor;
}

template <int SIZE> __device__ static inline void multiply_rows(Real (*sums)[4], const Real *factor)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] *= factor[tile_row<SIZE>(r)];
}

struct ForwardMemory {
    Real *query, *key; /* [CHUNK, SIZE], padded */
    Real *value;       /* [CHUNK, SIZE] */
    Real *scores;      /* [CHUNK, CHUNK], padded */
    Real *factor;      /* [CHUNK] */
    int32_t *bounds;   /* [BOUNDS, CHUNK] */
};

template <int SIZE> __device__ static inline ForwardMemory forward_layout(Real *memory)
{
    ForwardMemory m;
    m.query = memory;
    m.key = m.query + CHUNK * Tile<SIZE>::PITCH;
    m.value = m.key + CHUNK * Tile<SIZE>::PITCH;
    m.scores = m.value + CHUNK * SIZE;
    m.factor = m.scores + CHUNK * SCORE_PITCH;
    m.bounds = (int32_t *)(m.factor + CHUNK);
    return m;
}

template <int SIZE, typename Kind> static int64_t forward_memory(void)
{
    return CHUNK * (2 * Tile<SIZE>::PITCH + SIZE + SCORE_PITCH + 1 + Kind::BOUNDS);
}

/* Stores a score tile in shared memory, -infinity where the key is not visible to the query. */
template <int SIZE, typename Kind, typename Positions>
__device__ static inline void forward_scores(const Kind &a, const ForwardMemory &m,
                                             const Positions &queries, const Positions &keys,
                                             bool first)
{
    Real scores[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    const int64_t D = a.query.columns;
    for (int64_t d = 0; d < D; d += SIZE) {
        if (d > 0)
            __syncthreads(); /* the previous tiles have been read */
        if (first || D > SIZE)
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
            m.scores[i * SCORE_PITCH + j] = attends_to(a, m.bounds, queries, i, keys, j)
                                                ? score_of(a, scores[r][c], queries, i, keys, j)
                                                : (Real)-INFINITY;
        }
    }
}

/* Adds the contributions of the pass's keys to sums, o of softmax.c, and to m and l of the thread's
 * row. */
template <int SIZE, typename Kind, typename Positions>
__device__ static inline void add_keys(Real (*sums)[4], RowSums *sums_of_row, const Kind &a,
                                       const Item &item, const ForwardMemory &m,
                                       const Pass<Positions> &pass)
{
    const int row = (int)threadIdx.x / 2;
    load_bounds(m.bounds, a, pass.rows);
    for (int64_t first = pass.begin; first < pass.end; first = next_tile(pass, first)) {
        const Positions keys = positions_from(a, item, first, pass.end);
        const int padded = round_up_to_4(keys.count);
        __syncthreads(); /* the previous tiles have been read */
        load_tile<SIZE>(m.value, SIZE, a.value, keys, item.column);
        forward_scores<SIZE>(a, m, pass.rows, keys, first == pass.begin);
        __syncthreads();
        const Real factor =
            online_softmax(sums_of_row, m.scores + row * SCORE_PITCH, a, pass.rows, keys);
        if (threadIdx.x % 2 == 0)
            m.factor[row] = factor;
        __syncthreads();
        multiply_rows<SIZE>(sums, m.factor);
        add_product<SIZE>(sums, m.scores, SCORE_PITCH, m.value, SIZE, padded);
    }
    __syncthreads();
}

/* If no key is visible to the query, 1 / l counts as 0. */
template <int SIZE, typename Forward>
__device__ static inline void forward_item(const Forward &f, const Item &item,
                                           const ForwardMemory &m)
{
    const auto &a = f.a;
    const auto pass = pass_of(a, item, false);
    const int row = (int)threadIdx.x / 2;
    const bool first_half = threadIdx.x % 2 == 0;
    Real sums[Tile<SIZE>::ROWS][4] = {};
    RowSums of_row = f.template start_sums<SIZE>(sums, pass.rows, item.column);
    add_keys<SIZE>(sums, &of_row, a, item, m, pass);
    const bool nothing = Forward::Kind::NOTHING_VISIBLE && of_row.l == 0;
    if (first_half)
        m.factor[row] = nothing ? (Real)0 : 1 / of_row.l;
    if (first_half && item.column == 0 && row < pass.rows.count) {
        const int64_t to =
            span_row(pass.rows, a.query.positions) + span_offset(pass.rows, row) * item.H;
        f.m[to] = of_row.m;
        f.inverse[to] = m.factor[row];
    }
    __syncthreads();
    multiply_rows<SIZE>(sums, m.factor);
    f.template store_sums<SIZE>(pass.rows, item.column, sums, m.factor);
}

template <int SIZE, typename Forward>
__global__ void __launch_bounds__(TILE_THREADS, Forward::BLOCKS)
    softmax_forward(const __grid_constant__ Forward f, int64_t column_tiles, int64_t tiles,
                    int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const ForwardMemory m = forward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        forward_item<SIZE>(f, item_of<SIZE>(f.a, i, column_tiles, tiles, false), m);
}

template <int SIZE, typename Forward> static void launch_forward(const Forward &f, int64_t heads)
{
    const int64_t column_tiles = tiles_for(f.a.value.columns, SIZE);
    const int64_t tiles = tiles_for(f.a.query.positions, CHUNK);
    const int64_t items = heads * column_tiles * tiles;
    LAUNCH_TILES((softmax_forward<SIZE, Forward>), items,
                 (forward_memory<SIZE, typename Forward::Kind>()), f, column_tiles, tiles, items);
}

/* --------------------------------------------------------------------------------------- backward
 * One notation for both kinds of thread blocks. Rows are the queries (or keys) that a block owns,
 * with x1 = q, x2 = g (or x1 = k, x2 = v); columns are the keys (or queries) that it iterates over,
 * with y1 = k, y2 = v (or y1 = q, y2 = g). Both recompute the scores, so every sum has one owner.
 *     s = the score of x1.y1    dP = x2.y2    P = e^(s - m) / l    dS = P (dP + delta)
 *     dx1 <- dS y1 scale        blocks of keys also dx2 = dv <- P y2
 * delta is -D_i of softmax.c. */

template <typename Kind> struct SoftmaxUpstream {
    decltype(Kind::query) g;
    const Real *m, *inverse, *delta; /* [B, N, H]; inverse: 1 / l */
};

template <typename Kind> struct SoftmaxBackward {
    Kind a;
    decltype(Kind::query) x1, x2, y1, y2;
    GradientRows<typename Kind::Gradient> dx1, dx2;
    SoftmaxUpstream<Kind> up;
};

/* A thread's part of the block's sums. */
template <int SIZE> struct BackwardSums {
    Real dx1[Tile<SIZE>::ROWS][4], dx2[Tile<SIZE>::ROWS][4];
    Real dS[Tile<SIZE>::ROWS]; /* of each row's dS; unused without SCORE_SUMS */
};

struct BackwardMemory {
    Real *x1, *x2, *y1, *y2;   /* [CHUNK, SIZE], padded */
    Real *scores;              /* [CHUNK, CHUNK], padded: P, then dS */
    Real *m, *inverse, *delta; /* [CHUNK]: of the queries */
    int32_t *bounds;           /* [BOUNDS, CHUNK]: of the queries */
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
    m.m = m.scores + CHUNK * SCORE_PITCH;
    m.inverse = m.m + CHUNK;
    m.delta = m.inverse + CHUNK;
    m.bounds = (int32_t *)(m.delta + CHUNK);
    return m;
}

template <int SIZE, typename Kind> static int64_t backward_memory(void)
{
    return CHUNK * (4 * Tile<SIZE>::PITCH + SCORE_PITCH + 3 + Kind::BOUNDS);
}

/* In place: s = x1.y1 becomes P, dP = x2.y2 becomes dS; 0 where the key is not visible to the
 * query. */
template <int SIZE, bool KEYS, typename Kind, typename Positions>
__device__ static inline void backward_scores(Real (*s)[Tile<SIZE>::SCORES],
                                              Real (*dP)[Tile<SIZE>::SCORES], const Kind &a,
                                              const BackwardMemory &m, const Positions &queries,
                                              const Positions &keys)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int row = tile_row<SIZE>(r), column = score_column<SIZE>(c);
            const int i = KEYS ? column : row, j = KEYS ? row : column;
            const bool visible = attends_to(a, m.bounds, queries, i, keys, j);
            s[r][c] = visible
                          ? exp(score_of(a, s[r][c], queries, i, keys, j) - m.m[i]) * m.inverse[i]
                          : (Real)0;
            if constexpr (Kind::WEIGHTED)
                if (visible)
                    s[r][c] *= weight_of(a, queries, i, keys, j);
            dP[r][c] = visible ? s[r][c] * (dP[r][c] + m.delta[i]) : (Real)0;
        }
}

/* Loads the tiles of the operands from column k on; those of the rows only if they are not loaded
 * yet. Also loads m, 1 / l, delta and bounds of the queries. */
template <int SIZE, bool KEYS, typename Kind, typename Positions>
__device__ static inline void load_products(const SoftmaxBackward<Kind> &b, const BackwardMemory &m,
                                            const Positions &rows, const Positions &columns,
                                            int64_t k, bool first)
{
    enum { PITCH = Tile<SIZE>::PITCH };
    const int64_t D = b.x1.columns, M = b.x2.columns, N = b.a.query.positions;
    const Positions &queries = KEYS ? columns : rows;
    if (k < D && (first || D > SIZE))
        load_tile<SIZE>(m.x1, PITCH, b.x1, rows, k);
    if (k < M && (first || M > SIZE))
        load_tile<SIZE>(m.x2, PITCH, b.x2, rows, k);
    if (k < D)
        load_tile<SIZE>(m.y1, PITCH, b.y1, columns, k);
    if (k < M)
        load_tile<SIZE>(m.y2, PITCH, b.y2, columns, k);
    if (k == 0 && (KEYS || first)) {
        load_vector(m.m, b.up.m, N, queries);
        load_vector(m.inverse, b.up.inverse, N, queries);
        load_vector(m.delta, b.up.delta, N, queries);
        load_bounds(m.bounds, b.a, queries);
    }
}

/* Adds the contributions of these columns to the sums. */
template <int SIZE, bool KEYS, typename Kind, typename Positions>
__device__ static inline void backward_columns(BackwardSums<SIZE> *sums,
                                               const SoftmaxBackward<Kind> &b, const Item &item,
                                               const BackwardMemory &m, const Positions &rows,
                                               const Positions &columns, bool first)
{
    enum { PITCH = Tile<SIZE>::PITCH };
    const int64_t D = b.x1.columns, M = b.x2.columns;
    const int padded = round_up_to_4(columns.count);
    Real s[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    Real dP[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    for (int64_t k = 0; k < D || k < M; k += SIZE) {
        __syncthreads(); /* the previous tiles have been read */
        load_products<SIZE, KEYS>(b, m, rows, columns, k, first);
        __syncthreads();
        if (k < D)
            add_scores<SIZE>(s, m.x1, m.y1, tile_inner<SIZE>(D, k), columns.count);
        if (k < M)
            add_scores<SIZE>(dP, m.x2, m.y2, tile_inner<SIZE>(M, k), columns.count);
    }
    backward_scores<SIZE, KEYS>(s, dP, b.a, m, KEYS ? columns : rows, KEYS ? rows : columns);
#pragma unroll
    for (int r = 0; Kind::SCORE_SUMS && r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++)
            sums->dS[r] += dP[r][c];
    if (D > SIZE || M > SIZE) { /* shared memory has other columns of y1 and y2 */
        __syncthreads();
        load_tile<SIZE>(m.y1, PITCH, b.y1, columns, item.column);
        if (KEYS)
            load_tile<SIZE>(m.y2, PITCH, b.y2, columns, item.column);
    }
    if (KEYS) {
        store_scores<SIZE>(m.scores, s);
        __syncthreads();
        if (b.dx2.data)
            add_product<SIZE>(sums->dx2, m.scores, SCORE_PITCH, m.y2, PITCH, padded);
        __syncthreads();
    }
    store_scores<SIZE>(m.scores, dP);
    __syncthreads();
    if (b.dx1.data)
        add_product<SIZE>(sums->dx1, m.scores, SCORE_PITCH, m.y1, PITCH, padded);
}

/* The contributions of the block's rows; 0 for masked rows. */
template <int SIZE, typename T, typename Positions>
__device__ static inline void contribute_rows(const GradientRows<T> &d, const Pass<Positions> &pass,
                                              int64_t column, Real (*sums)[4], Real factor)
{
    if (!d.data || column >= d.columns)
        return;
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] = tile_row<SIZE>(r) < pass.rows.count ? factor * sums[r][c] : (Real)0;
    contribute_tile<SIZE>(d, pass.written, column, sums);
}

/* Adds up the sums of each row, which adjacent threads share. */
template <int SIZE, bool KEYS, typename Kind, typename Positions>
__device__ static inline void store_score_sums(const Kind &a, const Positions &rows,
                                               const Real *dS_sums)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        Real sum = dS_sums[r];
        for (int apart = Tile<SIZE>::ACROSS / 2; apart > 0; apart /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        if (tile_column<SIZE>() == 0 && tile_row<SIZE>(r) < rows.count)
            store_score_sum(a, rows, tile_row<SIZE>(r), sum, KEYS);
    }
}

template <int SIZE, bool KEYS, typename Kind>
__device__ static inline void backward_item(const SoftmaxBackward<Kind> &b, const Item &item,
                                            const BackwardMemory &m)
{
    const Pass<typename Kind::Positions> pass = pass_of(b.a, item, KEYS);
    BackwardSums<SIZE> sums = {};
    for (int64_t first = pass.begin; first < pass.end; first = next_tile(pass, first))
        backward_columns<SIZE, KEYS>(&sums, b, item, m, pass.rows,
                                     positions_from(b.a, item, first, pass.end),
                                     first == pass.begin);
    contribute_rows<SIZE>(b.dx1, pass, item.column, sums.dx1, b.a.scale);
    if (KEYS)
        contribute_rows<SIZE>(b.dx2, pass, item.column, sums.dx2, 1);
    if constexpr (Kind::SCORE_SUMS)
        if (b.a.dc && item.column == 0)
            store_score_sums<SIZE, KEYS>(b.a, pass.rows, sums.dS);
}

template <int SIZE, bool KEYS, typename Kind>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    softmax_backward(const __grid_constant__ SoftmaxBackward<Kind> b, int64_t column_tiles,
                     int64_t tiles, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    const BackwardMemory m = backward_layout<SIZE>(memory);
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x)
        backward_item<SIZE, KEYS>(b, item_of<SIZE>(b.a, i, column_tiles, tiles, KEYS), m);
}

template <int SIZE, bool KEYS, typename Kind>
static void launch_backward(const SoftmaxBackward<Kind> &b, int64_t heads)
{
    const int64_t D = b.x1.columns, M = b.x2.columns;
    const int64_t column_tiles = tiles_for(KEYS && M > D ? M : D, SIZE);
    const int64_t tiles = tiles_for(b.x1.positions, CHUNK);
    const int64_t items = heads * column_tiles * tiles;
    bool needed = b.dx1.data || b.dx2.data;
    if constexpr (Kind::SCORE_SUMS)
        needed |= b.a.dc != NULL;
    if (needed)
        LAUNCH_TILES((softmax_backward<SIZE, KEYS, Kind>), items, (backward_memory<SIZE, Kind>()),
                     b, column_tiles, tiles, items);
}

/* Computes dq, and dk and dv, as far as their data is not NULL. */
template <int SIZE, typename Kind, typename Gradients>
static void launch_gradients(const Kind &a, const SoftmaxUpstream<Kind> &up, const Gradients &dq,
                             const Gradients &dk, const Gradients &dv, int64_t heads)
{
    launch_backward<SIZE, false, Kind>({ a, a.query, up.g, a.key, a.value, dq, {}, up }, heads);
    launch_backward<SIZE, true, Kind>({ a, a.key, a.value, a.query, up.g, dk, dv, up }, heads);
}

#endif
