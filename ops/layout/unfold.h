/* The arguments of the kernels unfold and fold. */
#ifndef TAPEGRAD_OPS_LAYOUT_UNFOLD_H
#define TAPEGRAD_OPS_LAYOUT_UNFOLD_H

#include <stdint.h>

/* The sizes of unfold.c's formulas. */
typedef struct Unfold {
    int64_t B, H, W, C;    /* x */
    int64_t rows, columns; /* windows per column and per row of the image */
    int64_t height, width; /* of a window */
    int64_t stride, padding;
} Unfold;

#endif
