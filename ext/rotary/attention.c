/* Rotary positions as a kind of attention around another one. */
#include "ext/rotary/rotary.h"
#include "extend.h"

#include <math.h>

typedef struct RotaryKind {
    AttentionKind kind;
    RotaryConfig config;
} RotaryKind;

/* packed [B, N, 3 H, D]: the first 2 H heads are queries and keys. */
static Tensor *attend_rotary(Tape *tape, const AttentionKind *kind, Tensor *packed, Tensor *none,
                             Tensor *nothing, const AttentionContext *context)
{
    const RotaryConfig *config = &((const RotaryKind *)kind)->config;
    const AttentionOptions *options = &context->options;
    if (options->states_before && !options->positions)
        tape_error(tape, "nn_rotary_attention: states_before without positions, expected those of "
                         "x in the whole sequence");
    packed = op_rotary(tape, packed,
                       (RotaryOptions){ .dims = config->dims,
                                        .heads = packed->shape.size[2] / 3 * 2,
                                        .base = config->base,
                                        .halves = true,
                                        .positions = options->positions });
    return kind->inner->attend(tape, kind->inner, packed, none, nothing, context);
}

static const AttentionKind *rotary_of_layer(const AttentionKind *kind, Params *params,
                                            const char *name, const TransformerConfig *config)
{
    RotaryKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const RotaryKind *)kind;
    const int64_t dims = layer->config.dims, D = config->head_dim;
    if (dims > D)
        error_raise("nn_rotary_attention: dims is %lld, expected at most head_dim %lld",
                    (long long)dims, (long long)D);
    layer->kind.inner = nn_kind_of_layer(kind->inner, params, name, config);
    return &layer->kind;
}

const AttentionKind *nn_rotary_attention(Params *params, RotaryConfig config)
{
    const AttentionKind *inner = nn_kind_or_default(params, config.inner);
    if (!inner->projections[2])
        error_raise("nn_rotary_attention: inner is %s attention, expected one with queries, keys "
                    "and values",
                    inner->name);
    if (config.dims < 0 || config.dims % 2 != 0)
        error_raise("nn_rotary_attention: dims is %lld, expected an even number, or 0 for head_dim",
                    (long long)config.dims);
    if (!(config.base >= 0 && isfinite(config.base)))
        error_raise("nn_rotary_attention: base is %g, expected more than 0, or 0 for 10000",
                    config.base);
    RotaryKind *rotary = params_memory(params, sizeof *rotary);
    *rotary = (RotaryKind){ nn_kind_around(inner), config };
    rotary->kind.crosses = false;
    rotary->kind.of_layer = rotary_of_layer;
    rotary->kind.attend = attend_rotary;
    return &rotary->kind;
}
