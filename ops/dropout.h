#ifndef TAPEGRAD_OPS_DROPOUT_H
#define TAPEGRAD_OPS_DROPOUT_H

#include "tensor/tensor.h"

typedef struct Dropout {
    Random random;         /* before the draw */
    const uint64_t *start; /* NULL, or in the memory of a CUDA device: added to random's counter */
    uint32_t limit;        /* u_i = (word_i / 2^8) 2^-24 is kept from limit = ceil(2^24 p) on */
    Real scale;            /* 1 / (1 - p) */
} Dropout;

#endif
