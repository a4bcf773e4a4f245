/* The kinds of softmax attention. */
#include "nn/internal.h"

static SoftmaxAttentionOptions softmax_options(const AttentionContext *context)
{
    return (SoftmaxAttentionOptions){ .key_lengths = context->options.key_lengths,
                                      .mask = context->options.mask,
                                      .log_decay = context->log_decay };
}

static Tensor *attend_softmax(Tape *tape, const Attention *attention, Tensor *query, Tensor *key,
                              Tensor *value, const AttentionContext *context)
{
    (void)attention;
    return op_softmax_attention(tape, query, key, value, softmax_options(context));
}

static Tensor *attend_causal_softmax(Tape *tape, const Attention *attention, Tensor *query,
                                     Tensor *key, Tensor *value, const AttentionContext *context)
{
    const SoftmaxAttentionOptions options = softmax_options(context);
    if (context->attend)
        return context->attend(tape, context, attention, query, options);
    return op_causal_softmax_attention(tape, query, key, value, options);
}

const struct AttentionFunctions nn_causal_softmax_attention = {
    .name = "ATTENTION_CAUSAL_SOFTMAX",
    .projections = { "query", "key", "value" },
    .reads = READS_ROTARY | READS_SOFTMAX_DECAY,
    .takes_mask = true,
    .is_causal = true,
    .attend = attend_causal_softmax,
};

const struct AttentionFunctions nn_softmax_attention = {
    .name = "ATTENTION_SOFTMAX",
    .projections = { "query", "key", "value" },
    .takes_mask = true,
    .crosses = true,
    .attend = attend_softmax,
};
