/* Layer normalization (Ba, Kiros, Hinton 2016) over the last axis. */
#include "nn/internal.h"

LayerNorm nn_layernorm_with(Params *params, const char *name, int64_t width, LayerNormConfig config)
{
    if (width < 1)
        error_raise("nn_layernorm: %s: width is %lld, expected 1 or more", name, (long long)width);
    const Initializer ones = { .kind = INITIAL_ONE }, zeros = { .kind = INITIAL_ZERO };
    LayerNorm norm = { .eps = 1e-5 };
    if (!config.no_weight)
        norm.weight = params_add(params, nn_name(name, "weight").text, shape(width), ones);
    if (!config.no_bias)
        norm.bias = params_add(params, nn_name(name, "bias").text, shape(width), zeros);
    return norm;
}

LayerNorm nn_layernorm(Params *params, const char *name, int64_t width)
{
    return nn_layernorm_with(params, name, width, (LayerNormConfig){ .no_bias = false });
}

Tensor *nn_layernorm_forward(Tape *tape, const LayerNorm *norm, Tensor *x)
{
    error_need("nn_layernorm_forward", "the layer", norm);
    return op_layernorm(tape, x, norm->weight, norm->bias, norm->eps);
}
