/* The kinds of linear attention. */
#include "nn/internal.h"

typedef struct LinearKind {
    AttentionKind kind;
    CausalLinearConfig config; /* of linear attention the features alone */
} LinearKind;

static Tensor *attend_linear(Tape *tape, const AttentionKind *kind, Tensor *query, Tensor *key,
                             Tensor *value, const AttentionContext *context)
{
    return op_linear_attention(
        tape, query, key, value,
        (LinearAttentionOptions){ .features = nn_linear_options(kind)->features,
                                  .eps = ATTENTION_EPS,
                                  .key_lengths = context->options.key_lengths });
}

typedef struct LinearOperands {
    Tensor *key, *value;
    const CausalLinearAttentionOptions *options;
} LinearOperands;

/* S <- decay S + B, B the positions' state, decay the product of theirs */
static void linear_effect(Tape *tape, const void *operands, Tensor **state, Tensor **transition)
{
    const LinearOperands *of = operands;
    Tensor *log_decay = of->options->log_decay;
    *state = op_causal_linear_state(tape, of->key, of->value, *of->options);
    *transition = log_decay ? op_sum(tape, log_decay, 1) : NULL;
}

static Tensor *attend_causal_linear(Tape *tape, const AttentionKind *kind, Tensor *query,
                                    Tensor *key, Tensor *value, const AttentionContext *context)
{
    Tensor *after = NULL;
    const CausalLinearConfig *config = nn_linear_options(kind);
    CausalLinearAttentionOptions options = { .features = config->features,
                                             .eps = ATTENTION_EPS,
                                             .key_lengths = context->options.key_lengths,
                                             .form = config->form,
                                             .unnormalized = config->unnormalized,
                                             .log_decay = context->log_decay };
    const LinearOperands operands = { key ? key : query, value, &options };
    options.state = state_before(tape, context, 0, linear_effect, &operands);
    Tensor *out = op_causal_linear_attention(tape, query, key, value, options,
                                             context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, 0, after);
    return out;
}

/* [S, z], or S alone */
static AttentionState causal_linear_state(const AttentionKind *kind, int state, AttentionSizes s)
{
    const int64_t columns = s.head_dim + !kind->is_unnormalized;
    (void)state;
    return (AttentionState){ "sums", shape(s.B, s.heads, s.key_dim, columns) };
}

static const AttentionKind *linear_kind(const char *function, Params *params, AttentionKind kind,
                                        CausalLinearConfig config)
{
    nn_need_choice(function, "feature map", (int)config.features, FEATURE_MAP_IDENTITY);
    nn_need_choice(function, "form", (int)config.form, FORM_QUADRATIC);
    LinearKind *linear = params_memory(params, sizeof *linear);
    *linear = (LinearKind){ kind, config };
    return &linear->kind;
}

const AttentionKind *nn_causal_linear_attention(Params *params, CausalLinearConfig config)
{
    const AttentionKind kind = { .name = "causal linear",
                                 .projections = { "query", "key", "value" },
                                 .decays = true,
                                 .is_unnormalized = config.unnormalized,
                                 .states = 1,
                                 .state = causal_linear_state,
                                 .attend = attend_causal_linear };
    return linear_kind("nn_causal_linear_attention", params, kind, config);
}

const AttentionKind *nn_linear_attention(Params *params, FeatureMap features)
{
    const AttentionKind kind = { .name = "linear",
                                 .projections = { "query", "key", "value" },
                                 .crosses = true,
                                 .attend = attend_linear };
    return linear_kind("nn_linear_attention", params, kind,
                       (CausalLinearConfig){ .features = features });
}

const AttentionKind *nn_kind_or_default(Params *params, const AttentionKind *kind)
{
    return kind ? kind : nn_causal_linear_attention(params, (CausalLinearConfig){ 0 });
}

const CausalLinearConfig *nn_linear_options(const AttentionKind *kind)
{
    const bool is_linear = kind->attend == attend_linear || kind->attend == attend_causal_linear;
    return is_linear ? &((const LinearKind *)kind)->config : NULL;
}
