#ifndef TAPEGRAD_OPS_SHARED_INDICES_H
#define TAPEGRAD_OPS_SHARED_INDICES_H

#include "ops/shared/internal.h"

/* Raises unless all elements of an int32 tensor are in [low, high]: "op_embedding: indices[3] is
 * 12, expected 0 to 9, ..." with the element's row-major position. label is as in tape_use; reason
 * ends the message. On CUDA nothing is copied to the host if the bounds of the written values are
 * known. Later writes to the tensor must stay within [low, high] too. */
void check_indices(Tape *tape, const char *label, Tensor *indices, int64_t low, int64_t high,
                   const char *reason);

/* Raises unless an int32 tensor has the shape [B] and elements in [low, high]. */
void check_sequence_lengths(Tape *tape, const char *label, Tensor *lengths, int64_t B, int64_t low,
                            int64_t high, const char *reason);

/* Raises unless the elements ascend (equal ones allowed) from first to last. */
void check_spanning(Tape *tape, const char *label, Tensor *indices, int64_t first, int64_t last,
                    const char *reason);

#endif
