#ifndef TAPEGRAD_OPS_INDICES_H
#define TAPEGRAD_OPS_INDICES_H

#include "ops/internal.h"

/* Raises unless every element of an int32 tensor is in [0, limit): "op_embedding: indices[3] is 12,
 * expected 0 to 9, ..." with the element's number in row-major order. label is as in tape_use;
 * reason ends the sentence. */
void check_indices(Tape *tape, const char *label, const Tensor *indices, int64_t limit,
                   const char *reason);

#endif
