/* Layers of images: convolution (op_conv2d), and batch normalization (op_batchnorm). */
#include "ext/images/images.h"
#include "extend.h"

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
    return (Conv2d){ linear.weight, linear.bias, window, 1 };
}

Conv2d nn_conv2d(Params *params, const char *name, int64_t in, int64_t out, Window window)
{
    return nn_conv2d_with(params, name, in, out, window, (LinearConfig){ 0 });
}

Tensor *nn_conv2d_forward(Tape *tape, const Conv2d *conv, Tensor *x)
{
    error_need("nn_conv2d_forward", "the layer", conv);
    return op_conv2d(tape, x, conv->weight, conv->bias, conv->window, conv->groups);
}

/* A running statistic: a constant that every file of the weights has. */
static Tensor *running_statistic(Params *params, Name name, int64_t channels, Real initial)
{
    Tensor *statistic =
        params_new_constant("nn_batchnorm", params, name.text, shape(channels), true);
    tensor_fill(statistic, initial);
    return statistic;
}

BatchNorm nn_batchnorm(Params *params, const char *name, int64_t channels)
{
    if (channels < 1)
        error_raise("nn_batchnorm: %s: channels is %lld, expected 1 or more", name,
                    (long long)channels);
    Initializer ones = { .kind = INITIAL_ONE }, zeros = { .kind = INITIAL_ZERO };
    BatchNorm norm = { .momentum = 0.1, .eps = 1e-5 };
    norm.weight = params_add(params, nn_name(name, "weight").text, shape(channels), ones);
    norm.bias = params_add(params, nn_name(name, "bias").text, shape(channels), zeros);
    norm.running_mean = running_statistic(params, nn_name(name, "running_mean"), channels, 0);
    norm.running_variance =
        running_statistic(params, nn_name(name, "running_variance"), channels, 1);
    return norm;
}

Tensor *nn_batchnorm_forward(Tape *tape, const BatchNorm *norm, Tensor *x)
{
    error_need("nn_batchnorm_forward", "the layer", norm);
    return op_batchnorm(tape, x, norm->weight, norm->bias, norm->running_mean,
                        norm->running_variance, norm->momentum, norm->eps);
}
