/* Backward, with sums in a fixed order and so the same bit for bit in every run, without atomics:
 *   1. sort the distinct keys (index_r, r): the entries of one row of dweight become adjacent, in
 *      the order of r. Each tile is sorted; then a key's position is the number of smaller keys in
 *      all tiles.
 *   2. cut the sorted list into chunks and sum the entries of each row within a chunk. If the row
 *      starts in the chunk, its sum is added to dweight; otherwise the row continues from the chunk
 *      before, is the first in its chunk, and its sum is stored in partial [chunks, D].
 *   3. add the partial sums of each row to dweight. */
#include "ops/kernels.h"
#include "ops/cuda/shared/columns.cuh"
#include "ops/cuda/shared/map.cuh"
#include "ops/cuda/shared/sort.cuh"

struct Zero {
    __device__ Real operator()() const
    {
        return 0;
    }
};

enum { TILE = 1024, CHUNK = 16 }; /* a Key is index_r 2^32 + r */

/* Element [r, d] is weight[indices[r], d]. */
struct IndexedRows {
    const Real *weight;
    const int32_t *indices;
    int64_t D;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(weight) && D % LANES == 0;
    }
    __device__ const Real *address(int64_t i) const
    {
        const int64_t r = quotient(i, D);
        return weight + indices[r] * D + (i - r * D);
    }
    __device__ Real at(int64_t i) const
    {
        return *address(i);
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t i) const
    {
        return load_pack<LANES>(address(i));
    }
};

__global__ void sort_tiles(Key *sorted, const int32_t *indices, int64_t R)
{
    __shared__ Key key[TILE];
    const int64_t start = (int64_t)blockIdx.x * TILE;
    for (int i = threadIdx.x; i < TILE; i += TILE / 2)
        key[i] = start + i < R ? (Key)indices[start + i] << 32 | (Key)(start + i) : NO_KEY;
    sort_in_block(key, TILE);
    for (int i = threadIdx.x; i < TILE; i += TILE / 2)
        if (start + i < R)
            sorted[start + i] = key[i];
}

/* tiles: the keys, sorted within each tile */
__global__ void merge_tiles(Key *sorted, const Key *tiles, int64_t R)
{
    GRID_FOR(r, R) {
        const Key key = tiles[r];
        int64_t rank = 0;
        for (int64_t start = 0; start < R; start += TILE)
            rank += r / TILE == start / TILE
                        ? r - start
                        : count_below(tiles + start, R - start < TILE ? R - start : TILE, key);
        sorted[rank] = key;
    }
}

/* Whether chunk i starts with the row of dweight that the chunk before ends with. */
__device__ static inline bool continues(const Key *sorted, int64_t i)
{
    return i > 0 && sorted[i * CHUNK - 1] >> 32 == sorted[i * CHUNK] >> 32;
}

/* One thread per chunk and column. It issues all loads first, so their latencies overlap. */
template <typename T>
__global__ void sum_chunks(Real *dweight, Real *partial, const T *dout, const Key *sorted,
                           int64_t R, int64_t D)
{
    GRID_FOR(item, (R + CHUNK - 1) / CHUNK * D) {
        const int64_t i = quotient(item, D), d = item - i * D, first = i * CHUNK;
        const int count = R - first < CHUNK ? (int)(R - first) : (int)CHUNK;
        int32_t index[CHUNK + 1];
        Real value[CHUNK];
#pragma unroll
        for (int k = 0; k < CHUNK; k++) {
            const Key key = k < count ? sorted[first + k] : 0;
            index[k] = k < count ? (int32_t)(key >> 32) : -1;
            value[k] = k < count ? load(&dout[(int64_t)(uint32_t)key * D + d]) : 0;
        }
        index[CHUNK] = -1;
        bool elsewhere = continues(sorted, i);
        Real sum = 0;
#pragma unroll
        for (int k = 0; k < CHUNK; k++) {
            sum += value[k];
            if (index[k] != index[k + 1]) {
                if (elsewhere)
                    partial[item] = sum;
                else
                    dweight[index[k] * D + d] += sum;
                elsewhere = false;
                sum = 0;
            }
        }
    }
}

/* Block (x, y): if chunk y is the first that continues a row of dweight, adds the partial sums of
 * the row, from chunk y on, in the block's columns. */
__global__ void add_partial_sums(Real *dweight, const Real *partial, const Key *sorted, int64_t R,
                                 int64_t D, int lanes)
{
    const int64_t chunks = (R + CHUNK - 1) / CHUNK;
    const int64_t c = (int64_t)blockIdx.x * lanes + threadIdx.x % lanes;
    for (int64_t i = blockIdx.y; i < chunks; i += gridDim.y) {
        const Key row = sorted[i * CHUNK] >> 32;
        if (!continues(sorted, i) ||
            (continues(sorted, i - 1) && sorted[(i - 1) * CHUNK] >> 32 == row))
            continue;
        const int64_t entries =
            count_below(sorted, R, (row + 1) << 32); /* of this row and earlier rows */
        const double sum = block_column_sum(partial, i, (entries + CHUNK - 1) / CHUNK, D, c, lanes);
        if ((int)threadIdx.x < lanes && c < D)
            dweight[(int64_t)row * D + c] += (Real)sum;
    }
}

extern "C" void embedding_forward_cuda(TensorType type, Gradient out, const Real *weight,
                                       const int32_t *indices, int64_t R, int64_t D)
{
    map(type, Identity(), out.data, out.accumulate, R * D, IndexedRows{ weight, indices, D });
}

extern "C" void embedding_backward_cuda(TensorType type, Gradient dweight, const Real *dout,
                                        const int32_t *indices, int64_t R, int64_t V, int64_t D)
{
    const int64_t chunks = (R + CHUNK - 1) / CHUNK;
    const int lanes = column_lanes(D);
    Real *scratch = device_workspace(2 * R * (int64_t)(sizeof(Key) / sizeof(Real)) + chunks * D);
    Key *tiles = (Key *)scratch, *sorted = tiles + R;
    Real *partial = (Real *)(sorted + R);
    if (!dweight.accumulate)
        map_inputs(Zero(), dweight.data, false, V * D);
    LAUNCH(sort_tiles, (unsigned)((R + TILE - 1) / TILE), TILE / 2, 0, tiles, indices, R);
    LAUNCH(merge_tiles, blocks_for(R), THREADS, 0, sorted, (const Key *)tiles, R);
    BY_STORAGE(type, T,
               LAUNCH(sum_chunks<T>, blocks_for(chunks * D), THREADS, 0, dweight.data, partial,
                      (const T *)dout, (const Key *)sorted, R, D));
    const dim3 blocks((unsigned)((D + lanes - 1) / lanes), blocks_for(chunks, 1));
    LAUNCH(add_partial_sums, blocks, THREADS, 0, dweight.data, (const Real *)partial,
           (const Key *)sorted, R, D, lanes);
    device_workspace_free(scratch);
}
