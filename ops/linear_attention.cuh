/* Linear attention's kernels, causal and not, as one scan in several roles.
 *
 * In the notation of causal_linear_attention.c the forward pass and all gradients are
 *     o_i = sum_j (x_i.y_j + alpha_i beta_j) w_j,   over j <= i when causal,
 *
 *              x     y     w     alpha   beta
 *     num      a     b     v                     and den_i = sum_j x_i.y_j + eps
 *     da       ghat  v     b     delta   1
 *     db       v     ghat  a     1       delta   positions last to first
 *     dv       b     a     ghat                  positions last to first
 *
 * A chunk of 64 positions, X, Y and W with a row a position, takes products of matrices:
 *     O = X T + alpha e^T + tril(X Y^T + alpha beta^T) W            T = sum of y_j w_j^T,
 *     den = X z + the sums of the rows of tril(X Y^T) + eps         e = sum of beta_j w_j,
 *     T += Y^T W     e += W^T beta     z += Y^T 1                   z = sum of y_j over earlier j
 * Without the mask T, e and z are those of all positions, and there is no tril.
 *
 * A block takes some columns of w and o, of one segment of one head. Where the heads are too few to
 * fill a GPU they are cut into several segments: then a first launch (sum_segments) finds what each
 * adds to T, e and z, and the block of a segment begins with the sum of those before it; where
 * adding these up in every block would take longer than a launch does, add_up_segments does it. The
 * segments depend on the sizes alone: results repeat bit for bit.
 *
 * T is in shared memory up to STATE_ROWS rows. Of greater heads a tile of it at a time is: their
 * segments are single chunks, so that no T changes while it is read. */
#ifndef TAPEGRAD_OPS_LINEAR_ATTENTION_CUH
#define TAPEGRAD_OPS_LINEAR_ATTENTION_CUH

#include "ops/attention.cuh"

enum { STATE_ROWS = 128, SCANS = 3 };

typedef enum ScanDelta {
    NO_DELTA,
    DELTA_OF_X, /* alpha = delta, beta = 1 */
    DELTA_OF_Y, /* alpha = 1, beta = delta */
} ScanDelta;

template <typename T> struct Scan {
    Rows<T> x, y, w;
    const int32_t *x_lengths, *y_lengths; /* [B]: how many positions count, or NULL */
    bool last_to_first;
    ScanDelta delta;
    int64_t states;         /* where the states of its segments begin */
    bool transposed_states; /* the scan that they are of has y and w exchanged */
    GradientRows<T> o;
    Rows<T> map; /* o contributes through the map's derivative here, unless data is NULL */
};

/* A launch's scans, and how they are cut. */
template <typename T> struct Scans {
    Scan<T> scan[SCANS];
    int count;
    int64_t B, H;
    int64_t column_tiles;         /* of o, at most; */
    int64_t segments, x_segments; /* of y and w; of x, which are the same when causal */
    int64_t states_a_head;        /* segments whose sums others need */
    bool added_up;                /* states are the sums up to their segment */
    bool great;                   /* T does not fit into shared memory, */
    int state_rows;               /* which has room for so many of its rows */
    int64_t state_size;
    Real *states;      /* [scans, B, H, states_a_head, state_size]: T, filled up, then z or e */
    const Real *delta; /* [B, N, H] */
    Real *den;         /* [B, N, H]: forward, a result */
    Real eps;
};

/* ----------------------------------------------------------------------------------------- places */

/* A segment of a head in positions of the scan's order, from first to end. */
struct Segment {
    int64_t b, h, H, head, index, first, end;
};

__device__ static inline Segment segment_at(int64_t head, int64_t H, int64_t index,
                                            int64_t segments, int64_t positions)
{
    const int64_t length = tiles_for(tiles_for(positions, CHUNK), segments) * CHUNK;
    const int64_t first = index * length, end = first + length;
    return { head / H, head % H, H, head, index, first, end < positions ? end : positions };
}

/* The segment's chunk that begins at this position, without the positions from limit on. */
template <typename T>
__device__ static inline Span chunk_at(const Segment &segment, const Scan<T> &scan, int64_t start,
                                       int64_t limit)
{
    const int64_t end = segment.end < limit ? segment.end : limit, left = end - start;
    const int count = left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK;
    if (scan.last_to_first)
        return { segment.b, segment.h, segment.H, scan.x.positions - 1 - start, -1, count };
    return { segment.b, segment.h, segment.H, start, 1, count };
}

__device__ static inline int64_t limit_of(const int32_t *lengths, int64_t b, int64_t positions)
{
    return lengths ? lengths[b] : positions;
}

/* alpha or beta of a span, where it is not 0 */
template <typename T>
__device__ static inline void load_factors(Real *to, const Scans<T> &all, const Scan<T> &scan,
                                           ScanDelta here, const Span &span, int64_t positions)
{
    if (scan.delta == here)
        load_numbers(to, all.delta, positions, span);
    else if (threadIdx.x < CHUNK)
        to[threadIdx.x] = scan.delta == NO_DELTA ? (Real)0 : (Real)1;
}

/* ------------------------------------------------------------------------------- sums of segments */

/* One tile of sum y_j w_j^T of a segment, and of z (forward) or e */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void sum_segment(const Scans<T> &all, const Scan<T> &scan,
                                          const Segment &segment, int64_t y_tile, int64_t w_tile,
                                          Real *y, Real *w, Real *beta)
{
    const int64_t w_columns = tiles_for(scan.w.columns, SIZE) * SIZE;
    const int64_t limit = limit_of(scan.y_lengths, segment.b, scan.y.positions);
    const int thread = (int)threadIdx.x;
    Real sums[Tile<SIZE>::OUTER][4] = {}, extra = 0;
    for (int64_t start = segment.first; start < segment.end && start < limit; start += CHUNK) {
        const Span span = chunk_at(segment, scan, start, limit);
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
            segment_at(rest / all.states_a_head, all.H, index, all.segments, scan.y.positions);
        sum_segment<T, SIZE, FORWARD>(all, scan, segment, y_tile, w_tile, y, w, beta);
    }
}

/* states [heads, count, size]: to each are added those of the same head before it */
template <typename Number>
__global__ void add_up_segments(Number *states, int64_t heads, int64_t count, int64_t size)
{
    GRID_FOR(i, heads * size) {
        Number *state = states + i / size * count * size + i % size, sum = 0;
#pragma unroll 4
        for (int64_t segment = 0; segment < count; segment++) {
            sum += state[segment * size];
            state[segment * size] = sum;
        }
    }
}

/* --------------------------------------------------------------------------------------- the scan */

/* A block's shared memory. */
struct ScanMemory {
    Real *x;     /* [CHUNK, SIZE], then the scores [CHUNK, CHUNK] */
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
    int64_t column; /* the first of the tile of w and o */
    ScanMemory m;
};

/* A number of T, z or e: the sum of several states'. */
__device__ static inline Real sum_states(const Real *state, int64_t count, int64_t size)
{
    Real sum = 0;
#pragma unroll 4
    for (int64_t i = 0; i < count; i++)
        sum += state[i * size];
    return sum;
}

/* Rows of T, from first_row on, and of z, or e, as they are before the segment. */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void load_state(const Scans<T> &all, const Part<T> &part,
                                         int64_t first_row, int rows)
{
    const Scan<T> &scan = *part.scan;
    const bool transposed = scan.transposed_states;
    const int64_t y_columns = tiles_for(scan.y.columns, SIZE) * SIZE;
    const int64_t w_columns = tiles_for(scan.w.columns, SIZE) * SIZE;
    const int64_t end = CAUSAL ? part.segment.index : all.states_a_head;
    const int64_t begin = all.added_up && end > 0 ? end - 1 : 0, count = end - begin;
    const Real *states =
        all.states + scan.states + (part.segment.head * all.states_a_head + begin) * all.state_size;
    for (int i = (int)threadIdx.x; i < rows * SIZE; i += TILE_THREADS) {
        const int row = transposed ? i % rows : i / SIZE, column = transposed ? i / rows : i % SIZE;
        const int64_t at = transposed ? (part.column + column) * y_columns + first_row + row
                                      : (first_row + row) * w_columns + part.column + column;
        part.m.state[row * SIZE + column] = sum_states(states + at, count, all.state_size);
    }
    const Real *extra = states + y_columns * w_columns + (FORWARD ? first_row : part.column);
    for (int i = (int)threadIdx.x; i < (FORWARD ? rows : SIZE); i += TILE_THREADS)
        part.m.extra[i] = transposed ? (Real)0 : sum_states(extra + i, count, all.state_size);
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

/* z += Y^T 1: a number a thread, of those that do not compute den */
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

/* tril(X Y^T + alpha beta^T) into shared memory */
template <int SIZE, bool FORWARD>
__device__ static inline void store_scores(const ScanMemory &m,
                                           const Real (*scores)[Tile<SIZE>::SCORES])
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int j = score_column<SIZE>(c);
            const Real score = FORWARD ? scores[r][c] : scores[r][c] + m.alpha[i] * m.beta[j];
            m.x[i * SCORE_PITCH + j] = j <= i ? score : (Real)0;
        }
    }
}

/* O becomes num / den */
template <int SIZE>
__device__ static inline void divide_by_den(Real (*sums)[4], const Real *inverse)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[r][c] *= inverse[tile_row<SIZE>(r)];
}

/* O becomes a derivative by x, from that by phi(x). */
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
            sums[r][c] *= phi_slope(four.at[c]);
    }
}

/* Nothing comes from positions that do not count. */
template <int SIZE> __device__ static inline void clear_rows(Real (*sums)[4], int count)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (tile_row<SIZE>(r) >= count)
                sums[r][c] = 0;
}

/* den and its inverse, from its sum so far */
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

/* One chunk of o. */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void scan_chunk(const Scans<T> &all, const Part<T> &part, int64_t start)
{
    enum { ROWS = Tile<SIZE>::ROWS, PITCH = Tile<SIZE>::PITCH };
    const Scan<T> &scan = *part.scan;
    const ScanMemory &m = part.m;
    const int64_t positions = scan.x.positions;
    const Span span =
        chunk_at(part.segment, scan, start, limit_of(scan.x_lengths, part.segment.b, positions));
    const bool earlier = !CAUSAL || start > 0, later = CAUSAL && start + CHUNK < part.segment.end;
    const bool first_threads = threadIdx.x < CHUNK;
    const int filled = (span.count + 3) / 4 * 4;          /* rows that are not all 0 */
    const int seen = min(warp_row() + WARP_ROWS, filled); /* by the warp's rows */
    Real sums[ROWS][4] = {}, scores[ROWS][Tile<SIZE>::SCORES] = {}, den = all.eps;

    if (CAUSAL)
        load_tile<SIZE>(m.w, SIZE, scan.w, span, part.column);
    if (!FORWARD)
        load_factors(m.alpha, all, scan, DELTA_OF_X, span, positions);
    if (!FORWARD && CAUSAL)
        load_factors(m.beta, all, scan, DELTA_OF_Y, span, positions);
    for (int64_t k = 0; k < scan.y.columns; k += SIZE) {
        Real *const state = m.state + (all.great ? 0 : k * SIZE);
        Real *const z = m.extra + (all.great ? 0 : k);
        const int inner = tile_inner<SIZE>(scan.y.columns, k);
        if (k > 0)
            __syncthreads(); /* y has been read */
        load_tile<SIZE>(m.x, PITCH, scan.x, span, k);
        if (CAUSAL)
            load_tile<SIZE>(m.y, PITCH, scan.y, span, k);
        if (all.great && earlier)
            load_state<T, SIZE, CAUSAL, FORWARD>(all, part, k, SIZE);
        __syncthreads();
        if (!FORWARD && k == 0 && earlier)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sums[r][c] = m.alpha[tile_row<SIZE>(r)] * m.extra[tile_column<SIZE>() + c];
        if (earlier)
            add_product<SIZE>(sums, m.x, PITCH, state, SIZE, inner);
        if (CAUSAL)
            add_scores<SIZE>(scores, m.x, m.y, inner, seen);
        if (FORWARD && earlier && first_threads)
            den += row_sum(m.x + threadIdx.x * PITCH, z, inner);
        __syncthreads(); /* x, T and z have been read */
        if (later)
            update_state<SIZE>(state, m.y, m.w, span.count);
        if (later && FORWARD)
            update_z<SIZE>(z, m.y, span.count);
    }
    if (CAUSAL) {
        store_scores<SIZE, FORWARD>(m, scores);
        if (later && !FORWARD)
            update_e<SIZE>(m.extra, m.w, m.beta, span.count);
        __syncthreads();
        add_product<SIZE>(sums, m.x, SCORE_PITCH, m.w, SIZE, seen);
        if (FORWARD && first_threads)
            den += row_sum(m.x + threadIdx.x * SCORE_PITCH, NULL, filled);
    }
    if (FORWARD)
        finish_den(all, part, span, den);
    __syncthreads(); /* all shared memory has been read but alpha */
    if (FORWARD)
        divide_by_den<SIZE>(sums, m.alpha);
    else if (scan.map.data)
        go_through_map<SIZE>(sums, scan.map, span, part.column);
    if (scan.x_lengths)
        clear_rows<SIZE>(sums, span.count);
    contribute_tile<SIZE>(scan.o, chunk_at(part.segment, scan, start, positions), part.column,
                          sums);
}

template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS_AT_ONCE)
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
            segment_at(rest / all.x_segments, all.H, index, all.x_segments, part.scan->x.positions);
        part.m = lay_out<SIZE, CAUSAL>(memory, all.state_rows);
        if (part.column >= part.scan->w.columns)
            continue;
        __syncthreads(); /* the item before has been done with the state */
        const int64_t rows = tiles_for(part.scan->y.columns, SIZE) * SIZE;
        if (!all.great)
            load_state<T, SIZE, CAUSAL, FORWARD>(all, part, 0, (int)rows);
        for (int64_t start = part.segment.first; start < part.segment.end; start += CHUNK)
            scan_chunk<T, SIZE, CAUSAL, FORWARD>(all, part, start);
    }
}

/* -------------------------------------------------------------------------------------- launching */

/* How scans of these arguments are cut: by their sizes alone. */
struct ScanPlan {
    int size, state_rows;
    int64_t state_size, y_tiles, w_tiles, column_tiles;
    int64_t segments, x_segments, states_a_head;
    bool added_up, great;
};

/* Segments of a head, for as many blocks as keep a GPU busy: two for each of an H100's 132
 * multiprocessors, unless there is one already. */
static inline int64_t segments_for(int64_t blocks, int64_t chunks)
{
    const int64_t few = 132, enough = 264;
    int64_t segments = blocks >= few ? 1 : tiles_for(enough, blocks);
    segments = segments < chunks ? segments : chunks;
    return tiles_for(chunks, tiles_for(chunks, segments)); /* none is empty */
}

static inline ScanPlan plan_scans(const Attention *a, bool causal, bool backward)
{
    const int64_t summing_up = 1 << 15; /* numbers that every block may add up */
    const int size = tile_size(a->D, a->M);
    const int64_t d_tiles = tiles_for(a->D, size), m_tiles = tiles_for(a->M, size);
    const int64_t most_tiles = d_tiles > m_tiles ? d_tiles : m_tiles, heads = a->B * a->H;
    const int64_t most_positions = a->N > a->keys ? a->N : a->keys;
    const int64_t chunks = tiles_for(most_positions, CHUNK);
    ScanPlan p = {};
    p.size = size;
    p.y_tiles = backward ? m_tiles : d_tiles;
    p.w_tiles = backward ? d_tiles : m_tiles;
    p.column_tiles = backward ? most_tiles : m_tiles;
    p.great = (backward ? most_tiles : d_tiles) * size > STATE_ROWS;
    p.state_rows = p.great ? size : (int)(backward ? most_tiles : d_tiles) * size;
    p.state_size = d_tiles * size * (m_tiles * size + 1);
    p.x_segments = segments_for(heads * p.column_tiles * (backward ? SCANS : 1), chunks);
    if (causal && p.great)
        p.x_segments = chunks;
    p.segments = causal ? p.x_segments : segments_for(heads * p.y_tiles * p.w_tiles, chunks);
    p.states_a_head = causal ? p.segments - 1 : p.segments;
    p.added_up = p.great || p.states_a_head * p.state_size > summing_up;
    return p;
}

/* Numbers of scratch memory: states, of the scans da and db when backward, and delta. */
static inline int64_t scan_scratch(const Attention *a, bool causal, bool backward)
{
    const ScanPlan p = plan_scans(a, causal, backward);
    const int64_t states = a->B * a->H * p.states_a_head * p.state_size;
    return backward ? 2 * states + a->B * a->N * a->H : states + 1;
}

template <typename T> static Scans<T> cut_scans(const ScanPlan &p, const Attention *a, Real *states)
{
    Scans<T> all = {};
    all.B = a->B;
    all.H = a->H;
    all.column_tiles = p.column_tiles;
    all.segments = p.segments;
    all.x_segments = p.x_segments;
    all.states_a_head = p.states_a_head;
    all.added_up = p.added_up;
    all.great = p.great;
    all.state_rows = p.state_rows;
    all.state_size = p.state_size;
    all.states = states;
    return all;
}

/* The states of all scans. */
template <typename T, int SIZE, bool FORWARD>
static void find_states(const Scans<T> &all, const ScanPlan &p)
{
    const int64_t states = all.count * all.B * all.H * all.states_a_head;
    const int64_t shared = CHUNK * (Tile<SIZE>::PITCH + SIZE + 1);
    if (states == 0)
        return;
    LAUNCH_TILES((sum_segments<T, SIZE, FORWARD>), states * p.y_tiles * p.w_tiles, shared, all,
                 p.y_tiles, p.w_tiles, states * p.y_tiles * p.w_tiles);
    if (all.added_up && all.states_a_head > 1)
        LAUNCH(add_up_segments<Real>, blocks_for(states / all.states_a_head * all.state_size),
               THREADS, 0, all.states, states / all.states_a_head, all.states_a_head,
               all.state_size);
}

template <typename T, int SIZE, bool CAUSAL, bool FORWARD> static void scan(const Scans<T> &all)
{
    const int64_t items = all.count * all.B * all.H * all.x_segments * all.column_tiles;
    const int64_t shared = scan_memory<SIZE, CAUSAL, FORWARD>(all.state_rows);
    LAUNCH_TILES((scan_segments<T, SIZE, CAUSAL, FORWARD>), items, shared, all, items);
}

template <typename T> static Rows<T> mapped(Rows<T> rows)
{
    rows.mapped = true;
    return rows;
}

/* The scan for num, and what comes with it. */
template <typename T>
static Scans<T> forward_scan(T *out, Real *den, Real *scratch, const ScanPlan &p,
                             const Attention *a, Real eps)
{
    Scans<T> all = cut_scans<T>(p, a, scratch);
    Scan<T> *num = &all.scan[all.count++];
    num->x = mapped(rows_of<T>(a->query, a->query_stride, a->N, a->D));
    num->y = mapped(rows_of<T>(a->key, a->key_stride, a->keys, a->D));
    num->w = rows_of<T>(a->value, a->value_stride, a->keys, a->M);
    num->y_lengths = a->key_lengths;
    num->o = { out, false, a->H * a->M, a->N, a->M };
    all.den = den;
    all.eps = eps;
    return all;
}

/* The scans for da, db and dv. */
template <typename T, bool CAUSAL>
static void gradient_scans(Scan<T> *da, Scan<T> *db, Scan<T> *dv, AttentionGradient d,
                           const Real *dout, const Real *den, const Attention *a)
{
    const Rows<T> q = rows_of<T>(a->query, a->query_stride, a->N, a->D);
    const Rows<T> k = rows_of<T>(a->key, a->key_stride, a->keys, a->D);
    const Rows<T> v = rows_of<T>(a->value, a->value_stride, a->keys, a->M);
    Rows<T> ghat = rows_of<T>(dout, a->H * a->M, a->N, a->M);
    ghat.divisor = den;
    *da = {
        ghat,  v,          mapped(k), NULL,  a->key_lengths,
        false, DELTA_OF_X, 0,         false, gradient_rows<T>(d.query, a->query_stride, a->N, a->D),
        q
    };
    *db = { v,          ghat,
            mapped(q),  a->key_lengths,
            NULL,       CAUSAL,
            DELTA_OF_Y, 0,
            false,      gradient_rows<T>(d.key, a->key_stride, a->keys, a->D),
            k };
    *dv = { mapped(k), mapped(q),
            ghat,      a->key_lengths,
            NULL,      CAUSAL,
            NO_DELTA,  0,
            true,      gradient_rows<T>(d.value, a->value_stride, a->keys, a->M),
            {} };
}

/* Adds the scan unless nothing wants its result. */
template <typename T> static void add_scan(Scans<T> *all, const Scan<T> &scan, bool wanted)
{
    if (wanted)
        all->scan[all->count++] = scan;
}

/* The scans at once, or, where gradients go to the same memory, one after another. */
template <typename T, int SIZE, bool CAUSAL>
static void scan_gradients(const Scans<T> &all, AttentionGradient d)
{
    const Real *q = d.query.data, *k = d.key.data, *v = d.value.data;
    if (!(q && (q == k || q == v)) && !(k && k == v)) {
        scan<T, SIZE, CAUSAL, false>(all);
        return;
    }
    for (int i = 0; i < all.count; i++) {
        Scans<T> one = all;
        one.count = 1;
        one.scan[0] = all.scan[i];
        scan<T, SIZE, CAUSAL, false>(one);
    }
}

template <typename T, int SIZE, bool CAUSAL>
static void forward_sized(T *out, Real *den, Real *scratch, const ScanPlan &p, const Attention *a,
                          Real eps)
{
    const Scans<T> all = forward_scan(out, den, scratch, p, a, eps);
    find_states<T, SIZE, true>(all, p);
    scan<T, SIZE, CAUSAL, true>(all);
}

template <typename T, int SIZE, bool CAUSAL>
static void backward_sized(AttentionGradient d, const Real *dout, const Real *den,
                           const Real *delta, Real *states, const ScanPlan &p, const Attention *a)
{
    Scans<T> sums = cut_scans<T>(p, a, states);
    sums.delta = delta;
    Scans<T> all = sums;
    Scan<T> da, db, dv;
    gradient_scans<T, CAUSAL>(&da, &db, &dv, d, dout, den, a);
    db.states = dv.states = d.query.data ? a->B * a->H * p.states_a_head * p.state_size : 0;
    add_scan(&sums, da, d.query.data);
    add_scan(&sums, db, d.key.data || d.value.data);
    add_scan(&all, da, d.query.data);
    add_scan(&all, db, d.key.data);
    add_scan(&all, dv, d.value.data);
    find_states<T, SIZE, false>(sums, p);
    scan_gradients<T, SIZE, CAUSAL>(all, d);
}

template <typename T, bool CAUSAL>
static void linear_attention_forward(Real *out, Real *den, Real *scratch, const Attention *a,
                                     Real eps)
{
    const ScanPlan p = plan_scans(a, CAUSAL, false);
    if (p.size == 32)
        forward_sized<T, 32, CAUSAL>((T *)out, den, scratch, p, a, eps);
    else
        forward_sized<T, WIDEST, CAUSAL>((T *)out, den, scratch, p, a, eps);
}

template <typename T, bool CAUSAL>
static void linear_attention_backward(AttentionGradient d, const Real *dout, const Real *out,
                                      const Real *den, Real *scratch, const Attention *a)
{
    const ScanPlan p = plan_scans(a, CAUSAL, true);
    const int64_t rows = a->B * a->N * a->H;
    Real *const delta = scratch, *const states = scratch + rows;
    LAUNCH(row_deltas<T>, blocks_for(rows, THREADS / WARP), THREADS, 0, delta, (const T *)dout,
           (const T *)out, den, rows, a->M);
    if (p.size == 32)
        backward_sized<T, 32, CAUSAL>(d, dout, den, delta, states, p, a);
    else
        backward_sized<T, WIDEST, CAUSAL>(d, dout, den, delta, states, p, a);
}

#endif
