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

#include "ops/linear_scan_mma_output.cuh"

#ifndef TAPEGRAD_DOUBLE

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

/* ---------------------------------------------------------------------------- the scan's two ends */

/* T, and z or e, as they are before the segment: through the memory, and into registers */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void begin_state(MmaState<T, SIZE> *state, const Scans<T> &all,
                                          const MmaPart<T, SIZE> &part)
{
    typedef Mma<T, SIZE> Sizes;
    typedef MmaMemory<T, SIZE> Memory;
    enum { COLUMNS = Sizes::COLUMNS, PITCH = COLUMNS + PAD };
    enum { BESIDE_Y = Sizes::W_IN_X ? 0 : Memory::Narrow::SIZE + Memory::State::SIZE };
    static_assert(SIZE * PITCH * sizeof(Real) <= (Memory::Wide::SIZE + BESIDE_Y) * sizeof(Bfloat16),
                  "the tile would reach what is being copied");
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
                    *(uint32_t *)(m.state.at + p * decltype(m.state)::APART +
                                  state_row_of<SIZE>(down, i) * Sizes::W_PITCH +
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

/* ------------------------------------------------------------------------------ the next chunk's rows
 * Copies begin as soon as their place is free: ahead, when the chunk has its operands; x's when the
 * warp has read x; the others' late, when the chunk has done with its operands. */

template <typename T, int SIZE, bool FORWARD>
__device__ static inline void copy_ahead(const Scans<T> &all, const MmaPart<T, SIZE> &part,
                                         const Span &next)
{
    typedef Mma<T, SIZE> Sizes;
    const Scan<T> &scan = *part.scan;
    if (Sizes::W_IN_X) {
        prefetch_rows<SIZE>(scan.x, next, 0);
        prefetch_rows<SIZE>(scan.y, next, 0);
    } else {
        copy_y(part, next);
        if (!FORWARD)
            copy_factors(part, all.delta, next);
    }
    if (Sizes::W_AHEAD)
        copy_w(part, next);
    else
        prefetch_rows<Sizes::COLUMNS>(scan.w, next, part.column);
}

template <typename T, int SIZE, bool FORWARD>
__device__ static inline void copy_late(const Scans<T> &all, const MmaPart<T, SIZE> &part,
                                        const Span &next)
{
    typedef Mma<T, SIZE> Sizes;
    if (Sizes::W_IN_X) {
        copy_x(part, next);
        copy_y(part, next);
        if (!FORWARD)
            copy_factors(part, all.delta, next);
    } else if (!Sizes::W_AHEAD) {
        copy_w(part, next);
    }
}

/* X, Y, W and alpha and beta, from what has been copied */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void take_rows(const MmaPart<T, SIZE> &part, const Span &span)
{
    const Scan<T> &scan = *part.scan;
    const MmaMemory<T, SIZE> &m = part.m;
    receive_rows();
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const Rows<T> &rows = i ? scan.y : scan.x;
        map_rows<SIZE>(i ? m.y : m.x, i ? m.next_y : m.x, rows, span, 0,
                       rows.divisor ? m.divisors : NULL);
    }
    if (!Mma<T, SIZE>::W_IN_X)
        map_w(part, span);
    if (!FORWARD)
        share_factors(part);
}

/* W in the place of X, which the block has read */
template <typename T, int SIZE>
__device__ static inline void take_w_for_x(const MmaPart<T, SIZE> &part, const Span &span)
{
    __syncthreads();
    copy_w(part, span);
    receive_rows();
    map_w(part, span);
    __syncthreads();
}

/* ------------------------------------------------------------------------------------- the segments */

/* One chunk. */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void mma_scan_chunk(MmaState<T, SIZE> *state, const Scans<T> &all,
                                             const MmaPart<T, SIZE> &part, int64_t start, bool last)
{
    typedef Mma<T, SIZE> Sizes;
    const Scan<T> &scan = *part.scan;
    const MmaMemory<T, SIZE> &m = part.m;
    const int64_t end = part.segment.end;
    const Span span = chunk_at(part.segment, scan, start, end);
    const Span next = chunk_at(part.segment, scan, start + CHUNK, end);
    const bool more = start + CHUNK < end, earlier = scan.begin || start > 0, later = last || more;
    const bool has_rows = warp_row() < span.count && scan.o.data;
    MmaRows<T, SIZE> rows = {};

    take_rows<T, SIZE, FORWARD>(part, span);
    if (earlier)
        share_state(m, *state);
    __syncthreads();
    if (more)
        copy_ahead<T, SIZE, FORWARD>(all, part, next);
    if (!FORWARD && has_rows && scan.map.data)
        prefetch_rows<Sizes::COLUMNS>(scan.map, span, part.column);
    if (has_rows)
        multiply_x<T, SIZE, FORWARD>(&rows, part, span.count, earlier);
    if (Sizes::W_IN_X) {
        take_w_for_x(part, span);
    } else if (more) {
        __syncwarp(); /* its lanes have read x */
        copy_x(part, next);
    }
    if (has_rows) {
        if (!FORWARD)
            add_factors(&rows, m, earlier);
        multiply_scores<T, SIZE, FORWARD>(&rows, m, span.count);
    }
    if (later) {
        update_state(state, m, span.count);
        sum_parts(m, FORWARD);
    }
    __syncthreads();
    if (more)
        copy_late<T, SIZE, FORWARD>(all, part, next);
    if (later && threadIdx.x < (FORWARD ? SIZE : (int)Sizes::COLUMNS))
        m.extra[threadIdx.x] += add_parts(m, (int)threadIdx.x);
    if (has_rows) {
        if (FORWARD)
            divide_by_den(&rows, all, part, span);
        contribute_o<T, SIZE, FORWARD>(&rows, part, span);
    }
}

template <typename T, int SIZE, bool FORWARD>
__device__ static inline void mma_scan_segment(const Scans<T> &all, const MmaPart<T, SIZE> &part,
                                               bool last)
{
    const Segment &segment = part.segment;
    const Span first = chunk_at(segment, *part.scan, segment.first, segment.end);
    const bool some = segment.first < segment.end;
    MmaState<T, SIZE> state;
    if (some) {
        copy_ahead<T, SIZE, FORWARD>(all, part, first);
        if (!Mma<T, SIZE>::W_IN_X)
            copy_x(part, first);
    }
    begin_state<T, SIZE, FORWARD>(&state, all, part);
    if (some)
        copy_late<T, SIZE, FORWARD>(all, part, first);
    for (int64_t start = segment.first; start < segment.end; start += CHUNK)
        mma_scan_chunk<T, SIZE, FORWARD>(&state, all, part, start, last);
    if (last)
        end_state<T, SIZE, FORWARD>(state, part);
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
        __syncthreads(); /* the item before has been done with the memory */
        mma_scan_segment<T, SIZE, FORWARD>(all, part, last);
    }
}

#endif
#endif
