/* Windows over images: the sizes that unfold, pooling and convolution share. */
#ifndef TAPEGRAD_OPS_SHARED_WINDOWS_H
#define TAPEGRAD_OPS_SHARED_WINDOWS_H

#include "ops/ops.h"

typedef struct Windows {
    int64_t B, H, W, C;    /* x */
    int64_t rows, columns; /* windows per column and per row of the image */
    int64_t height, width; /* of a window */
    int64_t stride, padding;
} Windows;

/* The windows over x [B, H, W, C]; a stride of 0 means 1. Raises in the operation's name unless
 * the window's fields are in range and one window fits into x. height width C does not overflow. */
Windows windows_over(Tape *tape, const char *operation, const Tensor *x, Window window);

#endif
