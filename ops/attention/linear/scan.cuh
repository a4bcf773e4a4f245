/* Linear attention, causal and not, as one scan in several roles.
 *
 * In the notation of causal.c the forward pass and all gradients are
 *     o_i = sum_j (x_i.y_j + alpha_i beta_j) w_j,   over j <= i when causal,
 *
 *              x     y     w     alpha   beta
 *     num      a     b     v                     and den_i = sum_j x_i.y_j + eps
 *     da       dnum  v     b     dden    1
 *     db       v     dnum  a     1       dden    scan_reverse, over j >= i
 *     dv       b     a     dnum                  scan_reverse
 *
 * A chunk of 64 positions, with one row of X, Y and W per position, takes matrix products:
 *     O = X T + alpha e^T + tril(X Y^T + alpha beta^T) W            T = sum of y_j w_j^T,
 *     den = X z + the sums of the rows of tril(X Y^T) + eps         e = sum of beta_j w_j,
 *     T += Y^T W     e += W^T beta     z += Y^T 1                   z = sum of y_j over earlier j
 * Without the causal mask T, e and z are sums over all positions, and there is no tril. The sums
 * start from an initial state, if there is one: S~_0 for num and da, dL/dS~_N for db and dv.
 *
 * A head's positions are cut into segments: one, or several where heads are too few to fill a GPU.
 * Then a first launch, sum_segments, computes how much each adds to T, e and z, and the block of a
 * segment starts from the sum of those before it; where adding these up in every block would take
 * longer than a launch, add_up_segments computes prefix sums. The segments depend on the sizes
 * alone, so results are bitwise repeatable. With offsets, every sequence is cut as if it had all
 * positions; blocks past a sequence's end have no work.
 *
 * Two kinds of kernels compute these sums: scan_tiles.cuh in tiles, scan_recurrent.cuh
 * position by position. mma.cuh has the causal scans on tensor cores. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_CUH

#include "ops/attention/shared/tiles.cuh"

enum { SCANS = 3 };

/* The role of dden, which this code calls delta. */
typedef enum ScanDelta {
    NO_DELTA,
    DELTA_OF_X, /* alpha = dden, beta = 1 */
    DELTA_OF_Y, /* alpha = 1, beta = dden */
} ScanDelta;

template <typename T> struct Scan {
    Rows<T> x, y, w;
    bool last_to_first; /* scan_reverse */
    ScanDelta delta;
    int64_t states;         /* offset of the states of its segments */
    bool transposed_states; /* they are those of a scan with y and w exchanged */
    GradientRows<T> o;      /* data is NULL where only the sums are needed */
    Rows<T> map;            /* o is multiplied by phi' of these, unless data is NULL */
    const Real *begin;      /* [B, H, D, M + 1]: the initial T, and z or e; NULL: 0 */
    Gradient end;         /* [B, H, D, M + 1]: destination of the final ones, unless data is NULL */
    bool transposed_ends; /* begin and end hold T^T */
};

/* The scans of one launch, and how they are cut. */
template <typename T> struct Scans {
    Scan<T> scan[SCANS];
    int count;
    int64_t B, H;
    const int32_t *offsets;       /* [B + 1] or NULL, as in ops/attention/shared/arguments.h */
    int64_t column_tiles;         /* of o, at most */
    int64_t segments, x_segments; /* of y and w; of x: the same ones when causal */
    int64_t states_a_head;        /* segments per head whose sums are computed */
    bool added_up;                /* states are prefix sums */
    bool quadratic;               /* chunks of x are multiplied with chunks of y, without T */
    bool great;                   /* the state exceeds shared memory */
    int state_rows;               /* rows of T in shared memory */
    int64_t state_size;
    Real *states;      /* [scans, B, H, states_a_head, state_size]: T, padded, then z or e */
    const Real *delta; /* [B, N, H]: dden */
    Real *den;         /* [B, N, H]: written by the forward pass */
    Real eps;
};

/* -------------------------------------------------------------------------- segments and chunks */

/* A segment of a head: positions [first, end) in scan order. The head's own positions begin at
 * `begin` of sequence b. */
struct Segment {
    int64_t b, h, H, head, index, begin, positions, first, end;
};

/* most_positions: the maximum length of a sequence. */
template <typename T>
__device__ static inline Segment segment_at(const Scans<T> &all, int64_t head, int64_t index,
                                            int64_t segments, int64_t most_positions)
{
    const int64_t sequence = head / all.H;
    Segment s = { sequence, head % all.H, all.H, head, index, 0, most_positions, 0, 0 };
    if (all.offsets) {
        s.b = 0;
        s.begin = all.offsets[sequence];
        s.positions = all.offsets[sequence + 1] - s.begin;
    }
    const int64_t length = tiles_for(tiles_for(most_positions, CHUNK), segments) * CHUNK;
    s.first = index * length;
    s.end = min(s.first + length, s.positions);
    return s;
}

/* The segment's chunk that begins at this position and ends before limit. */
template <typename T>
__device__ static inline Span chunk_at(const Segment &s, const Scan<T> &scan, int64_t start,
                                       int64_t limit)
{
    const int64_t left = limit - start;
    const int count = left < 0 ? 0 : left < CHUNK ? (int)left : CHUNK;
    if (scan.last_to_first)
        return { s.b, s.h, s.H, s.begin + s.positions - 1 - start, -1, count };
    return { s.b, s.h, s.H, s.begin + start, 1, count };
}

/* The segment's end, or the end of its unmasked y or w if that comes first. */
template <typename T>
__device__ static inline int64_t sums_end(const Segment &s, const Scan<T> &scan)
{
    const int32_t *lengths = scan.y.lengths ? scan.y.lengths : scan.w.lengths;
    return lengths && lengths[s.b] < s.end ? lengths[s.b] : s.end;
}

/* alpha (here: DELTA_OF_X) or beta (DELTA_OF_Y) of a span: dden, 1, or 0 without dden. */
template <typename T>
__device__ static inline void load_factors(Real *to, const Scans<T> &all, const Scan<T> &scan,
                                           ScanDelta here, const Span &span, int64_t positions)
{
    if (scan.delta == here)
        load_numbers(to, all.delta, positions, span);
    else if (threadIdx.x < CHUNK)
        to[threadIdx.x] = scan.delta == NO_DELTA ? (Real)0 : (Real)1;
}

/* --------------------------------------------------------------------------------------- states */

/* Index in begin or end of an element of T, or, at column w.columns or, transposed, row y.columns,
 * of an element of z or e. */
template <typename T>
__device__ static inline int64_t end_index(const Scan<T> &scan, int64_t head, int64_t row,
                                           int64_t column)
{
    const bool transposed = scan.transposed_ends;
    const int64_t D = transposed ? scan.w.columns : scan.y.columns;
    const int64_t M = transposed ? scan.y.columns : scan.w.columns;
    return (head * D + (transposed ? column : row)) * (M + 1) + (transposed ? row : column);
}

template <typename T>
__device__ static inline Real begin_number(const Scan<T> &scan, int64_t head, int64_t row,
                                           int64_t column)
{
    const bool inside = row < scan.y.columns && column < scan.w.columns;
    return scan.begin && inside ? scan.begin[end_index(scan, head, row, column)] : (Real)0;
}

/* Element i of the initial z, which has y's columns, or e, which has w's. */
template <typename T, bool FORWARD>
__device__ static inline Real begin_extra(const Scan<T> &scan, int64_t head, int64_t i)
{
    if (!scan.begin || i >= (FORWARD ? scan.y.columns : scan.w.columns) ||
        (!FORWARD && scan.delta == NO_DELTA))
        return 0;
    return scan.begin[FORWARD ? end_index(scan, head, i, scan.w.columns)
                              : end_index(scan, head, scan.y.columns, i)];
}

/* The sums of `count` consecutive segments of a head. */
struct States {
    const Real *first;
    int64_t count, size;
};

/* Their total is the sum of the segments before segment `end`. */
template <typename T>
__device__ static inline States states_before(const Scans<T> &all, const Scan<T> &scan,
                                              int64_t head, int64_t end)
{
    const int64_t begin = all.added_up && end > 0 ? end - 1 : 0;
    return { all.states + scan.states + (head * all.states_a_head + begin) * all.state_size,
             end - begin, all.state_size };
}

__device__ static inline Real sum_states(const States &states, int64_t at)
{
    Real sum = 0;
#pragma unroll 4
    for (int64_t i = 0; i < states.count; i++)
        sum += states.first[i * states.size + at];
    return sum;
}

/* An element of T, or of z or e: the initial one plus the states. SIZE is that of the kernel that
 * computed the states. */
template <int SIZE, typename T>
__device__ static inline Real state_number(const Scan<T> &scan, int64_t head, const States &states,
                                           int64_t row, int64_t column)
{
    const int64_t y_columns = tiles_for(scan.y.columns, SIZE) * SIZE;
    const int64_t w_columns = tiles_for(scan.w.columns, SIZE) * SIZE;
    const int64_t at = scan.transposed_states ? column * y_columns + row : row * w_columns + column;
    return begin_number(scan, head, row, column) + sum_states(states, at);
}

template <int SIZE, bool FORWARD, typename T>
__device__ static inline Real state_extra(const Scan<T> &scan, int64_t head, const States &states,
                                          int64_t i)
{
    const int64_t y_columns = tiles_for(scan.y.columns, SIZE) * SIZE;
    const int64_t w_columns = tiles_for(scan.w.columns, SIZE) * SIZE;
    const Real begin = begin_extra<T, FORWARD>(scan, head, i);
    return scan.transposed_states ? begin : begin + sum_states(states, y_columns * w_columns + i);
}

/* states [heads, count, size] become prefix sums over each head's segments. */
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

/* The final state of a scan, from its initial state and the sums of all segments */
template <typename T, int SIZE, bool FORWARD>
__global__ void end_states(const __grid_constant__ Scans<T> all)
{
    const Scan<T> &scan = all.scan[0];
    const int64_t rows = scan.y.columns + !FORWARD, columns = scan.w.columns + FORWARD;
    GRID_FOR(i, all.B * all.H * rows * columns) {
        const int64_t head = i / (rows * columns), row = i / columns % rows, column = i % columns;
        const States states = states_before(all, scan, head, all.states_a_head);
        const bool extra = FORWARD ? column == scan.w.columns : row == scan.y.columns;
        const Real sum =
            extra ? state_extra<SIZE, FORWARD>(scan, head, states, FORWARD ? row : column)
                  : state_number<SIZE>(scan, head, states, row, column);
        contribute(scan.end.data + end_index(scan, head, row, column), scan.end.accumulate, sum);
    }
}

#endif
