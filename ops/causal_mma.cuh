/* Causal linear attention on tensor cores: the parts that its kernels share.
 *
 * In the notation of causal_linear_attention.c, with a = phi(q), b = phi(k) and, backward,
 * dnum = dout / den, dden = -dnum.out, the kernels process a head in chunks of 64 positions. A, B, V and
 * dNum hold a chunk's rows; S, z are the sums of b v^T and b over earlier chunks, R, r those of
 * a dnum^T and a dden over later ones; tril keeps columns up to the diagonal, triu those from it on:
 *
 *     Num  =                A S   + tril(A B^T) V                       S += B^T V     z += B^T 1
 *     dA   = dden z^T + dNum S^T  + tril(dNum V^T + dden 1^T) B
 *     dB   =    1 r^T +    V R^T  + triu(V dNum^T + 1 dden^T) A
 *     dV   =                B R   + triu(B A^T) dNum                    R += A^T dNum  r += A^T dden
 *
 * Every line is one scan (Katharopoulos et al. 2020, equations 9 to 15, in the chunks of Buckman and
 * Gelada 2024): scan_rows below, with the roles permuted.
 *
 * The backward pass goes over the chunks once, from the first to the last: R begins as the sum over the
 * segment and all later positions, and each chunk's contribution is subtracted from it. Subtracting
 * leaves rounding errors of the whole sum, so a segment of the backward pass has at most
 * BACKWARD_CHUNKS chunks.
 *
 * How the work is cut: the chunks of all heads form one line, and every block processes the same number
 * of consecutive ones (ops/chunk_plan.h). The part of a head in one block is a segment. sum_segments
 * first computes each segment's own B^T V, B^T 1, A^T dNum and A^T dden; a segment then begins with the
 * sums of the segments before it (S, z), or from it on (R, r).
 *
 * S and R stay in registers in float. The sums of one chunk are computed from zero and then added in
 * float, because tensor cores round every sum towards zero: over a long sequence that would be a bias.
 * Where tensors store Real, an operand is two of bf16, the nearest (hi) and the rest (lo), and a product
 * is hi hi + hi lo + lo hi, with a relative error of about 1e-5. */
#ifndef TAPEGRAD_OPS_CAUSAL_MMA_CUH
#define TAPEGRAD_OPS_CAUSAL_MMA_CUH

#include "ops/attention.cuh"
#include "ops/mma_operands.cuh"
#include "tensor/copy.cuh"

/* ------------------------------------------------------------------------------------- arguments */

/* K and V, the sums' arguments forward, come first; then Q and dOut, those of the sums backward. */
enum { KEY, VALUE, QUERY, DOUT, ARGUMENTS };

/* Tensors [rows, H, columns], with a stride between rows of the same head. */
template <typename T> struct Argument {
    const T *data;
    int64_t stride;
    int columns;
    FeatureMap map;
    bool divided; /* by den */
    bool masked;  /* rows from key_lengths[b] on are zero */
    bool
        aligned; /* every 8 columns begin at multiples of 16 bytes, and columns are a multiple of 8 */
};

template <typename T> struct Result {
    T *data; /* NULL: not computed */
    int64_t stride;
    int columns;
    bool accumulate;
    bool paired; /* every 2 columns begin at even elements, and columns are even */
};

template <typename T> struct CausalMma {
    Argument<T> argument[ARGUMENTS];
    Result<T> result[3]; /* forward: out; backward: dkey, dvalue, dquery */
    int64_t N, heads;    /* heads: of all sequences */
    int H;
    const int32_t *key_lengths, *offsets;
    int64_t chunks, per_block, blocks; /* chunks: per head */
    Real *den;                         /* [B, N, H] */
    const Real *dden;                  /* [B, N, H] */
    Real eps;
    Real *sums[2]; /* of S, z and of R, r: [slots, SIZE SIZE + SIZE] in the order of load_state */
    bool added_up; /* each sum includes the earlier segments', or R's the later ones' */
    const Real *initial_state, *dfinal_state; /* [heads, D, M + 1], or NULL: 0 */
    Gradient final_state, dinitial_state;     /* likewise */
};

/* -------------------------------------------------------------------------------------- segments */

/* A part of a head, in positions of its sequence; row is the sequence's first row in the tensors. */
struct Segment {
    int64_t head, row, positions, keys, first, end;
    int64_t slot, first_slot, last_slot; /* of this segment's sums, and of the head's */
    int64_t next_chunk;                  /* the first of the block's line after the segment */
    int h;
    bool is_last; /* of its sequence */
};

/* A block's segments of a head have neighbouring slots: a head boundary adds one. */
__host__ __device__ static inline int64_t slot_of(int64_t block, int64_t head)
{
    return block + head;
}

/* The block's segment that begins at this chunk of the line. */
template <typename T>
__device__ static inline Segment segment_at(const CausalMma<T> &c, int64_t block, int64_t chunk)
{
    const int64_t limit = min((block + 1) * c.per_block, c.heads * c.chunks);
    Segment s;
    s.head = chunk / c.chunks;
    const int64_t first = chunk - s.head * c.chunks, sequence = s.head / c.H;
    s.next_chunk = min((s.head + 1) * c.chunks, limit);
    s.h = (int)(s.head - sequence * c.H);
    s.row = c.offsets ? c.offsets[sequence] : sequence * c.N;
    s.positions = c.offsets ? c.offsets[sequence + 1] - s.row : c.N;
    s.keys = c.key_lengths ? min((int64_t)c.key_lengths[sequence], s.positions) : s.positions;
    s.first = first * CHUNK;
    s.end = min((s.next_chunk - s.head * c.chunks) * CHUNK, s.positions);
    s.slot = slot_of(block, s.head);
    s.first_slot = slot_of(s.head * c.chunks / c.per_block, s.head);
    s.last_slot = slot_of(((s.head + 1) * c.chunks - 1) / c.per_block, s.head);
    s.is_last = s.positions == 0 ? first == 0 : s.first < s.end && s.end == s.positions;
    return s;
}

/* A chunk of a segment: its first row in the tensors, its rows, and those of them that are not masked as
 * keys; at most CHUNK. */
struct Chunk {
    int64_t row;
    int h, rows, keys;
};

__device__ static inline Chunk chunk_at(const Segment &s, int64_t start)
{
    return { s.row + start, s.h, (int)min((int64_t)CHUNK, s.positions - start),
             (int)max((int64_t)0, min((int64_t)CHUNK, s.keys - start)) };
}

template <typename T>
__device__ static inline int valid_rows(const Argument<T> &x, const Chunk &chunk)
{
    return x.masked ? chunk.keys : chunk.rows;
}

/* The first element of a chunk's head in a tensor */
template <typename X> __device__ static inline int64_t chunk_offset(const X &x, const Chunk &chunk)
{
    return chunk.row * x.stride + chunk.h * x.columns;
}

/* ----------------------------------------------------------------------------------------- sizes
 * Heads of D and M columns are padded with zeros to SIZE = 32, 64 or 128. Four warps each own 16 rows
 * of a chunk and all columns of the results; at 128, eight warps own 16 rows and half the columns. */
template <typename T, int SIZE> struct Mma {
    enum {
        PARTS = sizeof(T) == sizeof(Bfloat16) ? 1 : 2, /* hi, or hi and lo */
        WARPS = SIZE < 128 ? 4 : 8,
        BLOCK_THREADS = WARPS * WARP,
        BLOCKS = SIZE < 64    ? 3
                 : SIZE < 128 ? 2
                              : 1, /* per multiprocessor, at least */
        PITCH = SIZE + MMA_PAD,
        COLUMNS = SIZE < 128 ? SIZE : SIZE / 2,  /* of a warp's results, */
        ACROSS = COLUMNS / 8,                    /* in tiles [16, 8] */
        STATE_ACROSS = SIZE < 64 ? 2 : SIZE / 8, /* tiles [16, 8] of S, or R, per warp */
        SLOT = SIZE * SIZE + SIZE,               /* elements of S and z */
        /* Whether the next chunk's rows have buffers of their own, to be copied during a chunk;
         * otherwise they are prefetched into L2 and copied between chunks. */
        AHEAD = PARTS * SIZE <= 64,
    };
    typedef Matrix<PARTS, CHUNK, PITCH> Operand;
    typedef Matrix<PARTS, SIZE, PITCH> State;
};

/* A block's shared memory: MATRICES operands, the raw rows that they are made from, which share the
 * operands' memory unless AHEAD, and a copy of S or R for all warps. */
template <typename T, int SIZE, int MATRICES, bool HAS_STATE> struct MmaMemory {
    typedef Mma<T, SIZE> Sizes;
    typedef typename Sizes::Operand Operand;
    typedef typename Sizes::State State;
    enum {
        RAW_AT = Sizes::AHEAD ? MATRICES * Operand::SIZE : 0,
        STATE_AT = RAW_AT + MATRICES * Operand::SIZE,
        VECTOR_PARTS_AT = STATE_AT + (HAS_STATE ? (int)State::SIZE : 0),
        REALS_AT = VECTOR_PARTS_AT + 3 * Sizes::PITCH,
        BYTES = REALS_AT * (int)sizeof(Bfloat16) + (SIZE + 3 * CHUNK) * (int)sizeof(Real),
        /* Blocks per multiprocessor that an H100's 228 KB allow, 1 KB of each reserved */
        FIT = (228 << 10) / (BYTES + (1 << 10)),
        BLOCKS = FIT < Sizes::BLOCKS ? FIT : (int)Sizes::BLOCKS,
    };
    Bfloat16 *at;

    __device__ Operand operand(int i) const
    {
        return { at + i * Operand::SIZE };
    }
    __device__ Operand raw(int i) const
    {
        return { at + RAW_AT + i * Operand::SIZE };
    }
    __device__ State state() const
    {
        return { at + STATE_AT };
    }
    /* z in three parts of bf16, each [PITCH]: together they are the float, but for its last bit */
    __device__ Bfloat16 *vector_parts() const
    {
        return at + VECTOR_PARTS_AT;
    }
    /* z or r, [SIZE] */
    __device__ Real *vector() const
    {
        return (Real *)(at + REALS_AT);
    }
    /* dden, [CHUNK]; den and dden of the rows that are being copied, [CHUNK] */
    __device__ Real *dden() const
    {
        return vector() + SIZE;
    }
    __device__ Real *raw_den() const
    {
        return vector() + SIZE + CHUNK;
    }
    __device__ Real *raw_dden() const
    {
        return vector() + SIZE + 2 * CHUNK;
    }
};

/* The first of the warp's 16 rows, as a tile's number and as a row; its first column. */
__device__ static inline int row_tile(void)
{
    return (int)threadIdx.x / WARP % 4;
}
template <typename Sizes> __device__ static inline int first_column(void)
{
    return (int)threadIdx.x / WARP / 4 * Sizes::COLUMNS;
}

/* ------------------------------------------------------------------------------------------ rows
 * A thread copies, and maps, 8 columns of every ROWS_APART-th row, so that the 8 lanes that access
 * shared memory at once use all banks: neighbouring lanes take neighbouring columns, and where 4 lanes
 * fill a row the next 4 take the row 4 below. */
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

/* Starts copying an argument's rows of a chunk; invalid rows and columns become zeros. A copy of zero
 * bytes also has an address inside the tensor. */
template <int SIZE, typename T>
__device__ static inline void copy_rows(const typename Mma<T, SIZE>::Operand &raw,
                                        const Argument<T> &x, const Chunk &chunk)
{
    typedef Pieces<T, SIZE> P;
    typedef typename Mma<T, SIZE>::Operand Operand;
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
                copy_async<16>(raw.at + p * Operand::APART + P::row(i) * PITCH + column,
                               (there ? at : from) + p * P::PART, there ? 16 : 0);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 8 * P::COUNT; i++) {
        const int row = P::row(i / 8), e = i % 8;
        T *const to = (T *)(raw.at + e / P::PART * Operand::APART + row * PITCH + column);
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

/* COUNT pieces of an operand from their raw rows: phi(x), or x / den; unless FULL masked, after the map,
 * because phi(0) may be 1. */
template <bool FULL, int COUNT, int SIZE, typename T>
__device__ static inline void map_pieces(const typename Mma<T, SIZE>::Operand &to,
                                         const typename Mma<T, SIZE>::Operand &raw,
                                         const Argument<T> &x, int first, int valid,
                                         const Real *den)
{
    typedef Pieces<T, SIZE> P;
    typedef typename Mma<T, SIZE>::Operand Operand;
    enum { PARTS = Mma<T, SIZE>::PARTS, PITCH = Mma<T, SIZE>::PITCH };
    const int column = P::column();
    Real y[COUNT][8];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_eight<T, PARTS>(y[i], raw.at + P::row(first + i) * PITCH + column, Operand::APART);
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
        store_eight<PARTS>(to.at + row * PITCH + column, Operand::APART, y[i]);
    }
}

/* An operand from its raw rows: all pieces at once in the common case, where the chunk is full and the
 * map takes few instructions. */
template <int SIZE, typename T>
__device__ static inline void map_rows(const typename Mma<T, SIZE>::Operand &to,
                                       const typename Mma<T, SIZE>::Operand &raw,
                                       const Argument<T> &x, const Chunk &chunk, const Real *den)
{
    typedef Pieces<T, SIZE> P;
    enum { PITCH = Mma<T, SIZE>::PITCH };
    if (Mma<T, SIZE>::PARTS == 1 && x.map == FEATURES_IDENTITY && !x.divided) {
        if (Mma<T, SIZE>::AHEAD) /* bf16 is an operand already */
#pragma unroll
            for (int i = 0; i < P::COUNT; i++) {
                const int at = P::row(i) * PITCH + P::column();
                *(uint4 *)(to.at + at) = *(const uint4 *)(raw.at + at);
            }
        return;
    }
    const int valid = valid_rows(x, chunk);
    if (valid == CHUNK && x.columns == SIZE && x.map != FEATURES_SOFTPLUS)
        map_pieces<true, P::COUNT, SIZE>(to, raw, x, 0, valid, den);
    else
#pragma unroll 1
        for (int i = 0; i < P::COUNT; i++)
            map_pieces<false, 1, SIZE>(to, raw, x, i, valid, den);
}

/* ---------------------------------------------------------------------------------------- states
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

/* state += the sums in a slot, or the other way round */
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

/* S and z before the segment (index 0), or R and r from the segment on (1). */
template <typename T, int SIZE>
__device__ static inline MmaState<T, SIZE> load_state(const CausalMma<T> &c, const Segment &s,
                                                      int index)
{
    const int D = c.argument[KEY].columns, M = c.argument[VALUE].columns;
    const Real *begin = index ? c.dfinal_state : c.initial_state;
    const int64_t first = index ? s.slot : c.added_up ? s.slot - 1 : s.first_slot;
    const int64_t end = !index ? s.slot : c.added_up ? s.slot + 1 : s.last_slot + 1;
    MmaState<T, SIZE> state = {};
    if (begin)
        for_each_element(&state, D, M, [=](float *x, int row, int column) {
            *x = begin[(s.head * D + row) * (M + 1) + column];
        });
    for (int64_t slot = max(first, s.first_slot); slot < end; slot++)
        add_slot(&state, c.sums[index] + slot * Mma<T, SIZE>::SLOT);
    return state;
}

template <typename T, int SIZE>
__device__ static inline void contribute_state(const Gradient &to, const CausalMma<T> &c,
                                               const Segment &s, MmaState<T, SIZE> *state)
{
    const int D = c.argument[KEY].columns, M = c.argument[VALUE].columns;
    for_each_element(state, D, M, [=](const float *x, int row, int column) {
        contribute(to.data + (s.head * D + row) * (M + 1) + column, to.accumulate, (Real)*x);
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

/* And of z or r */
template <typename T, int SIZE>
__device__ static inline void share_vector(Real *vector, const MmaState<T, SIZE> &state)
{
    if (has_vector<SIZE>() && lane_row() == 0)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(vector + vector_column(half)) =
                make_float2(state.vector[half][0], state.vector[half][1]);
}

/* S += sign Y^T W */
template <typename T, int SIZE>
__device__ static inline void update_state(MmaState<T, SIZE> *state, float sign,
                                           const typename Mma<T, SIZE>::Operand &y,
                                           const typename Mma<T, SIZE>::Operand &w)
{
    typedef Mma<T, SIZE> Sizes;
    enum { BATCH = Sizes::STATE_ACROSS < 8 ? Sizes::STATE_ACROSS : 8 };
#pragma unroll
    for (int first = 0; first < Sizes::STATE_ACROSS; first += BATCH) {
        float sums[BATCH][4] = {};
#pragma unroll
        for (int k = 0; k < CHUNK; k += 16) {
            const Fragment<Sizes::PARTS> rows = a_of_transposed(y, state_row<SIZE>(), k);
#pragma unroll
            for (int i = 0; i < BATCH; i += 2)
                multiply(sums + i, rows, b_of(w, k, state_column<SIZE>() + 8 * (first + i)));
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                state->at[first + i][e] += sign * sums[i][e];
    }
}

/* z += sign Y^T weights; NULL: weights of 1. The weights are rows g (hi) and g + 8 (lo) of an operand,
 * the same in every row, so every lane gets the sums of its columns. */
template <typename T, int SIZE>
__device__ static inline void update_vector(MmaState<T, SIZE> *state, float sign,
                                            const typename Mma<T, SIZE>::Operand &y,
                                            const Real *weights)
{
    typedef Mma<T, SIZE> Sizes;
    const uint32_t ones = pack_bf16(1, 1);
    float sums[2][4] = {};
    if (!has_vector<SIZE>())
        return;
#pragma unroll
    for (int k = 0; k < CHUNK; k += 16) {
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
            state->vector[half][e] += sign * (sums[half][e] + sums[half][e + 2]);
}

/* ---------------------------------------------------------------------------------------- a scan */

/* tril: tiles of scores up to the warp's; triu: from it on. */
enum Triangle { TRIL, TRIU };
template <Triangle TRIANGLE> __device__ static inline bool keeps(int tile)
{
    return TRIANGLE == TRIL ? tile <= row_tile() : tile >= row_tile();
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

/* den of the warp's rows, as a tile [16, 8] whose columns are to be added up: a.z by z's parts, and the
 * rows' sums of tril(A B^T) as it is rounded for the product, so that num and den agree. */
template <int PARTS>
__device__ static inline void add_den(float *den, const Fragment<PARTS> &rows, uint32_t left,
                                      uint32_t right)
{
    const uint32_t column[2] = { left, right };
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        mma_bf16(den, rows.at[p], column);
}

/* A warp's rows of a scan: o += X State + tri(X Y^T + scores) W, with State^T if TRANSPOSED. den, unless
 * NULL: as add_den says. */
template <typename T, int SIZE, Triangle TRIANGLE, bool TRANSPOSED>
__device__ static inline void scan_rows(float (*o)[4], float (*scores)[4], float *den,
                                        const Bfloat16 *vector_parts,
                                        const typename Mma<T, SIZE>::Operand &x,
                                        const typename Mma<T, SIZE>::Operand &y,
                                        const typename Mma<T, SIZE>::Operand &w,
                                        const typename Mma<T, SIZE>::State &state)
{
    typedef Mma<T, SIZE> Sizes;
    typedef Fragment<Sizes::PARTS> Operand;
    const int column = first_column<Sizes>();
#pragma unroll
    for (int k = 0; k < SIZE; k += 16) {
        const Operand rows = a_of(x, 16 * row_tile(), k);
#pragma unroll
        for (int tile = 0; tile < 4; tile++)
            if (keeps<TRIANGLE>(tile))
                multiply(scores + 2 * tile, rows, b_of_transposed(y, k, 16 * tile));
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c += 2)
            multiply(o + c, rows,
                     TRANSPOSED ? b_of_transposed(state, k, column + 8 * c)
                                : b_of(state, k, column + 8 * c));
        if (den) {
            const Bfloat16 *part = vector_parts + lane_row() % 3 * Sizes::PITCH + k + lane_column();
            add_den(den, rows, lane_row() < 3 ? *(const uint32_t *)part : 0,
                    lane_row() < 3 ? *(const uint32_t *)(part + 8) : 0);
        }
    }
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
        if (!keeps<TRIANGLE>(tile))
            continue;
        if (tile == row_tile())
            mask_diagonal<TRIANGLE>(scores + 2 * tile);
        Operand p;
#pragma unroll
        for (int i = 0; i < 4; i++)
            split<Sizes::PARTS>(&p.at[0][i], 4, scores[2 * tile + i / 2][i % 2 * 2],
                                scores[2 * tile + i / 2][i % 2 * 2 + 1]);
        if (den) {
            const uint32_t one = lane_row() == 0 ? pack_bf16(1, 1) : 0;
            add_den(den, p, one, one);
        }
#pragma unroll
        for (int c = 0; c < Sizes::ACROSS; c += 2)
            multiply(o + c, p, b_of(w, 16 * tile, column + 8 * c));
    }
}

/* --------------------------------------------------------------------------------------- results */

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

/* Contributes the warp's rows of o to a result; with accumulate all loads come before the first store. */
template <int SIZE, typename T>
__device__ static inline void contribute_rows(const Result<T> &r, const Chunk &chunk, float (*o)[4])
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
