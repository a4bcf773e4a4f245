/* Causal linear attention on tensor cores: the parts that its kernels share.
 *
 * In the notation of causal_linear.c, with a = phi(q), b = phi(k) and, backward, dnum = dout / den
 * and dden = -dnum.out, the kernels process a head in chunks of 64 positions. A, B, V and dNum hold
 * a chunk's rows. S and z are the sums of b v^T and b over earlier chunks; R and r are the sums of
 * a dnum^T and a dden over later chunks. tril keeps columns up to the diagonal, triu columns from
 * the diagonal on:
 *
 *     Num  =                A S   + tril(A B^T) V                     S += B^T V     z += B^T 1
 *     dA   = dden z^T + dNum S^T  + tril(dNum V^T + dden 1^T) B
 *     dB   =    1 r^T +    V R^T  + triu(V dNum^T + 1 dden^T) A
 *     dV   =                B R   + triu(B A^T) dNum                  R += A^T dNum  r += A^T dden
 *
 * Every line is one scan (Katharopoulos et al. 2020, equations 9 to 15, in the chunks of Buckman
 * and Gelada 2024) with the roles permuted: the four calls of scan_rows in scan_chunk
 * (mma_kernels.cuh). mma_scan.cuh computes the scan and the states.
 *
 * Three kernels process the chunks: mma_forward and mma_query_gradient from the first to the last,
 * with S, mma_key_value_gradients from the last to the first, with R. A single backward sweep would
 * have to recover each earlier S from the final one by subtraction. That is numerically unstable: a
 * large term, such as dnum at a small den, leaves its rounding error in the sum after it has been
 * subtracted, and the error dominates the gradients of all following chunks.
 *
 * The chunks of all heads are numbered consecutively, head after head, and every block processes
 * the same number of consecutive chunks (chunk_plan.h). The part of a head in one block is a
 * segment. Where heads are cut, a segment starts from the sums of the segments before it (S and z)
 * or after it (R and r): mma_sum_segments computes each segment's B^T V and B^T 1,
 * mma_query_gradient its A^T dNum and A^T dden.
 *
 * S and R are float accumulators in registers. Tensor cores truncate when they accumulate, which
 * over a long sequence is a bias; therefore each chunk's product starts from zero accumulators and
 * is added to S or R by ordinary float additions, which round to nearest.
 * bf16 tensors are operands as they are. Float tensors use split bf16 (bf16x3): x = hi + lo, hi =
 * bf16(x), lo = bf16(x - hi), and x y = hi hi + hi lo + lo hi in float accumulators; the omitted
 * lo lo leaves a relative error of about 1e-5. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_CUH

#include "ops/cuda/shared/mma_operands.cuh"
#include "ops/cuda/shared/tiles.cuh"
#include "ops/cuda/shared/copy.cuh"

/* ------------------------------------------------------------------------------------ arguments */

/* KEY and VALUE come first: mma_sum_segments reads these two, the forward pass the first three. */
enum { KEY, VALUE, QUERY, DOUT, ARGUMENTS };

/* S and z over earlier segments, R and r over later ones */
enum Sum { PREFIX, SUFFIX };

/* Tensors [rows, H, columns], with a stride between rows of the same head. */
template <typename T> struct Argument {
    const T *data;
    int64_t stride;
    int columns;
    FeatureMap map;
    bool divided; /* by den */
    bool masked;  /* rows from key_lengths[b] on are zero */
    bool aligned; /* columns are a multiple of 8, of which each 8 begin at a multiple of 16 bytes */
};

template <typename T> struct ScanResult {
    T *data; /* NULL: not computed */
    int64_t stride;
    int columns;
    bool accumulate;
    bool paired; /* every 2 columns begin at even elements, and columns are even */
};

template <typename T> struct CausalMma {
    Argument<T> argument[ARGUMENTS];
    ScanResult<T> result[3];      /* forward: out; backward: dkey, dvalue, dquery */
    Line line;                    /* of chunks */
    int64_t N, chunks, per_block; /* chunks: in all, and per block */
    int H;
    const int32_t *key_lengths;
    Real *den;        /* [B, N, H] */
    const Real *dden; /* [B, N, H] */
    Real eps;
    Real *sums[2]; /* by Sum: of each segment, [slots, SIZE SIZE + SIZE] in the order of add_slot */
    bool cuts_heads; /* there are sums */
    bool added_up; /* slots hold prefix sums (S, z) and suffix sums (R, r) over a head's segments */
    const Real *initial_state, *dfinal_state; /* [heads, D, M + 1], or NULL: 0 */
    Real *final_state, *dinitial_state;       /* likewise; NULL: not needed */
};

/* ------------------------------------------------------------------------------------- segments */

/* A part of a head, in positions of its sequence; row: the sequence's first row in the tensors. */
struct Segment {
    int64_t head, row, positions, keys, first, end;
    int32_t slot, first_slot, last_slot; /* of this segment's sums, and of the head's */
    int32_t next_chunk;                  /* the chunk of the line after this segment */
    int h;
    bool is_last; /* of its sequence */
};

/* The segments of a head have consecutive slots, one per block. Adding the head's rank keeps the
 * slots of two heads in one block apart. */
__host__ __device__ static inline int32_t slot_of(int32_t block, int32_t rank)
{
    return block + rank;
}

__device__ static inline int32_t chunk_limit(int32_t chunks, int32_t per_block)
{
    return (int32_t)min(((int64_t)blockIdx.x + 1) * per_block, (int64_t)chunks);
}

/* The block's segment that begins at this chunk of the line. */
template <typename T>
__device__ static inline Segment segment_at(const CausalMma<T> &c, int32_t chunk)
{
    const Head head = head_of_piece(c.line, chunk, c.N);
    Segment s;
    s.head = head.index;
    s.h = head.h;
    s.row = head.row;
    s.positions = head.positions;
    s.keys = c.key_lengths ? min((int64_t)c.key_lengths[head.b], s.positions) : s.positions;
    s.next_chunk = min(head.end, chunk_limit(c.chunks, c.per_block));
    s.first = (int64_t)(chunk - head.first) * CHUNK;
    s.end = min((int64_t)(s.next_chunk - head.first) * CHUNK, s.positions);
    s.slot = slot_of((int32_t)blockIdx.x, head.rank);
    s.first_slot = slot_of(head.first / c.per_block, head.rank);
    s.last_slot = slot_of((head.end - 1) / c.per_block, head.rank);
    s.is_last = s.positions == 0 ? s.first == 0 : s.first < s.end && s.end == s.positions;
    return s;
}

/* A chunk of a segment: its first row in the tensors, its number of rows, and how many of them
 * key_lengths leaves unmasked. */
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

/* ---------------------------------------------------------------------------------------- sizes
 * Heads of D and M columns are padded with zeros to SIZE = 32, 64 or 128. Four warps each own 16
 * rows of a chunk and all columns of the results; at 128, eight warps own 16 rows and half the
 * columns. */
template <typename T, int SIZE> struct Mma {
    enum {
        PARTS = sizeof(T) == sizeof(Bfloat16) ? 1 : 2, /* hi, or hi and lo */
        WARPS = SIZE < 128 ? 4 : 8,
        BLOCK_THREADS = WARPS * WARP,
        /* per multiprocessor, at least: the most that registers allow without spills */
        BLOCKS = SIZE < 64    ? 3
                 : SIZE < 128 ? 2
                              : 1,
        FORWARD_BLOCKS = BLOCKS + (PARTS == 1 && SIZE < 128), /* gradients need more registers */
        PITCH = SIZE + MMA_PAD,
        COLUMNS = SIZE < 128 ? SIZE : SIZE / 2,  /* of a warp's results, */
        ACROSS = COLUMNS / 8,                    /* in tiles [16, 8] */
        STATE_ACROSS = SIZE < 64 ? 2 : SIZE / 8, /* tiles [16, 8] of S, or R, per warp */
        SLOT = SIZE * SIZE + SIZE,               /* elements of S and z */
        /* Whether the next chunk's rows have buffers of their own, to be copied during a chunk;
         * otherwise they are prefetched into L2 and copied between chunks. */
        AHEAD = PARTS * SIZE <= 64,
    };
    typedef Matrix<PARTS, CHUNK, PITCH> ChunkRows;
    typedef Matrix<PARTS, SIZE, PITCH> State;
};

/* A block's shared memory: MATRICES operands, the raw rows that they are made from, which share the
 * operands' memory unless AHEAD, and a copy of S or R for all warps. */
template <typename T, int SIZE, int MATRICES, bool HAS_STATE> struct MmaMemory {
    typedef Mma<T, SIZE> Sizes;
    typedef typename Sizes::ChunkRows ChunkRows;
    typedef typename Sizes::State State;
    enum {
        RAW_AT = Sizes::AHEAD ? MATRICES * ChunkRows::SIZE : 0,
        STATE_AT = RAW_AT + MATRICES * ChunkRows::SIZE,
        VECTOR_PARTS_AT = STATE_AT + (HAS_STATE ? (int)State::SIZE : 0),
        REALS_AT = VECTOR_PARTS_AT + 3 * Sizes::PITCH,
        BYTES = REALS_AT * (int)sizeof(Bfloat16) + (SIZE + 3 * CHUNK) * (int)sizeof(Real),
        /* Blocks per multiprocessor that an H100's 228 KB allow, 1 KB of each reserved */
        FIT = (228 << 10) / (BYTES + (1 << 10)),
        REGISTERS_FIT = MATRICES < ARGUMENTS ? (int)Sizes::FORWARD_BLOCKS : (int)Sizes::BLOCKS,
        BLOCKS = FIT < REGISTERS_FIT ? FIT : REGISTERS_FIT,
    };
    Bfloat16 *at;

    __device__ ChunkRows operand(int i) const
    {
        return { at + i * ChunkRows::SIZE };
    }
    __device__ ChunkRows raw(int i) const
    {
        return { at + RAW_AT + i * ChunkRows::SIZE };
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

/* The index of the warp's tile of 16 rows; its first column. */
__device__ static inline int row_tile(void)
{
    return (int)threadIdx.x / WARP % 4;
}
template <typename Sizes> __device__ static inline int first_column(void)
{
    return (int)threadIdx.x / WARP / 4 * Sizes::COLUMNS;
}

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
