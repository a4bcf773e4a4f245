/* The sums of linear_scan_mma.cuh, T and z or e, of segments; and what both kernels take: sizes, a
 * block's memory, and a chunk's rows.
 *
 * While a chunk is computed the next one's rows are copied (mma_rows.cuh). x goes into its own place,
 * because a warp reads none but its own rows of X, and those no more after X Y^T and X T. y and w go
 * beside theirs where there is memory for it; otherwise they follow when the chunk has done with Y and
 * W, and are on their way while its o is written, from the second cache, to which they have been
 * brought before. Where W takes the place of X, x follows then, too, and w when X has been read. */
#ifndef TAPEGRAD_OPS_LINEAR_SCAN_MMA_SUMS_CUH
#define TAPEGRAD_OPS_LINEAR_SCAN_MMA_SUMS_CUH

#include "ops/linear_scan.cuh"
#include "ops/mma_rows.cuh"

/* Columns of a head, at most: none in double, 64 where a block cannot have the memory that 128 take; 99
 * KB for these it can have everywhere. */
enum { MMA_SHARED = 108 << 10 };
static inline int64_t mma_most(void)
{
    int device, bytes;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    return sizeof(Real) != sizeof(float) ? 0 : bytes < MMA_SHARED ? 64 : 128;
}

static inline int mma_size(int64_t D, int64_t M)
{
    const int64_t most = D > M ? D : M;
    return most <= 32 ? 32 : most <= 64 ? 64 : 128;
}

static inline int mma_columns(int size)
{
    return size < 64 ? size : 64;
}

#ifndef TAPEGRAD_DOUBLE

enum { MMA_WARPS = TILE_THREADS / WARP };

template <typename T, int SIZE> struct Mma {
    enum {
        PARTS = sizeof(T) == sizeof(Bfloat16) ? 1 : 2, /* hi, or hi and lo */
        COLUMNS = SIZE < 64 ? SIZE : 64,
        PITCH = SIZE + MMA_PAD,
        W_PITCH = COLUMNS + MMA_PAD,
        ACROSS = COLUMNS / 8, /* sums [16, 8] beside each other in O */
        /* A warp's part of T: so many sums below and beside each other. */
        STATE_DOWN = SIZE < 64 ? 1 : SIZE / 64,
        STATE_ACROSS = SIZE < 64 ? ACROSS / (64 / SIZE) : ACROSS,
        BLOCKS = SIZE < 64 ? 3 : 2, /* at once on a multiprocessor, as far as registers go */
        /* So that these fit, W takes X's place, and the next Y this one's, when that has been read, */
        W_IN_X = PARTS * SIZE > 128,
        /* and not every next W has memory beside this one. */
        W_AHEAD = PARTS == 1 || SIZE < 64,
    };
};

/* ------------------------------------------------------------------------------------------ memory */

template <typename T, int SIZE> struct MmaMemory {
    typedef Mma<T, SIZE> Sizes;
    typedef Matrix<Sizes::PARTS, CHUNK, Sizes::PITCH> Wide;
    typedef Matrix<Sizes::PARTS, CHUNK, Sizes::W_PITCH> Narrow;
    typedef Matrix<Sizes::PARTS, SIZE, Sizes::W_PITCH> State;
    Wide x, y;
    Narrow w;
    State state;
    Wide next_y;             /* where the next chunk's rows are copied to: y and w themselves, */
    Narrow next_w;           /* unless they are copied ahead */
    Real *divisors, *deltas; /* [CHUNK]: the next chunk's, too */
    Real *alpha, *beta;      /* [CHUNK] */
    Real *extra;             /* [SIZE]: z, or e */
    Real *parts;             /* [MMA_WARPS, SIZE]: what each warp has for it */

    /* In numbers of Real */
    enum {
        NUMBERS = 4 * CHUNK + (MMA_WARPS + 1) * SIZE,
        SUM_SIZE = NUMBERS + Wide::SIZE + Narrow::SIZE,
        SCAN_SIZE = NUMBERS + ((Sizes::W_IN_X ? 2 : 3) * Wide::SIZE + State::SIZE +
                               (Sizes::W_AHEAD + !Sizes::W_IN_X) * Narrow::SIZE) /
                                  2,
        /* In bytes: the greater of them, and what is left of Hopper's 228 KB for each block. */
        MOST = (SUM_SIZE < SCAN_SIZE ? SCAN_SIZE : SUM_SIZE) * sizeof(Real),
        ROOM = (228 << 10) / Sizes::BLOCKS - (1 << 10),
    };
    static_assert(MOST <= ROOM && MOST <= (SIZE < 128 ? 99 << 10 : MMA_SHARED), "too much memory");
};

template <typename M> __device__ static inline M take_matrix(Bfloat16 **memory)
{
    const M m = { *memory };
    *memory += M::SIZE;
    return m;
}

template <typename T, int SIZE>
__device__ static inline MmaMemory<T, SIZE> mma_memory(Real *memory, bool sums_alone)
{
    typedef MmaMemory<T, SIZE> Memory;
    typedef Mma<T, SIZE> Sizes;
    Memory m = {};
    m.divisors = memory;
    m.deltas = m.divisors + CHUNK;
    m.alpha = m.deltas + CHUNK;
    m.beta = m.alpha + CHUNK;
    m.extra = m.beta + CHUNK;
    m.parts = m.extra + SIZE;
    Bfloat16 *at = (Bfloat16 *)(m.parts + MMA_WARPS * SIZE);
    m.y = take_matrix<decltype(m.y)>(&at);
    if (!Sizes::W_IN_X || sums_alone)
        m.w = take_matrix<decltype(m.w)>(&at);
    if (!sums_alone) {
        m.state = take_matrix<decltype(m.state)>(&at);
        m.x = take_matrix<decltype(m.x)>(&at);
    }
    if (Sizes::W_IN_X && !sums_alone)
        m.w.at = m.x.at;
    m.next_y = !Sizes::W_IN_X || sums_alone ? take_matrix<decltype(m.y)>(&at) : m.y;
    m.next_w = Sizes::W_AHEAD || sums_alone ? take_matrix<decltype(m.w)>(&at) : m.w;
    return m;
}

/* A block's part of a scan. */
template <typename T, int SIZE> struct MmaPart {
    const Scan<T> *scan;
    Segment segment;
    int64_t column; /* the first of w and o */
    MmaMemory<T, SIZE> m;
};

/* ----------------------------------------------------------------------------------- a chunk's rows */

template <typename T, int SIZE>
__device__ static inline void copy_x(const MmaPart<T, SIZE> &part, const Span &span)
{
    copy_rows<SIZE>(part.m.x, part.scan->x, span, 0);
}

template <typename T, int SIZE>
__device__ static inline void copy_y(const MmaPart<T, SIZE> &part, const Span &span)
{
    copy_rows<SIZE>(part.m.next_y, part.scan->y, span, 0);
}

template <typename T, int SIZE>
__device__ static inline void copy_w(const MmaPart<T, SIZE> &part, const Span &span)
{
    copy_rows<Mma<T, SIZE>::COLUMNS>(part.m.next_w, part.scan->w, span, part.column);
}

/* Begins to copy the numbers that go with the warp's rows: a row's divisor, in one of x, y and w, and
 * its delta. */
template <typename T, int SIZE>
__device__ static inline void copy_factors(const MmaPart<T, SIZE> &part, const Real *delta,
                                           const Span &span)
{
    const Scan<T> &scan = *part.scan;
    const int lane = (int)threadIdx.x % WARP, row = warp_row() + lane % WARP_ROWS;
    const Real *divisor = scan.x.divisor   ? scan.x.divisor
                          : scan.y.divisor ? scan.y.divisor
                                           : scan.w.divisor;
    const Real *from = lane < WARP_ROWS ? divisor : delta;
    Real *const to = (lane < WARP_ROWS ? part.m.divisors : part.m.deltas) + row;
    const int64_t at = span_row(span, scan.y.positions) + row * span.step * span.H;
    copy_async<sizeof(Real)>(to, from + at, row < span.count ? (int)sizeof(Real) : 0);
}

/* alpha and beta, of the warp's rows */
template <typename T, int SIZE>
__device__ static inline void share_factors(const MmaPart<T, SIZE> &part)
{
    const int lane = (int)threadIdx.x % WARP, row = warp_row() + lane % WARP_ROWS;
    const ScanDelta delta = part.scan->delta, here = lane < WARP_ROWS ? DELTA_OF_X : DELTA_OF_Y;
    (lane < WARP_ROWS ? part.m.alpha : part.m.beta)[row] = delta == here       ? part.m.deltas[row]
                                                           : delta == NO_DELTA ? (Real)0
                                                                               : (Real)1;
}

template <typename T, int SIZE>
__device__ static inline void map_y(const MmaPart<T, SIZE> &part, const Span &span)
{
    const Rows<T> &y = part.scan->y;
    map_rows<SIZE>(part.m.y, part.m.next_y, y, span, 0, y.divisor ? part.m.divisors : NULL);
}

template <typename T, int SIZE>
__device__ static inline void map_w(const MmaPart<T, SIZE> &part, const Span &span)
{
    const Rows<T> &w = part.scan->w;
    map_rows<Mma<T, SIZE>::COLUMNS>(part.m.w, part.m.next_w, w, span, part.column,
                                    w.divisor ? part.m.divisors : NULL);
}

/* --------------------------------------------------------------------------------------- the state */

/* A warp's part of T. */
template <typename T, int SIZE> struct MmaState {
    float at[Mma<T, SIZE>::STATE_DOWN][Mma<T, SIZE>::STATE_ACROSS][4];
};

/* Where it begins. */
template <int SIZE> __device__ static inline int state_row(void)
{
    const int warp = (int)threadIdx.x / WARP;
    return SIZE < 64 ? warp % (SIZE / 16) * 16 : warp * (SIZE / 4);
}
template <int SIZE> __device__ static inline int state_column(void)
{
    const int warp = (int)threadIdx.x / WARP;
    return SIZE < 64 ? warp / (SIZE / 16) * 16 : 0;
}

/* Row and column of the i-th pair of numbers of a sum. */
template <int SIZE> __device__ static inline int state_row_of(int down, int i)
{
    return state_row<SIZE>() + 16 * down + 8 * i + lane_row();
}
template <int SIZE> __device__ static inline int state_column_of(int across)
{
    return state_column<SIZE>() + 8 * across + lane_column();
}

/* T += Y^T W, of the chunk's first count positions */
template <typename T, int SIZE>
__device__ static inline void update_state(MmaState<T, SIZE> *state, const MmaMemory<T, SIZE> &m,
                                           int count)
{
    typedef Mma<T, SIZE> Sizes;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        if (k >= count)
            continue;
        Fragment<Sizes::PARTS> y[Sizes::STATE_DOWN];
#pragma unroll
        for (int down = 0; down < Sizes::STATE_DOWN; down++)
            y[down] = a_of_transposed(m.y, state_row<SIZE>() + 16 * down, k);
#pragma unroll
        for (int across = 0; across < Sizes::STATE_ACROSS; across += 2) {
            const Fragment<Sizes::PARTS> w = b_of(m.w, k, state_column<SIZE>() + 8 * across);
#pragma unroll
            for (int down = 0; down < Sizes::STATE_DOWN; down++)
                multiply(state->at[down] + across, y[down], w);
        }
    }
}

/* Each warp sums 16 rows of what z (forward), or e, takes in. */
template <typename T, int SIZE>
__device__ static inline void sum_parts(const MmaMemory<T, SIZE> &m, bool forward)
{
    typedef Mma<T, SIZE> Sizes;
    const int width = forward ? SIZE : (int)Sizes::COLUMNS;
    const int pitch = forward ? (int)Sizes::PITCH : (int)Sizes::W_PITCH;
    const int apart = forward ? (int)decltype(m.y)::APART : (int)decltype(m.w)::APART;
    const Bfloat16 *from = forward ? m.y.at : m.w.at;
    for (int column = (int)threadIdx.x % WARP * 2; column < width; column += 2 * WARP) {
        Real first = 0, second = 0;
        for (int row = warp_row(); row < warp_row() + WARP_ROWS; row++) {
            const Real factor = forward ? (Real)1 : m.beta[row];
#pragma unroll
            for (int p = 0; p < Sizes::PARTS; p++) {
                const uint32_t pair = *(const uint32_t *)(from + p * apart + row * pitch + column);
                first += factor * first_of(pair);
                second += factor * second_of(pair);
            }
        }
        Real *const part = m.parts + (int)threadIdx.x / WARP * SIZE + column;
        part[0] = first;
        part[1] = second;
    }
}

/* The sum of what the warps have for the i-th number of z or e. */
template <typename T, int SIZE>
__device__ static inline Real add_parts(const MmaMemory<T, SIZE> &m, int i)
{
    Real sum = 0;
    for (int warp = 0; warp < MMA_WARPS; warp++)
        sum += m.parts[warp * SIZE + i];
    return sum;
}

/* ------------------------------------------------------------------------------- sums of segments */

template <typename T, int SIZE>
__device__ static inline void copy_sum_rows(const Scans<T> &all, const MmaPart<T, SIZE> &part,
                                            const Span &span, bool forward)
{
    copy_y(part, span);
    copy_w(part, span);
    if (!forward)
        copy_factors(part, all.delta, span);
}

template <typename T, int SIZE>
__device__ static inline void map_sum_rows(const MmaPart<T, SIZE> &part, const Span &span,
                                           bool forward)
{
    map_y(part, span);
    map_w(part, span);
    if (!forward)
        share_factors(part);
}

/* COLUMNS columns of sum y_j w_j^T of a segment, and of z (forward) or e */
template <typename T, int SIZE>
__device__ static inline void mma_sum_segment(const Scans<T> &all, const MmaPart<T, SIZE> &part,
                                              bool forward)
{
    typedef Mma<T, SIZE> Sizes;
    const Scan<T> &scan = *part.scan;
    const Segment &segment = part.segment;
    const int64_t end = sums_end(segment, scan);
    const int thread = (int)threadIdx.x;
    const bool has_extra = thread < (forward ? SIZE : (int)Sizes::COLUMNS);
    MmaState<T, SIZE> sums = {};
    Real extra = 0;
    if (segment.first < end)
        copy_sum_rows(all, part, chunk_at(segment, scan, segment.first, end), forward);
    for (int64_t start = segment.first; start < end; start += CHUNK) {
        const Span span = chunk_at(segment, scan, start, end);
        receive_rows();
        map_sum_rows(part, span, forward);
        __syncthreads();
        if (start + CHUNK < end)
            copy_sum_rows(all, part, chunk_at(segment, scan, start + CHUNK, end), forward);
        update_state(&sums, part.m, span.count);
        sum_parts(part.m, forward);
        __syncthreads();
        extra += has_extra ? add_parts(part.m, thread) : (Real)0;
    }
    Real *const state = all.states + scan.states +
                        (segment.head * all.states_a_head + segment.index) * all.state_size;
#pragma unroll
    for (int down = 0; down < Sizes::STATE_DOWN; down++)
#pragma unroll
        for (int across = 0; across < Sizes::STATE_ACROSS; across++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                state[state_row_of<SIZE>(down, i / 2) * SIZE + part.column +
                      state_column_of<SIZE>(across) + i % 2] = sums.at[down][across][i];
    if (has_extra && (!forward || part.column == 0))
        state[SIZE * SIZE + part.column + thread] = extra;
}

template <typename T, int SIZE>
__global__ void __launch_bounds__(TILE_THREADS, (Mma<T, SIZE>::BLOCKS))
    mma_sum_segments(const __grid_constant__ Scans<T> all, bool forward, int64_t w_tiles,
                     int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t rest = item;
        MmaPart<T, SIZE> part;
        part.column = rest % w_tiles * Mma<T, SIZE>::COLUMNS;
        part.scan = &all.scan[(rest /= w_tiles) % all.count];
        const int64_t index = (rest /= all.count) % all.states_a_head;
        part.segment =
            segment_at(all, rest / all.states_a_head, index, all.segments, part.scan->y.positions);
        part.m = mma_memory<T, SIZE>(memory, true);
        mma_sum_segment(all, part, forward);
    }
}

#endif
#endif
