/* A linear layer, out = x weight^T + bias. */
#include "nn/internal.h"

#include <math.h>

LinearConfig nn_linear_config(int64_t in, double std)
{
    const Initializer uniform = { INITIAL_UNIFORM, 1 / sqrt((double)in) };
    if (std == 0)
        return (LinearConfig){ .weight = uniform, .bias = uniform };
    return (LinearConfig){ .weight = { INITIAL_NORMAL, std }, .bias = { INITIAL_ZERO, 0 } };
}

Linear nn_weight_and_bias(Params *params, const char *name, Shape weight, LinearConfig config)
{
    const int64_t out = weight.size[0];
    const Initializer uniform = nn_linear_config(shape_count(weight) / out, 0).weight;
    Linear linear = { NULL, NULL };
    linear.weight = params_add(params, nn_name(name, "weight").text, weight,
                               config.weight.kind ? config.weight : uniform);
    if (!config.no_bias)
        linear.bias = params_add(params, nn_name(name, "bias").text, shape(out),
                                 config.bias.kind ? config.bias : uniform);
    return linear;
}

Linear nn_linear_with(Params *params, const char *name, int64_t in, int64_t out,
                      LinearConfig config)
{
    if (in < 1 || out < 1)
        error_raise("nn_linear: %s: in is %lld and out %lld, expected 1 or more", name,
                    (long long)in, (long long)out);
    return nn_weight_and_bias(params, name, shape(out, in), config);
}

Linear nn_linear(Params *params, const char *name, int64_t in, int64_t out)
{
    return nn_linear_with(params, name, in, out, (LinearConfig){ 0 });
}

Linear nn_linear_part(Params *params, const char *name, const char *part, int64_t in, int64_t out,
                      double std)
{
    return nn_linear_with(params, nn_name(name, part).text, in, out, nn_linear_config(in, std));
}

Tensor *nn_linear_forward(Tape *tape, const Linear *linear, Tensor *x)
{
    error_need("nn_linear_forward", "the layer", linear);
    return op_linear(tape, x, linear->weight, linear->bias);
}
