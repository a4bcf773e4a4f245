/* Causal linear attention on tensor cores: the parts that its kernels share.
 *
 * In the notation of causal.c, with a = phi(q), b = phi(k) and, backward, dnum = dout / den and
 * dden = -dnum.out, the kernels process a head in chunks of 64 positions. A, B, V and dNum hold a
 * chunk's rows. S and z are the sums of b v^T and b over earlier chunks; R and r are the
 * sums of a dnum^T and a dden over later chunks. tril keeps columns up to the diagonal, triu
 * columns from the diagonal on:
 *
 *     Num  =                A S   + tril(A B^T) V                     S += B^T V     z += B^T 1
 *     dA   = dden z^T + dNum S^T  + tril(dNum V^T + dden 1^T) B
 *     dB   =    1 r^T +    V R^T  + triu(V dNum^T + 1 dden^T) A
 *     dV   =                B R   + triu(B A^T) dNum                  R += A^T dNum  r += A^T dden
 *
 * Every line is one scan (Katharopoulos et al. 2020, equations 9 to 15, in the chunks of Buckman
 * and Gelada 2024): scan_rows of mma_scan.cuh, with the roles permuted.
 *
 * Three kernels process the chunks: forward and query_gradient from the first to the last, with S,
 * key_value_gradients from the last to the first, with R. A single backward sweep would have to
 * count S or R down by subtraction; then the rounding error of one large term, as of dnum at a
 * small den, stays in the sum when the term has left it, and swamps the gradients of all chunks
 * that follow.
 *
 * The chunks of all heads form one line, and every block processes the same number of consecutive
 * chunks (ops/attention/linear/chunk_plan.h). The part of a head in one block is a segment. Where
 * heads are cut, a segment starts from the sums of the segments before it (S and z) or after it (R
 * and r): sum_segments computes each segment's B^T V and B^T 1, query_gradient its A^T dNum and
 * A^T dden.
 *
 * S and R stay in registers in float. The sums of one chunk are computed from zero and then added
 * in float, because tensor cores round every sum towards zero: over a long sequence that is a bias.
 * Where tensors store Real, an operand is two of bf16, the nearest (hi) and the rest (lo), and a
 * product is hi hi + hi lo + lo hi, with a relative error of about 1e-5. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_CUH

#include "ops/attention/shared/tiles.cuh"
#include "ops/attention/shared/mma_operands.cuh"
#include "tensor/copy.cuh"

/* ------------------------------------------------------------------------------------ arguments */

/* KEY and VALUE come first: sum_segments reads these two, the forward pass the first three. */
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
    int64_t chunks, per_block; /* chunks per head, and per block */
    Real *den;                 /* [B, N, H] */
    const Real *dden;          /* [B, N, H] */
    Real eps;
    Real *sums[2]; /* by Sum: of each segment, [slots, SIZE SIZE + SIZE] in the order of add_slot */
    bool cuts_heads; /* there are sums */
    bool added_up; /* slots hold prefix sums (S, z) and suffix sums (R, r) over a head's segments */
    const Real *initial_state, *dfinal_state; /* [heads, D, M + 1], or NULL: 0 */
    Gradient final_state, dinitial_state;     /* likewise */
};

/* ------------------------------------------------------------------------------------- segments */

/* A part of a head, in positions of its sequence; row: the sequence's first row in the tensors. */
struct Segment {
    int64_t head, row, positions, keys, first, end;
    int64_t slot, first_slot, last_slot; /* of this segment's sums, and of the head's */
    int64_t next_chunk;                  /* the chunk of the line after this segment */
    int h;
    bool is_last; /* of its sequence */
};

/* The segments of a head have consecutive slots, one per block. Adding the head keeps the slots of
 * two heads in one block apart. */
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

/* The index of the warp's tile of 16 rows; its first column. */
__device__ static inline int row_tile(void)
{
    return (int)threadIdx.x / WARP % 4;
}
template <typename Sizes> __device__ static inline int first_column(void)
{
    return (int)threadIdx.x / WARP / 4 * Sizes::COLUMNS;
}

#endif
