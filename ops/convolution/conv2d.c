/* conv2d: images x [B, H, W, C] and O filters, weight_o [height, width, C]; s is the stride, p the
 * padding, and x is 0 outside the image (LeCun et al. 1989). Strictly a cross-correlation.
 *   out_byxo = bias_o + sum_ijc x_b,(y s + i - p),(x s + j - p),c weight_oijc
 * Backward, g = dL/dout: x_bhwc is multiplied with weight_oijc for the windows [y, x] with
 * y s + i - p = h and x s + j - p = w,
 *   dx_bhwc <- sum over these y, x, i, j, and o, of g_byxo weight_oijc
 *   dweight_oijc <- sum_byx g_byxo x_b,(y s + i - p),(x s + j - p),c
 *   dbias_o <- sum_byx g_byxo
 * The pixels of a window's row i are consecutive in x, and their weights in weight_o: all loops run
 * over such runs of pixels inside the image. Sums are Reals, as in products. */
#include "ops/kernels.h"
#include "ops/shared/internal.h"
#include "ops/shared/rows.h"

/* Row i of window n, without what is outside the image: its first pixel in x, its first weight in a
 * filter, and the number of elements. */
typedef struct WindowRow {
    int64_t pixels, weights, length;
} WindowRow;

static WindowRow window_row(const Windows *w, int64_t n, int64_t i)
{
    const int64_t y = n / w->columns, x = n % w->columns;
    const int64_t h = y % w->rows * w->stride + i - w->padding;
    const Interval inside = pixels_of_window(w, x, w->width, w->W);
    if (h < 0 || h >= w->H || inside.first >= inside.end)
        return (WindowRow){ 0, 0, 0 };
    const int64_t j = inside.first - (x * w->stride - w->padding);
    return (WindowRow){ ((y / w->rows * w->H + h) * w->W + inside.first) * w->C,
                        (i * w->width + j) * w->C, (inside.end - inside.first) * w->C };
}

void conv2d_forward_plain(Real *out, const Real *x, const Real *weight, const Real *bias,
                          Convolution c)
{
    const Windows *w = &c.windows;
    const int64_t O = c.O, size = window_size(w);
    EACH_ROW(n, windows_count(w), O * size) {
        for (int64_t o = 0; o < O; o++)
            out[n * O + o] = bias ? bias[o] : 0;
        for (int64_t i = 0; i < w->height; i++) {
            const WindowRow row = window_row(w, n, i);
            for (int64_t o = 0; o < O; o++)
                out[n * O + o] +=
                    (Real)row_dot(x + row.pixels, weight + o * size + row.weights, row.length);
        }
    }
}

void conv2d_backward_x_plain(Gradient dx, const Real *dout, const Real *weight, Convolution c)
{
    const Windows *w = &c.windows;
    const int64_t O = c.O, size = window_size(w), image = w->H * w->W * w->C;
    const int64_t per_image = w->rows * w->columns;
    EACH_ROW(b, w->B, per_image * O * size) {
        if (!dx.accumulate)
            memset(dx.data + b * image, 0, (size_t)image * sizeof *dx.data);
        for (int64_t n = b * per_image; n < (b + 1) * per_image; n++)
            for (int64_t i = 0; i < w->height; i++) {
                const WindowRow row = window_row(w, n, i);
                for (int64_t o = 0; o < O; o++)
                    PRAGMA(omp simd)
                for (int64_t k = 0; k < row.length; k++)
                    dx.data[row.pixels + k] += dout[n * O + o] * weight[o * size + row.weights + k];
            }
    }
}

void conv2d_backward_weight_plain(Gradient dweight, const Real *dout, const Real *x, Convolution c)
{
    const Windows *w = &c.windows;
    const int64_t O = c.O, size = window_size(w);
    double *sums = (double *)(void *)device_workspace(2 * O * size);
    EACH_ROW(o, O, windows_count(w) * size) {
        double *sum = sums + o * size;
        memset(sum, 0, (size_t)size * sizeof *sum);
        for (int64_t n = 0; n < windows_count(w); n++)
            for (int64_t i = 0; i < w->height; i++) {
                const WindowRow row = window_row(w, n, i);
                PRAGMA(omp simd)
                for (int64_t k = 0; k < row.length; k++)
                    sum[row.weights + k] += dout[n * O + o] * x[row.pixels + k];
            }
        for (int64_t k = 0; k < size; k++)
            gradient_add(dweight, o * size + k, (Real)sum[k]);
    }
    device_workspace_free((const Real *)(const void *)sums);
}

static void conv2d_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const Kernels *kernels = kernels_of(x);
    const Convolution c = *(const Convolution *)node->attributes;
    const Real *dout = tape_upstream(node, 0);
    const Gradient dx = tape_contribution(node, x);
    if (dx.data)
        kernels->conv2d_backward_x(dx, dout, weight->data, c);
    const Gradient dweight = tape_contribution(node, weight);
    if (dweight.data)
        kernels->conv2d_backward_weight(dweight, dout, x->data, c);
    const Gradient dbias = tape_contribution(node, bias);
    if (dbias.data)
        kernels->column_sums(dbias, dout, windows_count(&c.windows), c.O);
}

Tensor *op_conv2d(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Conv2dOptions options)
{
    tape_use(tape, "op_conv2d: x", x);
    tape_use_real(tape, "op_conv2d: weight", weight);
    const int64_t *size = weight->shape.size, O = size[0];
    if (weight->shape.rank != 4)
        tape_error(tape, "op_conv2d: weight %s, expected four axes, [O, height, width, C]",
                   tensor_text(weight).text);
    const Windows windows = windows_over(
        tape, "op_conv2d", x, (Window){ size[1], size[2], options.stride, options.padding });
    if (size[3] != windows.C)
        tape_error(tape, "op_conv2d: weight %s, expected %lld in its last axis: x %s",
                   tensor_text(weight).text, (long long)windows.C, tensor_text(x).text);
    if (bias)
        tape_use_real(tape, "op_conv2d: bias", bias);
    if (bias && !shape_equal(bias->shape, shape(O)))
        tape_error(tape, "op_conv2d: bias %s, expected [%lld]: weight %s", tensor_text(bias).text,
                   (long long)O, tensor_text(weight).text);
    const Convolution c = { windows, O, tape_precision(tape) };
    x = op_cast(tape, x, product_type(tape));
    Tensor *out = tape_tensor_of(tape, x->type, shape(windows.B, windows.rows, windows.columns, O));
    kernels_of(x)->conv2d_forward(out->data, x->data, weight->data, bias ? bias->data : NULL, c);
    tape_record(tape, (Node){ "op_conv2d", conv2d_backward, .inputs = { x, weight, bias },
                              .outputs = { out }, .attributes = tape_save(tape, &c, sizeof c) });
    return out;
}
