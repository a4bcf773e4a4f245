#ifndef TAPEGRAD_OPS_SHARED_INDICES_H
#define TAPEGRAD_OPS_SHARED_INDICES_H

#include "ops/shared/internal.h"

#pragma GCC visibility push(default)

/* Raises unless all elements of an int32 tensor are in [low, high]: "op_embedding: indices[3] is
 * 12, expected 0 to 9, ..." with the element's row-major position. label is as in tape_use; reason
 * ends the message. On CUDA nothing is copied to the host if the bounds of the written values are
 * known. Later writes to the tensor must stay within [low, high] too. */
void op_check_indices(Tape *tape, const char *label, Tensor *indices, int64_t low, int64_t high,
                      const char *reason);

/* Raises unless an int32 tensor has the shape [B] and elements in [low, high]. */
void op_check_sequence_lengths(Tape *tape, const char *label, Tensor *lengths, int64_t B,
                               int64_t low, int64_t high, const char *reason);

/* Raises unless the offsets of sequences are int32 [S + 1], ascending (equal ones allowed) from 0
 * to the number of positions of x [1, N, ..], and lengths is NULL. name: of x, for messages. */
void op_check_offsets(Tape *tape, const char *label, Tensor *offsets, const Tensor *lengths,
                      const Tensor *x, const char *name);

/* Raises unless the states of sequences are Real and have the expected shape; axes: after the first
 * one, for messages. */
void op_check_state(Tape *tape, const char *label, Tensor *state, Shape expected, const char *axes);

#pragma GCC visibility pop

/* Reads the elements 0, 1, ... of a tensor, one by one, on the host: in large chunks, because each
 * copy from a device has a high latency. Element i is at chunk_index(&read, i). */
enum { READ_CHUNK = 1 << 13 };
typedef struct ChunkedRead {
    const Tensor *tensor;
    union {
        int32_t integers[READ_CHUNK];
        Real reals[READ_CHUNK];
    };
} ChunkedRead;
#pragma GCC visibility push(default)
void op_read_chunk(ChunkedRead *read, int64_t i);
#pragma GCC visibility pop
static inline int64_t chunk_index(ChunkedRead *read, int64_t i)
{
    const int64_t index = i & (READ_CHUNK - 1);
    if (index == 0)
        op_read_chunk(read, i);
    return index;
}

#endif
