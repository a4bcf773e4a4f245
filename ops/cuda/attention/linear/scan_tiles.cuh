/* Linear attention's scans in Real, in tiles of tiles.cuh: without a causal mask, with a decay,
 * unnormalized, in double precision and for heads above 128. mma.cuh has the others, on tensor
 * cores.
 *
 * In the notation of causal_linear.c the forward pass and all gradients are one scan,
 *     o_i = sum_j (x_i.y_j + alpha_i beta_j) w_j,   over j <= i when causal:
 *
 *                                      x     y     w     alpha  beta   T
 *     num = scan        (a, b, v~)     a     b     v                   S     den_i = a_i.z_i + eps
 *     da  = scan        (dnum~, v~, b) dnum  v     b     dden   1      S^T   e = z
 *     db  = scan_reverse(v~, dnum~, a) v     dnum  a     1      dden   R^T   e = r
 *     dv  = scan_reverse(b, a, dnum)   b     a     dnum                R
 *
 * where S~ = [S, z] = sum of b_j v~_j^T and R~ = [R, r] = sum of a_i dnum~_i^T. scan_reverse is the
 * scan with positions in reverse order. A chunk of 64 positions, with one row of X, Y and W per
 * position, takes matrix products:
 *     O = X T + alpha e^T + tril(X Y^T + alpha beta^T) W
 *     den = X z + the row sums of tril(X Y^T) + eps
 * with the sums T, e and z over earlier chunks. Without the causal mask they are sums over all
 * positions, and there is no tril.
 *
 * With a decay, c_i the log decay from the chunk's start to row i (in reverse a row decays after
 * it is read), the state's part is multiplied by e^(c_i), the scores by e^(c_i - c_j), and the rows
 * of a chunk's sum by the decay from there to its end.
 *
 * For the gradient of the decay, the scans for da and db are strict, over j < i: their dot products
 * a_i.o_i and b_i.o_i are the terms of dl's sum (causal_linear.c), and then the pair of i with
 * itself is added. The sum restarts at every chunk, from S~ before it and R~ after it; so chunks of
 * both directions begin at the same positions.
 *
 * Three kernels, the chunk-parallel form: sum_pieces computes S~ or R~ of every piece of a head,
 * add_up_pieces their prefix sums, and scan_pieces the results. When causal, a piece is one chunk;
 * otherwise it is several, the number chosen to fill the GPU. Pieces depend on the sizes alone, so
 * results are bitwise repeatable. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_TILES_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_TILES_CUH

#include "ops/cuda/attention/linear/chunk_plan.h"
#include "ops/cuda/shared/feature_map.cuh"
#include "ops/cuda/shared/tiles.cuh"

/* ------------------------------------------------------------------------------------ arguments */

/* Rows of which load_tile loads phi(x), and 0 from position lengths[b] on, [B] unless NULL */
template <typename T> struct MappedRows : Rows<T> {
    FeatureMap map;
    const int32_t *lengths;
};

template <typename T> __device__ static inline Real mapped(const MappedRows<T> &rows, Real x)
{
    return phi(rows.map, x);
}

/* The rows of a span whose positions are below lengths[b]; with step -1 they are the last rows. */
__device__ static inline RowRange unmasked_rows(const int32_t *lengths, const Span &span)
{
    if (!lengths)
        return { 0, span.count };
    const int64_t before = lengths[span.b] - span.first; /* unmasked, from the first row on */
    if (span.step > 0)
        return { 0, before < 0 ? 0 : before < span.count ? (int)before : span.count };
    return { before > 0                ? 0
             : 1 - before < span.count ? (int)(1 - before)
                                       : span.count,
             span.count };
}
template <typename T>
__device__ static inline RowRange unmasked_rows(const MappedRows<T> &rows, const Span &span)
{
    return unmasked_rows(rows.lengths, span);
}

/* Rows, and whether they have one more column: `last` [B, positions, H], or NULL: 1 */
template <typename T> struct Augmented : MappedRows<T> {
    bool augmented;
    const Real *last;
    bool unnormalized; /* augmented by zeros */
};

/* S~ or R~ [D, M + 1] after every piece of the line, in scan order: sums of y_j w~_j^T */
template <typename T> struct StateSums {
    MappedRows<T> y;
    Augmented<T> w;
    bool reverse;
    const Real *initial; /* [B, H, D, M + 1]: S~_0, or F~; NULL: 0 */
    Real *final;         /* likewise: S~_N, or dL/dS~_0; NULL: not needed */
    Real *states;        /* NULL: not needed */
    float2 *decays;      /* one per piece: e^(its log decay) as a sum; NULL without a decay */
};

template <typename T> struct Scan {
    Augmented<T> x, y; /* augmented by alpha and beta; T is transposed then */
    MappedRows<T> w;
    bool reverse;
    GradientRows<T> o;
    MappedRows<T> map; /* o is multiplied by phi' of these, unless data is NULL */
    Real *dots;        /* [column_tiles, B, N, H], or NULL: phi of these . o over j < i */
};

/* The scans of one launch: num; or da, db and dv, as far as they are needed. */
template <typename T> struct Scans {
    Scan<T> scan[3];
    StateSums<T> sums[2]; /* S~ for the scans, R~ for the reverse ones */
    int count, sums_count;
    bool reads_all_states; /* also those of a head's only chunk */
    Line line, sums_line;  /* the pieces of x, and of y and w: the same ones when causal */
    int64_t D, M, W;       /* W: columns of a state, M + 1 or M */
    int64_t column_tiles;  /* of o, at most */
    int resident_rows;     /* rows of T that stay in shared memory; 0: one tile of T at a time */
    Real *den;             /* [B, N, H]: written by the forward pass */
    Real eps;
    const Real *log_decay; /* [B, N, H], or NULL; masked positions do not decay */
    const int32_t *lengths;
    int64_t rows; /* B N H */
};

/* e^MIN_LOG_DECAY is 0. Differences of sums with -infinity would be NaN. */
enum { MIN_LOG_DECAY = -1000 };

/* L [CHUNK + 1]: the log decays from the chunk's start to each row, and to its end. In double, as
 * their differences are small beside them. */
template <typename T>
__device__ static inline void load_decay(double *L, const Scans<T> &all, const Span &span,
                                         int64_t positions)
{
    const int row = (int)threadIdx.x, rows = min(row + (span.step > 0), span.count);
    if (!all.log_decay || row > CHUNK)
        return;
    const Real *l = all.log_decay + span_row(span, positions);
    double sum = 0;
    for (int r = 0; r < rows; r++) {
        const int64_t offset = span_offset(span, r);
        const Real l_r = l[offset * span.H];
        if (!all.lengths || span_first(span) + offset < all.lengths[span.b])
            sum += l_r > 0 ? (Real)NAN : l_r < MIN_LOG_DECAY ? (Real)MIN_LOG_DECAY : l_r;
    }
    L[row] = sum;
}

/* Up to CHUNK positions of a head from `start` in scan order, before `limit`; in reverse the chunks
 * are the same, and the first of them may have fewer positions. */
__device__ static inline Span chunk_span(const Line &line, const Head &head, bool reverse,
                                         int64_t start, int64_t limit)
{
    const int64_t first = reverse ? (head.positions - 1) / CHUNK * CHUNK - start : start;
    const int64_t left = reverse ? head.positions - first : limit - start;
    const int64_t begin = line.offsets ? head.row : 0;
    const int count = start >= limit ? 0 : left < CHUNK ? (int)left : CHUNK;
    return {
        line.offsets ? 0 : head.b, head.h, line.H, begin + (reverse ? first + count - 1 : first),
        reverse ? -1 : 1,          count
    };
}

/* The last column of augmented rows; zeros of others */
template <typename T>
__device__ static inline void load_last(Real *to, const Augmented<T> &rows, const Span &span)
{
    if (rows.augmented && rows.last && !rows.unnormalized)
        load_vector(to, rows.last, rows.positions, span);
    else if (threadIdx.x < CHUNK)
        to[threadIdx.x] = rows.augmented && !rows.unnormalized ? (Real)1 : (Real)0;
}

/* --------------------------------------------------------------------------------------- states */

/* e^x as a sum of two: rounded to one, the product over many chunks would drift. */
__device__ static inline float2 split_exp(double x)
{
    const double value = exp(x);
    const float high = (float)value;
    return { high, (float)(value - (double)high) };
}

/* One tile of S~ or R~ per block, over one piece */
template <typename T, int SIZE>
__global__ void __launch_bounds__(TILE_THREADS, BLOCKS_AT_ONCE)
    sum_pieces(const __grid_constant__ Scans<T> all, int64_t y_tiles, int64_t w_tiles,
               int64_t items)
{
    DYNAMIC_SHARED(Real, y);
    __shared__ double L[CHUNK + 1];
    enum { PITCH = Tile<SIZE>::PITCH };
    Real *const w = y + CHUNK * PITCH, *const last = w + CHUNK * SIZE;
    const Line &line = all.sums_line;
    const int thread = (int)threadIdx.x;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t w_first = item % w_tiles * SIZE, y_first = item / w_tiles % y_tiles * SIZE;
        const int64_t rest = item / w_tiles / y_tiles, piece = rest / all.sums_count;
        const StateSums<T> &sums = all.sums[rest % all.sums_count];
        if (!sums.states)
            continue;
        const Head head = head_of_piece(line, (int32_t)piece, sums.y.positions);
        const int64_t first = (piece - head.first) * line.length;
        const int64_t most = sums.y.lengths ? sums.y.lengths[head.b] : head.positions;
        const int64_t end = min(first + line.length, most);
        Real state[Tile<SIZE>::OUTER][4] = {}, column = 0;
        for (int64_t start = first; start < end; start += CHUNK) {
            const Span span = chunk_span(line, head, sums.reverse, start, end);
            load_tile<SIZE>(y, PITCH, sums.y, span, y_first);
            load_tile<SIZE>(w, SIZE, sums.w, span, w_first);
            load_last(last, sums.w, span);
            load_decay(L, all, span, sums.y.positions);
            __syncthreads();
            if (all.log_decay) { /* rows decay to the piece's end: it is one chunk */
                for (int i = thread; i < span.count * SIZE; i += TILE_THREADS)
                    y[i / SIZE * PITCH + i % SIZE] *= real_exp((Real)(L[CHUNK] - L[i / SIZE]));
                if (w_first == 0 && y_first == 0 && thread == 0)
                    sums.decays[piece] = split_exp(L[CHUNK]);
                __syncthreads();
            }
            add_outer<SIZE>(state, y, w, span.count);
            for (int j = 0; thread < SIZE && j < span.count; j++)
                column += y[j * PITCH + thread] * last[j];
            __syncthreads();
        }
        if (all.log_decay && first >= end && w_first == 0 && y_first == 0 && thread == 0)
            sums.decays[piece] = { 1, 0 };
        Real *const to = sums.states + piece * all.D * all.W;
        for (int r = 0; r < Tile<SIZE>::OUTER; r++)
            for (int c = 0; c < 4; c++) {
                const int64_t d = y_first + outer_row<SIZE>(r);
                const int64_t m = w_first + tile_column<SIZE>() + c;
                if (d < all.D && m < all.M)
                    to[d * all.W + m] = state[r][c];
            }
        if (w_first == 0 && thread < SIZE && y_first + thread < all.D && all.W > all.M)
            to[(y_first + thread) * all.W + all.M] = column;
    }
}

/* The states become prefix sums over each head's pieces, the initial state included. */
template <typename T>
__global__ void add_up_pieces(const __grid_constant__ Scans<T> all, int64_t items)
{
    GRID_FOR(item, items) {
        const int64_t size = all.D * all.W, elements = items / all.sums_count;
        const int64_t i = item % elements;
        const StateSums<T> &sums = all.sums[item / elements];
        if (!sums.states)
            continue;
        const Head head = head_at(all.sums_line, (int32_t)(i / size), sums.y.positions);
        const int64_t element = head.index * size + i % size;
        Real sum = sums.initial ? sums.initial[element] : (Real)0;
#pragma unroll 4
        for (int64_t piece = head.first; piece < head.end; piece++) {
            const float2 decay = sums.decays ? sums.decays[piece] : float2{ 1, 0 };
            const Real low = (Real)decay.y * sum + sums.states[piece * size + i % size];
            sum = (Real)decay.x * sum + low;
            sums.states[piece * size + i % size] = sum;
        }
        if (sums.final)
            sums.final[element] = sum;
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
    Real *extra; /* forward: z [rows], backward: e [SIZE] */
};

template <int SIZE, bool CAUSAL> struct ScanSizes {
    enum {
        X = CHUNK * (CAUSAL ? (int)SCORE_PITCH : (int)Tile<SIZE>::PITCH),
        Y = CAUSAL ? CHUNK * Tile<SIZE>::PITCH : 0,
        W = CAUSAL ? CHUNK * SIZE : 0,
    };
    static int64_t reals(int64_t rows)
    {
        return X + Y + W + 2 * CHUNK + rows * SIZE + max(rows, (int64_t)SIZE);
    }
};

template <int SIZE, bool CAUSAL>
__device__ static inline ScanMemory scan_memory(Real *memory, int rows)
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

/* One block's part of a scan: a tile of o's columns over one piece of a head. */
template <typename T> struct Part {
    const Scans<T> *all;
    const Scan<T> *scan;
    Head head;
    int64_t first, end; /* in scan order */
    int64_t column;     /* first column of w and o */
    const Real *state;  /* [D, M + 1]: S~ or R~ before the piece, or of all positions; NULL: 0 */
    ScanMemory m;
    double *L;   /* [CHUNK + 1]: load_decay */
    Real *pairs; /* [CHUNK]: the scores of rows with themselves, in a strict scan */
};

/* Loads SIZE rows of T from `row` on, and of z, or e, to this row of shared memory. */
template <int SIZE, bool FORWARD, typename T>
__device__ static inline void load_state(const Part<T> &part, int64_t row, int to)
{
    const Scan<T> &scan = *part.scan;
    const int64_t M = part.all->M, pitch = part.all->W;
    for (int i = (int)threadIdx.x; i < SIZE * SIZE; i += TILE_THREADS) {
        const int r = scan.x.augmented ? i % SIZE : i / SIZE;
        const int c = scan.x.augmented ? i / SIZE : i % SIZE;
        const int64_t y = row + r, w = part.column + c;
        const bool inside = y < scan.y.columns && w < scan.w.columns;
        part.m.state[(to + r) * SIZE + c] =
            inside ? part.state[scan.x.augmented ? w * pitch + y : y * pitch + w] : (Real)0;
    }
    const int64_t d = (FORWARD ? row : part.column) + threadIdx.x;
    if (threadIdx.x < SIZE)
        part.m.extra[(FORWARD ? to : 0) + threadIdx.x] =
            d < part.all->D && pitch > M && (FORWARD || scan.x.augmented)
                ? part.state[d * pitch + M]
                : (Real)0;
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

/* O += alpha e^T */
template <int SIZE>
__device__ static inline void add_column(Real (*o)[4], const Real *alpha, const Real *e)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[r][c] += alpha[tile_row<SIZE>(r)] * e[tile_column<SIZE>() + c];
}

/* O <- e^(c_i) O */
template <int SIZE> __device__ static inline void decay_rows(Real (*o)[4], const double *L)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const Real decay = real_exp((Real)L[tile_row<SIZE>(r)]);
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[r][c] *= decay;
    }
}

/* tril(X Y^T + alpha beta^T), times e^(c_i - c_j) unless L is NULL, to shared memory (causal
 * mask); its diagonal to pairs, unless this is NULL */
template <int SIZE, bool FORWARD>
__device__ static inline void store_scores(const ScanMemory &m, const double *L, Real *pairs,
                                           const Real (*scores)[Tile<SIZE>::SCORES])
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int i = tile_row<SIZE>(r);
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            const int j = score_column<SIZE>(c);
            Real score = FORWARD ? scores[r][c] : scores[r][c] + m.alpha[i] * m.beta[j];
            if (L && j <= i)
                score *= real_exp((Real)(L[i] - L[j]));
            if (pairs && j == i)
                pairs[i] = score;
            m.x[i * SCORE_PITCH + j] = j < i || (j == i && !pairs) ? score : (Real)0;
        }
    }
}

/* Stores den, and out = num / den. */
template <int SIZE, typename T>
__device__ static inline void divide_by_den(Real (*o)[4], const Part<T> &part, const Span &span,
                                            Real den)
{
    const int row = (int)threadIdx.x;
    if (row < CHUNK) {
        part.m.alpha[row] = 1 / den;
        if (part.column == 0 && row < span.count)
            part.all->den[span_row(span, part.scan->x.positions) + row * span.step * span.H] = den;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[r][c] *= part.m.alpha[tile_row<SIZE>(r)];
}

/* O += diag(pairs) W */
template <int SIZE>
__device__ static inline void add_pairs(Real (*o)[4], const Real *pairs, const Real *w)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int row = tile_row<SIZE>(r);
            o[r][c] += pairs[row] * w[row * SIZE + tile_column<SIZE>() + c];
        }
}

/* dots[i] = phi(x_i) . o_i over the tile's columns, 0 for masked positions. A row's columns are in
 * neighboring lanes. */
template <int SIZE, typename T>
__device__ static inline void store_dots(Real *dots, const Real (*o)[4], const Scan<T> &scan,
                                         const Span &span, int64_t first_column)
{
    const MappedRows<T> &x = scan.map;
    const int64_t column = first_column + tile_column<SIZE>();
    const T *from = x.data + span_begin(span, x.positions, x.stride, x.columns) + column;
    const RowRange unmasked = unmasked_rows(x, span);
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int row = tile_row<SIZE>(r);
        Real dot = 0;
        if (row >= unmasked.first && row < unmasked.end) {
            const Pack<Real, 4> four =
                load_four(from + row * span.step * x.stride, x.columns - column);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (column + c < x.columns)
                    dot += o[r][c] * phi(x.map, four.at[c]);
        }
        for (int lanes = Tile<SIZE>::ACROSS / 2; lanes > 0; lanes /= 2)
            dot += __shfl_xor_sync(0xffffffffu, dot, lanes);
        if (threadIdx.x % Tile<SIZE>::ACROSS == 0 && row < span.count)
            dots[span_row(span, x.positions) + span_offset(span, row) * span.H] = dot;
    }
}

/* Backward through the feature map: O <- O phi'(x). */
template <int SIZE, typename T>
__device__ static inline void feature_map_backward(Real (*o)[4], const MappedRows<T> &x,
                                                   const Span &span, int64_t first_column)
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
            o[r][c] *= dphi(x.map, four.at[c]);
    }
}

/* Zeros the rows of masked positions. */
template <int SIZE> __device__ static inline void clear_rows(Real (*o)[4], const RowRange &unmasked)
{
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (tile_row<SIZE>(r) < unmasked.first || tile_row<SIZE>(r) >= unmasked.end)
                o[r][c] = 0;
}

/* O += X T + alpha e^T, the contribution of the state, and scores += X Y^T */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void scan_state(const Part<T> &part, const Span &span, int seen,
                                         bool is_first, Real (*o)[4],
                                         Real (*scores)[Tile<SIZE>::SCORES], Real *den)
{
    enum { PITCH = Tile<SIZE>::PITCH };
    const Scan<T> &scan = *part.scan;
    const ScanMemory &m = part.m;
    const bool resident = !CAUSAL && part.all->resident_rows > 0;
    for (int64_t k = 0; k < scan.y.columns; k += SIZE) {
        const int inner = tile_inner<SIZE>(scan.y.columns, k), at = resident ? (int)k : 0;
        if (k > 0)
            __syncthreads(); /* x, y and T have been read */
        load_tile<SIZE>(m.x, PITCH, scan.x, span, k);
        if (CAUSAL)
            load_tile<SIZE>(m.y, PITCH, scan.y, span, k);
        if (part.state && (is_first || !resident))
            load_state<SIZE, FORWARD>(part, k, at);
        __syncthreads();
        if (part.state) {
            if (!FORWARD && k == 0)
                add_column<SIZE>(o, m.alpha, m.extra);
            add_product<SIZE>(o, m.x, PITCH, m.state + at * SIZE, SIZE, inner);
            if (FORWARD && threadIdx.x < CHUNK)
                *den += row_sum(m.x + threadIdx.x * PITCH, m.extra + at, inner);
        }
        if (CAUSAL)
            add_scores<SIZE>(scores, m.x, m.y, inner, seen);
    }
}

/* One chunk of o, which begins at this position in scan order */
template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__device__ static inline void scan_chunk(const Part<T> &part, int64_t start)
{
    const Scan<T> &scan = *part.scan;
    const ScanMemory &m = part.m;
    const Span span = chunk_span(part.all->line, part.head, scan.reverse, start, part.end);
    const int filled = (span.count + 3) / 4 * 4;          /* rows, padded */
    const int seen = min(warp_row() + WARP_ROWS, filled); /* by the warp's rows: tril */
    Real o[Tile<SIZE>::ROWS][4] = {}, scores[Tile<SIZE>::ROWS][Tile<SIZE>::SCORES] = {};
    const double *const L = CAUSAL && part.all->log_decay ? part.L : NULL;
    Real den = 0;
    if (CAUSAL)
        load_decay(part.L, *part.all, span, scan.x.positions);
    if (CAUSAL)
        load_tile<SIZE>(m.w, SIZE, scan.w, span, part.column);
    if (!FORWARD)
        load_last(m.alpha, scan.x, span);
    if (!FORWARD && CAUSAL)
        load_last(m.beta, scan.y, span);
    scan_state<T, SIZE, CAUSAL, FORWARD>(part, span, seen, start == part.first, o, scores, &den);
    __syncthreads(); /* x, y and T have been read */
    if (L)
        decay_rows<SIZE>(o, L);
    if (L && threadIdx.x < CHUNK)
        den *= real_exp((Real)L[threadIdx.x]);
    if (CAUSAL) {
        store_scores<SIZE, FORWARD>(m, L, scan.dots ? part.pairs : NULL, scores);
        __syncthreads();
        add_product<SIZE>(o, m.x, SCORE_PITCH, m.w, SIZE, seen);
        if (FORWARD && threadIdx.x < CHUNK)
            den += row_sum(m.x + threadIdx.x * SCORE_PITCH, NULL, filled);
    }
    if (!FORWARD && CAUSAL && scan.dots) {
        store_dots<SIZE>(scan.dots + part.column / SIZE * part.all->rows, o, scan, span,
                         part.column);
        add_pairs<SIZE>(o, part.pairs, m.w);
    }
    if (FORWARD && part.all->den)
        divide_by_den<SIZE>(o, part, span, den + part.all->eps);
    else
        __syncthreads();
    /* now all shared memory has been read, but alpha in the forward pass */
    if (!FORWARD && scan.map.data)
        feature_map_backward<SIZE>(o, scan.map, span, part.column);
    if (!FORWARD && scan.o.lengths)
        clear_rows<SIZE>(o, unmasked_rows(scan.o.lengths, span));
    if (scan.o.data)
        contribute_tile<SIZE>(scan.o, span, part.column, o);
}

template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
__global__ void __launch_bounds__(TILE_THREADS, CAUSAL ? 2 : BLOCKS_AT_ONCE)
    scan_pieces(const __grid_constant__ Scans<T> all, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    __shared__ double L[CHUNK + 1];
    __shared__ Real pairs[CHUNK];
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t rest = item / all.column_tiles, piece = rest / all.count;
        Part<T> part;
        part.all = &all;
        part.scan = &all.scan[rest % all.count];
        part.head = head_of_piece(all.line, (int32_t)piece, part.scan->x.positions);
        part.first = (piece - part.head.first) * all.line.length;
        part.end = min(part.first + all.line.length, part.head.positions);
        part.column = item % all.column_tiles * SIZE;
        part.L = L;
        part.pairs = pairs;
        part.m = scan_memory<SIZE, CAUSAL>(memory, max(all.resident_rows, (int)SIZE));
        const StateSums<T> &sums = all.sums[part.scan->reverse];
        const int64_t size = all.D * all.W;
        if (!CAUSAL) /* the head's last one */
            part.state =
                sums.states + ((int64_t)(part.head.rank + 1) * all.sums_line.pieces - 1) * size;
        else if (part.first > 0)
            part.state = sums.states + (piece - 1) * size;
        else
            part.state = sums.initial ? sums.initial + part.head.index * size : NULL;
        for (int64_t start = part.first; start < part.end && part.column < part.scan->w.columns;
             start += CHUNK)
            scan_chunk<T, SIZE, CAUSAL, FORWARD>(part, start);
    }
}

/* ------------------------------------------------------------------------------------- the plan */

static inline void cut(Line *line, int64_t chunks, int64_t pieces)
{
    line->length = tiles_for(chunks, pieces) * CHUNK;
    line->pieces = (int32_t)tiles_for(chunks * CHUNK, line->length);
}

/* Rows of out, over all positions and heads. */
static inline int64_t rows_in_all(const AttentionInputs *x)
{
    return (x->offsets ? 1 : x->B) * x->N * x->H;
}

/* How the heads are cut into pieces, and o into tiles. */
template <typename T, int SIZE, bool CAUSAL>
static Scans<T> plan_scans(const LinearScan *s, bool backward)
{
    enum { STATE_ROWS = 128 }; /* most resident rows of T */
    const AttentionInputs *x = &s->x;
    const int64_t heads = x->B * x->H, widest = x->D > x->M ? x->D : x->M;
    const int64_t rows = tiles_for(backward ? widest : x->D, SIZE) * SIZE;
    Scans<T> all = {};
    all.D = x->D;
    all.M = x->M;
    all.W = linear_scan_columns(s);
    all.log_decay = s->log_decay;
    all.lengths = x->key_lengths;
    all.rows = rows_in_all(x);
    all.sums_count = backward ? 2 : 1;
    all.column_tiles = tiles_for(backward ? widest : x->M, SIZE);
    all.line = all.sums_line = line_of(x);
    all.eps = s->eps;
    if (CAUSAL)
        return all;
    const int64_t chunks = tiles_for(x->N > x->keys ? x->N : x->keys, CHUNK);
    const int64_t resident = device_attribute(cudaDevAttrMultiProcessorCount) * BLOCKS_AT_ONCE;
    const int64_t sum_blocks = heads * tiles_for(x->D, SIZE) * tiles_for(x->M, SIZE);
    const int64_t scan_blocks = heads * all.column_tiles * (backward ? 3 : 1);
    all.resident_rows = rows <= STATE_ROWS ? (int)rows : 0;
    cut(&all.sums_line, chunks, plan_segments(sum_blocks, chunks, resident));
    cut(&all.line, chunks, plan_segments(scan_blocks, chunks, resident));
    return all;
}

/* Elements of the states of S~, or of R~ */
template <typename T> static int64_t states_size(const Scans<T> &all)
{
    const int64_t decay = all.log_decay ? (int64_t)(sizeof(float2) / sizeof(Real)) : 0;
    return pieces_in_all(all.sums_line) * (all.D * all.W + decay) + decay; /* aligned */
}

/* ------------------------------------------------------------------------------------ the scans */

template <typename T> static Scan<T> scan(Augmented<T> x, Augmented<T> y, MappedRows<T> w)
{
    return { x, y, w, false, {}, {}, NULL };
}
template <typename T> static Scan<T> scan_reverse(Augmented<T> x, Augmented<T> y, MappedRows<T> w)
{
    return { x, y, w, true, {}, {}, NULL };
}

/* All scans of linear attention, and their states: S~ = sum of b v~^T and R~ = sum of a dnum~^T */
template <typename T> struct FourScans {
    Scan<T> num, da, db, dv;
    StateSums<T> S, R;
};

/* dnum = dout / den; forward, dout, den and dden are NULL. */
template <typename T>
static FourScans<T> scans_of(const LinearScan *s, const Real *dout, const Real *den,
                             const Real *dden)
{
    const AttentionInputs *x = &s->x;
    const FeatureMap phi = s->features, none = FEATURE_MAP_IDENTITY;
    const int32_t *lengths = x->key_lengths;
    const Augmented<T> a = {
        { rows_of<T>(x->query, x->query_stride, x->N, x->D), phi, NULL }, false, NULL, false
    };
    const Augmented<T> b = {
        { rows_of<T>(x->key, x->key_stride, x->keys, x->D), phi, lengths }, false, NULL, false
    };
    const Augmented<T> v = { { rows_of<T>(x->value, x->value_stride, x->keys, x->M), none,
                               lengths },
                             true,
                             NULL,
                             s->unnormalized };
    Augmented<T> dnum = {
        { rows_of<T>(dout, x->H * x->M, x->N, x->M), none, NULL }, true, dden, s->unnormalized
    };
    dnum.divisor = den;
    return {
        scan(a, b, v),            /* num~ */
        scan(dnum, v, b),         /* da */
        scan_reverse(v, dnum, a), /* db */
        scan_reverse(b, a, dnum), /* dv */
        { b, v, false, s->state, NULL, NULL, NULL },
        { a, dnum, true, NULL, NULL, NULL, NULL },
    };
}

/* Launches the sums of S~ and R~, as far as they are needed. */
template <typename T, int SIZE> static void launch_sums(const Scans<T> &all)
{
    const int64_t y_tiles = tiles_for(all.D, SIZE), w_tiles = tiles_for(all.M, SIZE);
    const int64_t items = all.sums_count * pieces_in_all(all.sums_line) * y_tiles * w_tiles;
    const int64_t elements = all.sums_count * all.line.B * all.line.H * all.D * all.W;
    const bool final = all.sums[0].final || all.sums[1].final;
    if (!all.sums[0].states && !all.sums[1].states)
        return;
    LAUNCH_TILES((sum_pieces<T, SIZE>), items, CHUNK * (Tile<SIZE>::PITCH + SIZE + 1), all, y_tiles,
                 w_tiles, items);
    if (all.sums_line.pieces > 1 || final || all.reads_all_states)
        LAUNCH(add_up_pieces<T>, blocks_for(elements), THREADS, 0, all, elements);
}

template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
static void launch_scans(const Scans<T> &all)
{
    const int64_t items = all.count * pieces_in_all(all.line) * all.column_tiles;
    const int64_t rows = max(all.resident_rows, (int)SIZE);
    LAUNCH_TILES((scan_pieces<T, SIZE, CAUSAL, FORWARD>), items,
                 (ScanSizes<SIZE, CAUSAL>::reals(rows)), all, items);
}

/* Adds the states of a sum, if any scan of all positions or of a second piece reads them. */
template <typename T, bool CAUSAL>
static void add_sums(Scans<T> *all, int i, const StateSums<T> &sums, bool read, Real *states)
{
    all->sums[i] = sums;
    if (read && (!CAUSAL || all->sums_line.pieces > 1 || sums.final || all->reads_all_states))
        all->sums[i].states = states;
    const int64_t elements = pieces_in_all(all->sums_line) * all->D * all->W;
    if (all->log_decay)
        all->sums[i].decays = (float2 *)(states + elements + elements % 2);
}

template <typename T, int SIZE, bool CAUSAL>
static void scan_forward(Real *out, Real *den, Real *final_state, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    Scans<T> all = plan_scans<T, SIZE, CAUSAL>(s, false);
    Real *const states = device_workspace(states_size(all));
    FourScans<T> scans = scans_of<T>(s, NULL, NULL, NULL);
    scans.num.o = gradient_rows<T>({ out, false }, x->H * x->M, x->N, x->M);
    scans.S.final = final_state;
    add_sums<T, CAUSAL>(&all, 0, scans.S, true, states);
    all.scan[all.count++] = scans.num;
    all.den = den;
    launch_sums<T, SIZE>(all);
    launch_scans<T, SIZE, CAUSAL, true>(all);
    device_workspace_free(states);
}

/* <S~, R~> at the beginning of a chunk of a head, where R~ is e^(l) R~ of its first position: the
 * block's sum in double */
template <typename T>
__device__ static inline double states_product(const Scans<T> &all, const Head &head, int64_t chunk)
{
    __shared__ double sums[CHUNK];
    const int64_t size = all.D * all.W, chunks = tiles_for(head.positions, CHUNK);
    const Real *S = chunk > 0             ? all.sums[0].states + (head.first + chunk - 1) * size
                    : all.sums[0].initial ? all.sums[0].initial + head.index * size
                                          : NULL;
    double sum = 0;
    if (S) {
        const Real *R = all.sums[1].states + (head.first + chunks - 1 - chunk) * size;
        for (int64_t k = threadIdx.x; k < size; k += CHUNK)
            sum += (double)S[k] * (double)R[k];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = CHUNK / 2; half > 0; half /= 2) {
        if ((int)threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    return sums[0];
}

/* dl of a chunk's positions, one per thread: dl_i = dl_begin - sum_{t<i} (a_t.(Z_t dnum~_t) -
 * b_t.(R'_t v~_t)), restarting where l_t is -infinity; and 0 for masked positions */
template <typename T>
__global__ void log_decay_gradients(const __grid_constant__ Scans<T> all, Gradient dl,
                                    const Real *of_a, const Real *of_b, int64_t tiles)
{
    __shared__ double difference[CHUNK];
    __shared__ bool restarts[CHUNK];
    const int64_t N = all.scan[0].x.positions;
    const Head head = head_of_piece(all.line, (int32_t)blockIdx.x, N);
    const int64_t chunk = (int64_t)blockIdx.x - head.first, first = chunk * CHUNK;
    const int64_t length = all.lengths ? all.lengths[head.b] : head.positions;
    if (first >= head.positions)
        return;
    double sum = states_product(all, head, chunk);
    const int64_t i = first + threadIdx.x, row = (head.row + i) * all.line.H + head.h;
    const bool inside = i < head.positions, masked = i >= length;
    double d = 0;
    for (int64_t tile = 0; inside && tile < tiles; tile++)
        d += (double)of_a[tile * all.rows + row] - (double)of_b[tile * all.rows + row];
    difference[threadIdx.x] = d;
    restarts[threadIdx.x] = inside && !masked && all.log_decay[row] <= MIN_LOG_DECAY;
    __syncthreads();
    for (int t = 0; t <= (int)threadIdx.x; t++) {
        sum = restarts[t] ? 0 : sum;
        sum -= t < (int)threadIdx.x ? difference[t] : 0;
    }
    if (inside)
        contribute(dl.data + row, dl.accumulate, masked ? (Real)0 : (Real)sum);
}

/* Adds the scan if its result is needed. */
template <typename T>
static void add_scan(Scans<T> *all, Scan<T> scan, const GradientRows<T> &o,
                     const MappedRows<T> &map)
{
    scan.o = o;
    scan.map = map;
    if (o.data || scan.dots)
        all->scan[all->count++] = scan;
}

/* The scans in one launch, or, where gradients share memory, one after another */
template <typename T, int SIZE, bool CAUSAL>
static void launch_gradients(const Scans<T> &all, const AttentionGradient &d)
{
    const Real *q = d.query.data, *k = d.key.data, *v = d.value.data;
    const bool shared = (q && (q == k || q == v)) || (k && k == v);
    for (int i = 0; i < (shared ? all.count : all.count > 0); i++) {
        Scans<T> part = all;
        if (shared) {
            part.count = 1;
            part.scan[0] = all.scan[i];
        }
        launch_scans<T, SIZE, CAUSAL, false>(part);
    }
}

template <typename T, int SIZE, bool CAUSAL>
static void scan_backward(const LinearScanGradient &d, const Real *dout, const Real *dfinal_state,
                          const Real *out, const Real *den, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    Scans<T> all = plan_scans<T, SIZE, CAUSAL>(s, true);
    const bool dlog_decay = d.log_decay.data;
    all.reads_all_states = dlog_decay && s->state;
    const int64_t dots = dlog_decay ? all.column_tiles * all.rows : 0; /* of a.da, and of b.db */
    Real *const dden = device_workspace(2 * states_size(all) + all.rows + 2 * dots);
    Real *const states = dden + all.rows, *const of_dots = states + 2 * states_size(all);
    if (!s->unnormalized)
        launch_row_deltas<T>(dden, dout, out, den, all.rows, x->M);
    FourScans<T> scans = scans_of<T>(s, dout, den, dden);
    scans.R.initial = dfinal_state;
    scans.R.final = d.state;
    if (dlog_decay) {
        scans.da.dots = of_dots;
        scans.db.dots = of_dots + dots;
    }
    add_sums<T, CAUSAL>(&all, 0, scans.S, d.x.query.data || dlog_decay, states);
    add_sums<T, CAUSAL>(&all, 1, scans.R, d.x.key.data || d.x.value.data || d.state || dlog_decay,
                        states + states_size(all));
    GradientRows<T> dkey = gradient_rows<T>(d.x.key, x->key_stride, x->keys, x->D);
    dkey.lengths = x->key_lengths;
    add_scan(&all, scans.da, gradient_rows<T>(d.x.query, x->query_stride, x->N, x->D), scans.num.x);
    add_scan(&all, scans.db, dkey, scans.num.y);
    add_scan(&all, scans.dv, gradient_rows<T>(d.x.value, x->value_stride, x->keys, x->M), {});
    launch_sums<T, SIZE>(all);
    launch_gradients<T, SIZE, CAUSAL>(all, d.x);
    if (dlog_decay)
        LAUNCH(log_decay_gradients<T>, (unsigned)pieces_in_all(all.line), CHUNK, 0, all,
               d.log_decay, of_dots, of_dots + dots, tiles_for(x->D, SIZE));
    device_workspace_free(dden);
}

#endif
