/* The delta rule as a kind of attention. */
#include "ext/delta/delta.h"
#include "ext/rms_norm/rms_norm.h"
#include "extend.h"

#include <math.h>
#include <stdlib.h>

typedef struct DeltaKind {
    AttentionKind kind;
    DeltaRuleConfig config;
    Linear beta;                 /* of a layer, as all below */
    Linear decay_down, decay_up; /* with a decay per key dimension, or NULL */
    Tensor *decay_constant;      /* [D], c_d */
    Tensor *log_rate;            /* [H], A */
} DeltaKind;

/* Added to the squared lengths of queries and keys. */
static const double DELTA_L2_EPS = 1e-6;

typedef struct DeltaOperands {
    Tensor *key, *value, *beta;
    const DeltaRuleOptions *options;
} DeltaOperands;

static Tensor *identity_matrix(Tape *tape, int64_t D)
{
    Tensor *ones = tape_tensor(tape, shape(D)), *matrix = tape_tensor(tape, shape(D, D));
    tensor_fill(ones, 1);
    tensor_fill(matrix, 0);
    kernels_of(matrix)->copy_rows((Gradient){ matrix->data, false }, D + 1, ones->data, 1, D, 1);
    return matrix;
}

/* S <- A S + B: zeros become B, and the identity A if all values are 0. */
static void delta_effect(Tape *tape, const void *operands, Tensor **state, Tensor **transition)
{
    const DeltaOperands *of = operands;
    Tensor *key = of->key, *value = of->value;
    DeltaRuleOptions options = *of->options;
    const int64_t *size = key->shape.size, D = size[3];
    Tensor *zeros = tape_tensor_of(tape, value->type, value->shape);
    tensor_fill(zeros, 0);
    op_delta_rule(tape, key, key, value, of->beta, options, state);
    options.state = op_broadcast_to(tape, identity_matrix(tape, D), shape(size[0], size[2], D, D));
    op_delta_rule(tape, key, key, zeros, of->beta, options, transition);
}

/* c_d, with softplus(c_d) = r_d; see DeltaRuleConfig. */
static Tensor *key_decay_constants(Params *params, int64_t D)
{
    Tensor *constants = params_new_constant("nn_attention", params, NULL, shape(D), false);
    Real *host = memory_allocate((size_t)D * sizeof *host);
    if (!host)
        error_raise("nn_attention: memory is exhausted: a decay of %lld key dimensions",
                    (long long)D);
    for (int64_t d = 0; d < D; d++)
        host[d] = (Real)log(expm1(exp2(-1 - (D > 1 ? 9.0 * (double)d / (double)(D - 1) : 0))));
    tensor_write(constants, host);
    free(host);
    return constants;
}

static void register_key_decay(DeltaKind *layer, Params *params, const char *name,
                               const TransformerConfig *config)
{
    const int64_t width = config->heads * config->head_dim, rank = layer->config.decay_rank;
    const Name decay = nn_name(name, "decay");
    LinearConfig down = nn_linear_config(width, config->initial_std);
    down.no_bias = true;
    layer->decay_constant = key_decay_constants(params, config->head_dim);
    layer->decay_down = nn_linear_with(params, nn_name(decay.text, "down").text, width, rank, down);
    layer->decay_up = nn_linear_part(params, decay.text, "up", rank, width, config->initial_std);
    layer->log_rate = params_add(params, nn_name(decay.text, "log_rate").text, shape(config->heads),
                                 (Initializer){ .kind = INITIAL_ZERO });
}

static const AttentionKind *delta_of_layer(const AttentionKind *kind, Params *params,
                                           const char *name, const TransformerConfig *config)
{
    DeltaKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const DeltaKind *)kind;
    layer->beta = nn_linear_part(params, name, "beta", config->heads * config->head_dim,
                                 config->heads, config->initial_std);
    if (layer->config.decay_rank)
        register_key_decay(layer, params, name, config);
    return &layer->kind;
}

/* In Real */
static Tensor *beta_of(Tape *tape, const DeltaKind *delta, Tensor *x)
{
    Tensor *z = op_cast(tape, nn_linear_forward(tape, &delta->beta, x), TENSOR_REAL);
    return op_scale(tape, op_sigmoid(tape, z), delta->config.max_beta);
}

/* [B, N, H] of the context, [B, N, H, D] of the layer's own decay, or NULL */
static Tensor *log_decay_of_context(Tape *tape, const DeltaKind *delta,
                                    const AttentionContext *context, int64_t H, int64_t D)
{
    const int64_t *size = context->x->shape.size;
    if (!delta->decay_up.weight)
        return context->log_decay;
    if (context->log_decay)
        tape_error(
            tape,
            "nn_delta_rule_attention: decay_rank is %lld, and nn_gated_attention has a decay "
            "too, expected one of the two",
            (long long)delta->config.decay_rank);
    Tensor *z = nn_linear_forward(tape, &delta->decay_down, context->x);
    z = op_cast(tape, nn_linear_forward(tape, &delta->decay_up, z), TENSOR_REAL);
    z = op_add(tape, op_reshape(tape, z, shape(size[0], size[1], H, D)), delta->decay_constant);
    Tensor *rate = op_reshape(tape, op_exp(tape, delta->log_rate), shape(H, 1));
    return op_scale(tape, op_multiply(tape, op_softplus(tape, z), rate), -1);
}

static AttentionState delta_state(const AttentionKind *kind, int state, AttentionSizes s)
{
    (void)kind, (void)state;
    return (AttentionState){ "sums", shape(s.B, s.heads, s.key_dim, s.head_dim) };
}

static Tensor *attend_delta_rule(Tape *tape, const AttentionKind *kind, Tensor *packed,
                                 Tensor *none, Tensor *nothing, const AttentionContext *context)
{
    Tensor *after = NULL;
    const DeltaKind *delta = (const DeltaKind *)kind;
    const int64_t H = packed->shape.size[2] / 3, D = packed->shape.size[3];
    DeltaRuleOptions options = { .key_lengths = context->options.key_lengths,
                                 .log_decay = log_decay_of_context(tape, delta, context, H, D) };
    (void)none, (void)nothing; /* it does not cross */
    Tensor *query = op_l2_normalize(tape, op_slice(tape, packed, 2, 0, H), DELTA_L2_EPS);
    Tensor *key = op_l2_normalize(tape, op_slice(tape, packed, 2, H, H), DELTA_L2_EPS);
    Tensor *value = op_slice(tape, packed, 2, 2 * H, H);
    query = op_scale(tape, query, 1 / sqrt((double)D));
    Tensor *beta = beta_of(tape, delta, context->x);
    const DeltaOperands operands = { key, value, beta, &options };
    options.state = state_before(tape, context, 0, delta_effect, &operands);
    Tensor *out =
        op_delta_rule(tape, query, key, value, beta, options, context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, 0, after);
    return out;
}

const AttentionKind *nn_delta_rule_attention(Params *params, DeltaRuleConfig config)
{
    static const char function[] = "nn_delta_rule_attention";
    config.max_beta = config.max_beta != 0 ? config.max_beta : 1;
    if (!(config.max_beta > 0 && config.max_beta <= 2))
        error_raise("%s: max_beta is %g, expected 0 < max_beta <= 2", function, config.max_beta);
    shape_need_size(function, "decay_rank", &config.decay_rank, 0, 1 << 20);
    DeltaKind *delta = params_memory(params, sizeof *delta);
    delta->config = config;
    delta->kind = (AttentionKind){ .name = "delta rule",
                                   .projections = { "query", "key", "value" },
                                   .decays = true,
                                   .is_unnormalized = true,
                                   .states = 1,
                                   .state = delta_state,
                                   .of_layer = delta_of_layer,
                                   .attend = attend_delta_rule };
    return &delta->kind;
}
