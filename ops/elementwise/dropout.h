/* Dropout of n elements by one draw of random numbers. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_H
#define TAPEGRAD_OPS_ELEMENTWISE_DROPOUT_H

#include "autograd/tape.h"

typedef struct DropoutDraw {
    Random random;         /* the generator's state before the draw */
    const uint64_t *start; /* NULL, or in CUDA device memory: added to random's Philox counter */
    uint32_t limit;        /* ceil(2^24 p): keep element i if floor(word_i / 2^8) >= limit */
    Real scale;            /* 1 / (1 - p) */
} DropoutDraw;

/* Draws for `count` elements. With probability 0 or training off, draws nothing and keeps all
 * elements; then, and only then, limit is 0. Raises in the operation's name unless
 * 0 <= probability < 1. */
DropoutDraw dropout_draw(Tape *tape, const char *operation, double probability, int64_t count);

/* op_dropout by a draw of tensor_count(x) elements. */
Tensor *dropout_by(Tape *tape, Tensor *x, DropoutDraw d);

#endif
