/* What clipping leaves in the device's memory, where a recorded step finds it when it is replayed. */
#ifndef TAPEGRAD_NN_PARAMS_CLIP_H
#define TAPEGRAD_NN_PARAMS_CLIP_H

#include "tensor/tensor.h"

enum { CLIP_PARTS = 256 };

typedef struct Clipping {
    double parts[CLIP_PARTS]; /* sums of squares, of parts of the gradients */
    double norm;              /* of all of them, before they were scaled */
    bool done;                /* once at least: there is a norm */
} Clipping;

#endif
