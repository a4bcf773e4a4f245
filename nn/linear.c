/* A linear layer, out = x weight^T + bias. */
#include "nn/internal.h"

#include <math.h>

static Linear new_linear(const char *function, Params *params, const char *name, int64_t in,
                         int64_t out, bool bias)
{
    if (in < 1 || out < 1)
        error_raise("%s: %s: in is %lld and out %lld, expected 1 or more", function, name,
                    (long long)in, (long long)out);
    Initializer initial = { INITIAL_UNIFORM, 1 / sqrt((double)in) };
    Linear linear = { NULL, NULL };
    linear.weight = params_add(params, nn_name(name, "weight").text, shape(out, in), initial);
    if (bias)
        linear.bias = params_add(params, nn_name(name, "bias").text, shape(out), initial);
    return linear;
}

Linear nn_linear(Params *params, const char *name, int64_t in, int64_t out)
{
    return new_linear("nn_linear", params, name, in, out, true);
}

Linear nn_linear_no_bias(Params *params, const char *name, int64_t in, int64_t out)
{
    return new_linear("nn_linear_no_bias", params, name, in, out, false);
}

Tensor *nn_linear_forward(Tape *tape, const Linear *linear, Tensor *x)
{
    return op_linear(tape, x, linear->weight, linear->bias);
}
