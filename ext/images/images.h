/* Images [B, H, W, C], whose channels come last: convolution, pooling, batch normalization. */
#ifndef TAPEGRAD_IMAGES_H
#define TAPEGRAD_IMAGES_H

#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------- operations */

/* Windows of an image. */
typedef struct Window {
    int64_t height, width; /* no default; in op_conv2d 0: the weight's */
    int64_t stride;        /* 1; in pooling the window's size: pixels from one window to the next,
                            * in both directions */
    int64_t padding;       /* 0 to 2^31 - 1: pixels of value 0 around the image */
    int64_t stride_width;  /* as stride: that to the right, along the width */
    int64_t padding_height, padding_width; /* 0: pixels of value 0 more, above and below; left and
                                            * right */
    int64_t dilation; /* 1, which only op_conv2d exceeds: pixels from one of a window's pixels to
                       * the next, in both directions: it spans (height - 1) dilation + 1 rows */
} Window;

/* The windows of images (im2col): x [B, H, W, C]; returns [B, H', W', height width C],
 * H' = (H + 2 padding - height) / stride + 1, rounded down, and W' likewise,
 *   out[b, y, x, (i width + j) C + c] = x[b, y stride + i - padding, x stride + j - padding, c]
 * A convolution is op_linear of out; max pooling is op_max along axis 2 of
 * [B, H' W', height width, C]. Raises if no window fits into x. */
Tensor *op_unfold(Tape *tape, Tensor *x, Window window);
/* out[b, y, x, c] = the maximum of x[b, h, w, c] over the pixels h, w of window [y, x]: x
 * [B, H, W, C]; returns [B, H', W', C], sizes and windows as in op_unfold. A stride of 0 means the
 * window's size: windows side by side. Padding is never the maximum, and a NaN always is. The first
 * maximum gets the gradient. Raises if no window fits into x, or if the padding is more than half
 * of the window. */
Tensor *op_max_pool(Tape *tape, Tensor *x, Window window);
/* out[b, y, x, c] = the sum of x[b, h, w, c] over window [y, x] / (height width), likewise. Padding
 * counts as 0, and may be larger. */
Tensor *op_average_pool(Tape *tape, Tensor *x, Window window);

/* out_byxo = bias_o + sum_ijc x_b,(y stride + i dilation - padding),(x stride + j dilation -
 * padding),c weight_oijc, in one group: x [B, H, W, C], weight [O, height, width, C / groups], bias
 * [O] or NULL; returns [B, H', W', O], H' = (H + 2 padding - (height - 1) dilation - 1) / stride +
 * 1, rounded down, and W' likewise. groups: channels and filters in this number of equal parts; the
 * filters of a part see the channels of their part. C groups: a depthwise convolution. Stores no
 * windows. PyTorch's weight is [O, C / groups, height, width], its images are [B, C, H, W]. Raises
 * if no window fits into x, if the window has another size than the weight, or if groups does not
 * divide C and O. */
Tensor *op_conv2d(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Window window,
                  int64_t groups);

/* out_c = (x_c - mean_c) / sqrt(variance_c + eps) weight_c + bias_c, each channel c of x [..., C]
 * normalized over all leading axes (Ioffe and Szegedy 2015); the other tensors are [C], Real;
 * returns [..., C]. With training on (tape_set_training), mean and the biased variance are the
 * batch's, and every call, also without recording, updates the running statistics in place:
 *   running_mean     <- (1 - momentum) running_mean     + momentum mean
 *   running_variance <- (1 - momentum) running_variance + momentum variance n / (n - 1)
 * of n = the values per channel, 2 or more. With training off, out is computed from the running
 * statistics, which stay. They are tape_persistent tensors or nn_batchnorm's, and get no gradient.
 * After an error later in the step, tape_reset undoes their update. Raises unless
 * 0 <= momentum <= 1 and eps > 0. */
Tensor *op_batchnorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Tensor *running_mean,
                     Tensor *running_variance, double momentum, double eps);

/* --------------------------------------------------------------------------------------- layers */

typedef struct Conv2d {
    Tensor *weight, *bias; /* weight [out, height, width, in], bias [out] or NULL */
    Window window;
    int64_t groups; /* 1 at the start */
} Conv2d;

/* groups may be set before the first use; in is then the number of channels of a group:
 * conv.groups = channels with in = 1 is a depthwise convolution. INITIAL_DEFAULT of the config:
 * uniform in [-1/sqrt(height width in), 1/sqrt(height width in)). */
Conv2d nn_conv2d_with(Params *params, const char *name, int64_t in, int64_t out, Window window,
                      LinearConfig config);
/* The same with a config of zeros. */
Conv2d nn_conv2d(Params *params, const char *name, int64_t in, int64_t out, Window window);
/* out = x convolved with weight, + bias (op_conv2d): x [B, H, W, in], returns [B, H', W', out]. */
Tensor *nn_conv2d_forward(Tape *tape, const Conv2d *conv, Tensor *x);

typedef struct BatchNorm {
    Tensor *weight, *bias;                   /* [channels], 1 and 0 at the start */
    Tensor *running_mean, *running_variance; /* [channels], 0 and 1: saved and loaded with the
                                              * weights, but not in params_flat_values, so no
                                              * optimizer changes them */
    double momentum, eps;                    /* 0.1 and 1e-5 at the start */
} BatchNorm;

BatchNorm nn_batchnorm(Params *params, const char *name, int64_t channels);
/* out = batchnorm(x) (op_batchnorm): x [..., channels]. With tape_set_training on, also without
 * recording, the forward pass updates the running statistics: evaluate with training off. It writes
 * the Params then, so no other thread may use it meanwhile. */
Tensor *nn_batchnorm_forward(Tape *tape, const BatchNorm *norm, Tensor *x);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
