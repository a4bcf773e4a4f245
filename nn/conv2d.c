/* A convolution layer (op_conv2d). */
#include "nn/internal.h"

Conv2d nn_conv2d_with(Params *params, const char *name, int64_t in, int64_t out, Window window,
                      LinearConfig config)
{
    if (in < 1 || out < 1 || window.height < 1 || window.width < 1)
        error_raise("nn_conv2d: %s: in is %lld, out %lld, the window %lld x %lld, expected 1 or "
                    "more",
                    name, (long long)in, (long long)out, (long long)window.height,
                    (long long)window.width);
    const Shape weight = shape(out, window.height, window.width, in);
    const Linear linear = nn_weight_and_bias(params, name, weight, config);
    const Conv2dOptions options = { .stride = window.stride,
                                    .padding = window.padding,
                                    .stride_width = window.stride_width,
                                    .padding_height = window.padding_height,
                                    .padding_width = window.padding_width };
    return (Conv2d){ linear.weight, linear.bias, options };
}

Conv2d nn_conv2d(Params *params, const char *name, int64_t in, int64_t out, Window window)
{
    return nn_conv2d_with(params, name, in, out, window, (LinearConfig){ 0 });
}

Tensor *nn_conv2d_forward(Tape *tape, const Conv2d *conv, Tensor *x)
{
    error_need("nn_conv2d_forward", "the layer", conv);
    return op_conv2d(tape, x, conv->weight, conv->bias, conv->options);
}
