/* max_pool and average_pool: windows of images x [B, H, W, C], s the stride, p the padding, of y
 * and h those of the height, of x and w those of the width; the pixels of window [y, x] are h, w
 * with
 *   0 <= h - (y s - p) < height,  0 <= w - (x s - p) < width,  inside the image
 *   max:      index[b, y, x, c] = the first h W + w with the largest x[b, h, w, c], or with a NaN
 *             out[b, y, x, c] = x[b, index[b, y, x, c], c]
 *   average:  out[b, y, x, c] = sum over h, w of x[b, h, w, c] / (height width)
 * Backward, g = dL/dout:
 *   max:      dx[b, h, w, c] <- sum of g[b, y, x, c] over the windows with index = h W + w
 *   average:  dx[b, h, w, c] <- sum of g[b, y, x, c] over the windows of h, w / (height width)
 * Each pixel sums its own terms, in a fixed order. */
#include "ext/images/kernels.h"

static void max_pool_plain(Real *out, int32_t *index, const Real *x, Windows s)
{
    EACH_ROW(item, s.B * s.rows * s.columns * s.C, s.height * s.width) {
        const int64_t c = item % s.C, window = item / s.C, row = window / s.columns;
        const Interval h = rows_of_window(&s, row % s.rows);
        const Interval w = columns_of_window(&s, window % s.columns);
        const Real *x_bc = x + row / s.rows * s.H * s.W * s.C + c;
        int64_t first = h.first * s.W + w.first;
        for (int64_t i = h.first; i < h.end; i++)
            for (int64_t j = w.first; j < w.end; j++) {
                const Real value = x_bc[(i * s.W + j) * s.C], max = x_bc[first * s.C];
                if (max == max && !(value <= max)) /* larger, or the first NaN */
                    first = i * s.W + j;
            }
        out[item] = x_bc[first * s.C];
        index[item] = (int32_t)first;
    }
}

static void average_pool_plain(Real *out, const Real *x, Windows s)
{
    EACH_ROW(item, s.B * s.rows * s.columns * s.C, s.height * s.width) {
        const int64_t c = item % s.C, window = item / s.C, row = window / s.columns;
        const Interval h = rows_of_window(&s, row % s.rows);
        const Interval w = columns_of_window(&s, window % s.columns);
        const Real *x_bc = x + row / s.rows * s.H * s.W * s.C + c;
        double sum = 0;
        for (int64_t i = h.first; i < h.end; i++)
            for (int64_t j = w.first; j < w.end; j++)
                sum += x_bc[(i * s.W + j) * s.C];
        out[item] = (Real)(sum / (double)(s.height * s.width));
    }
}

static void pool_backward_plain(Gradient dx, const Real *dout, const int32_t *index, Windows s)
{
    EACH_ROW(item, s.B * s.H * s.W * s.C, 4) { /* about 4 windows per pixel */
        const int64_t c = item % s.C, pixel = item / s.C % (s.H * s.W);
        const int64_t b = item / s.C / (s.H * s.W);
        const Interval y = windows_of_row(&s, pixel / s.W);
        const Interval x = windows_of_column(&s, pixel % s.W);
        double sum = 0;
        for (int64_t i = y.first; i < y.end; i++)
            for (int64_t j = x.first; j < x.end; j++) {
                const int64_t window = ((b * s.rows + i) * s.columns + j) * s.C + c;
                sum += !index || index[window] == pixel ? dout[window] : 0;
            }
        gradient_add(dx, item, (Real)(index ? sum : sum / (double)(s.height * s.width)));
    }
}

const PoolKernels pool_plain = { max_pool_plain, average_pool_plain, pool_backward_plain };

static void pool_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    image_kernels(x)->pool->backward(tape_contribution(node, x), tape_upstream(node, 0),
                                     node->saved[0] ? node->saved[0]->integers : NULL,
                                     *(const Windows *)node->attributes);
}

/* Records out, which windows s make of x. index: of max_pool, or NULL */
static Tensor *pooled(Tape *tape, const char *operation, Tensor *x, Tensor *out, Tensor *index,
                      Windows s)
{
    tape_record(tape, (Node){ operation, pool_backward, .inputs = { x }, .outputs = { out },
                              .saved = { index }, .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

/* The windows; a stride of 0 means the window's size. */
static Windows pool_windows(Tape *tape, const char *operation, const Tensor *x, Window window)
{
    if (window.stride_width == 0)
        window.stride_width = window.stride ? window.stride : window.width;
    if (window.stride == 0)
        window.stride = window.height;
    return windows_over(tape, operation, x, window, 1);
}

Tensor *op_max_pool(Tape *tape, Tensor *x, Window window)
{
    tape_use(tape, "op_max_pool: x", x);
    const Windows s = pool_windows(tape, "op_max_pool", x, window);
    if (s.padding_y > s.height / 2 || s.padding_x > s.width / 2)
        tape_error(
            tape,
            "op_max_pool: the window is %lld x %lld, padding %lld x %lld; expected a padding "
            "of at most half of the window, or a window may have no pixel",
            (long long)s.height, (long long)s.width, (long long)s.padding_y,
            (long long)s.padding_x);
    if (s.H * s.W > INT32_MAX)
        tape_error(tape, "op_max_pool: x %s, expected at most 2^31 - 1 pixels per image",
                   tensor_text(x).text);
    const Shape of_out = shape(s.B, s.rows, s.columns, s.C);
    Tensor *out = tape_tensor_of(tape, x->type, of_out), *index = tape_tensor_i32(tape, of_out);
    image_kernels(x)->pool->max(out->data, index->integers, x->data, s);
    return pooled(tape, "op_max_pool", x, out, index, s);
}

Tensor *op_average_pool(Tape *tape, Tensor *x, Window window)
{
    tape_use(tape, "op_average_pool: x", x);
    const Windows s = pool_windows(tape, "op_average_pool", x, window);
    Tensor *out = tape_tensor_of(tape, x->type, shape(s.B, s.rows, s.columns, s.C));
    image_kernels(x)->pool->average(out->data, x->data, s);
    return pooled(tape, "op_average_pool", x, out, NULL, s);
}
