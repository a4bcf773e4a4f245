/* The sizes of windows over images. */
#include "ext/images/windows.h"

static bool is_padding(int64_t pixels)
{
    return pixels >= 0 && pixels <= INT32_MAX;
}

static void check_fields(Tape *tape, const char *operation, Window w, int64_t max_dilation)
{
    if (w.height < 1 || w.width < 1 || w.stride < 0 || !is_padding(w.padding))
        tape_error(tape,
                   "%s: the window is %lld x %lld, stride %lld, padding %lld; expected 1 or more, "
                   "1 or more (or 0 for the default), 0 to 2^31 - 1",
                   operation, (long long)w.height, (long long)w.width, (long long)w.stride,
                   (long long)w.padding);
    if (w.stride_width < 0 || !is_padding(w.padding_height) || !is_padding(w.padding_width))
        tape_error(tape,
                   "%s: stride_width is %lld, padding_height %lld, padding_width %lld; expected 1 "
                   "or more (or 0 for the default), 0 to 2^31 - 1",
                   operation, (long long)w.stride_width, (long long)w.padding_height,
                   (long long)w.padding_width);
    if (w.dilation < 0 || w.dilation > max_dilation)
        tape_error(tape, "%s: dilation is %lld, expected 1%s (or 0 for the default)", operation,
                   (long long)w.dilation, max_dilation > 1 ? " to 2^31 - 1" : "");
}

/* The number of windows along an axis of x with `size` pixels; a window has `length`. */
static int64_t windows_along(Tape *tape, const char *operation, const Tensor *x, const Windows *w,
                             int64_t size, int64_t length, int64_t stride, int64_t padding)
{
    const int64_t last = size + 2 * padding - 1; /* pixel */
    if (length - 1 > last / w->dilation)
        tape_error(tape, "%s: a window of %lld x %lld does not fit into x, %s, with padding %lld%s",
                   operation, (long long)w->height, (long long)w->width, shape_text(x->shape).text,
                   (long long)padding, w->dilation > 1 ? ", dilated" : "");
    return (last - (length - 1) * w->dilation) / stride + 1;
}

Windows windows_over(Tape *tape, const char *operation, const Tensor *x, Window window,
                     int64_t max_dilation)
{
    const int64_t *size = x->shape.size, stride = window.stride ? window.stride : 1;
    if (x->shape.rank != 4)
        tape_error(tape, "%s: x %s, expected four axes, [B, H, W, C]", operation,
                   tensor_text(x).text);
    check_fields(tape, operation, window, max_dilation);
    Windows w = { .B = size[0],
                  .H = size[1],
                  .W = size[2],
                  .C = size[3],
                  .height = window.height,
                  .width = window.width,
                  .stride_y = stride,
                  .stride_x = window.stride_width ? window.stride_width : stride,
                  .padding_y = window.padding + window.padding_height,
                  .padding_x = window.padding + window.padding_width,
                  .dilation = window.dilation ? window.dilation : 1 };
    w.rows = windows_along(tape, operation, x, &w, w.H, w.height, w.stride_y, w.padding_y);
    w.columns = windows_along(tape, operation, x, &w, w.W, w.width, w.stride_x, w.padding_x);
    const int64_t windows = shape_count(shape(w.B, w.rows, w.columns)); /* raise if they overflow */
    shape_count(shape(windows, w.height, w.width, w.C));
    return w;
}
