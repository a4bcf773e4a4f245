#ifndef TAPEGRAD_OPS_LAYOUT_INDICES_H
#define TAPEGRAD_OPS_LAYOUT_INDICES_H

#include "ops/shared/internal.h"

/* Raises unless every element of an int32 tensor is in [low, high]: "op_embedding: indices[3] is 12,
 * expected 0 to 9, ..." with the element's number in row-major order. label is as in tape_use;
 * reason ends the sentence. On CUDA nothing is read back when the bounds of what was written are
 * known; what is written to the tensor later must keep within [low, high] too. */
void check_indices(Tape *tape, const char *label, Tensor *indices, int64_t low, int64_t high,
                   const char *reason);

/* Raises unless the elements begin with first, end with last, and none is less than the one before. */
void check_spanning(Tape *tape, const char *label, Tensor *indices, int64_t first, int64_t last,
                    const char *reason);

#endif
