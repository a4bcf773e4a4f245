/* Tiles of attention's matrices on a GPU. A thread block of TILE_THREADS threads processes CHUNK
 * positions of one head at a time, and SIZE of their columns, 32 or 64. Other head sizes are padded
 * with zeros, larger ones take several tiles, so there is one path for all sizes.
 *
 * Operands are in shared memory, their rows padded by PAD elements where the threads of a warp read
 * different rows; sums stay in registers (register tiling). A warp owns a quarter of a tile's rows,
 * so it can skip what is above the diagonal of the causal mask. */
#ifndef TAPEGRAD_OPS_CUDA_SHARED_TILES_CUH
#define TAPEGRAD_OPS_CUDA_SHARED_TILES_CUH

#include "ops/attention/shared/arguments.h"
#include "ops/cuda/shared/mma_operands.cuh"

enum {
    CHUNK = 64,
    TILE_THREADS = 128,
    WARP_ROWS = CHUNK * WARP / TILE_THREADS,
    PAD = 4, /* keeps rows aligned to 16 bytes, and puts consecutive rows into different banks */
    SCORE_PITCH = CHUNK + PAD,
    WIDEST = sizeof(Real) == 4 ? 64 : 32,       /* largest SIZE: tiles of double fit */
    BLOCKS_AT_ONCE = sizeof(Real) == 4 ? 3 : 2, /* per SM, limited by registers */
};

/* Register tiling. A thread has ROWS rows of 4 adjacent columns of sums [CHUNK, SIZE], the same
 * rows of SCORES columns of scores [CHUNK, CHUNK], and OUTER rows of 4 columns of sums
 * [SIZE, SIZE]. */
template <int SIZE> struct Tile {
    enum {
        PITCH = SIZE + PAD,
        ACROSS = SIZE / 4, /* threads per row */
        DOWN = TILE_THREADS / ACROSS,
        ROWS = CHUNK / DOWN,
        SCORES = CHUNK / ACROSS,
        OUTER = SIZE / DOWN,
        OUTER_TOGETHER = OUTER < 4 ? OUTER : 4,
    };
};

__host__ __device__ static inline int64_t tiles_for(int64_t columns, int64_t size)
{
    return (columns + size - 1) / size;
}

/* Number of columns in the tile that starts at first_column, rounded up to a multiple of 4. */
template <int SIZE> __device__ static inline int tile_inner(int64_t columns, int64_t first_column)
{
    const int64_t left = columns - first_column;
    return left < SIZE ? ((int)left + 3) / 4 * 4 : SIZE;
}

/* The first row of the thread's warp. */
__device__ static inline int warp_row(void)
{
    return (int)threadIdx.x / WARP * WARP_ROWS;
}

/* A thread's r-th row, its first column, and the column of its c-th score. */
template <int SIZE> __device__ static inline int tile_row(int r)
{
    enum { ACROSS = Tile<SIZE>::ACROSS };
    return warp_row() + r * (WARP / ACROSS) + (int)threadIdx.x % WARP / ACROSS;
}

template <int SIZE> __device__ static inline int tile_column(void)
{
    return (int)threadIdx.x % Tile<SIZE>::ACROSS * 4;
}

template <int SIZE> __device__ static inline int score_column(int c)
{
    return (int)threadIdx.x % Tile<SIZE>::ACROSS + c * Tile<SIZE>::ACROSS;
}

/* A thread's r-th row of sums [SIZE, SIZE]. */
template <int SIZE> __device__ static inline int outer_row(int r)
{
    enum { TOGETHER = Tile<SIZE>::OUTER_TOGETHER, DOWN = Tile<SIZE>::DOWN };
    return (r / TOGETHER * DOWN + (int)threadIdx.x / Tile<SIZE>::ACROSS) * TOGETHER + r % TOGETHER;
}

/* Elements that one instruction loads or stores. */
template <typename T, int COUNT>
struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack {
    T at[COUNT];
};

template <int COUNT> __device__ static inline Pack<Real, COUNT> pack_at(const Real *x)
{
    return *(const Pack<Real, COUNT> *)x;
}

/* COUNT elements; zeros past the end. */
template <int COUNT, typename T>
__device__ static inline Pack<T, COUNT> load_pack(const T *from, int64_t left, bool aligned)
{
    if (aligned)
        return *(const Pack<T, COUNT> *)from;
    Pack<T, COUNT> pack = {};
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (i < left)
            pack.at[i] = from[i];
    return pack;
}

/* --------------------------------------------------------------------------------------- products
 * Inner sizes are multiples of 4: tiles are padded with zeros. */

/* scores += x y^T, of tiles x and y [CHUNK, inner], for the columns of scores before end. */
template <int SIZE>
__device__ static inline void add_scores(Real (*scores)[Tile<SIZE>::SCORES], const Real *x,
                                         const Real *y, int inner, int end)
{
    enum { ROWS = Tile<SIZE>::ROWS, PITCH = Tile<SIZE>::PITCH };
#pragma unroll 1
    for (int k = 0; k < inner; k += 4) {
        Pack<Real, 4> x_k[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            x_k[r] = pack_at<4>(x + tile_row<SIZE>(r) * PITCH + k);
#pragma unroll
        for (int c = 0; c < Tile<SIZE>::SCORES; c++) {
            if (c * Tile<SIZE>::ACROSS >= end)
                continue;
            const Pack<Real, 4> y_k = pack_at<4>(y + score_column<SIZE>(c) * PITCH + k);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    scores[r][c] += x_k[r].at[e] * y_k.at[e];
        }
    }
}

/* sums [CHUNK, SIZE] += x w, of x [CHUNK, inner] and w [inner, SIZE]; rows are a pitch apart. */
template <int SIZE>
__device__ static inline void add_product(Real (*sums)[4], const Real *x, int x_pitch,
                                          const Real *w, int w_pitch, int inner)
{
    enum { ROWS = Tile<SIZE>::ROWS };
#pragma unroll 1
    for (int k = 0; k < inner; k += 4) {
        Pack<Real, 4> x_k[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            x_k[r] = pack_at<4>(x + tile_row<SIZE>(r) * x_pitch + k);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const Pack<Real, 4> w_k = pack_at<4>(w + (k + e) * w_pitch + tile_column<SIZE>());
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sums[r][c] += x_k[r].at[e] * w_k.at[c];
        }
    }
}

/* sums [SIZE, SIZE] += y^T w, of the first count rows of tiles y (padded) and w (not). */
template <int SIZE>
__device__ static inline void add_outer(Real (*sums)[4], const Real *y, const Real *w, int count)
{
    enum { TOGETHER = Tile<SIZE>::OUTER_TOGETHER };
#pragma unroll 4
    for (int j = 0; j < count; j++) {
        const Pack<Real, 4> w_j = pack_at<4>(w + j * SIZE + tile_column<SIZE>());
#pragma unroll
        for (int r = 0; r < Tile<SIZE>::OUTER; r += TOGETHER) {
            const Pack<Real, TOGETHER> y_j =
                pack_at<TOGETHER>(y + j * Tile<SIZE>::PITCH + outer_row<SIZE>(r));
#pragma unroll
            for (int e = 0; e < TOGETHER; e++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sums[r + e][c] += y_j.at[e] * w_j.at[c];
        }
    }
}

/* -------------------------------------------------------------------------------- rows of heads */

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
    const int32_t *lengths; /* unless NULL, no contribution from position lengths[b] on */
};

template <typename T>
static Rows<T> rows_of(const Real *data, int64_t stride, int64_t positions, int64_t columns)
{
    return { (const T *)data, stride, positions, columns, NULL };
}

template <typename T>
static GradientRows<T> gradient_rows(Gradient d, int64_t stride, int64_t positions, int64_t columns)
{
    return { (T *)d.data, d.accumulate, stride, positions, columns, NULL };
}

/* The pieces of all heads in one line: every head of every sequence has `pieces` pieces of `length`
 * positions. With offsets a piece is a chunk, and sequence b of a head begins at chunk
 * offsets[b] / CHUNK + b of the head's: every sequence has the chunks that it fills, and at most
 * one more. */
struct Line {
    const int32_t *offsets;
    int32_t B, H, pieces;
    int64_t length;
};

/* The line whose pieces are chunks */
static inline Line line_of(const AttentionInputs *a)
{
    const int64_t chunks = a->offsets ? a->N / CHUNK + a->B : tiles_for(a->N, CHUNK);
    return { a->offsets, (int32_t)a->B, (int32_t)a->H, (int32_t)chunks, CHUNK };
}

static inline int64_t pieces_in_all(const Line &line)
{
    return (line.offsets ? (int64_t)1 : line.B) * line.H * line.pieces;
}

/* A head of a sequence: its index in an array [B, H], its rank in the line, the sequence's first
 * row in the tensors and length, and its pieces: first <= piece < end. */
struct Head {
    int32_t b, h, index, rank, first, end;
    int64_t row, positions;
};

/* positions: of a sequence without offsets. Divisions of 32 bits take a quarter of the
 * instructions of those of 64. */
__device__ static inline Head head_at(const Line &line, int32_t rank, int64_t positions)
{
    const int32_t inner = line.offsets ? line.B : line.H;
    const int32_t outer_index = rank / inner, inner_index = rank - outer_index * inner;
    const int32_t b = line.offsets ? inner_index : outer_index;
    const int32_t h = line.offsets ? outer_index : inner_index;
    Head head = { b,
                  h,
                  b * line.H + h,
                  rank,
                  rank * line.pieces,
                  (rank + 1) * line.pieces,
                  b * positions,
                  positions };
    if (line.offsets) {
        head.row = line.offsets[b];
        head.positions = line.offsets[b + 1] - head.row;
        head.first = h * line.pieces + line.offsets[b] / CHUNK + b;
        head.end = h * line.pieces + line.offsets[b + 1] / CHUNK + b + 1;
    }
    return head;
}

__device__ static inline Head head_of_piece(const Line &line, int32_t piece, int64_t positions)
{
    const int32_t outer = piece / line.pieces, inner = piece - outer * line.pieces;
    if (!line.offsets)
        return head_at(line, outer, positions);
    int32_t b = 0; /* the last sequence that does not begin after the piece: binary search */
    for (int32_t end = line.B; end - b > 1;) {
        const int32_t middle = (b + end) / 2;
        const bool after = line.offsets[middle] / CHUNK + middle > inner;
        b = after ? b : middle;
        end = after ? middle : end;
    }
    return head_at(line, outer * line.B + b, positions);
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

/* ------------------------------------------------------------------------------ before backward */

/* delta [rows] = -g.out (-D_i of softmax.c), or -(g / divisor).out (dden of linear attention), of g
 * and out [rows, columns]. With PARTS the factors g / divisor are rounded as operands of
 * mma_operands.cuh, so that the rounding cancels in sums of dnum.v + dden. 8 lanes per row; a warp
 * loads 16 rows at once. */
template <int PARTS, typename T>
__global__ void row_deltas(Real *delta, const T *g, const T *out, const Real *divisor, int64_t rows,
                           int64_t columns, bool aligned)
{
    enum { PIECE = 16 / sizeof(T), LANES = 8, DOWN = WARP / LANES, BATCH = 4 };
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t step = (int64_t)gridDim.x * (THREADS / WARP) * DOWN * BATCH;
    for (int64_t first = ((int64_t)blockIdx.x * (THREADS / WARP) + warp) * DOWN * BATCH;
         first < rows; first += step) {
        Real dots[BATCH] = {}, factors[BATCH];
        int64_t row[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; r++) {
            row[r] = min(first + r * DOWN + lane / LANES, rows - 1);
            factors[r] = divisor ? 1 / divisor[row[r]] : (Real)1;
        }
        for (int64_t c = lane % LANES * PIECE; c < columns; c += LANES * PIECE) {
            Pack<T, PIECE> x[BATCH], y[BATCH];
#pragma unroll
            for (int r = 0; r < BATCH; r++) {
                x[r] = load_pack<PIECE>(g + row[r] * columns + c, columns - c, aligned);
                y[r] = load_pack<PIECE>(out + row[r] * columns + c, columns - c, aligned);
            }
#pragma unroll
            for (int r = 0; r < BATCH; r++)
#pragma unroll
                for (int i = 0; i < PIECE; i++) {
                    const Real factor = load(&x[r].at[i]) * factors[r];
                    dots[r] += (PARTS ? as_operand<PARTS>(factor) : factor) * load(&y[r].at[i]);
                }
        }
#pragma unroll
        for (int r = 0; r < BATCH; r++) {
            for (int offset = LANES / 2; offset > 0; offset /= 2)
                dots[r] += __shfl_xor_sync(0xffffffffu, dots[r], offset);
            if (lane % LANES == 0 && first + r * DOWN + lane / LANES < rows)
                delta[row[r]] = -dots[r];
        }
    }
}

template <typename T, int PARTS = 0>
static void launch_row_deltas(Real *delta, const Real *g, const Real *out, const Real *divisor,
                              int64_t rows, int64_t columns)
{
    const bool aligned = ((uintptr_t)g | (uintptr_t)out) % 16 == 0 && columns * sizeof(T) % 16 == 0;
    LAUNCH((row_deltas<PARTS, T>), blocks_for(rows, THREADS / 2), THREADS, 0, delta, (const T *)g,
           (const T *)out, divisor, rows, columns, aligned);
}

/* ------------------------------------------------------------------------------------ launching */

static inline int device_attribute(cudaDeviceAttr attribute)
{
    int device, value;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
    return value;
}

/* Runs the statement with T as the dtype and SIZE as the tile size for heads of D and M columns. */
#define BY_TYPE_AND_TILE_SIZE(type, D, M, ...)                                                     \
    do {                                                                                           \
        if ((D) <= 32 && (M) <= 32) {                                                              \
            enum { SIZE = 32 };                                                                    \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        } else {                                                                                   \
            enum { SIZE = WIDEST };                                                                \
            BY_STORAGE(type, T, __VA_ARGS__);                                                      \
        }                                                                                          \
    } while (0)

/* Largest shared memory of a kernel in tiles, in bytes. */
enum { MAX_SHARED = sizeof(Real) == sizeof(float) ? 96 << 10 : 112 << 10 };

/* Allows a kernel this shared memory per block, as more than 48 KB require, and prefers the
 * maximum carveout of the multiprocessor; once per device. BYTES is the kernel's maximum: a later
 * launch with a smaller value would lower the limit of one that is captured in a CUDA graph. */
template <auto KERNEL, int BYTES> static void allow_shared_memory()
{
    static std::atomic<bool> allowed[CUDA_MAX_DEVICES];
    if (allowed[cuda_index()])
        return;
    cuda_check(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES),
               "cudaFuncSetAttribute");
    cuda_check(cudaFuncSetAttribute(KERNEL, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               "cudaFuncSetAttribute");
    allowed[cuda_index()] = true;
}

/* Launches one block of TILE_THREADS threads per item, with `reals` Reals of dynamic shared memory,
 * at most MAX_SHARED bytes. */
#define LAUNCH_TILES(kernel, items, reals, ...)                                                    \
    do {                                                                                           \
        allow_shared_memory<kernel, MAX_SHARED>();                                                 \
        LAUNCH(kernel, blocks_for(items, 1), TILE_THREADS, (int)((reals) * sizeof(Real)),          \
               __VA_ARGS__);                                                                       \
    } while (0)

#endif
