/* The kinds of softmax attention. */
#include "nn/internal.h"

static SoftmaxAttentionOptions softmax_options(const AttentionContext *context)
{
    return (SoftmaxAttentionOptions){ .key_lengths = context->options.key_lengths,
                                      .mask = context->options.mask,
                                      .log_decay = context->log_decay };
}

static Tensor *attend_softmax(Tape *tape, const AttentionKind *kind, Tensor *query, Tensor *key,
                              Tensor *value, const AttentionContext *context)
{
    (void)kind;
    return op_softmax_attention(tape, query, key, value, softmax_options(context));
}

static Tensor *attend_causal_softmax(Tape *tape, const AttentionKind *kind, Tensor *query,
                                     Tensor *key, Tensor *value, const AttentionContext *context)
{
    const SoftmaxAttentionOptions options = softmax_options(context);
    (void)kind;
    if (context->attend)
        return context->attend(tape, context, query, options);
    return op_causal_softmax_attention(tape, query, key, value, options);
}

const AttentionKind *nn_causal_softmax_attention(Params *params)
{
    AttentionKind *kind = params_memory(params, sizeof *kind);
    *kind = (AttentionKind){ .name = "causal softmax",
                             .projections = { "query", "key", "value" },
                             .takes_mask = true,
                             .decays = true,
                             .has_cache = true,
                             .attend = attend_causal_softmax };
    return kind;
}

const AttentionKind *nn_softmax_attention(Params *params)
{
    AttentionKind *kind = params_memory(params, sizeof *kind);
    *kind = (AttentionKind){ .name = "softmax",
                             .projections = { "query", "key", "value" },
                             .crosses = true,
                             .takes_mask = true,
                             .attend = attend_softmax };
    return kind;
}
