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
 * prefix_sum_pieces their prefix sums, and scan_pieces the results. When causal, a piece is one
 * chunk; otherwise it is several, the number chosen to fill the GPU. Pieces depend on the sizes
 * alone, so results are bitwise repeatable. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_TILES_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_TILES_CUH

#include "ops/cuda/attention/linear/scan_results.cuh"

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
        const int r = scan.transposed ? i % SIZE : i / SIZE;
        const int c = scan.transposed ? i / SIZE : i % SIZE;
        const int64_t y = row + r, w = part.column + c;
        const bool inside = y < scan.y.columns && w < scan.w.columns;
        part.m.state[(to + r) * SIZE + c] =
            inside ? part.state[scan.transposed ? w * pitch + y : y * pitch + w] : (Real)0;
    }
    const int64_t d = (FORWARD ? row : part.column) + threadIdx.x;
    if (threadIdx.x < SIZE)
        part.m.extra[(FORWARD ? to : 0) + threadIdx.x] =
            d < part.all->D && (FORWARD ? pitch > M : scan.x.augmented) ? part.state[d * pitch + M]
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
        divide_by_den<SIZE>(o, part.column == 0 ? part.all->den : NULL, m.alpha,
                            den + part.all->eps, span, scan.x.positions);
    else
        __syncthreads();
    /* now all shared memory has been read, but alpha in the forward pass */
    if (!FORWARD && scan.map.data)
        feature_map_backward<SIZE>(o, scan.map, span, part.column);
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

template <typename T, int SIZE, bool CAUSAL, bool FORWARD>
static void launch_scans(const Scans<T> &all)
{
    const int64_t items = all.count * pieces_in_all(all.line) * all.column_tiles;
    const int64_t rows = max(all.resident_rows, (int)SIZE);
    LAUNCH_TILES((scan_pieces<T, SIZE, CAUSAL, FORWARD>), items,
                 (ScanSizes<SIZE, CAUSAL>::reals(rows)), all, items);
}

#endif
