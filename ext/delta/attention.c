/* The delta rule as a kind of attention. */
#include "ext/delta/delta.h"
#include "extend.h"

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

static void add_beta(Params *params, const char *name, Attention *attention,
                     const TransformerConfig *config)
{
    attention->beta = nn_linear_part(params, name, "beta", config->heads * config->head_dim,
                                     config->heads, config->initial_std);
}

/* In Real */
static Tensor *beta_of(Tape *tape, const Attention *attention, Tensor *x)
{
    Tensor *z = op_cast(tape, nn_linear_forward(tape, &attention->beta, x), TENSOR_REAL);
    return op_scale(tape, op_sigmoid(tape, z), attention->max_beta);
}

static Shape delta_state_shape(const Attention *attention, int64_t B)
{
    return shape(B, attention->heads, attention->head_dim, attention->head_dim);
}

static Tensor *attend_delta_rule(Tape *tape, const Attention *attention, Tensor *packed,
                                 Tensor *none, Tensor *nothing, const AttentionContext *context)
{
    Tensor *after = NULL;
    DeltaRuleOptions options = { .key_lengths = context->options.key_lengths,
                                 .log_decay = context->log_decay };
    const int64_t H = attention->heads;
    (void)none, (void)nothing; /* it does not cross */
    Tensor *query = op_l2_normalize(tape, op_slice(tape, packed, 2, 0, H), DELTA_L2_EPS);
    Tensor *key = op_l2_normalize(tape, op_slice(tape, packed, 2, H, H), DELTA_L2_EPS);
    Tensor *value = op_slice(tape, packed, 2, 2 * H, H);
    query = op_scale(tape, query, 1 / sqrt((double)attention->head_dim));
    Tensor *beta = beta_of(tape, attention, context->x);
    const DeltaOperands operands = { key, value, beta, &options };
    options.state = state_before(tape, context, STATE_ATTENTION, delta_effect, &operands);
    Tensor *out =
        op_delta_rule(tape, query, key, value, beta, options, context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, STATE_ATTENTION, after);
    return out;
}

const struct AttentionFunctions nn_delta_rule_attention = {
    .name = "ATTENTION_DELTA_RULE",
    .projections = { "query", "key", "value" },
    .reads = READS_GATES | READS_BETA,
    .is_causal = true,
    .is_unnormalized = true,
    .add = add_beta,
    .state_shape = delta_state_shape,
    .attend = attend_delta_rule,
};
