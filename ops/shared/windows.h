/* Windows over images: the sizes that unfold, pooling and convolution share. */
#ifndef TAPEGRAD_OPS_SHARED_WINDOWS_H
#define TAPEGRAD_OPS_SHARED_WINDOWS_H

#include "ops/ops.h"
#include "tensor/kernel.h"

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

/* The windows over x [B, H, W, C]; a stride of 0 means 1. Raises in the operation's name unless
 * the window's fields are in range, one window fits into x, and the elements of all windows can be
 * counted. */
Windows windows_over(Tape *tape, const char *operation, const Tensor *x, Window window);

/* first to end - 1, along one axis; none if first >= end */
typedef struct Interval {
    int64_t first, end;
} Interval;

/* The pixels of an axis of `size` pixels that are in window number y; a window has `length`. */
SHARED_FUNCTION Interval pixels_of_window(const Windows *s, int64_t y, int64_t length, int64_t size)
{
    const int64_t first = y * s->stride - s->padding, end = first + length;
    const Interval in = { first < 0 ? 0 : first, end < size ? end : size };
    return in;
}

/* The windows, of `count` along an axis, that pixel number h is in. */
SHARED_FUNCTION Interval windows_of_pixel(const Windows *s, int64_t h, int64_t length,
                                          int64_t count)
{
    const int64_t last = (h + s->padding) / s->stride, before = h + s->padding - length;
    const Interval in = { before < 0 ? 0 : before / s->stride + 1,
                          last < count ? last + 1 : count };
    return in;
}

#endif
