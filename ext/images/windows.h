/* Windows over images: the sizes that unfold, pooling and convolution share. */
#ifndef TAPEGRAD_IMAGES_WINDOWS_H
#define TAPEGRAD_IMAGES_WINDOWS_H

#include "ext/images/images.h"
#include "extend.h"

typedef struct Windows {
    int64_t B, H, W, C;    /* x */
    int64_t rows, columns; /* windows per column and per row of the image */
    int64_t height, width; /* of a window, in pixels */
    int64_t stride_y, stride_x, padding_y, padding_x; /* down the image, and to the right */
    int64_t dilation; /* 1 but in conv2d: from a window's pixel to its next one */
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

/* The windows over x [B, H, W, C]; a stride of 0 means 1. Raises in the operation's name unless
 * the window's fields are in range, dilation at most max_dilation, one window fits into x, and the
 * elements of all windows can be counted. */
C_FUNCTION Windows windows_over(Tape *tape, const char *operation, const Tensor *x, Window window,
                                int64_t max_dilation);

/* first to end - 1, along one axis; none if first >= end */
typedef struct Interval {
    int64_t first, end;
} Interval;

/* Along one axis: the pixels, of `size`, that a window of `length` from `first` on has. */
SHARED_FUNCTION Interval pixels_inside(int64_t first, int64_t length, int64_t size)
{
    const Interval in = { first < 0 ? 0 : first, first + length < size ? first + length : size };
    return in;
}

/* The rows and columns of pixels that window [y, x] has, unless windows are dilated. */
SHARED_FUNCTION Interval rows_of_window(const Windows *s, int64_t y)
{
    return pixels_inside(y * s->stride_y - s->padding_y, s->height, s->H);
}
SHARED_FUNCTION Interval columns_of_window(const Windows *s, int64_t x)
{
    return pixels_inside(x * s->stride_x - s->padding_x, s->width, s->W);
}

/* Along one axis: the windows, of `count`, that have the pixel number `at`, padding counted. */
SHARED_FUNCTION Interval windows_with(int64_t at, int64_t length, int64_t stride, int64_t count)
{
    const int64_t last = at / stride, before = at - length;
    const Interval in = { before < 0 ? 0 : before / stride + 1, last < count ? last + 1 : count };
    return in;
}

/* The y and the x of the windows that have the pixel [h, w], unless they are dilated. */
SHARED_FUNCTION Interval windows_of_row(const Windows *s, int64_t h)
{
    return windows_with(h + s->padding_y, s->height, s->stride_y, s->rows);
}
SHARED_FUNCTION Interval windows_of_column(const Windows *s, int64_t w)
{
    return windows_with(w + s->padding_x, s->width, s->stride_x, s->columns);
}

#endif
