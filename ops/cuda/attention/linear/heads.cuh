/* The heads of all sequences, cut into pieces that stand in one line. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_HEADS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_HEADS_CUH

#include "ops/cuda/shared/tiles.cuh"

/* The pieces of all heads in one line: every head of every sequence has `pieces` pieces of `length`
 * positions. With offsets a piece is a chunk, and sequence b of a head begins at chunk
 * offsets[b] / CHUNK + b of the head's: every sequence has the chunks that it fills, and at most
 * one more. */
struct Line {
    const int32_t *offsets;
    int32_t B, H, pieces;
    int64_t length;
};

/* The line whose pieces are chunks */
static inline Line line_of(const AttentionInputs *a)
{
    const int64_t chunks = a->offsets ? a->N / CHUNK + a->B : tiles_for(a->N, CHUNK);
    return { a->offsets, (int32_t)a->B, (int32_t)a->H, (int32_t)chunks, CHUNK };
}

static inline int64_t pieces_in_all(const Line &line)
{
    return (line.offsets ? (int64_t)1 : line.B) * line.H * line.pieces;
}

/* A head of a sequence: its index in an array [B, H], its rank in the line, the sequence's first
 * row in the tensors and length, and its pieces: first <= piece < end. */
struct Head {
    int32_t b, h, index, rank, first, end;
    int64_t row, positions;
};

/* positions: of a sequence without offsets. Divisions of 32 bits take a quarter of the
 * instructions of those of 64. */
__device__ static inline Head head_at(const Line &line, int32_t rank, int64_t positions)
{
    const int32_t inner = line.offsets ? line.B : line.H;
    const int32_t outer_index = rank / inner, inner_index = rank - outer_index * inner;
    const int32_t b = line.offsets ? inner_index : outer_index;
    const int32_t h = line.offsets ? outer_index : inner_index;
    Head head = { b,
                  h,
                  b * line.H + h,
                  rank,
                  rank * line.pieces,
                  (rank + 1) * line.pieces,
                  b * positions,
                  positions };
    if (line.offsets) {
        head.row = line.offsets[b];
        head.positions = line.offsets[b + 1] - head.row;
        head.first = h * line.pieces + line.offsets[b] / CHUNK + b;
        head.end = h * line.pieces + line.offsets[b + 1] / CHUNK + b + 1;
    }
    return head;
}

__device__ static inline Head head_of_piece(const Line &line, int32_t piece, int64_t positions)
{
    const int32_t outer = piece / line.pieces, inner = piece - outer * line.pieces;
    if (!line.offsets)
        return head_at(line, outer, positions);
    int32_t b = 0; /* the last sequence that does not begin after the piece: binary search */
    for (int32_t end = line.B; end - b > 1;) {
        const int32_t middle = (b + end) / 2;
        const bool after = line.offsets[middle] / CHUNK + middle > inner;
        b = after ? b : middle;
        end = after ? middle : end;
    }
    return head_at(line, outer * line.B + b, positions);
}

#endif
