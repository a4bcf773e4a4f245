/* Root mean square normalization as a layer: op_rms_norm. */
#include "ext/rms_norm/rms_norm.h"
#include "extend.h"

static RmsNorm new_rms_norm(Params *params, const char *name, int64_t width, bool one_plus_weight)
{
    if (width < 1)
        error_raise("nn_rms_norm: %s: width is %lld, expected 1 or more", name, (long long)width);
    const Initializer initial = { .kind = one_plus_weight ? INITIAL_ZERO : INITIAL_ONE };
    return (RmsNorm){ params_add(params, nn_name(name, "weight").text, shape(width), initial), 1e-6,
                      one_plus_weight };
}

RmsNorm nn_rms_norm(Params *params, const char *name, int64_t width)
{
    return new_rms_norm(params, name, width, false);
}

RmsNorm nn_rms_norm_one_plus(Params *params, const char *name, int64_t width)
{
    return new_rms_norm(params, name, width, true);
}

Tensor *nn_rms_norm_forward(Tape *tape, const RmsNorm *norm, Tensor *x)
{
    error_need("nn_rms_norm_forward", "the layer", norm);
    Tensor *weight = norm->weight;
    if (norm->one_plus_weight)
        weight = op_add_scalar(tape, weight, 1);
    return op_rms_norm(tape, x, weight, norm->eps);
}
