/* The arguments of rotary's kernels. */
#ifndef TAPEGRAD_OPS_ATTENTION_ROTARY_H
#define TAPEGRAD_OPS_ATTENTION_ROTARY_H

#include "tensor/kernel.h"

typedef struct Rotary {
    int64_t R, H, D;      /* rows of x, [R, H, D]: all positions of all sequences */
    int64_t heads, pairs; /* the first heads, and their first 2 pairs elements, are rotated */
    int64_t P, first;     /* row i has the angles of row (first + i) mod P */
    bool halves, inverse; /* pairs (i, i + pairs); rotation by the negative angle */
} Rotary;

#endif
