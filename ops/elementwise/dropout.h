#ifndef TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_H
#define TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_H

#include "autograd/tape.h"

typedef struct Dropout {
    Random random;         /* before the draw */
    const uint64_t *start; /* NULL, or in the memory of a CUDA device: added to random's counter */
    uint32_t limit;        /* u_i = (word_i / 2^8) 2^-24 is kept from limit = ceil(2^24 p) on */
    Real scale;            /* 1 / (1 - p) */
} Dropout;

/* Draws for so many elements; or, with probability 0 or recording off, draws nothing and keeps all:
 * limit is 0 then, and only then. Raises, as the operation, unless 0 <= probability < 1. */
Dropout dropout_draw(Tape *tape, const char *operation, Real probability, int64_t count);

/* m [count] <- what the elements from `first` on are multiplied by, k / (1 - p), on the CPU. */
void dropout_factors(Real *m, const Dropout *d, int64_t first, int64_t count);

#endif
