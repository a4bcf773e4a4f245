/* Hashing and sorting of LSH attention, which fill `order` (kernels.h).
 *
 * Hashing: one warp per four positions; each lane computes every 32nd column of x R. The sums over
 * d run in the CPU's order, so both devices compute the same buckets. Sorting: the sort keys
 * (bucket, position), which are all different, are sorted in tiles; then pairs of sorted runs are
 * merged. */
#ifndef TAPEGRAD_LSH_SORT_CUH
#define TAPEGRAD_LSH_SORT_CUH

#include "ext/lsh/kernels.h"
#include "ops/cuda/shared/sort.cuh"
#include "ops/cuda/shared/tiles.cuh"

/* -------------------------------------------------------------------------------------- hashing */

/* R [.., D, columns] = the transpose of the [.., columns, D] that random_normal draws. */
__global__ void draw_matrices(Real *R, Random random, const uint64_t *start, int64_t columns,
                              int64_t D, int64_t n)
{
    const uint64_t counter = random.counter + (start ? *start : 0);
    GRID_FOR(block, (n + 3) / 4) {
        double normal[4];
        philox_normal(philox(random.seed, random.stream, counter + (uint64_t)block), normal);
        for (int64_t k = 0; k < 4 && 4 * block + k < n; k++) {
            const int64_t i = 4 * block + k, d = i % D, c = i / D % columns;
            R[i - i % (columns * D) + d * columns + c] = (Real)normal[k];
        }
    }
}

enum { HASH_TILE = 4 }; /* positions per warp */

/* A maximum and its index. */
struct Max {
    Real value;
    int index;
};

/* The maximum of the warp; of equal values the one with the lowest index. */
__device__ static inline Max warp_argmax(Max max)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const Real value = __shfl_xor_sync(0xffffffffu, max.value, offset);
        const int index = __shfl_xor_sync(0xffffffffu, max.index, offset);
        if (value > max.value || (value == max.value && index < max.index))
            max = { value, index };
    }
    return max;
}

/* bucket = bucket * count + argmax([xR; -xR]) for each position's x [D] and count / 2 columns of R,
 * whose rows have `columns`. */
template <typename T>
__device__ static inline void add_hash(int *bucket, const T *const *x, const Real *R, int count,
                                       int64_t D, int64_t columns)
{
    const int lane = (int)threadIdx.x % WARP, half = count / 2;
    Max max[HASH_TILE], negative_max[HASH_TILE]; /* of -xR */
    for (int k = 0; k < HASH_TILE; k++)
        max[k] = negative_max[k] = { (Real)-INFINITY, lane };
    for (int c = lane; c < half; c += WARP) {
        Real sum[HASH_TILE] = {};
        for (int64_t d = 0; d < D; d++) {
            const Real r = R[d * columns + c];
#pragma unroll
            for (int k = 0; k < HASH_TILE; k++)
                sum[k] += load(&x[k][d]) * r;
        }
#pragma unroll
        for (int k = 0; k < HASH_TILE; k++) {
            if (sum[k] > max[k].value)
                max[k] = { sum[k], c };
            if (-sum[k] > negative_max[k].value)
                negative_max[k] = { -sum[k], c };
        }
    }
#pragma unroll
    for (int k = 0; k < HASH_TILE; k++) {
        max[k] = warp_argmax(max[k]);
        negative_max[k] = warp_argmax(negative_max[k]);
        const bool negative = negative_max[k].value > max[k].value;
        bucket[k] =
            bucket[k] * (2 * half) + (negative ? half + negative_max[k].index : max[k].index);
    }
}

/* keys [B, H, rounds, N]: (bucket, position). Masked positions sort after all buckets. */
template <typename T>
__global__ void hash_positions(Key *keys, const Real *R, const __grid_constant__ LshRounds all,
                               int64_t columns, int64_t items)
{
    const AttentionInputs &a = all.x;
    const int64_t warps = THREADS / WARP, groups = tiles_for(a.N, HASH_TILE);
    const int factor[2] = { (int)all.factor[0], (int)all.factor[1] };
    for (int64_t i = blockIdx.x * warps + threadIdx.x / WARP; i < items; i += gridDim.x * warps) {
        const int64_t segment = i / groups, first = i % groups * HASH_TILE;
        const int64_t round = segment % all.rounds, head = segment / all.rounds;
        const int64_t b = head / a.H, h = head % a.H;
        const T *x[HASH_TILE];
        for (int k = 0; k < HASH_TILE; k++) {
            const int64_t n = first + k < a.N ? first + k : a.N - 1;
            x[k] = (const T *)a.query + (b * a.N + n) * a.query_stride + h * a.D;
        }
        const Real *of_head = R + (round * a.H + h) * columns * a.D;
        int bucket[HASH_TILE] = {};
        if (factor[0] > 1)
            add_hash(bucket, x, of_head, factor[0], a.D, columns);
        if (factor[1] > 1)
            add_hash(bucket, x, of_head + factor[0] / 2, factor[1], a.D, columns);
        for (int k = 0; k < HASH_TILE; k++) {
            const int64_t n = first + k;
            if (n < a.N && (int)threadIdx.x % WARP == k) {
                const bool masked = a.key_lengths && n >= a.key_lengths[b];
                const int sorted_bucket = masked ? factor[0] * factor[1] : bucket[k];
                keys[segment * a.N + n] = (Key)sorted_bucket << 32 | (Key)n;
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------- sorting
 * Each segment [N], one per head and round, is sorted separately. */

enum { MAX_SORT_TILE = 1024 }; /* keys per thread block */

__global__ void sort_tiles(Key *keys, int64_t N, int tile, int64_t tiles, int64_t items)
{
    DYNAMIC_SHARED(Key, key);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t start = item % tiles * tile;
        Key *segment = keys + item / tiles * N;
        for (int i = threadIdx.x; i < tile; i += tile / 2)
            key[i] = start + i < N ? segment[start + i] : NO_KEY;
        sort_in_block(key, tile);
        for (int i = threadIdx.x; i < tile; i += tile / 2)
            if (start + i < N)
                segment[start + i] = key[i];
    }
}

/* Merges pairs of sorted runs: a key's new rank is its index in its own run plus the number of
 * smaller keys in the other run. */
__global__ void merge_runs(Key *to, const Key *from, int64_t N, int64_t run, int64_t n)
{
    GRID_FOR(i, n) {
        const int64_t rank = i % N, pair = rank / (2 * run) * (2 * run);
        const int64_t own = rank / run * run, other = own == pair ? pair + run : pair;
        const int64_t left = N - other, count = left < 0 ? 0 : left < run ? left : run;
        const Key *segment = from + (i - rank);
        to[i - rank + pair + (rank - own) + count_below(segment + other, count, from[i])] = from[i];
    }
}

/* Fills the arrays of `order` (kernels.h) from the sorted keys. */
__global__ void fill_order(int32_t *order, const Key *keys, int64_t N, int64_t chunk, bool causal,
                           int64_t n)
{
    GRID_FOR(i, n) {
        const int64_t rank = i % N, position = (int64_t)(uint32_t)keys[i];
        const Key *segment = keys + (i - rank), bucket = keys[i] >> 32;
        const int64_t start = count_below(segment, N, bucket << 32);
        const int64_t end = count_below(segment, N, (bucket + 1) << 32);
        const int64_t first = (rank / chunk - 1) * chunk, last = (rank / chunk + 1) * chunk;
        int32_t *of_position = order + (i - rank) + position;
        order[SORTED_INDEX * n + i] = (int32_t)position;
        of_position[RANK * n] = (int32_t)rank;
        of_position[VISIBLE_BEGIN * n] = (int32_t)(start > first ? start : first);
        of_position[VISIBLE_END * n] = (int32_t)(causal ? rank : end < last ? end : last);
    }
}

static int sort_tile_size(int64_t N)
{
    int tile = 2 * WARP;
    while (tile < N && tile < MAX_SORT_TILE)
        tile *= 2;
    return tile;
}

/* Fills `order`. Scratch memory: R [rounds, H, D, columns], and keys, two of [B, H, rounds, N]. */
template <typename T>
static void sort_positions(int32_t *order, Real *R, Key *const *keys, const LshRounds *all)
{
    const int64_t numbers = lsh_random_numbers(all), columns = lsh_columns(all), N = all->x.N;
    const int64_t segments = all->x.B * all->x.H * all->rounds, n = segments * N;
    if (numbers > 0)
        LAUNCH(draw_matrices, blocks_for((numbers + 3) / 4), THREADS, 0, R, all->random, all->start,
               columns, all->x.D, numbers);
    const int64_t items = segments * tiles_for(N, HASH_TILE);
    LAUNCH(hash_positions<T>, blocks_for(items, THREADS / WARP), THREADS, 0, keys[0],
           (const Real *)R, *all, columns, items);
    const int tile = sort_tile_size(N);
    const int64_t tiles = tiles_for(N, tile);
    LAUNCH(sort_tiles, blocks_for(segments * tiles, 1), tile / 2, tile * (int)sizeof(Key), keys[0],
           N, tile, tiles, segments * tiles);
    int sorted = 0;
    for (int64_t run = tile; run < N; run *= 2, sorted = 1 - sorted)
        LAUNCH(merge_runs, blocks_for(n), THREADS, 0, keys[1 - sorted], (const Key *)keys[sorted],
               N, run, n);
    LAUNCH(fill_order, blocks_for(n), THREADS, 0, order, (const Key *)keys[sorted], N, all->chunk,
           all->causal, n);
}

#endif
