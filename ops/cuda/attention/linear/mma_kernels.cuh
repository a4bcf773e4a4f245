/* The kernels of mma.cuh: sums of segments, forward, and the gradients. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_KERNELS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_KERNELS_CUH

#include "ops/cuda/attention/linear/mma_scan.cuh"

/* --------------------------------------------------------------------------- a chunk's operands
 * A kernel uses the first COUNT arguments. */

/* Starts copying a chunk's rows. */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void copy_chunk(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
#pragma unroll 1
    for (int i = 0; i < COUNT; i++)
        copy_rows<SIZE>(m.raw(i), c.argument[i], chunk);
    if (COUNT > DOUT)
        copy_den(m, c, chunk);
}

/* The operands of the chunk that has been copied */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void map_chunk(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
#pragma unroll 1
    for (int i = 0; i < COUNT; i++)
        map_rows<SIZE>(m.operand(i), m.raw(i), c.argument[i], chunk, m.raw_den());
    if (COUNT > DOUT && (int)threadIdx.x < CHUNK)
        m.dden()[threadIdx.x] = m.raw_dden()[threadIdx.x];
}

/* Iterates over the chunks of a segment, from the last to the first if REVERSE. share() copies S or
 * R to shared memory for all warps; process(chunk) then finds it and the operands there, while the
 * next chunk is copied, or prefetched where it has no buffers of its own. */
template <typename T, int SIZE, int COUNT, bool REVERSE, typename M, typename Share,
          typename Process>
__device__ static inline void for_each_chunk(const M &m, const CausalMma<T> &c, const Segment &s,
                                             Share share, Process process)
{
    const int64_t chunks = (s.end - s.first + CHUNK - 1) / CHUNK;
    int64_t start = REVERSE ? s.first + (chunks - 1) * CHUNK : s.first;
    for (int left = (int)chunks; left > 0; left--, start += REVERSE ? -CHUNK : CHUNK) {
        const Chunk chunk = chunk_at(s, start),
                    next = chunk_at(s, start + (REVERSE ? -CHUNK : CHUNK));
        const bool more = left > 1;
        map_chunk<T, SIZE, COUNT>(m, c, chunk);
        share();
        __syncthreads();
        if (Mma<T, SIZE>::AHEAD && more)
            copy_chunk<T, SIZE, COUNT>(m, c, next);
#pragma unroll 1
        for (int i = 0; i < COUNT && !Mma<T, SIZE>::AHEAD && more; i++)
            prefetch_rows<SIZE>(c.argument[i], next);
        process(chunk);
        if (!Mma<T, SIZE>::AHEAD) {
            __syncthreads(); /* all warps are done with the operands */
            if (more)
                copy_chunk<T, SIZE, COUNT>(m, c, next);
        }
        wait_for_copies();
        __syncthreads();
    }
}

/* At the start of a segment, whose first chunk begins at this position */
template <typename T, int SIZE, int COUNT, typename M>
__device__ static inline void receive_first_chunk(const M &m, const CausalMma<T> &c,
                                                  const Segment &s, int64_t start)
{
    if (s.first < s.end)
        copy_chunk<T, SIZE, COUNT>(m, c, chunk_at(s, start));
    wait_for_copies();
    __syncthreads();
}

/* Calls process(segment) for the block's segments. */
template <typename T, typename Process>
__device__ static inline void for_each_segment(const CausalMma<T> &c, Process process)
{
    const int32_t limit = chunk_limit(c.chunks, c.per_block);
    for (int32_t chunk = (int32_t)blockIdx.x * c.per_block; chunk < limit;) {
        const Segment s = segment_at(c, chunk);
        process(s);
        chunk = s.next_chunk;
    }
}

/* ----------------------------------------------------------------------------- sums of segments */

/* The sums of each segment's S and z; that of a head's last segment is not needed. */
template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, 2, false>::BLOCKS))
    mma_sum_segments(const __grid_constant__ CausalMma<T> c)
{
    DYNAMIC_SHARED(Bfloat16, memory);
    const MmaMemory<T, SIZE, 2, false> m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    for_each_segment(c, [&](const Segment &s) {
        if (s.slot == s.last_slot)
            return;
        MmaState<T, SIZE> state = {};
        receive_first_chunk<T, SIZE, 2>(m, c, s, s.first);
        const auto share = [] {};
        for_each_chunk<T, SIZE, 2, false>(m, c, s, share, [&](const Chunk &chunk) {
            update_state<T, SIZE>(&state, m.operand(KEY), m.operand(VALUE), chunk.rows);
            update_vector<T, SIZE>(&state, m.operand(KEY), NULL, chunk.rows);
        });
        store_slot(c.sums[PREFIX] + (int64_t)s.slot * Mma<T, SIZE>::SLOT, state);
    });
}

/* Makes each sum include those of the head's earlier segments (PREFIX), or later ones (SUFFIX). */
template <typename T>
__global__ void prefix_sum_segments(const __grid_constant__ CausalMma<T> c, Sum sum,
                                    int64_t slot_size, int64_t items)
{
    enum { BATCH = 8 }; /* independent loads */
    let_next_kernel_start();
    wait_for_previous_kernel();
    GRID_FOR(i, items) {
        const Head head = head_at(c.line, (int32_t)(i / slot_size), c.N);
        const int64_t step = sum == SUFFIX ? -slot_size : slot_size;
        const int64_t first = slot_of(head.first / c.per_block, head.rank);
        const int64_t last = slot_of((head.end - 1) / c.per_block, head.rank);
        const int64_t count = last - first; /* the last, or for SUFFIX the first, is not needed */
        Real *at = c.sums[sum] + (sum == SUFFIX ? last : first) * slot_size + i % slot_size;
        Real total = 0;
        for (int64_t done = 0; done < count; done += BATCH, at += BATCH * step) {
            Real x[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                x[j] = done + j < count ? at[j * step] : (Real)0;
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                if (done + j < count)
                    at[j * step] = total += x[j];
        }
    }
}

/* ------------------------------------------------------------------------------- the four scans */

/* The warp's rows start as alpha e^T and scores as alpha beta^T, where one of alpha and beta is
 * dden and the other 1: the last columns of dnum~ and v~. */
template <typename T, int SIZE, bool DDEN_OF_ROWS, typename M>
__device__ static inline void start_from_dden(float (*o)[4], float (*scores)[4], const M &m)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Real *e = m.vector() + first_column<Mma<T, SIZE>>() + lane_column() + i % 2;
        const Real *dden = m.dden() + (DDEN_OF_ROWS ? 16 * row_tile() + lane_row() + i / 2 * 8
                                                    : lane_column() + i % 2);
#pragma unroll
        for (int across = 0; across < Mma<T, SIZE>::ACROSS; across++)
            o[across][i] = DDEN_OF_ROWS ? *dden * e[8 * across] : e[8 * across];
#pragma unroll
        for (int column = 0; column < CHUNK / 8; column++)
            scores[column][i] = dden[DDEN_OF_ROWS ? 0 : 8 * column];
    }
}

/* The warp's rows of a chunk's scan, whose result is out (DOUT) or the gradient of the argument. */
template <int RESULT, typename T, int SIZE, typename M>
__device__ static inline void scan_chunk(float (*o)[4], float *den, const M &m, int rows)
{
    const auto A = m.operand(QUERY), B = m.operand(KEY), V = m.operand(VALUE);
    const auto dNum = m.operand(RESULT == DOUT ? QUERY : DOUT); /* the forward pass has no dNum */
    const auto state = m.state();
    float scores[CHUNK / 8][4] = {};
    if (RESULT == QUERY || RESULT == KEY)
        start_from_dden<T, SIZE, RESULT == QUERY>(o, scores, m);
    if (RESULT == DOUT) /* num~ = scan(a, b, v~) */
        scan_rows<T, SIZE, TRIL, false>(o, scores, { den, m.vector_parts() }, A, B, V, state, rows);
    if (RESULT == QUERY) /* da = scan(dnum~, v~, b) */
        scan_rows<T, SIZE, TRIL, true>(o, scores, {}, dNum, V, B, state, rows);
    if (RESULT == KEY) /* db = scan_reverse(v~, dnum~, a) */
        scan_rows<T, SIZE, TRIU, true>(o, scores, {}, V, dNum, A, state, rows);
    if (RESULT == VALUE) /* dv = scan_reverse(b, a, dnum) */
        scan_rows<T, SIZE, TRIU, false>(o, scores, {}, B, A, dNum, state, rows);
}

/* -------------------------------------------------------------------------------------- forward */

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

template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, 3, true>::BLOCKS))
    mma_forward(const __grid_constant__ CausalMma<T> c)
{
    DYNAMIC_SHARED(Bfloat16, memory);
    const MmaMemory<T, SIZE, 3, true> m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    for_each_segment(c, [&](const Segment &s) {
        receive_first_chunk<T, SIZE, 3>(m, c, s, s.first);
        MmaState<T, SIZE> S = load_state<T, SIZE>(c, s, PREFIX);
        const auto share = [&] {
            share_state(m.state(), S);
            share_vector_parts(m.vector_parts(), S);
        };
        for_each_chunk<T, SIZE, 3, false>(m, c, s, share, [&](const Chunk &chunk) {
            float num[Mma<T, SIZE>::ACROSS][4] = {}, den[4] = {};
            if (16 * row_tile() < chunk.rows)
                scan_chunk<DOUT, T, SIZE>(num, den, m, chunk.rows);
            update_state(&S, m.operand(KEY), m.operand(VALUE), chunk.rows);
            update_vector(&S, m.operand(KEY), NULL, chunk.rows);
            divide_by_den<T, SIZE>(num, den, c, chunk);
            contribute_rows<SIZE>(c.result[0], chunk, num);
        });
        if (s.is_last && c.final_state)
            store_state(c.final_state, c, s, &S);
    });
}

/* ------------------------------------------------------------------------------------ gradients */

/* o *= phi'(x), from the operand phi(x) */
template <typename T, int SIZE>
__device__ static inline void feature_map_backward(float (*o)[4],
                                                   const typename Mma<T, SIZE>::ChunkRows &mapped,
                                                   FeatureMap map)
{
    typedef Mma<T, SIZE> Sizes;
    if (map == FEATURE_MAP_IDENTITY)
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

/* The gradient of a chunk of query, key or value, the warp's rows: phi'(q) da, phi'(k) db or dv */
template <int ARGUMENT, typename T, int SIZE, typename M>
__device__ static inline void gradient(const M &m, const CausalMma<T> &c, const Chunk &chunk)
{
    float o[Mma<T, SIZE>::ACROSS][4] = {};
    if (16 * row_tile() >= chunk.rows)
        return;
    scan_chunk<ARGUMENT, T, SIZE>(o, NULL, m, chunk.rows);
    if (ARGUMENT != VALUE)
        feature_map_backward<T, SIZE>(o, m.operand(ARGUMENT), c.argument[ARGUMENT].map);
    if (ARGUMENT != QUERY)
        clear_masked_rows<T, SIZE>(o, chunk);
    if (c.result[ARGUMENT].data)
        contribute_rows<SIZE>(c.result[ARGUMENT], chunk, o);
}

/* One sweep from the first chunk to the last: dq, and what the segment adds to R and r. */
template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, ARGUMENTS, true>::BLOCKS))
    mma_query_gradient(const __grid_constant__ CausalMma<T> c)
{
    DYNAMIC_SHARED(Bfloat16, memory);
    const MmaMemory<T, SIZE, ARGUMENTS, true> m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    for_each_segment(c, [&](const Segment &s) {
        receive_first_chunk<T, SIZE, ARGUMENTS>(m, c, s, s.first);
        MmaState<T, SIZE> S = load_state<T, SIZE>(c, s, PREFIX), R = {};
        const auto share = [&] {
            share_state(m.state(), S);
            share_vector(m.vector(), S);
        };
        for_each_chunk<T, SIZE, ARGUMENTS, false>(m, c, s, share, [&](const Chunk &chunk) {
            gradient<QUERY, T, SIZE>(m, c, chunk);
            update_state(&S, m.operand(KEY), m.operand(VALUE), chunk.rows);
            update_vector(&S, m.operand(KEY), NULL, chunk.rows);
            if (c.cuts_heads) {
                update_state(&R, m.operand(QUERY), m.operand(DOUT), chunk.rows);
                update_vector(&R, m.operand(QUERY), m.dden(), chunk.rows);
            }
        });
        if (s.slot != s.first_slot)
            store_slot(c.sums[SUFFIX] + (int64_t)s.slot * Mma<T, SIZE>::SLOT, R);
    });
}

/* One sweep from the last chunk to the first: dk and dv, and the initial state's gradient. */
template <typename T, int SIZE>
__global__ void __launch_bounds__((Mma<T, SIZE>::BLOCK_THREADS),
                                  (MmaMemory<T, SIZE, ARGUMENTS, true>::BLOCKS))
    mma_key_value_gradients(const __grid_constant__ CausalMma<T> c)
{
    DYNAMIC_SHARED(Bfloat16, memory);
    const MmaMemory<T, SIZE, ARGUMENTS, true> m = { memory };
    let_next_kernel_start();
    wait_for_previous_kernel();
    for_each_segment(c, [&](const Segment &s) {
        const int64_t last = s.first + (s.end - s.first - 1) / CHUNK * CHUNK;
        receive_first_chunk<T, SIZE, ARGUMENTS>(m, c, s, last);
        MmaState<T, SIZE> R = load_state<T, SIZE>(c, s, SUFFIX);
        const auto share = [&] {
            share_state(m.state(), R);
            share_vector(m.vector(), R);
        };
        for_each_chunk<T, SIZE, ARGUMENTS, true>(m, c, s, share, [&](const Chunk &chunk) {
            gradient<KEY, T, SIZE>(m, c, chunk);
            gradient<VALUE, T, SIZE>(m, c, chunk);
            update_state(&R, m.operand(QUERY), m.operand(DOUT), chunk.rows);
            update_vector(&R, m.operand(QUERY), m.dden(), chunk.rows);
        });
        if (s.first == 0 && c.dinitial_state)
            store_state(c.dinitial_state, c, s, &R);
    });
}

#endif
