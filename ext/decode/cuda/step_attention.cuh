/* Attention of one head at one position, by a block; or, for linear attention of large batches, by
 * a warp.
 *   linear    T += k [v, 1]^T     [num, den] = q^T T     out = num / (den + eps)
 *             with T = [S, z] [F, D + 1]; q and k are features
 *   softmax   s_j = q.k_j / sqrt D     out = sum_j e^(s_j - m) v_j / sum_j e^(s_j - m)
 * Both are bound by memory: by reading and writing T, or reading the KV cache. Each element is read
 * once, and the accesses of a warp are coalesced. */
#ifndef TAPEGRAD_DECODE_CUDA_STEP_ATTENTION_CUH
#define TAPEGRAD_DECODE_CUDA_STEP_ATTENTION_CUH

#include "ext/decode/kernels.h"
#include "ext/features/cuda/polynomial.cuh"
#include "ops/cuda/shared/copy.cuh"
#include "ops/cuda/shared/feature_map.cuh"
#include "ops/cuda/shared/rows.cuh"

enum { ATTEND_THREADS = 1024 }; /* of a block in a small batch: it reads the weights of a head */

/* ------------------------------------------------------------------------------------------ tiling
 * How a block iterates over a row-major matrix [rows, C]: in tiles of W groups rows by span
 * columns, in which each of groups span threads holds W consecutive elements. From tile to tile a
 * thread stays in its W columns, so that it holds their sums in registers. If C exceeds the number
 * of threads, the block processes span columns at a time. */
struct Tiling {
    int C, span, groups;
};

/* A thread's elements in the first tile. */
template <int W> struct ThreadTile {
    bool active;
    int first; /* offset in the matrix */
    int row[W], column[W];
};

template <int W>
__device__ static inline ThreadTile<W> thread_tile(const Tiling &tiling, int first_column)
{
    ThreadTile<W> p;
    const int first = (int)threadIdx.x * W;
#pragma unroll
    for (int k = 0; k < W; k++) {
        p.row[k] = (first + k) / tiling.span;
        p.column[k] = first_column + (first + k) % tiling.span;
    }
    p.first = p.row[0] * tiling.C + p.column[0];
    p.active = (int)threadIdx.x < tiling.groups * tiling.span && p.column[W - 1] < tiling.C;
    return p;
}

/* Rows per tile. */
template <int W> __host__ __device__ static inline int tile_rows(const Tiling &tiling)
{
    return W * tiling.groups;
}

/* Loads the thread's elements of TILES tiles, from `row` on, of a matrix of `rows` rows. */
template <int W, int TILES>
__device__ static inline void load_tiles(Reals<W> (&elements)[TILES], const Real *matrix,
                                         const Tiling &tiling, const ThreadTile<W> &p, int row,
                                         int rows)
{
#pragma unroll
    for (int t = 0; t < TILES; t++, row += tile_rows<W>(tiling))
        if (p.active && row + p.row[0] < rows)
            elements[t] = load_pack<W>(&matrix[(int64_t)row * tiling.C + p.first]);
}

/* --------------------------------------------------------------------------------------- a head */
struct StepAttention {
    int H, D, F, max_length;
    int features;               /* as in EngineAttention */
    Real scale, eps;            /* of queries and keys, or of scores; added to den */
    const Real *projection;     /* [F, D] or NULL */
    Real *sums, *keys, *values; /* the layer's state: linear, softmax */
    const int32_t *counts;      /* [B] */
    Real *attended;             /* [B, H D]: the result */
    Real *scores;               /* softmax: [B, H, max_length] */
    Real *memory;               /* [B, H, head_elements] if a head exceeds shared memory, or NULL */
    Tiling tiling;              /* of T, or of the values */
};

/* A head's intermediates. */
struct HeadMemory {
    Real *query, *key, *value;           /* [D], [D], [D + 1]: value[D] = 1 */
    Real *query_features, *key_features; /* [F]; query and key themselves for elementwise maps */
    Real *sums;                          /* [D + 1] */
    Real *parts;                         /* [W groups, span] in shared memory: the threads' sums */
};

/* Whether phi is elementwise; otherwise each feature depends on all elements. */
__host__ __device__ static inline bool maps_elementwise(int features)
{
    return features <= FEATURES_SQUARED_RELU;
}

__host__ __device__ static inline int64_t head_elements(const StepAttention &a)
{
    return 4 * (int64_t)a.D + 2 + (maps_elementwise(a.features) ? 0 : 2 * (int64_t)a.F);
}

/* Divides memory [head_elements]. */
__device__ static inline HeadMemory head_memory(const StepAttention &a, Real *memory, Real *parts)
{
    HeadMemory m;
    m.parts = parts;
    m.query = m.query_features = memory;
    m.key = m.key_features = m.query + a.D;
    m.value = m.key + a.D;
    if (!maps_elementwise(a.features)) {
        m.query_features = m.value;
        m.key_features = m.query_features + a.F;
        m.value = m.key_features + a.F;
    }
    m.sums = m.value + a.D + 1;
    return m;
}

/* The same in shared memory, after the threads' sums, or in a.memory. */
template <int W>
__device__ static inline HeadMemory block_memory(const StepAttention &a, int64_t head, Real *shared)
{
    Real *const after = shared + tile_rows<W>(a.tiling) * a.tiling.span;
    return head_memory(a, a.memory ? a.memory + head * head_elements(a) : after, shared);
}

/* ------------------------------------------------------------------------------------- features */

/* An element of a query or key as HeadMemory stores it. */
__device__ static inline Real mapped_element(const StepAttention &a, Real x)
{
    if (a.features == FEATURES_SQUARED_RELU)
        return squared_relu(x);
    return maps_elementwise(a.features) ? phi((FeatureMap)a.features, x) : a.scale * x;
}

/* features [F] <- projection [F, D] x, one warp per feature. */
__device__ static inline void project(Real *features, const Real *x, const StepAttention &a)
{
    for (int f = (int)threadIdx.x / WARP; f < a.F; f += (int)blockDim.x / WARP) {
        Real sum = 0;
        LANE_FOR(d, a.D, WARP)
            sum += a.projection[(int64_t)f * a.D + d] * x[d];
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0)
            features[f] = sum;
    }
}

/* Softmax in place, as op_softmax, by one warp. */
__device__ static inline void softmax_features(Real *features, int64_t F)
{
    const Real m = max_of_row<WARP>(features, F), sum = exp_sum_of_row<WARP>(features, m, F);
    LANE_FOR(f, F, WARP)
        features[f] = exp(features[f] - m) / sum;
}

/* y <- e^(y - |x|^2 / 2) / sqrt F in place, as op_random_features, by one warp. */
__device__ static inline void random_features(Real *features, const Real *x, int64_t F, int64_t D)
{
    Real n = 0;
    LANE_FOR(d, D, WARP)
        n += x[d] * x[d] / 2;
    n = warp_sum(n);
    const Real scale = 1 / sqrt((Real)F);
    LANE_FOR(f, F, WARP)
        features[f] = scale * exp(features[f] - n);
}

/* Features that depend on all elements of the query and the key. Needs a barrier before, ends with
 * one. */
__device__ static inline void make_features(const StepAttention &a, const HeadMemory &m)
{
    const int warp = (int)threadIdx.x / WARP, last = (int)blockDim.x / WARP - 1;
    if (a.features == FEATURES_POLYNOMIAL) {
        for (int f = (int)threadIdx.x; f < a.F; f += (int)blockDim.x) {
            m.query_features[f] = polynomial_feature(m.query, f, a.D);
            m.key_features[f] = polynomial_feature(m.key, f, a.D);
        }
    } else {
        project(m.query_features, m.query, a);
        project(m.key_features, m.key, a);
        __syncthreads();
        if (warp == 0)
            softmax_features(m.query_features, a.F);
        if (warp == last)
            random_features(m.key_features, m.key, a.F, a.D);
    }
    __syncthreads();
}

/* ---------------------------------------------------------------------------- attention by a block
 * All threads of the block participate; they have stored the head's query, key and value. If the
 * sequence is full, the result is NaN, and its state stays unchanged. */

/* sums <- the threads' `partial` sums, reduced, for span columns from first_column on. */
template <int W>
__device__ static inline void reduce_sums(const Tiling &tiling, const HeadMemory &m,
                                          const ThreadTile<W> &p, int first_column,
                                          Reals<W> partial)
{
    const int first = (int)threadIdx.x * W;
#pragma unroll
    for (int k = 0; k < W; k++)
        if (p.active)
            m.parts[first + k] = partial.value[k];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < tiling.span && first_column + c < tiling.C;
         c += blockDim.x) {
        Real sum = 0;
        for (int row = 0; row < W * tiling.groups; row++)
            sum += m.parts[row * tiling.span + c];
        m.sums[first_column + c] = sum;
    }
    __syncthreads();
}

__device__ static inline void write_attended(const StepAttention &a, const HeadMemory &m,
                                             int64_t head, Real divisor)
{
    for (int d = (int)threadIdx.x; d < a.D; d += (int)blockDim.x)
        a.attended[head * a.D + d] = m.sums[d] / divisor;
}

template <int BLOCK> __device__ static inline void write_nan(const StepAttention &a, int64_t head)
{
    for (int d = (int)(threadIdx.x % BLOCK); d < a.D; d += BLOCK)
        a.attended[head * a.D + d] = (Real)NAN;
}

/* One tile of T, from `row` on: T += k [v, 1]^T, partial += T^T q. */
template <int W>
__device__ static inline void update_tile(Reals<W> &partial, Reals<W> elements, Real *T,
                                          const StepAttention &a, const HeadMemory &m,
                                          const ThreadTile<W> &p, const Reals<W> &value, int row)
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        elements.value[k] += m.key_features[row + p.row[k]] * value.value[k];
        partial.value[k] += m.query_features[row + p.row[k]] * elements.value[k];
    }
    contribute_pack<W>(&T[(int64_t)row * a.tiling.C + p.first], false, elements);
}

/* ahead: the prefetched first tile of T. */
template <int W>
__device__ static inline void attend_linear(const StepAttention &a, const HeadMemory &m,
                                            int64_t head, int position, Reals<W> (&ahead)[1])
{
    const int F = a.F, rows = tile_rows<W>(a.tiling);
    Real *const T = a.sums + head * F * a.tiling.C;
    if (threadIdx.x == 0)
        m.value[a.D] = 1;
    __syncthreads();
    if (position >= a.max_length) {
        write_nan<ATTEND_THREADS>(a, head);
        return;
    }
    if (!maps_elementwise(a.features))
        make_features(a, m);
    for (int column = 0; column < a.tiling.C; column += a.tiling.span) {
        const ThreadTile<W> p = thread_tile<W>(a.tiling, column);
        Reals<W> value = {}, partial = {};
#pragma unroll
        for (int k = 0; k < W; k++)
            value.value[k] = p.active ? m.value[p.column[k]] : (Real)0;
#pragma unroll 1 /* one tile holds a head of usual size */
        for (int row = 0; row < F; row += rows) {
            if (column + row > 0)
                load_tiles(ahead, T, a.tiling, p, row, F);
            if (p.active && row + p.row[0] < F)
                update_tile(partial, ahead[0], T, a, m, p, value, row);
        }
        reduce_sums<W>(a.tiling, m, p, column, partial);
    }
    write_attended(a, m, head, m.sums[a.D] + a.eps);
}

/* scores [count] <- q.k_j / sqrt D. A power of two of lanes, at most a warp, shares the packs of a
 * key. */
template <int W>
__device__ static inline void score_keys(Real *scores, const StepAttention &a, const Real *query,
                                         const Real *keys, int count)
{
    int lanes = 1;
    while (lanes < WARP && lanes * W < a.D)
        lanes *= 2;
    const int together = WARP / lanes, lane = (int)threadIdx.x % lanes;
    const int mine = (int)threadIdx.x / lanes, others = (int)blockDim.x / lanes;
    for (int j = mine; j - mine % together < count; j += others) {
        Real sum = 0;
        for (int d = lane * W; d < a.D && j < count; d += lanes * W) {
            const Reals<W> key = load_pack<W>(&keys[(int64_t)j * a.D + d]);
#pragma unroll
            for (int k = 0; k < W; k++)
                sum += query[d + k] * key.value[k];
        }
        for (int offset = lanes / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (lane == 0 && j < count)
            scores[j] = a.scale * sum;
    }
}

/* scores [count] <- e^(s_j - m) with m = max_j s_j; returns their sum. */
template <int BLOCK> __device__ static inline Real softmax_scores(Real *scores, int count)
{
    const Real m = max_of_row<BLOCK>(scores, count);
    Real sum = 0;
    LANE_FOR(j, count, BLOCK) {
        scores[j] = exp(scores[j] - m);
        sum += scores[j];
    }
    return block_sum(sum);
}

/* sums <- sum_j scores_j v_j */
template <int W>
__device__ static inline void accumulate_values(const StepAttention &a, const HeadMemory &m,
                                                const Real *values, const Real *scores, int count)
{
    enum { TILES = 4 }; /* loads in flight per thread */
    const int rows = tile_rows<W>(a.tiling);
    for (int column = 0; column < a.D; column += a.tiling.span) {
        const ThreadTile<W> p = thread_tile<W>(a.tiling, column);
        Reals<W> partial = {}, elements[TILES] = {};
        for (int row = 0; row < count; row += TILES * rows) {
            load_tiles(elements, values, a.tiling, p, row, count);
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int k = 0; k < W; k++)
                    if (p.active && row + t * rows + p.row[k] < count)
                        partial.value[k] +=
                            scores[row + t * rows + p.row[k]] * elements[t].value[k];
        }
        reduce_sums<W>(a.tiling, m, p, column, partial);
    }
}

/* Stores the key and value in the KV cache, then attends to positions up to this one. */
template <int W, int BLOCK>
__device__ static inline void attend_softmax(const StepAttention &a, const HeadMemory &m,
                                             int64_t head, int position)
{
    Real *const keys = a.keys + head * a.max_length * a.D;
    Real *const values = a.values + head * a.max_length * a.D;
    Real *const scores = a.scores + head * a.max_length;
    const int64_t row = (int64_t)position * a.D;
    __syncthreads();
    if (position >= a.max_length) {
        write_nan<BLOCK>(a, head);
        return;
    }
    for (int d = (int)threadIdx.x; d < a.D; d += BLOCK) {
        keys[row + d] = m.key[d];
        values[row + d] = m.value[d];
    }
    __syncthreads();
    score_keys<W>(scores, a, m.query, keys, position + 1);
    __syncthreads();
    const Real divisor = softmax_scores<BLOCK>(scores, position + 1);
    accumulate_values<W>(a, m, values, scores, position + 1);
    write_attended(a, m, head, divisor);
}

/* -------------------------------------------------------------------- linear attention by one warp
 * Each lane updates and sums whole columns, so that only den is reduced across lanes. If the
 * constant SIZE = D = F, T is staged in shared memory: columns are read there without bank
 * conflicts, and global memory is accessed in packs of 16 bytes. SIZE 0: any D and F, and T stays
 * in global memory. */

/* Elements of T in shared memory. */
template <int SIZE> constexpr int state_size = (SIZE + 1) * SIZE;

/* Calls f with the offset of each of the lane's packs of W elements of T. */
template <int SIZE, int W, typename F> __device__ static inline void for_packs(F f)
{
    const int first = (int)(threadIdx.x % WARP) * W;
#pragma unroll
    for (int i = 0; i < state_size<SIZE>; i += WARP * W)
        if (i + first < state_size<SIZE>)
            f(i + first);
}

template <int SIZE> __device__ static inline void load_state(Real *state, const Real *T)
{
    for_packs<SIZE, lanes_of<Real>>([=](int i) { copy_async<16>(&state[i], &T[i], 16); });
}

template <int SIZE> __device__ static inline void store_state(Real *T, const Real *state)
{
    constexpr int W = lanes_of<Real>;
    for_packs<SIZE, W>([=](int i) { contribute_pack<W>(&T[i], false, load_pack<W>(&state[i])); });
}

/* T_fc += k_f v for all rows f of a column [F] of stride C; returns sum_f q_f T_fc. The loads of
 * ROWS rows are in flight together. */
template <int ROWS, int W>
__device__ static inline Real update_column(Real *column, const HeadMemory &m, Real v, int F, int C)
{
    Real sum = 0;
    for (int row = 0; row < F; row += ROWS, column += (int64_t)ROWS * C) {
        Real T[ROWS], part = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            T[i] = row + i < F ? column[i * C] : (Real)0;
#pragma unroll
        for (int i = 0; i < ROWS; i += W) {
            if (row + i >= F)
                continue;
            const Reals<W> k = load_pack<W>(&m.key_features[row + i]);
            const Reals<W> q = load_pack<W>(&m.query_features[row + i]);
#pragma unroll
            for (int j = 0; j < W; j++) {
                T[i + j] += k.value[j] * v;
                part += q.value[j] * T[i + j];
                column[(i + j) * C] = T[i + j];
            }
        }
        sum += part;
    }
    return sum;
}

/* T in shared or global memory; features and values are visible to all lanes. */
template <int SIZE>
__device__ static inline void attend_linear_by_warp(const StepAttention &a, const HeadMemory &m,
                                                    Real *T, Real *attended)
{
    constexpr int ROWS = SIZE ? 8 : 24, W = SIZE ? 4 : 1;
    const int lane = (int)(threadIdx.x % WARP), C = a.D + 1;
    Real den = 0;
    for (int f = lane; f < a.F; f += WARP) {
        Real *const z = &T[(int64_t)f * C + a.D];
        *z += m.key_features[f];
        den += m.query_features[f] * *z;
    }
    den = warp_sum(den) + a.eps;
    for (int c = lane; c < a.D; c += WARP)
        attended[c] = update_column<ROWS, W>(T + c, m, m.value[c], a.F, C) / den;
}

#endif
