/* The mathematics of mma.cuh's kernels: S and R in registers, and one chunk of a scan. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_SCAN_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_SCAN_CUH

#include "ops/cuda/attention/linear/mma_rows.cuh"

/* --------------------------------------------------------------------------------------- states
 * A warp's tiles of S, or R, and the lane's columns of z, or r: 16 columns per warp, of which every
 * lane with the same lane % 4 holds the same four. */
template <typename T, int SIZE> struct MmaState {
    float at[Mma<T, SIZE>::STATE_ACROSS][4];
    float vector[2][2];
};

template <int SIZE> __device__ static inline int state_row(void)
{
    const int warp = (int)threadIdx.x / WARP;
    return SIZE < 64 ? warp % 2 * 16 : warp * 16;
}
template <int SIZE> __device__ static inline int state_column(void)
{
    return SIZE < 64 ? (int)threadIdx.x / WARP / 2 * 16 : 0;
}

/* The lane's columns of the vector; warps past the last column have none. */
template <int SIZE> __device__ static inline bool has_vector(void)
{
    return (int)threadIdx.x / WARP * 16 < SIZE;
}
__device__ static inline int vector_column(int half)
{
    return (int)threadIdx.x / WARP * 16 + 8 * half + lane_column();
}

/* state += slot */
template <typename T, int SIZE>
__device__ static inline void add_slot(MmaState<T, SIZE> *state, const Real *slot)
{
    typedef Mma<T, SIZE> Sizes;
    float4 tiles[Sizes::STATE_ACROSS];
#pragma unroll
    for (int i = 0; i < Sizes::STATE_ACROSS; i++)
        tiles[i] = ((const float4 *)slot)[i * Sizes::BLOCK_THREADS + threadIdx.x];
    if (has_vector<SIZE>())
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 pair = *(const float2 *)(slot + SIZE * SIZE + vector_column(half));
            state->vector[half][0] += pair.x;
            state->vector[half][1] += pair.y;
        }
#pragma unroll
    for (int i = 0; i < Sizes::STATE_ACROSS; i++) {
        state->at[i][0] += tiles[i].x;
        state->at[i][1] += tiles[i].y;
        state->at[i][2] += tiles[i].z;
        state->at[i][3] += tiles[i].w;
    }
}

/* slot = state */
template <typename T, int SIZE>
__device__ static inline void store_slot(Real *slot, const MmaState<T, SIZE> &state)
{
    typedef Mma<T, SIZE> Sizes;
#pragma unroll
    for (int i = 0; i < Sizes::STATE_ACROSS; i++)
        ((float4 *)slot)[i * Sizes::BLOCK_THREADS + threadIdx.x] =
            make_float4(state.at[i][0], state.at[i][1], state.at[i][2], state.at[i][3]);
    if (has_vector<SIZE>() && lane_row() == 0)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(slot + SIZE * SIZE + vector_column(half)) =
                make_float2(state.vector[half][0], state.vector[half][1]);
}

/* Calls visit(element, row, column) for the thread's elements of S and z as a matrix [D, M + 1]. */
template <typename T, int SIZE, typename Visit>
__device__ static inline void for_each_element(MmaState<T, SIZE> *state, int D, int M, Visit visit)
{
#pragma unroll
    for (int i = 0; i < 4 * Mma<T, SIZE>::STATE_ACROSS; i++) {
        const int row = state_row<SIZE>() + lane_row() + i % 4 / 2 * 8;
        const int column = state_column<SIZE>() + i / 4 * 8 + lane_column() + i % 2;
        if (row < D && column < M)
            visit(&state->at[i / 4][i % 4], row, column);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (has_vector<SIZE>() && vector_column(i / 2) + i % 2 < D)
            visit(&state->vector[i / 2][i % 2], vector_column(i / 2) + i % 2, M);
}

/* S and z before the segment, or R and r after it */
template <typename T, int SIZE>
__device__ static inline MmaState<T, SIZE> load_state(const CausalMma<T> &c, const Segment &s,
                                                      Sum sum)
{
    const int D = c.argument[KEY].columns, M = c.argument[VALUE].columns;
    const Real *begin = sum == PREFIX ? c.initial_state : c.dfinal_state;
    const int32_t nearest = sum == PREFIX ? s.slot - 1 : s.slot + 1;
    const int32_t first = sum == SUFFIX || c.scanned ? nearest : s.first_slot;
    const int32_t last = sum == PREFIX || c.scanned ? nearest : s.last_slot;
    MmaState<T, SIZE> state = {};
    if (begin)
        for_each_element(&state, D, M, [=](float *x, int row, int column) {
            *x = begin[(s.head * D + row) * (M + 1) + column];
        });
    for (int32_t slot = max(first, s.first_slot); slot <= min(last, s.last_slot); slot++)
        add_slot(&state, c.sums[sum] + (int64_t)slot * Mma<T, SIZE>::SLOT);
    return state;
}

/* Several lanes hold the same element of z or r: the first of them stores it. */
template <typename T, int SIZE>
__device__ static inline void store_state(Real *to, const CausalMma<T> &c, const Segment &s,
                                          MmaState<T, SIZE> *state)
{
    const int D = c.argument[KEY].columns, M = c.argument[VALUE].columns;
    for_each_element(state, D, M, [=](const float *x, int row, int column) {
        if (column < M || lane_row() == 0)
            to[(s.head * D + row) * (M + 1) + column] = *x;
    });
}

/* The copy of S or R for all warps */
template <typename T, int SIZE>
__device__ static inline void share_state(const typename Mma<T, SIZE>::State &shared,
                                          const MmaState<T, SIZE> &state)
{
    typedef Mma<T, SIZE> Sizes;
#pragma unroll
    for (int across = 0; across < Sizes::STATE_ACROSS; across++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t parts[2];
            split<Sizes::PARTS>(parts, 1, state.at[across][2 * i], state.at[across][2 * i + 1]);
            Bfloat16 *const to = shared.at +
                                 (state_row<SIZE>() + lane_row() + 8 * i) * Sizes::PITCH +
                                 state_column<SIZE>() + 8 * across + lane_column();
#pragma unroll
            for (int p = 0; p < Sizes::PARTS; p++)
                *(uint32_t *)(to + p * Sizes::State::APART) = parts[p];
        }
}

/* Writes z or r to shared memory for all warps. */
template <typename T, int SIZE>
__device__ static inline void share_vector(Real *vector, const MmaState<T, SIZE> &state)
{
    if (has_vector<SIZE>() && lane_row() == 0)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(vector + vector_column(half)) =
                make_float2(state.vector[half][0], state.vector[half][1]);
}

/* S += Y^T W */
template <typename T, int SIZE>
__device__ static inline void update_state(MmaState<T, SIZE> *state,
                                           const typename Mma<T, SIZE>::ChunkRows &y,
                                           const typename Mma<T, SIZE>::ChunkRows &w, int count)
{
    typedef Mma<T, SIZE> Sizes;
    enum { BATCH = Sizes::STATE_ACROSS < 8 ? Sizes::STATE_ACROSS : 8 };
#pragma unroll
    for (int first = 0; first < Sizes::STATE_ACROSS; first += BATCH) {
        float sums[BATCH][4] = {};
#pragma unroll
        for (int k = 0; k < CHUNK; k += 16) {
            if (k >= count)
                continue;
            const Fragment<Sizes::PARTS> rows = a_of_transposed(y, state_row<SIZE>(), k);
#pragma unroll
            for (int i = 0; i < BATCH; i += 2)
                multiply(sums + i, rows, b_of(w, k, state_column<SIZE>() + 8 * (first + i)));
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                state->at[first + i][e] += sums[i][e];
    }
}

/* z += Y^T weights; NULL: weights of 1. The weights are rows g (hi) and g + 8 (lo) of an operand,
 * the same in every row, so every lane gets the sums of its columns. */
template <typename T, int SIZE>
__device__ static inline void update_vector(MmaState<T, SIZE> *state,
                                            const typename Mma<T, SIZE>::ChunkRows &y,
                                            const Real *weights, int count)
{
    typedef Mma<T, SIZE> Sizes;
    const uint32_t ones = pack_bf16(1, 1);
    float sums[2][4] = {};
    if (!has_vector<SIZE>())
        return;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
        if (k >= count)
            continue;
        uint32_t rows[4] = { ones, 0, ones, 0 };
        if (weights)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float2 pair = *(const float2 *)(weights + k + 8 * i + lane_column());
                split<2>(rows + 2 * i, 1, pair.x, pair.y);
            }
        const Fragment<Sizes::PARTS> columns = b_of(y, k, (int)threadIdx.x / WARP * 16);
#pragma unroll
        for (int p = 0; p < Sizes::PARTS; p++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                mma_bf16(sums[half], rows, columns.at[p] + 2 * half);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            state->vector[half][e] += sums[half][e] + sums[half][e + 2];
}

/* --------------------------------------------------------------------------------------- a scan */

/* TRIL keeps tiles of scores up to the warp's own, TRIU keeps them from it on. */
enum Triangle { TRIL, TRIU };
template <Triangle TRIANGLE> __device__ static inline bool keeps(int tile, int count)
{
    return 16 * tile < count && (TRIANGLE == TRIL ? tile <= row_tile() : tile >= row_tile());
}

/* The tile on the diagonal: two tiles [16, 8] beside each other. */
template <Triangle TRIANGLE> __device__ static inline void mask_diagonal(float (*scores)[4])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = lane_row() + i % 4 / 2 * 8, column = i / 4 * 8 + lane_column() + i % 2;
        if (TRIANGLE == TRIL ? column > row : column < row)
            scores[i / 4][i % 4] = 0;
    }
}

/* den of the warp's rows, as a tile [16, 8] whose columns remain to be added up: a.z by z's parts,
 * and the row sums of tril(A B^T), rounded as in the product, so that num and den agree. */
template <int PARTS>
__device__ static inline void add_den(float *den, const Fragment<PARTS> &rows, uint32_t left,
                                      uint32_t right)
{
    const uint32_t column[2] = { left, right };
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        mma_bf16(den, rows.at[p], column);
}

/* What add_den adds up, and the parts of z; NULL: no den is computed. */
struct DenOfRows {
    float *den;
    const Bfloat16 *vector_parts;
};

/* A warp's rows of a scan: o += X State + tri(X Y^T + scores) W, with State^T if TRANSPOSED. */
template <typename T, int SIZE, Triangle TRIANGLE, bool TRANSPOSED>
__device__ static inline void scan_rows(float (*o)[4], float (*scores)[4], DenOfRows sums,
                                        const typename Mma<T, SIZE>::ChunkRows &x,
                                        const typename Mma<T, SIZE>::ChunkRows &y,
                                        const typename Mma<T, SIZE>::ChunkRows &w,
                                        const typename Mma<T, SIZE>::State &state, int count)
{
    typedef Mma<T, SIZE> Sizes;
    typedef Fragment<Sizes::PARTS> RowFragment;
    const int column = first_column<Sizes>();
#pragma unroll
    for (int k = 0; k < SIZE; k += 16) {
        const RowFragment rows = a_of(x, 16 * row_tile(), k);
#pragma unroll
        for (int tile = 0; tile < 4; tile++)
            if (keeps<TRIANGLE>(tile, count))
                multiply(scores + 2 * tile, rows, b_of_transposed(y, k, 16 * tile));
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c += 2)
            multiply(o + c, rows,
                     TRANSPOSED ? b_of_transposed(state, k, column + 8 * c)
                                : b_of(state, k, column + 8 * c));
        if (sums.den) {
            const Bfloat16 *part =
                sums.vector_parts + lane_row() % 3 * Sizes::PITCH + k + lane_column();
            add_den(sums.den, rows, lane_row() < 3 ? *(const uint32_t *)part : 0,
                    lane_row() < 3 ? *(const uint32_t *)(part + 8) : 0);
        }
    }
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
        if (!keeps<TRIANGLE>(tile, count))
            continue;
        if (tile == row_tile())
            mask_diagonal<TRIANGLE>(scores + 2 * tile);
        RowFragment p;
#pragma unroll
        for (int i = 0; i < 4; i++)
            split<Sizes::PARTS>(&p.at[0][i], 4, scores[2 * tile + i / 2][i % 2 * 2],
                                scores[2 * tile + i / 2][i % 2 * 2 + 1]);
        if (sums.den) {
            const uint32_t one = lane_row() == 0 ? pack_bf16(1, 1) : 0;
            add_den(sums.den, p, one, one);
        }
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c += 2)
            multiply(o + c, p, b_of(w, 16 * tile, column + 8 * c));
    }
}

#endif
