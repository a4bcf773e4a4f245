/* The recurrent form (walk_heads) of the scan of scan.cuh, for a few positions, as in decoding:
 *     T_i = T_{i-1} + y_i w_i^T      o_i = T_i^T x_i
 * where alpha and beta are one more element of x and y, and e is T's row for it; forward
 *     z_i = z_{i-1} + y_i            den_i = x_i.z_i + eps
 *
 * A block processes WALK_COLUMNS columns of w, o and T of one head, with T in shared memory. Its
 * warps share the rows of T, with one lane per column. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_RECURRENT_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_RECURRENT_CUH

#include "ops/attention/linear/scan.cuh"

enum {
    WALK_COLUMNS = WARP,
    WALK_WARPS = TILE_THREADS / WARP,
    MOST_WALK_MEMORY = MOST_SHARED / (int)sizeof(Real), /* elements: limit of this form */
};

struct WalkMemory {
    Real *state; /* [rows, WALK_COLUMNS] */
    Real *x, *y; /* [rows] */
    Real *z;     /* [rows], forward */
    Real *parts; /* [WALK_WARPS, WALK_COLUMNS]: partial sums of o */
    Real *dens;  /* [WALK_WARPS]: partial sums of den */
};

__device__ static inline WalkMemory walk_memory(Real *memory, int rows)
{
    WalkMemory m;
    m.state = memory;
    m.x = m.state + rows * WALK_COLUMNS;
    m.y = m.x + rows;
    m.z = m.y + rows;
    m.parts = m.z + rows;
    m.dens = m.parts + WALK_WARPS * WALK_COLUMNS;
    return m;
}

static int64_t walk_memory_size(int64_t rows)
{
    return rows * (WALK_COLUMNS + 3) + WALK_WARPS * (WALK_COLUMNS + 1);
}

/* An element of the span's only row, mapped and divided; 0 if masked. */
template <typename T>
__device__ static inline Real number_at(const Rows<T> &rows, const Span &span, int64_t column)
{
    if (column >= rows.columns || (rows.lengths && span.first >= rows.lengths[span.b]))
        return 0;
    Real x = load(rows.data + span_begin(span, rows.positions, rows.stride, rows.columns) + column);
    x = phi(rows.map, x);
    return rows.divisor ? x / rows.divisor[span_row(span, rows.positions)] : x;
}

/* x and y of a position, with alpha and beta */
template <typename T, bool FORWARD>
__device__ static inline void load_position(const Scans<T> &all, const Scan<T> &scan,
                                            const WalkMemory &m, const Span &span, int rows)
{
    for (int r = (int)threadIdx.x; r < rows; r += TILE_THREADS) {
        m.x[r] = number_at(scan.x, span, r);
        m.y[r] = number_at(scan.y, span, r);
        if (!FORWARD && r == scan.y.columns) {
            const Real delta = all.delta[span_row(span, scan.x.positions)];
            m.x[r] = scan.delta == NO_DELTA ? 0 : scan.delta == DELTA_OF_X ? delta : 1;
            m.y[r] = scan.delta == NO_DELTA ? 0 : scan.delta == DELTA_OF_Y ? delta : 1;
        }
    }
}

/* T += y w^T, and each warp's partial sum of o */
__device__ static inline void step(const WalkMemory &m, int rows, Real w)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    Real sum = 0;
    for (int r = warp; r < rows; r += WALK_WARPS) {
        Real *const state = m.state + r * WALK_COLUMNS + lane;
        *state += m.y[r] * w;
        sum += *state * m.x[r];
    }
    m.parts[warp * WALK_COLUMNS + lane] = sum;
}

/* z += y, and each warp's partial sum of den */
__device__ static inline void step_z(const WalkMemory &m, int rows)
{
    Real den = 0;
    for (int r = (int)threadIdx.x; r < rows; r += TILE_THREADS) {
        m.z[r] += m.y[r];
        den += m.z[r] * m.x[r];
    }
    den = warp_sum(den);
    if (threadIdx.x % WARP == 0)
        m.dens[threadIdx.x / WARP] = den;
}

/* o and den of a position, by the first warp */
template <typename T, bool FORWARD>
__device__ static inline void finish_position(const Scans<T> &all, const Scan<T> &scan,
                                              const WalkMemory &m, const Span &span, int64_t column)
{
    Real sum = 0, den = all.eps;
    for (int warp = 0; warp < WALK_WARPS; warp++) {
        sum += m.parts[warp * WALK_COLUMNS + threadIdx.x];
        den += FORWARD ? m.dens[warp] : (Real)0;
    }
    if (FORWARD && column == 0)
        all.den[span_row(span, scan.x.positions)] = den;
    if (!scan.o.data || column >= scan.o.columns)
        return;
    if (FORWARD)
        sum /= den;
    if (scan.map.data) {
        const Rows<T> &x = scan.map;
        const int64_t at = span_begin(span, x.positions, x.stride, x.columns) + column;
        sum *= phi_slope(x.map, load(x.data + at));
    }
    if (scan.o.lengths && span.first >= scan.o.lengths[span.b])
        sum = 0;
    const GradientRows<T> &o = scan.o;
    contribute(o.data + span_begin(span, o.positions, o.stride, o.columns) + column, o.accumulate,
               sum);
}

/* Loads the initial T, and z or e. */
template <typename T, bool FORWARD>
__device__ static inline void begin_walk(const Scan<T> &scan, const WalkMemory &m, int64_t head,
                                         int64_t column, int rows)
{
    for (int i = (int)threadIdx.x; i < rows * WALK_COLUMNS; i += TILE_THREADS) {
        const int row = i / WALK_COLUMNS;
        const int64_t c = column + i % WALK_COLUMNS;
        m.state[i] = !FORWARD && row == scan.y.columns ? begin_extra<T, FORWARD>(scan, head, c)
                                                       : begin_number(scan, head, row, c);
    }
    for (int r = (int)threadIdx.x; FORWARD && r < rows; r += TILE_THREADS)
        m.z[r] = begin_extra<T, FORWARD>(scan, head, r);
}

/* Contributes the final T, and z or e. */
template <typename T, bool FORWARD>
__device__ static inline void end_walk(const Scan<T> &scan, const WalkMemory &m, int64_t head,
                                       int64_t column, int rows)
{
    const Gradient end = scan.end;
    for (int i = (int)threadIdx.x; i < rows * WALK_COLUMNS; i += TILE_THREADS) {
        const int64_t c = column + i % WALK_COLUMNS;
        if (c < scan.w.columns)
            contribute(end.data + end_index(scan, head, i / WALK_COLUMNS, c), end.accumulate,
                       m.state[i]);
    }
    for (int r = (int)threadIdx.x; FORWARD && column == 0 && r < rows; r += TILE_THREADS)
        contribute(end.data + end_index(scan, head, r, scan.w.columns), end.accumulate, m.z[r]);
}

template <typename T, bool FORWARD>
__global__ void __launch_bounds__(TILE_THREADS)
    walk_heads(const __grid_constant__ Scans<T> all, int64_t column_tiles, int64_t items)
{
    DYNAMIC_SHARED(Real, memory);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t column = item % column_tiles * WALK_COLUMNS;
        const Scan<T> &scan = all.scan[item / column_tiles % all.count];
        const int64_t head = item / column_tiles / all.count;
        const Segment segment = segment_at(all, head, 0, 1, scan.x.positions);
        const int rows = (int)scan.y.columns + !FORWARD;
        const WalkMemory m = walk_memory(memory, rows);
        if (column >= scan.w.columns)
            continue;
        __syncthreads(); /* the previous item no longer uses the state */
        begin_walk<T, FORWARD>(scan, m, head, column, rows);
        for (int64_t i = 0; i < segment.positions; i++) {
            const Span span = chunk_at(segment, scan, i, i + 1);
            load_position<T, FORWARD>(all, scan, m, span, rows);
            __syncthreads();
            step(m, rows, number_at(scan.w, span, column + (int)threadIdx.x % WARP));
            if (FORWARD)
                step_z(m, rows);
            __syncthreads();
            if (threadIdx.x < WARP)
                finish_position<T, FORWARD>(all, scan, m, span, column + threadIdx.x);
        }
        __syncthreads(); /* the initial state has been loaded, even without positions */
        if (scan.end.data)
            end_walk<T, FORWARD>(scan, m, head, column, rows);
    }
}

#endif
