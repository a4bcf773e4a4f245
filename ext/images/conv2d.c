/* conv2d: images x [B, H, W, C] and O filters, weight_o [height, width, C]; s is the stride and p
 * the padding, of y those of the height, of x those of the width, d the dilation; x is 0 outside
 * the image (LeCun et al. 1989). Strictly a cross-correlation.
 *   out_byxo = bias_o + sum_ijc x_b,(y s + i d - p),(x s + j d - p),c weight_oijc
 * In groups, weight_o has the C / groups channels of its group; c are these.
 * Backward, g = dL/dout: x_bhwc is multiplied with weight_oijc for the windows [y, x] with
 * y s + i d - p = h and x s + j d - p = w, and the o of its group,
 *   dx_bhwc <- sum over these y, x, i, j, and o, of g_byxo weight_oijc
 *   dweight_oijc <- sum_byx g_byxo x_b,(y s + i d - p),(x s + j d - p),c
 *   dbias_o <- sum_byx g_byxo
 * All loops run over consecutive elements of x, inside the image, that are multiplied with
 * consecutive weights of a filter: a window's row, or, dilated or in groups, a pixel's channels.
 * Sums are Reals, as in products. */
#include "ext/images/kernels.h"

/* Of a window, of the first group: the first element in x, its weight's place in a filter, and the
 * number of elements, 0 outside the image. */
typedef struct WindowRun {
    int64_t pixels, weights, length;
} WindowRun;

static bool rows_are_runs(const Convolution *c)
{
    return c->windows.dilation == 1 && c->groups == 1;
}

static int64_t runs_per_row(const Convolution *c)
{
    return rows_are_runs(c) ? 1 : c->windows.width;
}

/* Run r of window n, of height runs_per_row(c) */
static WindowRun window_run(const Convolution *c, int64_t n, int64_t r)
{
    const Windows *w = &c->windows;
    const int64_t i = r / runs_per_row(c);
    int64_t j = r % runs_per_row(c);
    const int64_t y = n / w->columns, x = n % w->columns, channels = group_channels(c);
    const int64_t h = y % w->rows * w->stride_y + i * w->dilation - w->padding_y;
    const int64_t left = x * w->stride_x - w->padding_x;
    Interval inside = columns_of_window(w, x);
    if (!rows_are_runs(c))
        inside = pixels_inside(left + j * w->dilation, 1, w->W);
    if (h < 0 || h >= w->H || inside.first >= inside.end)
        return (WindowRun){ 0, 0, 0 };
    if (rows_are_runs(c))
        j = inside.first - left;
    return (WindowRun){ ((y / w->rows * w->H + h) * w->W + inside.first) * w->C,
                        (i * w->width + j) * channels, (inside.end - inside.first) * channels };
}

static void conv2d_forward_plain(Real *out, const Real *x, const Real *weight, const Real *bias,
                                 Convolution c)
{
    const int64_t O = c.O, size = filter_size(&c), runs = c.windows.height * runs_per_row(&c);
    EACH_ROW(n, windows_count(&c.windows), O * size) {
        for (int64_t o = 0; o < O; o++)
            out[n * O + o] = bias ? bias[o] : 0;
        for (int64_t r = 0; r < runs; r++) {
            const WindowRun run = window_run(&c, n, r);
            for (int64_t o = 0; o < (run.length ? O : 0); o++)
                out[n * O + o] += (Real)row_dot(x + run.pixels + first_channel(&c, o),
                                                weight + o * size + run.weights, run.length);
        }
    }
}

static void conv2d_backward_x_plain(Gradient dx, const Real *dout, const Real *weight,
                                    Convolution c)
{
    const Windows *w = &c.windows;
    const int64_t O = c.O, size = filter_size(&c), runs = w->height * runs_per_row(&c);
    const int64_t per_image = w->rows * w->columns, image = w->H * w->W * w->C;
    EACH_ROW(b, w->B, per_image * O * size) {
        if (!dx.accumulate)
            memset(dx.data + b * image, 0, (size_t)image * sizeof *dx.data);
        for (int64_t at = b * per_image * runs; at < (b + 1) * per_image * runs; at++) {
            const int64_t n = at / runs, r = at % runs;
            const WindowRun run = window_run(&c, n, r);
            for (int64_t o = 0; o < (run.length ? O : 0); o++) {
                Real *to = dx.data + run.pixels + first_channel(&c, o);
                PRAGMA(omp simd)
                for (int64_t k = 0; k < run.length; k++)
                    to[k] += dout[n * O + o] * weight[o * size + run.weights + k];
            }
        }
    }
}

static void conv2d_backward_weight_plain(Gradient dweight, const Real *dout, const Real *x,
                                         Convolution c)
{
    const int64_t O = c.O, size = filter_size(&c), runs = c.windows.height * runs_per_row(&c);
    double *sums = (double *)(void *)device_workspace(2 * O * size);
    EACH_ROW(o, O, windows_count(&c.windows) * size) {
        double *sum = sums + o * size;
        memset(sum, 0, (size_t)size * sizeof *sum);
        for (int64_t at = 0; at < windows_count(&c.windows) * runs; at++) {
            const int64_t n = at / runs, r = at % runs;
            const WindowRun run = window_run(&c, n, r);
            const Real *from = x + run.pixels + first_channel(&c, o);
            PRAGMA(omp simd)
            for (int64_t k = 0; k < run.length; k++)
                sum[run.weights + k] += dout[n * O + o] * from[k];
        }
        for (int64_t k = 0; k < size; k++)
            gradient_add(dweight, o * size + k, (Real)sum[k]);
    }
    device_workspace_free((const Real *)(const void *)sums);
}

const ConvolutionKernels convolution_plain = { conv2d_forward_plain, conv2d_backward_x_plain,
                                               conv2d_backward_weight_plain };

static void conv2d_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const ConvolutionKernels *kernels = image_kernels(x)->convolution;
    const Convolution c = *(const Convolution *)node->attributes;
    const Real *dout = tape_upstream(node, 0);
    const Gradient dx = tape_contribution(node, x);
    if (dx.data)
        kernels->backward_x(dx, dout, weight->data, c);
    const Gradient dweight = tape_contribution(node, weight);
    if (dweight.data)
        kernels->backward_weight(dweight, dout, x->data, c);
    const Gradient dbias = tape_contribution(node, bias);
    if (dbias.data)
        kernels_of(x)->column_sums(dbias, dout, windows_count(&c.windows), c.O);
}

static Convolution convolution_of(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                                  Window window, int64_t groups)
{
    tape_use(tape, "op_conv2d: x", x);
    tape_use_real(tape, "op_conv2d: weight", weight);
    const int64_t *size = weight->shape.size, O = size[0];
    if (weight->shape.rank != 4)
        tape_error(tape, "op_conv2d: weight %s, expected four axes, [O, height, width, C]",
                   tensor_text(weight).text);
    if ((window.height && window.height != size[1]) || (window.width && window.width != size[2]))
        tape_error(tape,
                   "op_conv2d: the window is %lld x %lld, expected the weight's or 0: weight %s",
                   (long long)window.height, (long long)window.width, tensor_text(weight).text);
    window.height = size[1];
    window.width = size[2];
    const Windows windows = windows_over(tape, "op_conv2d", x, window, INT32_MAX);
    if (groups < 1 || windows.C % groups != 0 || O % groups != 0)
        tape_error(tape,
                   "op_conv2d: groups is %lld, expected a divisor of %lld channels and %lld "
                   "filters: x %s, weight %s",
                   (long long)groups, (long long)windows.C, (long long)O, tensor_text(x).text,
                   tensor_text(weight).text);
    if (size[3] != windows.C / groups)
        tape_error(tape, "op_conv2d: weight %s, expected %lld in its last axis: x %s",
                   tensor_text(weight).text, (long long)(windows.C / groups), tensor_text(x).text);
    if (bias)
        tape_use_real(tape, "op_conv2d: bias", bias);
    if (bias && !shape_equal(bias->shape, shape(O)))
        tape_error(tape, "op_conv2d: bias %s, expected [%lld]: weight %s", tensor_text(bias).text,
                   (long long)O, tensor_text(weight).text);
    return (Convolution){ windows, O, groups, tape_precision(tape) };
}

Tensor *op_conv2d(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Window window,
                  int64_t groups)
{
    const Convolution c = convolution_of(tape, x, weight, bias, window, groups);
    const Windows *w = &c.windows;
    x = op_cast(tape, x, product_type(tape));
    Tensor *out = tape_tensor_of(tape, x->type, shape(w->B, w->rows, w->columns, c.O));
    image_kernels(x)->convolution->forward(out->data, x->data, weight->data,
                                           bias ? bias->data : NULL, c);
    tape_record(tape, (Node){ "op_conv2d", conv2d_backward, .inputs = { x, weight, bias },
                              .outputs = { out }, .attributes = tape_save(tape, &c, sizeof c) });
    return out;
}
