/* The scan of scan.cuh in Real, in tiles of tiles.cuh. A block processes SIZE columns of w and o of
 * one segment of one head.
 *
 * T is in shared memory up to STATE_ROWS rows. For heads whose state exceeds shared memory
 * (`great`), one tile of T at a time is: their segments are single chunks, so T does not change
 * while it is read.
 *
 * The quadratic form also has single chunks as segments, and multiplies a chunk of x with the
 * chunks of y and w one after another; T is the initial state. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_TILES_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_TILES_CUH

#include "ops/attention/linear/scan.cuh"

enum { STATE_ROWS = 128 };

/* ----------------------------------------------------------------------------- sums of segments */

/* One tile of sum_j y_j w_j^T over a segment, and of z (forward) or e */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void sum_segment(const Scans<T> &all, const Scan<T> &scan,
                                          const Segment &segment, int64_t y_tile, int64_t w_tile,
                                          Real *y, Real *w, Real *beta)
{
    const int64_t w_columns = tiles_for(scan.w.columns, SIZE) * SIZE;
    const int64_t end = sums_end(segment, scan);
    const int thread = (int)threadIdx.x;
    Real sums[Tile<SIZE>::OUTER][4] = {}, extra = 0;
    for (int64_t start = segment.first; start < end; start += CHUNK) {
        const Span span = chunk_at(segment, scan, start, end);
        load_tile<SIZE>(y, Tile<SIZE>::PITCH, scan.y, span, y_tile * SIZE);
        load_tile<SIZE>(w, SIZE, scan.w, span, w_tile * SIZE);
        if (!FORWARD)
            load_factors(beta, all, scan, DELTA_OF_Y, span, scan.y.positions);
        __syncthreads();
        add_outer<SIZE>(sums, y, w, span.count);
        for (int j = 0; thread < SIZE && j < span.count; j++)
            extra += FORWARD ? y[j * Tile<SIZE>::PITCH + thread] : beta[j] * w[j * SIZE + thread];
        __syncthreads();
    }
    Real *state = all.states + scan.states +
                  (segment.head * all.states_a_head + segment.index) * all.state_size;
    for (int r = 0; r < Tile<SIZE>::OUTER; r++)
        for (int c = 0; c < 4; c++)
            state[(y_tile * SIZE + outer_row<SIZE>(r)) * w_columns + w_tile * SIZE +
                  tile_column<SIZE>() + c] = sums[r][c];
    const int64_t extra_tile = FORWARD ? y_tile : w_tile, other_tile = FORWARD ? w_tile : y_tile;
    const int64_t y_columns = tiles_for(scan.y.columns, SIZE) * SIZE;
    if (other_tile == 0 && thread < SIZE)
        state[y_columns * w_columns + extra_tile * SIZE + thread] = extra;
}

template <typename T, int SIZE, bool FORWARD>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS_AT_ONCE)
    sum_segments(const __grid_constant__ Scans<T> all, int64_t y_tiles, int64_t w_tiles,
                 int64_t items)
{
    DYNAMIC_SHARED(Real, y);
    Real *const w = y + CHUNK * Tile<SIZE>::PITCH, *const beta = w + CHUNK * SIZE;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t rest = item;
        const int64_t w_tile = rest % w_tiles;
        const int64_t y_tile = (rest /= w_tiles) % y_tiles;
        const Scan<T> &scan = all.scan[(rest /= y_tiles) % all.count];
        const int64_t index = (rest /= all.count) % all.states_a_head;
        const Segment segment =
            segment_at(all, rest / all.states_a_head, index, all.segments, scan.y.positions);
        sum_segment<T, SIZE, FORWARD>(all, scan, segment, y_tile, w_tile, y, w, beta);
    }
}

/* ------------------------------------------------------------------------------------- the scan */

/* A block's shared memory. */
struct ScanMemory {
    Real *x;     /* [CHUNK, SIZE], then the score tile [CHUNK, CHUNK] */
    Real *y, *w; /* [CHUNK, SIZE]; only causal */
    Real *alpha; /* [CHUNK]; forward: 1 / den */
    Real *beta;  /* [CHUNK] */
    Real *state; /* [rows, SIZE]: T, or a tile of it */
    Real *extra; /* [rows]: z, or [SIZE]: e */
};

template <int SIZE, bool CAUSAL> struct ScanSizes {
    enum {
        X = CHUNK * (CAUSAL ? (int)SCORE_PITCH : (int)Tile<SIZE>::PITCH),
        Y = CAUSAL ? CHUNK * Tile<SIZE>::PITCH : 0,
        W = CAUSAL ? CHUNK * SIZE : 0,
    };
};

template <int SIZE, bool CAUSAL> __device__ static inline ScanMemory lay_out(Real *memory, int rows)
{
    typedef ScanSizes<SIZE, CAUSAL> Sizes;
    ScanMemory m;
    m.x = memory;
    m.y = m.x + Sizes::X;
    m.w = m.y + Sizes::Y;
    m.alpha = m.w + Sizes::W;
    m.beta = m.alpha + CHUNK;
    m.state = m.beta + CHUNK;
    m.extra = m.state + rows * SIZE;
    return m;
}

template <int SIZE, bool CAUSAL, bool FORWARD> static int64_t scan_memory(int rows)
{
    typedef ScanSizes<SIZE, CAUSAL> Sizes;
    return Sizes::X + Sizes::Y + Sizes::W + 2 * CHUNK + rows * SIZE + (FORWARD ? rows : SIZE);
}

/* One block's part of a scan. */
template <typename T> struct Part {
    const Scan<T> *scan;
    Segment segment;
    int64_t column; /* first column of the tile of w and o */
    ScanMemory m;
};

/* Loads T's rows from first_row on, and z or e, as they are before the segment. */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void load_state(const Scans<T> &all, const Part<T> &part,
                                         int64_t first_row, int rows)
{
    const Scan<T> &scan = *part.scan;
    const int64_t head = part.segment.head;
    const int64_t before = all.quadratic ? 0 : CAUSAL ? part.segment.index : all.states_a_head;
    const States states = states_before(all, scan, head, before);
    for (int i = (int)threadIdx.x; i < rows * SIZE; i += TILE_THREADS) {
        const int row = scan.transposed_states ? i % rows : i / SIZE;
        const int column = scan.transposed_states ? i / rows : i % SIZE;
        part.m.state[row * SIZE + column] =
            state_number<SIZE>(scan, head, states, first_row + row, part.column + column);
    }
    for (int i = (int)threadIdx.x; i < (FORWARD ? rows : SIZE); i += TILE_THREADS)
        part.m.extra[i] =
            state_extra<SIZE, FORWARD>(scan, head, states, (FORWARD ? first_row : part.column) + i);
}

/* T += Y^T W */
template <int SIZE>
__device__ static inline void update_state(Real *state, const Real *y, const Real *w, int count)
{
    Real sums[Tile<SIZE>::OUTER][4];
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::OUTER; r++) {
        const Pack<Real, 4> row =
            pack_at<4>(state + outer_row<SIZE>(r) * SIZE + tile_column<SIZE>());
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] = row.at[c];
    }
    add_outer<SIZE>(sums, y, w, count);
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::OUTER; r++) {
        Pack<Real, 4> row;
#pragma unroll
        for (int c = 0; c < 4; c++)
            row.at[c] = sums[r][c];
        *(Pack<Real, 4> *)(state + outer_row<SIZE>(r) * SIZE + tile_column<SIZE>()) = row;
    }
}

/* z += Y^T 1: one element per thread, in the threads that do not compute den */
template <int SIZE> __device__ static inline void update_z(Real *z, const Real *y, int count)
{
    const int column = (int)threadIdx.x - CHUNK;
    if (column < 0 || column >= SIZE)
        return;
    Real sum = z[column];
    for (int j = 0; j < count; j++)
        sum += y[j * Tile<SIZE>::PITCH + column];
    z[column] = sum;
}

/* e += W^T beta */
template <int SIZE>
__device__ static inline void update_e(Real *e, const Real *w, const Real *beta, int count)
{
    const int column = (int)threadIdx.x;
    if (column >= SIZE)
        return;
    Real sum = e[column];
    for (int j = 0; j < count; j++)
        sum += beta[j] * w[j * SIZE + column];
    e[column] = sum;
}

/* The dot product of a padded row with z, or, where z is NULL, the sum of the row. */
__device__ static inline Real row_sum(const Real *row, const Real *z, int count)
{
    Real sum = 0;
    for (int k = 0; k < count; k += 4) {
        const Pack<Real, 4> x = pack_at<4>(row + k);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum += z ? x.at[e] * z[k + e] : x.at[e];
    }
    return sum;
}

/* Adds to the thread's den its row of the tile: the dot product with z, or the sum if z is NULL. */
template <bool FORWARD>
__device__ static inline void add_to_den(Real *den, const Real *tile, int pitch, const Real *z,
                                         int count)
{
    if (FORWARD && threadIdx.x < CHUNK)
        *den += row_sum(tile + threadIdx.x * pitch, z, count);
}

/* O += alpha e^T */
template <int SIZE>
__device__ static inline void add_extra(Real (*sums)[4], const Real *alpha, const Real *e)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] += alpha[tile_row<SIZE>(r)] * e[tile_column<SIZE>() + c];
}

/* The score tile X Y^T + alpha beta^T to shared memory; with `diagonal`, its tril (causal mask). */
template <int SIZE, bool FORWARD>
__device__ static inline void store_scores(const ScanMemory &m,
                                           const Real (*scores)[Tile<SIZE>::SCORES], bool diagonal)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int j = score_column<SIZE>(c);
            const Real score = FORWARD ? scores[r][c] : scores[r][c] + m.alpha[i] * m.beta[j];
            m.x[i * SCORE_PITCH + j] = j <= i || !diagonal ? score : (Real)0;
        }
    }
}

/* O <- num / den */
template <int SIZE>
__device__ static inline void divide_by_den(Real (*sums)[4], const Real *inverse)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] *= inverse[tile_row<SIZE>(r)];
}

/* Backward through the feature map: O <- O phi'(x). */
template <int SIZE, typename T>
__device__ static inline void go_through_map(Real (*sums)[4], const Rows<T> &x, const Span &span,
                                             int64_t first_column)
{
    const int64_t column = first_column + tile_column<SIZE>();
    const T *from = x.data + span_begin(span, x.positions, x.stride, x.columns) + column;
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int row = tile_row<SIZE>(r);
        if (row >= span.count)
            continue;
        const Pack<Real, 4> four = load_four(from + row * span.step * x.stride, x.columns - column);
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] *= phi_slope(x.map, four.at[c]);
    }
}

/* Zeros the rows of masked positions. */
template <int SIZE>
__device__ static inline void clear_rows(Real (*sums)[4], const Counting &counting)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (tile_row<SIZE>(r) < counting.first || tile_row<SIZE>(r) >= counting.end)
                sums[r][c] = 0;
}

/* Stores den, and 1 / den in alpha. */
template <typename T>
__device__ static inline void finish_den(const Scans<T> &all, const Part<T> &part, const Span &span,
                                         Real den)
{
    const int row = (int)threadIdx.x;
    if (row >= CHUNK)
        return;
    part.m.alpha[row] = 1 / den;
    if (part.column == 0 && row < span.count)
        all.den[span_row(span, part.scan->x.positions) + row * span.step * span.H] = den;
}

/* Adds to O and den the contribution of an earlier chunk of y and w, from this position on. */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void add_earlier(const Scans<T> &all, const Part<T> &part,
                                          const Span &span, int64_t from, Real (*sums)[4],
                                          Real *den)
{
    enum { ROWS = Tile<SIZE>::ROWS, PITCH = Tile<SIZE>::PITCH };
    const Scan<T> &scan = *part.scan;
    const ScanMemory &m = part.m;
    const Span earlier = chunk_at(part.segment, scan, from, part.segment.positions);
    Real scores[ROWS][Tile<SIZE>::SCORES] = {};
    load_tile<SIZE>(m.w, SIZE, scan.w, earlier, part.column);
    if (!FORWARD)
        load_factors(m.alpha, all, scan, DELTA_OF_X, span, scan.x.positions);
    if (!FORWARD)
        load_factors(m.beta, all, scan, DELTA_OF_Y, earlier, scan.x.positions);
    for (int64_t k = 0; k < scan.y.columns; k += SIZE) {
        load_tile<SIZE>(m.x, PITCH, scan.x, span, k);
        load_tile<SIZE>(m.y, PITCH, scan.y, earlier, k);
        __syncthreads();
        add_scores<SIZE>(scores, m.x, m.y, tile_inner<SIZE>(scan.y.columns, k), CHUNK);
        __syncthreads(); /* x and y have been read */
    }
    store_scores<SIZE, FORWARD>(m, scores, false);
    __syncthreads();
    add_product<SIZE>(sums, m.x, SCORE_PITCH, m.w, SIZE, CHUNK);
    add_to_den<FORWARD>(den, m.x, SCORE_PITCH, NULL, CHUNK);
    __syncthreads(); /* all shared memory has been read */
}

/* A chunk of a segment. */
struct Chunk {
    Span span;
    bool earlier, later; /* a state precedes it; a state is needed after it */
    int filled, seen; /* rows padded to 4; those that the causal mask leaves to the warp's rows */
};

template <typename T, bool CAUSAL>
__device__ static inline Chunk chunk_of(const Scans<T> &all, const Part<T> &part, int64_t start)
{
    Chunk chunk;
    chunk.span = chunk_at(part.segment, *part.scan, start, part.segment.end);
    chunk.earlier = !CAUSAL || part.scan->begin || (!all.quadratic && start > 0);
    chunk.later = CAUSAL && !all.quadratic && start + CHUNK < part.segment.end;
    chunk.filled = (chunk.span.count + 3) / 4 * 4;
    chunk.seen = min(warp_row() + WARP_ROWS, chunk.filled);
    return chunk;
}

/* Adds X T + alpha e^T, the contribution of the state before the chunk, to O and den, and X Y^T to
 * scores; then updates T and z by the chunk. */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void add_state(const Scans<T> &all, const Part<T> &part,
                                        const Chunk &chunk, Real (*sums)[4],
                                        Real (*scores)[Tile<SIZE>::SCORES], Real *den)
{
    enum { PITCH = Tile<SIZE>::PITCH };
    const Scan<T> &scan = *part.scan;
    const ScanMemory &m = part.m;
    for (int64_t k = 0; k < scan.y.columns; k += SIZE) {
        Real *const state = m.state + (all.great ? 0 : k * SIZE);
        Real *const z = m.extra + (all.great ? 0 : k);
        const int inner = tile_inner<SIZE>(scan.y.columns, k);
        if (k > 0)
            __syncthreads(); /* y has been read */
        load_tile<SIZE>(m.x, PITCH, scan.x, chunk.span, k);
        if (CAUSAL)
            load_tile<SIZE>(m.y, PITCH, scan.y, chunk.span, k);
        if (all.great && chunk.earlier)
            load_state<T, SIZE, CAUSAL, FORWARD>(all, part, k, SIZE);
        __syncthreads();
        if (!FORWARD && k == 0 && chunk.earlier)
            add_extra<SIZE>(sums, m.alpha, m.extra);
        if (chunk.earlier)
            add_product<SIZE>(sums, m.x, PITCH, state, SIZE, inner);
        if (CAUSAL)
            add_scores<SIZE>(scores, m.x, m.y, inner, chunk.seen);
        if (chunk.earlier)
            add_to_den<FORWARD>(den, m.x, PITCH, z, inner);
        __syncthreads(); /* x, T and z have been read */
        if (chunk.later)
            update_state<SIZE>(state, m.y, m.w, chunk.span.count);
        if (chunk.later && FORWARD)
            update_z<SIZE>(z, m.y, chunk.span.count);
    }
}

/* Adds tril(X Y^T + alpha beta^T) W, the chunk's own contribution, to O and den; updates e. */
template <int SIZE, bool FORWARD>
__device__ static inline void add_chunk(const ScanMemory &m, const Chunk &chunk, Real (*sums)[4],
                                        const Real (*scores)[Tile<SIZE>::SCORES], Real *den)
{
    store_scores<SIZE, FORWARD>(m, scores, true);
    if (chunk.later && !FORWARD)
        update_e<SIZE>(m.extra, m.w, m.beta, chunk.span.count);
    __syncthreads();
    add_product<SIZE>(sums, m.x, SCORE_PITCH, m.w, SIZE, chunk.seen);
    add_to_den<FORWARD>(den, m.x, SCORE_PITCH, NULL, chunk.filled);
}

/* Converts O to the results and contributes them. */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void finish_chunk(const Scans<T> &all, const Part<T> &part,
                                           const Span &span, Real (*sums)[4], Real den)
{
    const Scan<T> &scan = *part.scan;
    if (FORWARD)
        finish_den(all, part, span, den);
    __syncthreads(); /* all shared memory has been read but alpha */
    if (FORWARD)
        divide_by_den<SIZE>(sums, part.m.alpha);
    else if (scan.map.data)
        go_through_map<SIZE>(sums, scan.map, span, part.column);
    if (scan.o.lengths)
        clear_rows<SIZE>(sums, rows_that_count(span, scan.o.lengths));
    contribute_tile<SIZE>(scan.o, span, part.column, sums);
}

/* One chunk of o. */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void scan_chunk(const Scans<T> &all, const Part<T> &part, int64_t start)
{
    const Scan<T> &scan = *part.scan;
    const ScanMemory &m = part.m;
    const Chunk chunk = chunk_of<T, CAUSAL>(all, part, start);
    const Span &span = chunk.span;
    Real sums[Tile<SIZE>::ROWS][4] = {};
    Real scores[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {}, den = all.eps;
    for (int64_t from = 0; CAUSAL && all.quadratic && from < start; from += CHUNK)
        add_earlier<T, SIZE, FORWARD>(all, part, span, from, sums, &den);
    if (CAUSAL)
        load_tile<SIZE>(m.w, SIZE, scan.w, span, part.column);
    if (!FORWARD)
        load_factors(m.alpha, all, scan, DELTA_OF_X, span, scan.x.positions);
    if (!FORWARD && CAUSAL)
        load_factors(m.beta, all, scan, DELTA_OF_Y, span, scan.x.positions);
    add_state<T, SIZE, CAUSAL, FORWARD>(all, part, chunk, sums, scores, &den);
    if (CAUSAL)
        add_chunk<SIZE, FORWARD>(m, chunk, sums, scores, &den);
    finish_chunk<T, SIZE, FORWARD>(all, part, span, sums, den);
}

template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__global__ void __launch_bounds__(TILE_THREADS, CAUSAL ? 2 : BLOCKS_AT_ONCE)
    scan_segments(const __grid_constant__ Scans<T> all, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t rest = item;
        Part<T> part;
        part.column = rest % all.column_tiles * SIZE;
        part.scan = &all.scan[(rest /= all.column_tiles) % all.count];
        const int64_t index = (rest /= all.count) % all.x_segments;
        part.segment =
            segment_at(all, rest / all.x_segments, index, all.x_segments, part.scan->x.positions);
        part.m = lay_out<SIZE, CAUSAL>(memory, all.state_rows);
        if (part.column >= part.scan->w.columns)
            continue;
        __syncthreads(); /* the previous item no longer uses the state */
        const int64_t rows = tiles_for(part.scan->y.columns, SIZE) * SIZE;
        if (!all.great)
            load_state<T, SIZE, CAUSAL, FORWARD>(all, part, 0, (int)rows);
        for (int64_t start = part.segment.first; start < part.segment.end; start += CHUNK)
            scan_chunk<T, SIZE, CAUSAL, FORWARD>(all, part, start);
    }
}

#endif
