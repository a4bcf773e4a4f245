/* How o leaves linear_scan_mma.cuh: divided by den, or through the feature map's derivative. */
#ifndef TAPEGRAD_OPS_LINEAR_SCAN_MMA_OUTPUT_CUH
#define TAPEGRAD_OPS_LINEAR_SCAN_MMA_OUTPUT_CUH

#include "ops/linear_scan_mma_sums.cuh"

#ifndef TAPEGRAD_DOUBLE

/* A warp's 16 rows of P and O, and the lane's share of den of two of them. */
template <typename T, int SIZE> struct MmaRows {
    float scores[CHUNK / 8][4], o[Mma<T, SIZE>::ACROSS][4], den[2];
};

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

/* Where the lane's numbers of o are: those of its two rows in pairs, eight columns from pair to pair.
 * In x, if it is given a map's, they are in the same places. */
struct OutputPlaces {
    int64_t row[2];
    int columns[2]; /* from the first pair on; 0 where there is no row */
    bool even;      /* no pair is halved, and rows begin at even places if the tensor does */
};

template <typename T, int SIZE>
__device__ static inline OutputPlaces places_of_o(const MmaPart<T, SIZE> &part, const Span &span)
{
    const GradientRows<T> &o = part.scan->o;
    const int64_t column = part.column + lane_column();
    const int64_t first = span_begin(span, o.positions, o.stride, o.columns) + column;
    OutputPlaces places;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = warp_row() + lane_row() + 8 * i;
        places.row[i] = first + row * span.step * o.stride;
        places.columns[i] = row < span.count && column < o.columns ? (int)(o.columns - column) : 0;
    }
    places.even = o.columns % 2 == 0 && o.stride % 2 == 0;
    return places;
}

/* COUNT pairs of each row, from the one at a column on: none of these loads needs to wait for another. */
template <int COUNT, typename T>
__device__ static inline void load_pairs(Real (*to)[4], const T *from, const OutputPlaces &places,
                                         int column)
{
    const bool whole = places.even && (uintptr_t)from % sizeof(Pack<T, 2>) == 0;
#pragma unroll
    for (int c = 0; whole && c < COUNT; c++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Pack<T, 2> pair = {};
            if (column + 8 * c < places.columns[i])
                pair = *(const Pack<T, 2> *)(from + places.row[i] + column + 8 * c);
            to[c][2 * i] = load(&pair.at[0]);
            to[c][2 * i + 1] = load(&pair.at[1]);
        }
#pragma unroll
    for (int c = 0; !whole && c < COUNT; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = column + 8 * c + i % 2;
            to[c][i] = at < places.columns[i / 2] ? load(from + places.row[i / 2] + at) : (Real)0;
        }
}

template <int ACROSS, typename T>
__device__ static inline void store_pairs(T *to, const Real (*from)[4], const OutputPlaces &places)
{
    const bool whole = places.even && (uintptr_t)to % sizeof(Pack<T, 2>) == 0;
#pragma unroll
    for (int c = 0; whole && c < ACROSS; c++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Pack<T, 2> pair;
            store(&pair.at[0], from[c][2 * i]);
            store(&pair.at[1], from[c][2 * i + 1]);
            if (8 * c < places.columns[i])
                *(Pack<T, 2> *)(to + places.row[i] + 8 * c) = pair;
        }
#pragma unroll
    for (int c = 0; !whole && c < ACROSS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * c + i % 2 < places.columns[i / 2])
                store(to + places.row[i / 2] + 8 * c + i % 2, from[c][i]);
}

/* O becomes derivatives by x, from those by phi(x). */
template <typename T, int SIZE>
__device__ static inline void go_through_map(MmaRows<T, SIZE> *rows, const Rows<T> &x,
                                             const OutputPlaces &places)
{
    enum { ACROSS = Mma<T, SIZE>::ACROSS, BATCH = SIZE < 128 ? ACROSS : ACROSS / 2 };
#pragma unroll
    for (int first = 0; first < ACROSS; first += BATCH) {
        Real slopes[BATCH][4];
        load_pairs<BATCH>(slopes, x.data, places, 8 * first);
        map_slopes<4 * BATCH>(x.map, slopes[0]);
#pragma unroll
        for (int c = 0; c < BATCH; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                rows->o[first + c][i] *= slopes[c][i];
    }
}

/* Nothing comes from positions that do not count. */
template <typename T, int SIZE>
__device__ static inline void clear_rows(MmaRows<T, SIZE> *rows, const Counting &counting)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = warp_row() + lane_row() + i / 2 * 8;
        const bool counts = row >= counting.first && row < counting.end;
#pragma unroll
        for (int c = 0; c < Mma<T, SIZE>::ACROSS; c++)
            rows->o[c][i] = counts ? rows->o[c][i] : 0;
    }
}

/* O += what is there */
template <typename T, int SIZE>
__device__ static inline void add_gradients(MmaRows<T, SIZE> *rows, const T *there,
                                            const OutputPlaces &places)
{
    enum { ACROSS = Mma<T, SIZE>::ACROSS, BATCH = SIZE < 128 ? ACROSS : ACROSS / 2 };
#pragma unroll
    for (int first = 0; first < ACROSS; first += BATCH) {
        Real sums[BATCH][4];
        load_pairs<BATCH>(sums, there, places, 8 * first);
#pragma unroll
        for (int c = 0; c < BATCH; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                rows->o[first + c][i] += sums[c][i];
    }
}

/* The warp's rows of o, as they are or as derivatives by x. What is needed is read before any of it is
 * written, so that the reads need not wait for each other. */
template <typename T, int SIZE, bool FORWARD>
__device__ static inline void contribute_o(MmaRows<T, SIZE> *rows, const MmaPart<T, SIZE> &part,
                                           const Span &span)
{
    const Scan<T> &scan = *part.scan;
    const OutputPlaces places = places_of_o(part, span);
    if (!FORWARD && scan.map.data)
        go_through_map(rows, scan.map, places);
    if (scan.o.lengths)
        clear_rows(rows, rows_that_count(span, scan.o.lengths));
    if (!FORWARD && scan.o.accumulate)
        add_gradients(rows, scan.o.data, places);
    store_pairs<Mma<T, SIZE>::ACROSS>(scan.o.data, rows->o, places);
}

#endif
#endif
