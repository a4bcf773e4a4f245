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

static inline int64_t windows_count(const Windows *w)
{
    return w->B * w->rows * w->columns;
}

/* Elements of a window. */
static inline int64_t window_size(const Windows *w)
{
    return w->height * w->width * w->C;
}

/* A row of a window, without what is outside the image: its first element in x and in the window,
 * and the number of elements, which are consecutive in both. */
typedef struct WindowRow {
    int64_t pixels, first, length;
} WindowRow;

/* Row i of window n. */
static inline WindowRow window_row(const Windows *w, int64_t n, int64_t i)
{
    const int64_t b = n / w->columns / w->rows;
    const int64_t h = n / w->columns % w->rows * w->stride + i - w->padding;
    const int64_t left = n % w->columns * w->stride - w->padding, right = left + w->width;
    const int64_t first = left > 0 ? left : 0, end = right < w->W ? right : w->W;
    if (h < 0 || h >= w->H || first >= end)
        return (WindowRow){ 0, 0, 0 };
    return (WindowRow){ ((b * w->H + h) * w->W + first) * w->C,
                        (i * w->width + first - left) * w->C, (end - first) * w->C };
}

/* The windows over x [B, H, W, C]; a stride of 0 means 1. Raises in the operation's name unless
 * the window's fields are in range and one window fits into x. height width C does not overflow. */
Windows windows_over(Tape *tape, const char *operation, const Tensor *x, Window window);

#endif
