/* A convolution layer (op_conv2d). */
#include "nn/internal.h"

#include <math.h>

Conv2d nn_conv2d(Params *params, const char *name, int64_t in, int64_t out, Window window)
{
    if (in < 1 || out < 1 || window.height < 1 || window.width < 1)
        error_raise("nn_conv2d: %s: in is %lld, out %lld, the window %lld x %lld, expected 1 or "
                    "more",
                    name, (long long)in, (long long)out, (long long)window.height,
                    (long long)window.width);
    const Shape weight = shape(out, window.height, window.width, in);
    const Initializer uniform = { INITIAL_UNIFORM, 1 / sqrt((double)(shape_count(weight) / out)) };
    Conv2d conv = { .options = { window.stride, window.padding } };
    conv.weight = params_add(params, nn_name(name, "weight").text, weight, uniform);
    conv.bias = params_add(params, nn_name(name, "bias").text, shape(out), uniform);
    return conv;
}

Tensor *nn_conv2d_forward(Tape *tape, const Conv2d *conv, Tensor *x)
{
    nn_need_layer("nn_conv2d_forward", conv);
    return op_conv2d(tape, x, conv->weight, conv->bias, conv->options);
}
