/* The last steps of a chunk's scan: a tile of O in registers becomes out or a gradient. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_RESULTS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_RESULTS_CUH

#include "ops/cuda/attention/linear/scan_arguments.cuh"

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

/* O <- O / den, of the thread's row; inverse [CHUNK]: shared memory. Stores den, [B, positions, H],
 * unless `to` is NULL. */
template <int SIZE>
__device__ static inline void divide_by_den(Real (*o)[4], Real *to, Real *inverse, Real den,
                                            const Span &span, int64_t positions)
{
    const int row = (int)threadIdx.x;
    if (row < CHUNK) {
        inverse[row] = 1 / den;
        if (to && row < span.count)
            to[span_row(span, positions) + row * span.step * span.H] = den;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[r][c] *= inverse[tile_row<SIZE>(r)];
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

/* Backward through the feature map: O <- O phi'(x), 0 for masked positions. */
template <int SIZE, typename T>
__device__ static inline void feature_map_backward(Real (*o)[4], const MappedRows<T> &x,
                                                   const Span &span, int64_t first_column)
{
    const int64_t column = first_column + tile_column<SIZE>();
    const T *from = x.data + span_begin(span, x.positions, x.stride, x.columns) + column;
    const RowRange unmasked = unmasked_rows(x, span);
#pragma unroll
    for (int r = 0; r < Tile<SIZE>::ROWS; r++) {
        const int row = tile_row<SIZE>(r);
        const bool counts = row >= unmasked.first && row < unmasked.end;
        Pack<Real, 4> four = {};
        if (counts)
            four = load_four(from + row * span.step * x.stride, x.columns - column);
#pragma unroll
        for (int c = 0; c < 4; c++)
            o[r][c] = counts ? o[r][c] * dphi(x.map, four.at[c]) : (Real)0;
    }
}

#endif
