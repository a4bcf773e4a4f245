/* The config of a transformer: its defaults and ranges. */
#include "nn/internal.h"

#include <math.h>

enum { MAX_SIZE = 1 << 20 };

void nn_need_choice(const char *function, const char *noun, int choice, int last)
{
    if (choice < 0 || choice > last)
        error_raise("%s: there is no %s %d", function, noun, choice);
}

TransformerConfig nn_transformer_config(const char *function, TransformerConfig c)
{
    shape_need_size(function, "layers", &c.layers, 4, NN_MAX_LAYERS);
    shape_need_size(function, "heads", &c.heads, 8, MAX_SIZE);
    shape_need_size(function, "head_dim", &c.head_dim, 32, MAX_SIZE);
    shape_need_size(function, "feed_forward", &c.feed_forward, 4 * c.heads * c.head_dim, MAX_SIZE);
    nn_need_choice(function, "activation", (int)c.activation, ACTIVATION_SILU);
    if (!(c.dropout >= 0 && c.dropout < 1))
        error_raise("%s: dropout is %g, expected 0 <= dropout < 1", function, c.dropout);
    if (!(c.initial_std >= 0 && isfinite((Real)c.initial_std)))
        error_raise("%s: initial_std is %g, expected 0 or more, and finite", function,
                    c.initial_std);
    return c;
}

double nn_residual_std(const TransformerConfig *config)
{
    return config->initial_std / sqrt(2 * (double)config->layers);
}
