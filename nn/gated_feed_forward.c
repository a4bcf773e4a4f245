/* The gated feed-forward network SwiGLU (Shazeer 2020). One product computes gate and up. */
#include "nn/internal.h"

GatedFeedForward nn_gated_feed_forward(Params *params, const char *name, int64_t width,
                                       int64_t inner)
{
    static const char *const names[] = { "gate", "up" };
    if (width < 1 || inner < 1)
        error_raise("nn_gated_feed_forward: %s: width is %lld and inner %lld, expected 1 or more",
                    name, (long long)width, (long long)inner);
    return (GatedFeedForward){
        params_add_joined(params, name, names, 2, "weight", shape(inner, width),
                          nn_linear_config(width, 0).weight),
        params_add(params, nn_name(nn_name(name, "down").text, "weight").text, shape(width, inner),
                   nn_linear_config(inner, 0).weight),
    };
}

Tensor *nn_gated_feed_forward_forward(Tape *tape, const GatedFeedForward *layer, Tensor *x)
{
    error_need("nn_gated_feed_forward_forward", "the layer", layer);
    Tensor *parts[2];
    op_split(tape, op_linear(tape, x, layer->gate_up, NULL), -1, 2, parts);
    x = op_multiply(tape, op_silu(tape, parts[0]), parts[1]);
    return op_linear(tape, x, layer->down, NULL);
}
