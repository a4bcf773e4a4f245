/* unfold (im2col): the windows of images x [B, H, W, C] as rows of a matrix, s the stride, p the
 * padding, of y those of the height, of x those of the width:
 *   out[b, y, x, i, j, c] = x[b, y s + i - p, x s + j - p, c], or 0 outside the image
 * for i < height, j < width. A convolution is the product of this matrix with the weights.
 * Backward (fold), g = dL/dout: a pixel [h, w] is in the windows y with y s + i - p = h, and x with
 * x s + j - p = w,
 *   dx[b, h, w, c] <- sum over these y, x, i, j of g[b, y, x, i, j, c]
 * Each pixel sums its own terms, in a fixed order. */
#include "ext/images/kernels.h"

void unfold_forward_plain(Real *out, const Real *x, Windows u)
{
    EACH_ROW(window, u.B * u.rows * u.columns, u.height * u.width * u.C) {
        const int64_t b = window / u.columns / u.rows;
        const int64_t top = window / u.columns % u.rows * u.stride_y - u.padding_y;
        const int64_t left = window % u.columns * u.stride_x - u.padding_x;
        Real *to = out + window * u.height * u.width * u.C;
        for (int64_t h = top; h < top + u.height; h++)
            for (int64_t w = left; w < left + u.width; w++, to += u.C)
                for (int64_t c = 0; c < u.C; c++)
                    to[c] = h >= 0 && h < u.H && w >= 0 && w < u.W
                                ? x[((b * u.H + h) * u.W + w) * u.C + c]
                                : 0;
    }
}

/* sum over y, x, i, j of g[b, y, x, i, j, c] for one element of dx */
static double fold_element(const Real *dout, const Windows *u, int64_t pixel, int64_t c)
{
    const int64_t b = pixel / u->W / u->H, h = pixel / u->W % u->H, w = pixel % u->W;
    double sum = 0;
    for (int64_t i = 0; i < u->height; i++)
        for (int64_t j = 0; j < u->width; j++) {
            const int64_t down = h + u->padding_y - i, right = w + u->padding_x - j;
            const int64_t y = down / u->stride_y, x = right / u->stride_x;
            if (down >= 0 && down % u->stride_y == 0 && y < u->rows && right >= 0 &&
                right % u->stride_x == 0 && x < u->columns)
                sum +=
                    dout[((((b * u->rows + y) * u->columns + x) * u->height + i) * u->width + j) *
                             u->C +
                         c];
        }
    return sum;
}

static void fold_plain(Gradient dx, const Real *dout, Windows u)
{
    EACH_ROW(pixel, u.B * u.H * u.W, u.height * u.width * u.C)
        for (int64_t c = 0; c < u.C; c++)
            gradient_add(dx, pixel * u.C + c, (Real)fold_element(dout, &u, pixel, c));
}

const UnfoldKernels unfold_plain = { unfold_forward_plain, fold_plain };

static void unfold_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    image_kernels(x)->unfold->backward(tape_contribution(node, x), tape_upstream(node, 0),
                                       *(const Windows *)node->attributes);
}

Tensor *op_unfold(Tape *tape, Tensor *x, Window window)
{
    tape_use(tape, "op_unfold: x", x);
    const Windows u = windows_over(tape, "op_unfold", x, window, 1);
    Tensor *out =
        tape_tensor_of(tape, x->type, shape(u.B, u.rows, u.columns, u.height * u.width * u.C));
    image_kernels(x)->unfold->forward(out->data, x->data, u);
    tape_record(tape, (Node){ "op_unfold", unfold_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &u, sizeof u) });
    return out;
}
