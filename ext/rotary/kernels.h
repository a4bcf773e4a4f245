/* The kernels of op_rotary. */
#ifndef TAPEGRAD_ROTARY_KERNELS_H
#define TAPEGRAD_ROTARY_KERNELS_H

#include "extend.h"

typedef struct Rotary {
    int64_t R, H, D;      /* rows of x, [R, H, D]: all positions of all sequences */
    int64_t heads, pairs; /* the first heads, and their first 2 pairs elements, are rotated */
    int64_t P, first;     /* row i has the angles of row (first + i) mod P */
    bool halves, inverse; /* pairs (i, i + pairs); rotation by the negative angle */
} Rotary;

typedef struct RotaryKernels {
    /* cos_sin [P, 2, pairs], Real, = the cosines, then the sines, of the angles of positions [P],
     * or of 0, ..., P - 1 if it is NULL */
    void (*cos_sin)(Real *cos_sin, const int32_t *positions, double base, int64_t P, int64_t pairs);
    /* out [R, H, D] <- x with its pairs rotated by cos_sin */
    void (*rotate)(Gradient out, const Real *x, const Real *cos_sin, Rotary r);
} RotaryKernels;
extern const RotaryKernels rotary_plain, rotary_cpu_bf16, rotary_cuda, rotary_cuda_bf16;
C_FUNCTION const RotaryKernels *rotary_kernels(const Tensor *x);

#endif
