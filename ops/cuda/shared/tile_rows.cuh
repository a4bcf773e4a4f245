/* Rows of attention's arguments and gradients, as tensors store them: loaded to tiles in shared
 * memory, and contributed from tiles of sums. */
#ifndef TAPEGRAD_OPS_CUDA_SHARED_TILE_ROWS_CUH
#define TAPEGRAD_OPS_CUDA_SHARED_TILE_ROWS_CUH

#include "ops/cuda/shared/tiles.cuh"

/* An argument [B, positions, H, columns]; positions are stride elements apart. */
template <typename T> struct Rows {
    const T *data;
    int64_t stride, positions, columns;
    const Real *divisor; /* load_tile divides by divisor [B, positions, H], unless NULL */
};

/* Destination of an argument's gradient; data is NULL if the argument requires no gradient. */
template <typename T> struct GradientRows {
    T *data;
    bool accumulate;
    int64_t stride, positions, columns;
};

template <typename T>
static Rows<T> rows_of(const Real *data, int64_t stride, int64_t positions, int64_t columns)
{
    return { (const T *)data, stride, positions, columns, NULL };
}

template <typename T>
static GradientRows<T> gradient_rows(Gradient d, int64_t stride, int64_t positions, int64_t columns)
{
    return { (T *)d.data, d.accumulate, stride, positions, columns };
}

/* count positions of a head: first, first + step, ...; step is 1 or -1. */
struct Span {
    int64_t b, h, H, first;
    int step, count;
};

/* The positions of a span's rows are span_first + span_offset(row). A kernel may have positions of
 * another type, with b, h, H, count and these two functions. */
__device__ static inline int64_t span_first(const Span &span)
{
    return span.first;
}
__device__ static inline int64_t span_offset(const Span &span, int row)
{
    return row * span.step;
}

/* Offset of a span in an array [B, positions, H]. */
template <typename Positions>
__device__ static inline int64_t span_row(const Positions &span, int64_t positions)
{
    return (span.b * positions + span_first(span)) * span.H + span.h;
}

/* Offset of a span in a tensor [B, positions, H, columns]. */
template <typename Positions>
__device__ static inline int64_t span_begin(const Positions &span, int64_t positions,
                                            int64_t stride, int64_t columns)
{
    return (span.b * positions + span_first(span)) * stride + span.h * columns;
}

/* The rows of a span that load_tile loads, first <= row < end, and what it makes of their elements;
 * linear attention's rows have their own. */
struct RowRange {
    int first, end;
};

template <typename T, typename Positions>
__device__ static inline RowRange unmasked_rows(const Rows<T> &, const Positions &span)
{
    return { 0, span.count };
}
template <typename T> __device__ static inline Real mapped(const Rows<T> &, Real x)
{
    return x;
}

/* Loads a tile of the span's rows from first_column on, padded with zeros. A thread issues BATCH
 * loads before it uses the first, because loads have high latency. */
template <int SIZE, typename Rows, typename Positions>
__device__ static inline void load_tile(Real *tile, int pitch, const Rows &rows,
                                        const Positions &span, int64_t first_column)
{
    enum { STEP = TILE_THREADS / SIZE, BATCH = 8 };
    const int column = (int)threadIdx.x % SIZE;
    RowRange unmasked = unmasked_rows(rows, span);
    if (first_column + column >= rows.columns)
        unmasked.end = 0;
    const auto *from = rows.data + span_begin(span, rows.positions, rows.stride, rows.columns) +
                       first_column + column;
    const Real *divisor = rows.divisor ? rows.divisor + span_row(span, rows.positions) : NULL;
    for (int first = (int)threadIdx.x / SIZE; first < CHUNK; first += BATCH * STEP) {
        Real x[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            x[i] = row >= unmasked.first && row < unmasked.end
                       ? load(from + span_offset(span, row) * rows.stride)
                       : (Real)0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            if (row >= unmasked.first && row < unmasked.end) {
                x[i] = mapped(rows, x[i]);
                if (divisor)
                    x[i] /= divisor[span_offset(span, row) * span.H];
            }
            tile[row * pitch + column] = x[i];
        }
    }
}

/* Loads the span's elements of an array [B, positions, H], padded with zeros to CHUNK. */
template <typename Positions>
__device__ static inline void load_vector(Real *to, const Real *from, int64_t positions,
                                          const Positions &span)
{
    const int i = (int)threadIdx.x;
    if (i < CHUNK)
        to[i] = i < span.count ? from[span_row(span, positions) + span_offset(span, i) * span.H]
                               : (Real)0;
}

/* Loads up to four consecutive elements. */
template <typename T> __device__ static inline Pack<Real, 4> load_four(const T *from, int64_t count)
{
    Pack<Real, 4> four = {};
    if (count >= 4 && (uintptr_t)from % alignof(Pack<T, 4>) == 0) {
        const Pack<T, 4> stored = *(const Pack<T, 4> *)from;
#pragma unroll
        for (int c = 0; c < 4; c++)
            four.at[c] = load(&stored.at[c]);
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c < count)
                four.at[c] = load(from + c);
    }
    return four;
}

template <typename T>
__device__ static inline void contribute_four(T *to, bool accumulate, const Real *four,
                                              int64_t count)
{
    if (count >= 4 && (uintptr_t)to % alignof(Pack<T, 4>) == 0) {
        Pack<T, 4> stored = {};
        if (accumulate)
            stored = *(const Pack<T, 4> *)to;
#pragma unroll
        for (int c = 0; c < 4; c++)
            contribute(&stored.at[c], accumulate, four[c]);
        *(Pack<T, 4> *)to = stored;
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c < count)
                contribute(to + c, accumulate, four[c]);
    }
}

/* Contributes sums to a tile of the span's rows, from first_column on. */
template <int SIZE, typename T, typename Positions>
__device__ static inline void contribute_tile(const GradientRows<T> &d, const Positions &span,
                                              int64_t first_column, const Real (*sums)[4])
{
    const int64_t column = first_column + tile_column<SIZE>();
    T *to = d.data + span_begin(span, d.positions, d.stride, d.columns) + column;
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int row = tile_row<SIZE>(r);
        if (row < span.count)
            contribute_four(to + span_offset(span, row) * d.stride, d.accumulate, sums[r],
                            d.columns - column);
    }
}

#endif
