/* The arguments of rms_norm and l2_normalize. */
#ifndef TAPEGRAD_RMS_NORM_KERNELS_H
#define TAPEGRAD_RMS_NORM_KERNELS_H

#include "autograd/tape.h"

typedef struct RmsNormArguments {
    const Real *x;      /* [R, C], activations */
    const Real *weight; /* [C], or NULL: ones */
    Real s;             /* 1 / C; of l2_normalize 1 */
    Real eps;           /* the backward pass does not read it */
    Real *r;            /* [R]: written forward, read backward */
    int64_t R, C;
} RmsNormArguments;

#endif
