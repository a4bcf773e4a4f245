/* The result of gradient clipping, in device memory, so that a replayed step finds it there. */
#ifndef TAPEGRAD_NN_PARAMS_CLIP_H
#define TAPEGRAD_NN_PARAMS_CLIP_H

#include "tensor/kernel.h"

enum { CLIP_PARTS = 256 };

typedef struct Clipping {
    double parts[CLIP_PARTS]; /* partial sums of squares */
    double norm;              /* of all gradients, before scaling */
    bool done;                /* the norm was computed at least once */
} Clipping;

DEVICE_FUNCTION(void, sum_squares, Clipping *clipping, const Real *x, int64_t n);
DEVICE_FUNCTION(void, clip_gradients, Real *x, Clipping *clipping, Real maximum_norm, int64_t n);

#endif
