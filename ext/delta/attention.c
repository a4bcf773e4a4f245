/* The delta rule as a kind of attention. */
#include "ext/delta/delta.h"
#include "ext/rms_norm/rms_norm.h"
#include "extend.h"

typedef struct DeltaKind {
    AttentionKind kind;
    double max_beta;
    Linear beta; /* of a layer */
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

static const AttentionKind *delta_of_layer(const AttentionKind *kind, Params *params,
                                           const char *name, const TransformerConfig *config)
{
    DeltaKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const DeltaKind *)kind;
    layer->beta = nn_linear_part(params, name, "beta", config->heads * config->head_dim,
                                 config->heads, config->initial_std);
    return &layer->kind;
}

/* In Real */
static Tensor *beta_of(Tape *tape, const DeltaKind *delta, Tensor *x)
{
    Tensor *z = op_cast(tape, nn_linear_forward(tape, &delta->beta, x), TENSOR_REAL);
    return op_scale(tape, op_sigmoid(tape, z), delta->max_beta);
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
    DeltaRuleOptions options = { .key_lengths = context->options.key_lengths,
                                 .log_decay = context->log_decay };
    const int64_t H = packed->shape.size[2] / 3, D = packed->shape.size[3];
    (void)none, (void)nothing; /* it does not cross */
    Tensor *query = op_l2_normalize(tape, op_slice(tape, packed, 2, 0, H), DELTA_L2_EPS);
    Tensor *key = op_l2_normalize(tape, op_slice(tape, packed, 2, H, H), DELTA_L2_EPS);
    Tensor *value = op_slice(tape, packed, 2, 2 * H, H);
    query = op_scale(tape, query, 1 / sqrt((double)D));
    Tensor *beta = beta_of(tape, (const DeltaKind *)kind, context->x);
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
    const double max_beta = config.max_beta != 0 ? config.max_beta : 1;
    if (!(max_beta > 0 && max_beta <= 2))
        error_raise("nn_delta_rule_attention: max_beta is %g, expected 0 < max_beta <= 2",
                    max_beta);
    DeltaKind *delta = params_memory(params, sizeof *delta);
    delta->max_beta = max_beta;
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
