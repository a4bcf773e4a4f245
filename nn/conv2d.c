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
    const Initializer uniform = nn_linear_config(shape_count(weight) / out, 0).weight;
    Conv2d conv = { .options = { window.stride, window.padding } };
    conv.weight = params_add(params, nn_name(name, "weight").text, weight,
                             config.weight.kind ? config.weight : uniform);
    if (!config.no_bias)
        conv.bias = params_add(params, nn_name(name, "bias").text, shape(out),
                               config.bias.kind ? config.bias : uniform);
    return conv;
}

Conv2d nn_conv2d(Params *params, const char *name, int64_t in, int64_t out, Window window)
{
    return nn_conv2d_with(params, name, in, out, window, (LinearConfig){ 0 });
}

Tensor *nn_conv2d_forward(Tape *tape, const Conv2d *conv, Tensor *x)
{
    nn_need_layer("nn_conv2d_forward", conv);
    return op_conv2d(tape, x, conv->weight, conv->bias, conv->options);
}
