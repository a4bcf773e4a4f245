/* Gated linear attention as a kind of attention. */
#include "ext/gated_linear_attention/gated_linear_attention.h"
#include "extend.h"

#include <math.h>

typedef struct GatedLinearKind {
    AttentionKind kind;
    GatedLinearConfig config;
    Linear decay_down, decay_up; /* of a layer: W1; W2 and b */
} GatedLinearKind;

typedef struct GatedLinearOperands {
    Tensor *key, *value, *log_decay;
    const GatedLinearAttentionOptions *options;
} GatedLinearOperands;

/* The identity [D, D] of every head of B sequences */
static Tensor *identity_states(Tape *tape, int64_t B, int64_t H, int64_t D)
{
    Tensor *ones = tape_tensor(tape, shape(D)), *matrix = tape_tensor(tape, shape(D, D));
    tensor_fill(ones, 1);
    tensor_fill(matrix, 0);
    kernels_of(matrix)->copy_rows((Gradient){ matrix->data, false }, D + 1, ones->data, 1, D, 1);
    return op_broadcast_to(tape, matrix, shape(B, H, D, D));
}

/* S <- A S + B: zeros become B, and the identity, with keys and values of 0, A = diag(e^(sum l)) */
static void gated_linear_effect(Tape *tape, const void *operands, Tensor **state,
                                Tensor **transition)
{
    const GatedLinearOperands *of = operands;
    GatedLinearAttentionOptions options = *of->options;
    const int64_t *size = of->key->shape.size;
    Tensor *zeros = tape_tensor_of(tape, of->key->type, of->key->shape);
    tensor_fill(zeros, 0);
    op_gated_linear_attention(tape, of->key, of->key, of->value, of->log_decay, options, state);
    options.state = identity_states(tape, size[0], size[2], size[3]);
    op_gated_linear_attention(tape, zeros, zeros, zeros, of->log_decay, options, transition);
}

static const AttentionKind *gated_linear_of_layer(const AttentionKind *kind, Params *params,
                                                  const char *name, const TransformerConfig *config)
{
    GatedLinearKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const GatedLinearKind *)kind;
    const int64_t width = config->heads * config->head_dim, rank = layer->config.decay_rank;
    const Name decay = nn_name(name, "decay");
    LinearConfig down = nn_linear_config(width, config->initial_std);
    down.no_bias = true;
    layer->decay_down = nn_linear_with(params, nn_name(decay.text, "down").text, width, rank, down);
    layer->decay_up = nn_linear_part(params, decay.text, "up", rank, width, config->initial_std);
    return &layer->kind;
}

/* log sigmoid(x W1^T W2^T + b) / temperature, [B, N, H, D] in Real */
static Tensor *decay_of_keys(Tape *tape, const GatedLinearKind *gated, Tensor *x, Shape heads)
{
    Tensor *low = nn_linear_forward(tape, &gated->decay_down, x);
    Tensor *z = op_cast(tape, nn_linear_forward(tape, &gated->decay_up, low), TENSOR_REAL);
    Tensor *log_decay = op_scale(tape, op_log_sigmoid(tape, z), 1 / gated->config.temperature);
    return op_reshape(tape, log_decay, heads);
}

static AttentionState gated_linear_state(const AttentionKind *kind, int state, AttentionSizes s)
{
    (void)kind, (void)state;
    return (AttentionState){ "sums", shape(s.B, s.heads, s.key_dim, s.head_dim) };
}

static Tensor *attend_gated_linear(Tape *tape, const AttentionKind *kind, Tensor *packed,
                                   Tensor *none, Tensor *nothing, const AttentionContext *context)
{
    Tensor *after = NULL;
    GatedLinearAttentionOptions options = { .key_lengths = context->options.key_lengths };
    const int64_t *size = packed->shape.size, B = size[0], N = size[1], H = size[2] / 3;
    const int64_t D = size[3];
    (void)none, (void)nothing; /* it does not cross */
    Tensor *query = op_scale(tape, op_slice(tape, packed, 2, 0, H), 1 / sqrt((double)D));
    Tensor *key = op_slice(tape, packed, 2, H, H), *value = op_slice(tape, packed, 2, 2 * H, H);
    Tensor *log_decay =
        decay_of_keys(tape, (const GatedLinearKind *)kind, context->x, shape(B, N, H, D));
    if (context->log_decay)
        log_decay =
            op_add(tape, log_decay, op_reshape(tape, context->log_decay, shape(B, N, H, 1)));
    const GatedLinearOperands operands = { key, value, log_decay, &options };
    options.state = state_before(tape, context, 0, gated_linear_effect, &operands);
    Tensor *out = op_gated_linear_attention(tape, query, key, value, log_decay, options,
                                            context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, 0, after);
    return out;
}

const AttentionKind *nn_gated_linear_attention(Params *params, GatedLinearConfig config)
{
    static const char function[] = "nn_gated_linear_attention";
    shape_need_size(function, "decay_rank", &config.decay_rank, 16, 1 << 20);
    if (config.temperature == 0)
        config.temperature = 16;
    if (!(config.temperature > 0 && config.temperature < INFINITY))
        error_raise("%s: temperature is %g, expected more than 0, and finite, or 0 for 16",
                    function, config.temperature);
    GatedLinearKind *gated = params_memory(params, sizeof *gated);
    gated->config = config;
    gated->kind = (AttentionKind){ .name = "gated linear",
                                   .projections = { "query", "key", "value" },
                                   .decays = true,
                                   .is_unnormalized = true,
                                   .states = 1,
                                   .state = gated_linear_state,
                                   .of_layer = gated_linear_of_layer,
                                   .attend = attend_gated_linear };
    return &gated->kind;
}
