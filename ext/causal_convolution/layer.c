/* A causal convolution over time, of each channel by itself (op_causal_convolution). */
#include "ext/causal_convolution/causal_convolution.h"
#include "extend.h"

CausalConvolution nn_causal_convolution_with(Params *params, const char *name, int64_t channels,
                                             int64_t taps, LinearConfig config)
{
    if (channels < 1 || taps < 2)
        error_raise("nn_causal_convolution: %s: channels is %lld and taps %lld, expected 1 or more "
                    "and 2 or more",
                    name, (long long)channels, (long long)taps);
    if (config.weight.kind == INITIAL_XAVIER) /* which would count the channels as outputs */
        config.weight =
            (Initializer){ INITIAL_UNIFORM, config.weight.scale * sqrt(3 / (double)taps) };
    const Linear linear = nn_weight_and_bias(params, name, shape(channels, taps), config);
    return (CausalConvolution){ linear.weight, linear.bias };
}

CausalConvolution nn_causal_convolution(Params *params, const char *name, int64_t channels,
                                        int64_t taps)
{
    return nn_causal_convolution_with(params, name, channels, taps, (LinearConfig){ 0 });
}

Tensor *nn_causal_convolution_forward(Tape *tape, const CausalConvolution *convolution, Tensor *x,
                                      CausalConvolutionOptions options, Tensor **final_state)
{
    error_need("nn_causal_convolution_forward", "the layer", convolution);
    return op_causal_convolution(tape, x, convolution->weight, convolution->bias, options,
                                 final_state);
}
