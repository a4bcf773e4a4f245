/* The part of a head in one block, and its chunks. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_SEGMENTS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_MMA_SEGMENTS_CUH

#include "ops/cuda/attention/linear/mma.cuh"

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

#endif
