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
#include "tensor/cuda/kernel.cuh"

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
