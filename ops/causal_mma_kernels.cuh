/* The kernels of causal_mma.cuh: sums of segments, forward, backward. */
#ifndef TAPEGRAD_OPS_CAUSAL_MMA_KERNELS_CUH
#define TAPEGRAD_OPS_CAUSAL_MMA_KERNELS_CUH

#include "ops/causal_mma_rows.cuh"
#include "ops/causal_mma_scan.cuh"

/* ------------------------------------------------------------------------------ a chunk's operands */

/* Starts copying a chunk's arguments, COUNT of them from the first. */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void copy_chunk(const M &m, const CausalMma<T> &c, const Chunk &chunk,
                                         int first)
{
#pragma unroll 1
    for (int i = 0; i < COUNT; i++)
        copy_rows<SIZE>(m.raw(i), c.argument[first + i], chunk);
    if (first + COUNT > DOUT)
        copy_den(m, c, chunk);
}

/* The operands of the chunk that has been copied */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void map_chunk(const M &m, const CausalMma<T> &c, const Chunk &chunk,
                                        int first)
{
#pragma unroll 1
    for (int i = 0; i < COUNT; i++)
        map_rows<SIZE>(m.operand(i), m.raw(i), c.argument[first + i], chunk, m.raw_den());
    if (first + COUNT > DOUT && (int)threadIdx.x < CHUNK)
        m.dden()[threadIdx.x] = m.raw_dden()[threadIdx.x];
}

/* Once the operands are in shared memory: starts copying the next chunk, or prefetches it. */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void start_next_chunk(const M &m, const CausalMma<T> &c, const Segment &s,
                                               int64_t next, int first)
{
    if (next >= s.end)
        return;
    if (Mma<T, SIZE>::AHEAD)
        copy_chunk<T, SIZE, COUNT>(m, c, chunk_at(s, next), first);
    else
#pragma unroll 1
        for (int i = 0; i < COUNT; i++)
            prefetch_rows<SIZE>(c.argument[first + i], chunk_at(s, next));
}

/* At the end of a chunk: all warps are done with its operands, and the next chunk has been copied. */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void receive_next_chunk(const M &m, const CausalMma<T> &c,
                                                 const Segment &s, int64_t next, int first)
{
    if (!Mma<T, SIZE>::AHEAD) {
        __syncthreads();
        if (next < s.end)
            copy_chunk<T, SIZE, COUNT>(m, c, chunk_at(s, next), first);
    }
    wait_for_copies();
    __syncthreads();
}

/* ------------------------------------------------------------------------------- sums of segments */

/* What a segment adds to S and z (which = 0), or to R and r (1) */
template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, 2, false>::BLOCKS))
    mma_sum_segments(const __grid_constant__ CausalMma<T> c, int first_sum, int sums)
{
    typedef MmaMemory<T, SIZE, 2, false> Memory;
    DYNAMIC_SHARED(Bfloat16, memory);
    const Memory m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int64_t block = blockIdx.x / sums;
    const int which = first_sum + (int)(blockIdx.x % sums), first = 2 * which;
    const int64_t limit = min((block + 1) * c.per_block, c.heads * c.chunks);
    for (int64_t chunk = block * c.per_block; chunk < limit;) {
        const Segment s = segment_at(c, block, chunk);
        chunk = s.next_chunk;
        if (which == 0 && s.slot == s.last_slot)
            continue; /* no segment of the head comes after it */
        MmaState<T, SIZE> state = {};
        if (s.first < s.end) {
            copy_chunk<T, SIZE, 2>(m, c, chunk_at(s, s.first), first);
            wait_for_copies();
            __syncthreads();
        }
        for (int64_t start = s.first; start < s.end; start += CHUNK) {
            map_chunk<T, SIZE, 2>(m, c, chunk_at(s, start), first);
            __syncthreads();
            start_next_chunk<T, SIZE, 2>(m, c, s, start + CHUNK, first);
            update_state<T, SIZE>(&state, 1, m.operand(0), m.operand(1));
            update_vector<T, SIZE>(&state, 1, m.operand(0), which ? m.dden() : NULL);
            receive_next_chunk<T, SIZE, 2>(m, c, s, start + CHUNK, first);
        }
        store_slot(c.sums[which] + s.slot * Mma<T, SIZE>::SLOT, state);
    }
}

/* Makes each sum include the earlier segments of its head (S, z), or the later ones (R, r). */
template <typename T>
__global__ void add_up_segments(const __grid_constant__ CausalMma<T> c, int first_sum, int sums,
                                int64_t slot_size)
{
    enum { BATCH = 8 }; /* independent loads */
    let_next_kernel_start();
    wait_for_previous_kernel();
    GRID_FOR(i, sums * c.heads * slot_size) {
        const int which = first_sum + (int)(i / (c.heads * slot_size));
        const int64_t head = i / slot_size % c.heads;
        const int64_t first = slot_of(head * c.chunks / c.per_block, head);
        const int64_t last = slot_of(((head + 1) * c.chunks - 1) / c.per_block, head);
        const int64_t count = last - first + which, step = which ? -slot_size : slot_size;
        Real *at = c.sums[which] + (which ? last : first) * slot_size + i % slot_size, sum = 0;
        for (int64_t done = 0; done < count; done += BATCH) {
            Real x[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                x[j] = done + j < count ? at[j * step] : (Real)0;
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                if (done + j < count)
                    at[j * step] = sum += x[j];
            at += BATCH * step;
        }
    }
}

/* ---------------------------------------------------------------------------------------- forward */

/* den of the warp's rows from the lanes' shares, and out = num / den */
template <typename T, int SIZE>
__device__ static inline void divide_by_den(float (*num)[4], const float *den,
                                            const CausalMma<T> &c, const Chunk &chunk)
{
    typedef Mma<T, SIZE> Sizes;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 16 * row_tile() + lane_row() + 8 * i;
        Real sum = den[2 * i] + den[2 * i + 1];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1); /* the four lanes of a row */
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += c.eps;
        if (first_column<Sizes>() == 0 && lane_column() == 0 && row < chunk.rows)
            c.den[(chunk.row + row) * c.H + chunk.h] = sum;
        const Real inverse = 1 / sum;
#pragma unroll
        for (int across = 0; across < Sizes::ACROSS; across++) {
            num[across][2 * i] *= inverse;
            num[across][2 * i + 1] *= inverse;
        }
    }
}

/* z for all warps, as three parts of bf16 */
template <typename T, int SIZE>
__device__ static inline void share_vector_parts(Bfloat16 *to, const MmaState<T, SIZE> &state)
{
    if (!has_vector<SIZE>() || lane_row() != 0)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float first = state.vector[half][0], second = state.vector[half][1];
#pragma unroll
        for (int p = 0; p < 3; p++) {
            const uint32_t pair = pack_bf16(first, second);
            *(uint32_t *)(to + p * Mma<T, SIZE>::PITCH + vector_column(half)) = pair;
            first -= first_of(pair);
            second -= second_of(pair);
        }
    }
}

template <typename T, int SIZE, typename M>
__device__ static inline void forward_chunk(MmaState<T, SIZE> *state, const M &m,
                                            const CausalMma<T> &c, const Segment &s, int64_t start)
{
    typedef Mma<T, SIZE> Sizes;
    const auto A = m.operand(QUERY), B = m.operand(KEY), V = m.operand(VALUE);
    float num[Sizes::ACROSS][4] = {}, scores[CHUNK / 8][4] = {}, den[4] = {};
    const Chunk chunk = chunk_at(s, start);
    map_chunk<T, SIZE, 3>(m, c, chunk, 0);
    share_state(m.state(), *state);
    share_vector_parts(m.vector_parts(), *state);
    __syncthreads();
    start_next_chunk<T, SIZE, 3>(m, c, s, start + CHUNK, 0);
    scan_rows<T, SIZE, TRIL, false>(num, scores, den, m.vector_parts(), A, B, V, m.state());
    update_state(state, 1, B, V);
    update_vector(state, 1, B, NULL);
    divide_by_den<T, SIZE>(num, den, c, chunk);
    contribute_rows<SIZE>(c.result[0], chunk, num);
    receive_next_chunk<T, SIZE, 3>(m, c, s, start + CHUNK, 0);
}

template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, 3, true>::BLOCKS))
    mma_forward(const __grid_constant__ CausalMma<T> c)
{
    typedef MmaMemory<T, SIZE, 3, true> Memory;
    DYNAMIC_SHARED(Bfloat16, memory);
    const Memory m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int64_t limit = min((blockIdx.x + 1) * c.per_block, c.heads * c.chunks);
    for (int64_t chunk = blockIdx.x * c.per_block; chunk < limit;) {
        const Segment s = segment_at(c, blockIdx.x, chunk);
        chunk = s.next_chunk;
        if (s.first < s.end)
            copy_chunk<T, SIZE, 3>(m, c, chunk_at(s, s.first), 0);
        MmaState<T, SIZE> state = load_state<T, SIZE>(c, s, 0);
        wait_for_copies();
        __syncthreads();
        for (int64_t start = s.first; start < s.end; start += CHUNK)
            forward_chunk(&state, m, c, s, start);
        if (s.is_last && c.final_state.data)
            contribute_state(c.final_state, c, s, &state);
    }
}

/* --------------------------------------------------------------------------------------- backward */

/* o *= phi'(x), from the operand phi(x) */
template <typename T, int SIZE>
__device__ static inline void multiply_derivative(float (*o)[4],
                                                  const typename Mma<T, SIZE>::Operand &mapped,
                                                  FeatureMap map)
{
    typedef Mma<T, SIZE> Sizes;
    if (map == FEATURES_IDENTITY)
        return;
#pragma unroll
    for (int c = 0; c < Sizes::ACROSS; c += 2) {
        const Fragment<Sizes::PARTS> rows =
            a_of(mapped, 16 * row_tile(), first_column<Sizes>() + 8 * c);
        Real derivatives[8] = {}; /* in the order of a's registers */
#pragma unroll
        for (int i = 0; i < 4 * Sizes::PARTS; i++) {
            derivatives[i % 4 * 2] += first_of(rows.at[i / 4][i % 4]);
            derivatives[i % 4 * 2 + 1] += second_of(rows.at[i / 4][i % 4]);
        }
        derivatives_from_values<8>(map, derivatives);
#pragma unroll
        for (int i = 0; i < 8; i++)
            o[c + i / 4][i % 4] *= derivatives[i];
    }
}

/* Rows of masked keys have no gradient. */
template <typename T, int SIZE>
__device__ static inline void clear_masked_rows(float (*o)[4], const Chunk &chunk)
{
    if (chunk.keys == chunk.rows)
        return;
#pragma unroll
    for (int i = 0; i < 4 * Mma<T, SIZE>::ACROSS; i++)
        if (16 * row_tile() + lane_row() + i % 4 / 2 * 8 >= chunk.keys)
            o[i / 4][i % 4] = 0;
}

/* dq = phi'(q) dA, of the warp's rows */
template <typename T, int SIZE, typename M>
__device__ static inline void query_gradient(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
    typedef Mma<T, SIZE> Sizes;
    const auto A = m.operand(QUERY), B = m.operand(KEY), V = m.operand(VALUE);
    float dA[Sizes::ACROSS][4], scores[CHUNK / 8][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Real dden = m.dden()[16 * row_tile() + lane_row() + i / 2 * 8];
        const Real *z = m.vector() + first_column<Sizes>() + lane_column() + i % 2;
#pragma unroll
        for (int across = 0; across < Sizes::ACROSS; across++)
            dA[across][i] = dden * z[8 * across];
#pragma unroll
        for (int column = 0; column < CHUNK / 8; column++)
            scores[column][i] = dden;
    }
    scan_rows<T, SIZE, TRIL, true>(dA, scores, NULL, NULL, m.operand(DOUT), V, B, m.state());
    multiply_derivative<T, SIZE>(dA, A, c.argument[QUERY].map);
    if (c.result[QUERY].data)
        contribute_rows<SIZE>(c.result[QUERY], chunk, dA);
}

/* dk = phi'(k) dB */
template <typename T, int SIZE, typename M>
__device__ static inline void key_gradient(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
    typedef Mma<T, SIZE> Sizes;
    const auto A = m.operand(QUERY), B = m.operand(KEY), V = m.operand(VALUE);
    float dB[Sizes::ACROSS][4], scores[CHUNK / 8][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Real *r = m.vector() + first_column<Sizes>() + lane_column() + i % 2;
        const Real *dden = m.dden() + lane_column() + i % 2;
#pragma unroll
        for (int across = 0; across < Sizes::ACROSS; across++)
            dB[across][i] = r[8 * across];
#pragma unroll
        for (int column = 0; column < CHUNK / 8; column++)
            scores[column][i] = dden[8 * column];
    }
    scan_rows<T, SIZE, TRIU, true>(dB, scores, NULL, NULL, V, m.operand(DOUT), A, m.state());
    multiply_derivative<T, SIZE>(dB, B, c.argument[KEY].map);
    clear_masked_rows<T, SIZE>(dB, chunk);
    if (c.result[KEY].data)
        contribute_rows<SIZE>(c.result[KEY], chunk, dB);
}

/* dv: masked keys have rows of zeros in B. */
template <typename T, int SIZE, typename M>
__device__ static inline void value_gradient(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
    typedef Mma<T, SIZE> Sizes;
    float dV[Sizes::ACROSS][4] = {}, scores[CHUNK / 8][4] = {};
    scan_rows<T, SIZE, TRIU, false>(dV, scores, NULL, NULL, m.operand(KEY), m.operand(QUERY),
                                    m.operand(DOUT), m.state());
    if (c.result[VALUE].data)
        contribute_rows<SIZE>(c.result[VALUE], chunk, dV);
}

/* S: before the chunk, then after it; R: from the chunk on, then after it. They share one copy. */
template <typename T, int SIZE, typename M>
__device__ static inline void backward_chunk(MmaState<T, SIZE> *S, MmaState<T, SIZE> *R, const M &m,
                                             const CausalMma<T> &c, const Segment &s, int64_t start)
{
    const auto A = m.operand(QUERY), B = m.operand(KEY), V = m.operand(VALUE);
    const auto dNum = m.operand(DOUT);
    const Chunk chunk = chunk_at(s, start);
    map_chunk<T, SIZE, ARGUMENTS>(m, c, chunk, 0);
    share_state(m.state(), *S);
    share_vector(m.vector(), *S);
    __syncthreads();
    start_next_chunk<T, SIZE, ARGUMENTS>(m, c, s, start + CHUNK, 0);
    query_gradient<T, SIZE>(m, c, chunk);
    update_state(S, 1, B, V);
    update_vector(S, 1, B, NULL);
    update_state(R, -1, A, dNum);
    update_vector(R, -1, A, m.dden());
    __syncthreads(); /* every warp has read S */
    share_state(m.state(), *R);
    share_vector(m.vector(), *R);
    __syncthreads();
    key_gradient<T, SIZE>(m, c, chunk);
    value_gradient<T, SIZE>(m, c, chunk);
    receive_next_chunk<T, SIZE, ARGUMENTS>(m, c, s, start + CHUNK, 0);
}

template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, ARGUMENTS, true>::BLOCKS))
    mma_backward(const __grid_constant__ CausalMma<T> c)
{
    typedef MmaMemory<T, SIZE, ARGUMENTS, true> Memory;
    DYNAMIC_SHARED(Bfloat16, memory);
    const Memory m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int64_t limit = min((blockIdx.x + 1) * c.per_block, c.heads * c.chunks);
    for (int64_t chunk = blockIdx.x * c.per_block; chunk < limit;) {
        const Segment s = segment_at(c, blockIdx.x, chunk);
        chunk = s.next_chunk;
        if (s.first < s.end)
            copy_chunk<T, SIZE, ARGUMENTS>(m, c, chunk_at(s, s.first), 0);
        MmaState<T, SIZE> S = load_state<T, SIZE>(c, s, 0), R = load_state<T, SIZE>(c, s, 1);
        wait_for_copies();
        __syncthreads();
        if (s.first == 0 && c.dinitial_state.data)
            contribute_state(c.dinitial_state, c, s, &R);
        for (int64_t start = s.first; start < s.end; start += CHUNK)
            backward_chunk(&S, &R, m, c, s, start);
    }
}

#endif
