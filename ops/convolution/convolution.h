/* The arguments of conv2d's kernels. */
#ifndef TAPEGRAD_OPS_CONVOLUTION_CONVOLUTION_H
#define TAPEGRAD_OPS_CONVOLUTION_CONVOLUTION_H

#include "ops/shared/windows.h"

typedef struct Convolution {
    Windows windows;
    int64_t O;           /* filters, the channels of the result */
    Precision precision; /* of products, where a backend computes them by cuBLAS */
} Convolution;

#endif
