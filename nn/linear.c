/* A linear layer, out = x weight^T + bias. */
#include "nn/internal.h"

#include <math.h>

LinearInitializers nn_linear_initializers(int64_t in, double std)
{
    const Initializer uniform = { INITIAL_UNIFORM, 1 / sqrt((double)in) };
    if (std == 0)
        return (LinearInitializers){ .weight = uniform, .bias = uniform };
    return (LinearInitializers){ .weight = { INITIAL_NORMAL, std }, .bias = { INITIAL_ZERO, 0 } };
}

static Linear linear_new(const char *function, Params *params, const char *name, int64_t in,
                         int64_t out, bool bias, double std)
{
    if (in < 1 || out < 1)
        error_raise("%s: %s: in is %lld and out %lld, expected 1 or more", function, name,
                    (long long)in, (long long)out);
    const LinearInitializers initial = nn_linear_initializers(in, std);
    Linear linear = { NULL, NULL };
    linear.weight =
        params_add(params, nn_name(name, "weight").text, shape(out, in), initial.weight);
    if (bias)
        linear.bias = params_add(params, nn_name(name, "bias").text, shape(out), initial.bias);
    return linear;
}

Linear nn_linear_with_std(Params *params, const char *name, int64_t in, int64_t out, double std)
{
    return linear_new("nn_linear", params, name, in, out, true, std);
}

Linear nn_linear(Params *params, const char *name, int64_t in, int64_t out)
{
    return nn_linear_with_std(params, name, in, out, 0);
}

Linear nn_linear_no_bias(Params *params, const char *name, int64_t in, int64_t out)
{
    return linear_new("nn_linear_no_bias", params, name, in, out, false, 0);
}

Tensor *nn_linear_forward(Tape *tape, const Linear *linear, Tensor *x)
{
    nn_need_layer("nn_linear_forward", linear);
    return op_linear(tape, x, linear->weight, linear->bias);
}
