/* The scan of linear_scan.cuh on tensor cores, for causal heads of at most 128 columns, which are
 * filled up to SIZE = 32, 64 or 128.
 *
 * A block takes COLUMNS columns of w and o, of one segment of one head, and walks over its chunks of
 * 64 positions (Katharopoulos et al. 2020, equations 9 to 15, in the chunks of Buckman and Gelada
 * 2024):
 *     P = tril(X Y^T + alpha beta^T)     O = X T + alpha e^T + P W     T += Y^T W
 * A warp has 16 rows of P and O, and some rows of T, as the sums of mma.cuh: in registers, in float,
 * from the segment's begin to its end. P goes from sums to an operand without leaving them. Of T, X,
 * Y and W the warps read copies in bf16 from shared memory. z, e, alpha and beta stay in float, and
 * den sums P as it was rounded, so that numerator and denominator stay consistent.
 *
 * Where tensors store Real, every operand is two of bf16, the nearest, hi, and what that leaves, lo;
 * a product is hi hi + hi lo + lo hi, which leaves an error of about 1e-5 of the largest number. */
#ifndef TAPEGRAD_OPS_LINEAR_SCAN_MMA_CUH
#define TAPEGRAD_OPS_LINEAR_SCAN_MMA_CUH

#include "ops/linear_scan.cuh"
#include "tensor/mma.cuh"

/* Columns of a head, at most: 64 where a block cannot have the memory that 128 take, none in double. */
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

/* Rows in shared memory are MMA_PAD numbers longer than needed: eight of them then lie in different
 * banks, and begin at multiples of 16 bytes. */
enum { MMA_PAD = 8, MMA_WARPS = TILE_THREADS / WARP };

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
        /* So that two blocks fit a multiprocessor, W takes the place of X when that has been read. */
        W_IN_X = PARTS * SIZE > 128,
        BLOCKS = SIZE < 64 ? 3 : 2, /* at once on a multiprocessor, as far as registers go */
    };
};

/* --------------------------------------------------------------------------------------- operands */

/* In shared memory: [PARTS, ROWS, PITCH]. */
template <int PARTS, int ROWS, int PITCH> struct Matrix {
    enum { SIZE = PARTS * ROWS * PITCH };
    Bfloat16 *at;
};

/* A warp's share of [16, 16] numbers: one a or two neighbouring b of mma.cuh. */
template <int PARTS> struct Fragment {
    uint32_t at[PARTS][4];
};

/* The lane's share of each part, which are so many numbers apart. */
template <bool TRANSPOSED, int PARTS>
__device__ static inline Fragment<PARTS> load_parts(const Bfloat16 *from, int apart)
{
    Fragment<PARTS> f;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        if (TRANSPOSED)
            load_transposed(f.at[p], from + p * apart);
        else
            load_matrices(f.at[p], from + p * apart);
    }
    return f;
}

/* Four matrices [8, 8] of a [16, 16] are loaded at once, the second below the first, the third beside
 * it, and each lane says where a row of them begins: here of m's numbers from (row, column) on. */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Bfloat16 *lane_row(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                            int column)
{
    const int lane = (int)threadIdx.x % WARP;
    return m.at + (row + lane % 16) * PITCH + column + lane / 16 * 8;
}

/* a = m's numbers from (row, column) on */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> a_of(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                              int column)
{
    return load_parts<false, PARTS>(lane_row(m, row, column), ROWS * PITCH);
}

/* b = m's numbers from (row, column) on */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> b_of(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                              int column)
{
    return load_parts<true, PARTS>(lane_row(m, row, column), ROWS * PITCH);
}

/* The same of m^T, whose (row, column) is m's (column, row): there the second is beside the first. */
template <int PARTS, int ROWS, int PITCH>
__device__ static inline Bfloat16 *lane_row_transposed(const Matrix<PARTS, ROWS, PITCH> &m, int row,
                                                       int column)
{
    const int lane = (int)threadIdx.x % WARP;
    return m.at + (column + lane % 8 + lane / 16 * 8) * PITCH + row + lane % 16 / 8 * 8;
}

template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> a_of_transposed(const Matrix<PARTS, ROWS, PITCH> &m,
                                                         int row, int column)
{
    return load_parts<true, PARTS>(lane_row_transposed(m, row, column), ROWS * PITCH);
}

template <int PARTS, int ROWS, int PITCH>
__device__ static inline Fragment<PARTS> b_of_transposed(const Matrix<PARTS, ROWS, PITCH> &m,
                                                         int row, int column)
{
    return load_parts<false, PARTS>(lane_row_transposed(m, row, column), ROWS * PITCH);
}

/* sums [2][4], two neighbouring ones, += a b */
template <int PARTS>
__device__ static inline void multiply(float (*sums)[4], const Fragment<PARTS> &a,
                                       const Fragment<PARTS> &b)
{
    enum { PRODUCTS = PARTS == 1 ? 1 : 3 }; /* hi hi, hi lo, lo hi */
#pragma unroll
    for (int product = 0; product < PRODUCTS; product++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            mma_bf16(sums[half], a.at[product == 2 ? PARTS - 1 : 0],
                     b.at[product == 1 ? PARTS - 1 : 0] + 2 * half);
}

/* Two numbers as pairs of bf16, one a part */
template <int PARTS>
__device__ static inline void split(uint32_t *parts, int apart, float first, float second)
{
    parts[0] = pack_bf16(first, second);
    if (PARTS > 1)
        parts[apart] = pack_bf16(first - first_of(parts[0]), second - second_of(parts[0]));
}

/* The lane's rows of a sum: this one and the one 8 below; its columns: this one and the next. */
__device__ static inline int lane_row(void)
{
    return (int)threadIdx.x % WARP / 4;
}
__device__ static inline int lane_column(void)
{
    return (int)threadIdx.x % 4 * 2;
}

/* dots [2] += the lane's share of its two rows of a times numbers: those of the a's columns */
template <int PARTS>
__device__ static inline void add_dots(float *dots, const Fragment<PARTS> &a, float2 left,
                                       float2 right)
{
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            dots[i] += first_of(a.at[p][i]) * left.x + second_of(a.at[p][i]) * left.y +
                       first_of(a.at[p][i + 2]) * right.x + second_of(a.at[p][i + 2]) * right.y;
}

/* A chunk's rows as an operand; zeros where there are none. Loads a batch before it looks at one. */
template <int COLUMNS, typename T, int PARTS, int PITCH>
__device__ static inline void load_matrix(const Matrix<PARTS, CHUNK, PITCH> &m, const Rows<T> &rows,
                                          const Span &span, int64_t first_column)
{
    enum { ACROSS = COLUMNS / 4, STEP = TILE_THREADS / ACROSS, ROUNDS = CHUNK / STEP };
    enum { BATCH = ROUNDS < 8 ? ROUNDS : 8 };
    const int column = (int)threadIdx.x % ACROSS * 4;
    const int64_t columns = rows.columns - first_column - column;
    const Counting counting = rows_that_count(span, rows.lengths);
    const T *from = rows.data + span_begin(span, rows.positions, rows.stride, rows.columns) +
                    first_column + column;
    const Real *divisor = rows.divisor ? rows.divisor + span_row(span, rows.positions) : NULL;
#pragma unroll 1
    for (int first = (int)threadIdx.x / ACROSS; first < CHUNK; first += BATCH * STEP) {
        Real x[BATCH][4];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            Pack<Real, 4> four = {};
            if (row >= counting.first && row < counting.end)
                four = load_four(from + row * span.step * rows.stride, columns);
#pragma unroll
            for (int c = 0; c < 4; c++)
                x[i][c] = four.at[c];
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            map_numbers<4>(rows.map, x[i]);
            const bool counts = row >= counting.first && row < counting.end;
            const Real factor = counts && divisor ? 1 / divisor[row * span.step * span.H] : (Real)1;
#pragma unroll
            for (int c = 0; c < 4; c++)
                x[i][c] = counts && c < columns ? x[i][c] * factor : (Real)0;
            uint32_t pairs[2][2]; /* [part][pair] */
            split<PARTS>(&pairs[0][0], 2, x[i][0], x[i][1]);
            split<PARTS>(&pairs[0][1], 2, x[i][2], x[i][3]);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                *(uint2 *)(m.at + (p * CHUNK + row) * PITCH + column) =
                    make_uint2(pairs[p][0], pairs[p][1]);
        }
    }
}

/* What an operand holds of a number. */
template <int PARTS> __device__ static inline Real as_operand(Real x)
{
    const Real hi = first_of(pack_bf16(x, 0));
    return PARTS > 1 ? hi + first_of(pack_bf16(x - hi, 0)) : hi;
}

/* delta [rows] = -ghat.out, of g and out [rows, columns]: a row a warp. ghat is the operand that the
 * scans multiply: in da, the sum of ghat.v_j + delta, its rounding then cancels as ghat itself does. */
template <typename T>
__global__ void mma_row_deltas(Real *delta, const T *g, const T *out, const Real *den, int64_t rows,
                               int64_t columns)
{
    enum { PARTS = Mma<T, 32>::PARTS };
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t warps = THREADS / WARP;
    for (int64_t row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const Real factor = 1 / den[row];
        Real dot = 0;
        for (int64_t c = lane; c < columns; c += WARP)
            dot += as_operand<PARTS>(load(g + row * columns + c) * factor) *
                   load(out + row * columns + c);
        dot = warp_sum(dot);
        if (lane == 0)
            delta[row] = -dot;
    }
}

/* ------------------------------------------------------------------------------------------ blocks */

template <typename T, int SIZE> struct MmaMemory {
    typedef Mma<T, SIZE> Sizes;
    Matrix<Sizes::PARTS, CHUNK, Sizes::PITCH> x, y;
    Matrix<Sizes::PARTS, CHUNK, Sizes::W_PITCH> w;
    Matrix<Sizes::PARTS, SIZE, Sizes::W_PITCH> state;
    Real *alpha, *beta; /* [CHUNK] */
    Real *extra;        /* [SIZE]: z, or e */
    Real *parts;        /* [MMA_WARPS, SIZE]: what each warp has for it */
};

template <typename T, int SIZE>
__device__ static inline MmaMemory<T, SIZE> mma_memory(Real *memory, bool sums_alone)
{
    typedef MmaMemory<T, SIZE> Memory;
    Memory m;
    m.alpha = memory;
    m.beta = m.alpha + CHUNK;
    m.extra = m.beta + CHUNK;
    m.parts = m.extra + SIZE;
    m.y.at = (Bfloat16 *)(m.parts + MMA_WARPS * SIZE);
    m.w.at = m.y.at + decltype(m.y)::SIZE;
    if (sums_alone)
        return m;
    m.x.at = Memory::Sizes::W_IN_X ? m.w.at : m.w.at + decltype(m.w)::SIZE;
    m.state.at = m.x.at + decltype(m.x)::SIZE;
    return m;
}

/* In numbers of Real */
template <typename T, int SIZE> static int64_t mma_sum_memory(void)
{
    typedef MmaMemory<T, SIZE> Memory;
    const int64_t numbers = decltype(Memory::y)::SIZE + decltype(Memory::w)::SIZE;
    return 2 * CHUNK + (MMA_WARPS + 1) * SIZE + numbers / 2;
}

template <typename T, int SIZE> static int64_t mma_scan_memory(void)
{
    typedef MmaMemory<T, SIZE> Memory;
    const int64_t numbers = decltype(Memory::y)::SIZE + decltype(Memory::x)::SIZE +
                            (Memory::Sizes::W_IN_X ? 0 : decltype(Memory::w)::SIZE) +
                            decltype(Memory::state)::SIZE;
    return 2 * CHUNK + (MMA_WARPS + 1) * SIZE + numbers / 2;
}

/* A block's part of a scan. */
template <typename T, int SIZE> struct MmaPart {
    const Scan<T> *scan;
    Segment segment;
    int64_t column; /* the first of w and o */
    MmaMemory<T, SIZE> m;
};

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
    const Bfloat16 *from = forward ? m.y.at : m.w.at;
    for (int column = (int)threadIdx.x % WARP * 2; column < width; column += 2 * WARP) {
        Real first = 0, second = 0;
        for (int row = warp_row(); row < warp_row() + WARP_ROWS; row++) {
            const Real factor = forward ? (Real)1 : m.beta[row];
#pragma unroll
            for (int p = 0; p < Sizes::PARTS; p++) {
                const uint32_t pair =
                    *(const uint32_t *)(from + (p * CHUNK + row) * pitch + column);
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
    for (int64_t start = segment.first; start < end; start += CHUNK) {
        const Span span = chunk_at(segment, scan, start, end);
        load_matrix<SIZE>(part.m.y, scan.y, span, 0);
        load_matrix<Sizes::COLUMNS>(part.m.w, scan.w, span, part.column);
        if (!forward)
            load_factors(part.m.beta, all, scan, DELTA_OF_Y, span, scan.y.positions);
        __syncthreads();
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

/* ---------------------------------------------------------------------------- the scan's two ends */

/* T, and z or e, as they are before the segment: through the memory, and into registers */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void begin_state(MmaState<T, SIZE> *state, const Scans<T> &all,
                                          const MmaPart<T, SIZE> &part)
{
    typedef Mma<T, SIZE> Sizes;
    enum { COLUMNS = Sizes::COLUMNS, PITCH = COLUMNS + PAD };
    const Scan<T> &scan = *part.scan;
    const int64_t head = part.segment.head;
    const States states = states_before(all, scan, head, part.segment.index);
    Real *const tile = (Real *)part.m.y.at;
    for (int i = (int)threadIdx.x; i < SIZE * COLUMNS; i += TILE_THREADS) {
        const int row = scan.transposed_states ? i % SIZE : i / COLUMNS;
        const int column = scan.transposed_states ? i / SIZE : i % COLUMNS;
        tile[row * PITCH + column] =
            state_number<SIZE>(scan, head, states, row, part.column + column);
    }
    for (int i = (int)threadIdx.x; i < (FORWARD ? SIZE : (int)COLUMNS); i += TILE_THREADS)
        part.m.extra[i] =
            state_extra<SIZE, FORWARD>(scan, head, states, (FORWARD ? 0 : part.column) + i);
    __syncthreads();
#pragma unroll
    for (int down = 0; down < Sizes::STATE_DOWN; down++)
#pragma unroll
        for (int across = 0; across < Sizes::STATE_ACROSS; across++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                state->at[down][across][i] = tile[state_row_of<SIZE>(down, i / 2) * PITCH +
                                                  state_column_of<SIZE>(across) + i % 2];
    __syncthreads();
}

/* The same at the sequence's end; z and e have been added up. */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void end_state(const MmaState<T, SIZE> &state,
                                        const MmaPart<T, SIZE> &part)
{
    typedef Mma<T, SIZE> Sizes;
    const Scan<T> &scan = *part.scan;
    const int64_t head = part.segment.head;
    const Gradient end = scan.end;
#pragma unroll
    for (int down = 0; down < Sizes::STATE_DOWN; down++)
#pragma unroll
        for (int across = 0; across < Sizes::STATE_ACROSS; across++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t row = state_row_of<SIZE>(down, i / 2);
                const int64_t column = part.column + state_column_of<SIZE>(across) + i % 2;
                if (row < scan.y.columns && column < scan.w.columns)
                    contribute(end.data + end_index(scan, head, row, column), end.accumulate,
                               (Real)state.at[down][across][i]);
            }
    const int i = (int)threadIdx.x;
    if (FORWARD && part.column == 0 && i < scan.y.columns)
        contribute(end.data + end_index(scan, head, i, scan.w.columns), end.accumulate,
                   part.m.extra[i]);
    if (!FORWARD && i < Sizes::COLUMNS && part.column + i < scan.w.columns)
        contribute(end.data + end_index(scan, head, scan.y.columns, part.column + i),
                   end.accumulate, part.m.extra[i]);
}

/* Whether the segment is the last one of its sequence. */
__device__ static inline bool ends_sequence(const Segment &segment)
{
    return segment.positions == 0 ? segment.index == 0
                                  : segment.first < segment.end && segment.end == segment.positions;
}

/* ------------------------------------------------------------------------------------------ chunks */

/* A warp's 16 rows of P and O, and the lane's share of den of two of them. */
template <typename T, int SIZE> struct MmaRows {
    float scores[CHUNK / 8][4], o[Mma<T, SIZE>::ACROSS][4], den[2];
};

/* The copy of T that the warps share */
template <typename T, int SIZE>
__device__ static inline void share_state(const MmaMemory<T, SIZE> &m,
                                          const MmaState<T, SIZE> &state)
{
    typedef Mma<T, SIZE> Sizes;
#pragma unroll
    for (int down = 0; down < Sizes::STATE_DOWN; down++)
#pragma unroll
        for (int across = 0; across < Sizes::STATE_ACROSS; across++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *pair = state.at[down][across] + 2 * i;
                uint32_t parts[2];
                split<Sizes::PARTS>(parts, 1, pair[0], pair[1]);
#pragma unroll
                for (int p = 0; p < Sizes::PARTS; p++)
                    *(uint32_t *)(m.state.at +
                                  (p * SIZE + state_row_of<SIZE>(down, i)) * Sizes::W_PITCH +
                                  state_column_of<SIZE>(across)) = parts[p];
            }
}

/* X Y^T up to the diagonal, X T, and the lane's share of X z */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void multiply_x(MmaRows<T, SIZE> *rows, const MmaPart<T, SIZE> &part,
                                         int count, bool earlier)
{
    typedef Mma<T, SIZE> Sizes;
    typedef Fragment<Sizes::PARTS> Operand;
    const MmaMemory<T, SIZE> &m = part.m;
    const int warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int k = 0; k < SIZE; k += 16) {
        if (k >= part.scan->y.columns)
            continue;
        const Operand x = a_of(m.x, warp_row(), k);
#pragma unroll
        for (int j = 0; j < MMA_WARPS; j++)
            if (j <= warp && j * 16 < count)
                multiply(rows->scores + 2 * j, x, b_of_transposed(m.y, k, 16 * j));
        if (!earlier)
            continue;
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c += 2)
            multiply(rows->o + c, x, b_of(m.state, k, 8 * c));
        if (FORWARD) {
            const Real *z = m.extra + k + lane_column();
            add_dots(rows->den, x, make_float2(z[0], z[1]), make_float2(z[8], z[9]));
        }
    }
}

/* O += alpha e^T, scores += alpha beta^T */
template <typename T, int SIZE>
__device__ static inline void add_factors(MmaRows<T, SIZE> *rows, const MmaMemory<T, SIZE> &m,
                                          bool earlier)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Real alpha = m.alpha[warp_row() + lane_row() + i / 2 * 8];
#pragma unroll
        for (int c = 0; earlier && c < Mma<T, SIZE>::ACROSS; c++)
            rows->o[c][i] += alpha * m.extra[8 * c + lane_column() + i % 2];
#pragma unroll
        for (int c = 0; c < CHUNK / 8; c++)
            rows->scores[c][i] += alpha * m.beta[8 * c + lane_column() + i % 2];
    }
}

/* O += P W with P = tril(scores), and den the sums of its rows */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void multiply_scores(MmaRows<T, SIZE> *rows, const MmaMemory<T, SIZE> &m,
                                              int count)
{
    typedef Mma<T, SIZE> Sizes;
    const int warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int j = 0; j < MMA_WARPS; j++) {
        if (j > warp || j * 16 >= count)
            continue;
        Fragment<Sizes::PARTS> p;
#pragma unroll
        for (int i = 0; i < 4; i++) { /* the i-th register: two numbers of one row */
            const float *pair = rows->scores[2 * j + i / 2] + i % 2 * 2;
            const int below = warp_row() + lane_row() + i % 2 * 8 -
                              (16 * j + i / 2 * 8 + lane_column()); /* the diagonal */
            split<Sizes::PARTS>(&p.at[0][i], 4, below >= 0 ? pair[0] : 0, below > 0 ? pair[1] : 0);
        }
        if (FORWARD)
            add_dots(rows->den, p, make_float2(1, 1), make_float2(1, 1));
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c += 2)
            multiply(rows->o + c, p, b_of(m.w, 16 * j, 8 * c));
    }
}

/* Two neighbouring numbers, of which the second may not be there. */
template <typename T> __device__ static inline float2 load_two(const T *from, int64_t count)
{
    if (count >= 2 && (uintptr_t)from % sizeof(Pack<T, 2>) == 0) {
        const Pack<T, 2> pair = *(const Pack<T, 2> *)from;
        return make_float2(load(&pair.at[0]), load(&pair.at[1]));
    }
    return make_float2(count > 0 ? load(from) : 0, count > 1 ? load(from + 1) : 0);
}

template <typename T>
__device__ static inline void store_two(T *to, float first, float second, int64_t count)
{
    if (count >= 2 && (uintptr_t)to % sizeof(Pack<T, 2>) == 0) {
        Pack<T, 2> pair;
        store(&pair.at[0], first);
        store(&pair.at[1], second);
        *(Pack<T, 2> *)to = pair;
        return;
    }
    if (count > 0)
        store(to, first);
    if (count > 1)
        store(to + 1, second);
}

/* num / den, of the warp's rows */
template <typename T, int SIZE>
__device__ static inline void divide_by_den(MmaRows<T, SIZE> *rows, const Scans<T> &all,
                                            const MmaPart<T, SIZE> &part, const Span &span)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = warp_row() + lane_row() + 8 * i;
        Real den = rows->den[i];
        den += __shfl_xor_sync(0xffffffffu, den, 1); /* the four lanes of a row */
        den += __shfl_xor_sync(0xffffffffu, den, 2);
        den += all.eps;
        if (part.column == 0 && lane_column() == 0 && row < span.count)
            all.den[span_row(span, part.scan->x.positions) + row * span.step * span.H] = den;
        const Real inverse = 1 / den;
#pragma unroll
        for (int c = 0; c < Mma<T, SIZE>::ACROSS; c++) {
            rows->o[c][2 * i] *= inverse;
            rows->o[c][2 * i + 1] *= inverse;
        }
    }
}

/* The warp's rows of o, as they are or as derivatives by phi(x). What is needed of a row is read
 * before any of it is written, so that the reads need not wait for each other. */
template <typename T, int SIZE>
__device__ static inline void contribute_o(MmaRows<T, SIZE> *rows, const MmaPart<T, SIZE> &part,
                                           const Span &span)
{
    enum { ACROSS = Mma<T, SIZE>::ACROSS };
    const GradientRows<T> &o = part.scan->o;
    const Rows<T> &x = part.scan->map;
    const Counting counting = rows_that_count(span, o.lengths);
    const int64_t column = part.column + lane_column(), columns = o.columns - column;
    const int64_t begin = span_begin(span, o.positions, o.stride, o.columns) + column;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = warp_row() + lane_row() + 8 * i;
        if (row >= span.count)
            continue;
        const int64_t at = begin + row * span.step * o.stride; /* in x too */
        const bool counts = row >= counting.first && row < counting.end;
        Real slopes[ACROSS][2];
#pragma unroll
        for (int c = 0; c < ACROSS; c++) {
            const float2 number =
                x.data ? load_two(x.data + at + 8 * c, columns - 8 * c) : make_float2(1, 1);
            slopes[c][0] = number.x;
            slopes[c][1] = number.y;
        }
#pragma unroll
        for (int c = 0; c < ACROSS; c++) {
            if (x.data)
                map_slopes<2>(x.map, slopes[c]);
            rows->o[c][2 * i] = counts ? rows->o[c][2 * i] * slopes[c][0] : 0;
            rows->o[c][2 * i + 1] = counts ? rows->o[c][2 * i + 1] * slopes[c][1] : 0;
        }
#pragma unroll
        for (int c = 0; o.accumulate && c < ACROSS; c++) {
            const float2 number = load_two(o.data + at + 8 * c, columns - 8 * c);
            rows->o[c][2 * i] += number.x;
            rows->o[c][2 * i + 1] += number.y;
        }
#pragma unroll
        for (int c = 0; c < ACROSS; c++)
            store_two(o.data + at + 8 * c, rows->o[c][2 * i], rows->o[c][2 * i + 1],
                      columns - 8 * c);
    }
}

/* One chunk. */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void mma_scan_chunk(MmaState<T, SIZE> *state, const Scans<T> &all,
                                             const MmaPart<T, SIZE> &part, int64_t start, bool last)
{
    typedef Mma<T, SIZE> Sizes;
    const Scan<T> &scan = *part.scan;
    const MmaMemory<T, SIZE> &m = part.m;
    const Span span = chunk_at(part.segment, scan, start, part.segment.end);
    const bool earlier = scan.begin || start > 0;
    const bool later = last || start + CHUNK < part.segment.end;
    const bool has_rows = warp_row() < span.count && scan.o.data;
    MmaRows<T, SIZE> rows = {};

#pragma unroll 1
    for (int i = 0; i < 2; i++)
        load_matrix<SIZE>(i ? m.y : m.x, i ? scan.y : scan.x, span, 0);
    if (!Sizes::W_IN_X)
        load_matrix<Sizes::COLUMNS>(m.w, scan.w, span, part.column);
    if (!FORWARD) {
        load_factors(m.alpha, all, scan, DELTA_OF_X, span, scan.x.positions);
        load_factors(m.beta, all, scan, DELTA_OF_Y, span, scan.x.positions);
    }
    if (earlier)
        share_state(m, *state);
    __syncthreads();
    if (has_rows)
        multiply_x<T, SIZE, FORWARD>(&rows, part, span.count, earlier);
    if (Sizes::W_IN_X) {
        __syncthreads(); /* x has been read */
        load_matrix<Sizes::COLUMNS>(m.w, scan.w, span, part.column);
        __syncthreads();
    }
    if (has_rows) {
        if (!FORWARD)
            add_factors(&rows, m, earlier);
        multiply_scores<T, SIZE, FORWARD>(&rows, m, span.count);
        if (FORWARD)
            divide_by_den(&rows, all, part, span);
        contribute_o(&rows, part, span);
    }
    if (later) {
        update_state(state, m, span.count);
        sum_parts(m, FORWARD);
    }
    __syncthreads();
    if (later && threadIdx.x < (FORWARD ? SIZE : (int)Sizes::COLUMNS))
        m.extra[threadIdx.x] += add_parts(m, (int)threadIdx.x);
}

template <typename T, int SIZE, bool FORWARD>
__global__ void __launch_bounds__(TILE_THREADS, (Mma<T, SIZE>::BLOCKS))
    mma_scan_segments(const __grid_constant__ Scans<T> all, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t rest = item;
        MmaPart<T, SIZE> part;
        part.column = rest % all.column_tiles * Mma<T, SIZE>::COLUMNS;
        part.scan = &all.scan[(rest /= all.column_tiles) % all.count];
        const int64_t index = (rest /= all.count) % all.x_segments;
        part.segment =
            segment_at(all, rest / all.x_segments, index, all.x_segments, part.scan->x.positions);
        part.m = mma_memory<T, SIZE>(memory, false);
        const bool last = part.scan->end.data && ends_sequence(part.segment);
        if (part.column >= part.scan->w.columns ||
            (part.segment.first >= part.segment.end && !last))
            continue;
        MmaState<T, SIZE> state;
        __syncthreads(); /* the item before has been done with the memory */
        begin_state<T, SIZE, FORWARD>(&state, all, part);
        for (int64_t start = part.segment.first; start < part.segment.end; start += CHUNK)
            mma_scan_chunk<T, SIZE, FORWARD>(&state, all, part, start, last);
        if (last)
            end_state<T, SIZE, FORWARD>(state, part);
    }
}

#endif
#endif
