/* Rows of tensors on tensor cores: to operands in shared memory, and results from registers. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_ROWS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_ROWS_CUH

#include "ops/cuda/attention/linear/mma_segments.cuh"

/* ------------------------------------------------------------------------------ rows to operands
 * A thread copies, and maps, 8 columns of every ROWS_APART-th row, so that the 8 lanes that access
 * shared memory at once use all banks: neighboring lanes take neighboring columns, and where 4
 * lanes fill a row the next 4 take the row 4 below. */
template <typename T, int SIZE> struct Pieces {
    enum {
        PER_ROW = SIZE / 8,
        ROWS_APART = Mma<T, SIZE>::BLOCK_THREADS / PER_ROW,
        COUNT = CHUNK / ROWS_APART,
        PART = 16 / sizeof(T), /* elements of a 16-byte part of a raw piece */
    };
    __device__ static int row(int i)
    {
        const int r = (int)threadIdx.x / PER_ROW;
        return i * ROWS_APART + (PER_ROW == 4 ? r / 8 * 8 + r % 2 * 4 + r % 8 / 2 : r);
    }
    __device__ static int column(void)
    {
        return (int)threadIdx.x % PER_ROW * 8;
    }
};

/* Starts copying an argument's rows of a chunk; invalid rows and columns become zeros. A copy of
 * zero bytes also has an address inside the tensor. */
template <int SIZE, typename T>
__device__ static inline void copy_rows(const typename Mma<T, SIZE>::ChunkRows &raw,
                                        const Argument<T> &x, const Chunk &chunk)
{
    typedef Pieces<T, SIZE> P;
    typedef typename Mma<T, SIZE>::ChunkRows ChunkRows;
    enum { PARTS = Mma<T, SIZE>::PARTS, PITCH = Mma<T, SIZE>::PITCH };
    const int column = P::column(), columns = x.columns - column;
    const int valid = columns > 0 ? valid_rows(x, chunk) : 0;
    const T *from = x.data + chunk_offset(x, chunk) + (columns > 0 ? column : 0);
    if (x.aligned) {
        const T *at = from + P::row(0) * x.stride;
#pragma unroll
        for (int i = 0; i < P::COUNT; i++, at += P::ROWS_APART * x.stride) {
            const bool there = P::row(i) < valid;
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                copy_async<16>(raw.at + p * ChunkRows::APART + P::row(i) * PITCH + column,
                               (there ? at : from) + p * P::PART, there ? 16 : 0);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 8 * P::COUNT; i++) {
        const int row = P::row(i / 8), e = i % 8;
        T *const to = (T *)(raw.at + e / P::PART * ChunkRows::APART + row * PITCH + column);
        to[e % P::PART] = row < valid && e < columns ? from[row * x.stride + e] : T();
    }
}

/* Starts copying den and dden of a chunk's rows, zeros where there are none. */
template <typename T, typename M>
__device__ static inline void copy_den(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
    const int row = (int)threadIdx.x % CHUNK;
    const bool first = (int)threadIdx.x < CHUNK, there = row < chunk.rows;
    if ((int)threadIdx.x < 2 * CHUNK)
        copy_async<4>((first ? m.raw_den() : m.raw_dden()) + row,
                      (first ? c.den : c.dden) + (chunk.row + (there ? row : 0)) * c.H + chunk.h,
                      there ? 4 : 0);
}

/* Prefetches an argument's rows of a chunk into L2. */
template <int SIZE, typename T>
__device__ static inline void prefetch_rows(const Argument<T> &x, const Chunk &chunk)
{
    typedef Pieces<T, SIZE> P;
    if (P::column() >= x.columns)
        return;
    const T *from = x.data + chunk_offset(x, chunk) + P::column();
#pragma unroll
    for (int i = 0; i < P::COUNT; i++)
        prefetch(from + min(P::row(i), chunk.rows - 1) * x.stride);
}

/* Eight columns of a raw row */
template <typename T, int PARTS>
__device__ static inline void load_eight(Real *x, const Bfloat16 *from, int apart)
{
    enum { PART = 16 / sizeof(T) };
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const Pack<T, PART> part = *(const Pack<T, PART> *)(from + p * apart);
#pragma unroll
        for (int i = 0; i < PART; i++)
            x[p * PART + i] = load(&part.at[i]);
    }
}

/* Eight columns of an operand's row */
template <int PARTS>
__device__ static inline void store_eight(Bfloat16 *to, int apart, const Real *x)
{
    uint32_t pairs[PARTS][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        split<PARTS>(&pairs[0][i], 4, x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        *(uint4 *)(to + p * apart) = make_uint4(pairs[p][0], pairs[p][1], pairs[p][2], pairs[p][3]);
}

/* COUNT pieces of an operand from their raw rows: phi(x), or x / den. Unless FULL, invalid elements
 * are zeroed after the map, because phi(0) may be 1. */
template <bool FULL, int COUNT, int SIZE, typename T>
__device__ static inline void map_pieces(const typename Mma<T, SIZE>::ChunkRows &to,
                                         const typename Mma<T, SIZE>::ChunkRows &raw,
                                         const Argument<T> &x, int first, int valid,
                                         const Real *den)
{
    typedef Pieces<T, SIZE> P;
    typedef typename Mma<T, SIZE>::ChunkRows ChunkRows;
    enum { PARTS = Mma<T, SIZE>::PARTS, PITCH = Mma<T, SIZE>::PITCH };
    const int column = P::column();
    Real y[COUNT][8];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_eight<T, PARTS>(y[i], raw.at + P::row(first + i) * PITCH + column, ChunkRows::APART);
    map_values<8 * COUNT, T, !FULL>(x.map, y[0]);
    if (x.divided)
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const Real factor = 1 / den[P::row(first + i)];
#pragma unroll
            for (int e = 0; e < 8; e++)
                y[i][e] *= factor;
        }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int row = P::row(first + i);
#pragma unroll
        for (int e = 0; e < 8 && !FULL; e++)
            y[i][e] = row < valid && column + e < x.columns ? y[i][e] : (Real)0;
        store_eight<PARTS>(to.at + row * PITCH + column, ChunkRows::APART, y[i]);
    }
}

/* An operand from its raw rows: all pieces at once in the common case, where the chunk is full and
 * the map takes few instructions. */
template <int SIZE, typename T>
__device__ static inline void map_rows(const typename Mma<T, SIZE>::ChunkRows &to,
                                       const typename Mma<T, SIZE>::ChunkRows &raw,
                                       const Argument<T> &x, const Chunk &chunk, const Real *den)
{
    typedef Pieces<T, SIZE> P;
    enum { PITCH = Mma<T, SIZE>::PITCH };
    if (Mma<T, SIZE>::PARTS == 1 && x.map == FEATURE_MAP_IDENTITY && !x.divided) {
        if (Mma<T, SIZE>::AHEAD) /* bf16 is an operand already */
#pragma unroll
            for (int i = 0; i < P::COUNT; i++) {
                const int at = P::row(i) * PITCH + P::column();
                *(uint4 *)(to.at + at) = *(const uint4 *)(raw.at + at);
            }
        return;
    }
    const int valid = valid_rows(x, chunk);
    if (valid == CHUNK && x.columns == SIZE && x.map != FEATURE_MAP_SOFTPLUS)
        map_pieces<true, P::COUNT, SIZE>(to, raw, x, 0, valid, den);
    else
#pragma unroll 1
        for (int i = 0; i < P::COUNT; i++)
            map_pieces<false, 1, SIZE>(to, raw, x, i, valid, den);
}

/* -------------------------------------------------------------------------------------- results */

__device__ static inline float2 load_pair(const float *from)
{
    return *(const float2 *)from;
}
__device__ static inline float2 load_pair(const Bfloat16 *from)
{
    const uint32_t pair = *(const uint32_t *)from;
    return make_float2(first_of(pair), second_of(pair));
}
__device__ static inline void store_pair(float *to, float first, float second)
{
    *(float2 *)to = make_float2(first, second);
}
__device__ static inline void store_pair(Bfloat16 *to, float first, float second)
{
    *(uint32_t *)to = pack_bf16(first, second);
}

/* Contributes the warp's rows of o; to accumulate, all loads precede the first store. */
template <int SIZE, typename T>
__device__ static inline void contribute_rows(const ScanResult<T> &r, const Chunk &chunk,
                                              float (*o)[4])
{
    typedef Mma<T, SIZE> Sizes;
    const int column = first_column<Sizes>() + lane_column(), columns = r.columns - column;
    const int row = 16 * row_tile() + lane_row(), count = chunk.rows;
    T *const first = r.data + chunk_offset(r, chunk) + row * r.stride + column;
    if (!r.paired) {
#pragma unroll
        for (int i = 0; i < 4 * Sizes::ACROSS; i++)
            if (row + i % 4 / 2 * 8 < count && i / 4 * 8 + i % 2 < columns)
                contribute(first + i % 4 / 2 * 8 * r.stride + i / 4 * 8 + i % 2, r.accumulate,
                           (Real)o[i / 4][i % 4]);
        return;
    }
    if (r.accumulate)
#pragma unroll
        for (int i = 0; i < 2 * Sizes::ACROSS; i++)
            if (row + i % 2 * 8 < count && i / 2 * 8 < columns) {
                const float2 pair = load_pair(first + i % 2 * 8 * r.stride + i / 2 * 8);
                o[i / 2][i % 2 * 2] += pair.x;
                o[i / 2][i % 2 * 2 + 1] += pair.y;
            }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        T *const to = first + i * 8 * r.stride;
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c++)
            if (row + i * 8 < count && 8 * c < columns)
                store_pair(to + 8 * c, o[c][2 * i], o[c][2 * i + 1]);
    }
}

#endif
