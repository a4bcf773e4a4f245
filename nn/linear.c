/* A linear layer, out = x weight^T + bias. */
#include "nn/internal.h"

#include <math.h>

Linear nn_linear(Params *params, const char *name, int64_t in, int64_t out)
{
    if (in < 1 || out < 1)
        error_raise("nn_linear: %s: in is %lld and out %lld, expected 1 or more", name,
                    (long long)in, (long long)out);
    Initializer initial = { INITIAL_UNIFORM, 1 / sqrt((double)in) };
    Linear linear;
    linear.weight = params_add(params, nn_name(name, "weight").text, shape(out, in), initial);
    linear.bias = params_add(params, nn_name(name, "bias").text, shape(out), initial);
    return linear;
}

Tensor *nn_linear_forward(Tape *tape, const Linear *linear, Tensor *x)
{
    return op_linear(tape, x, linear->weight, linear->bias);
}
