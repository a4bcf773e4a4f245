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

#include "ops/cuda/attention/linear/heads.cuh"
#include "ops/cuda/shared/mma_operands.cuh"
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
    bool scanned; /* slots hold prefix sums (S, z) and suffix sums (R, r) over a head's segments */
    const Real *initial_state, *dfinal_state; /* [heads, D, M + 1], or NULL: 0 */
    Real *final_state, *dinitial_state;       /* likewise; NULL: not needed */
};

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

#endif
