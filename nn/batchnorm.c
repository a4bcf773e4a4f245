/* Batch normalization (Ioffe and Szegedy 2015) over all axes but the last. */
#include "nn/internal.h"

/* A running statistic: a constant that every file of the weights has. */
static Tensor *running_statistic(Params *params, Name name, int64_t channels, Real initial)
{
    Tensor *statistic = params_new_constant("nn_batchnorm", params, name.text, shape(channels));
    params->constants->required = true; /* the new one is the first */
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
