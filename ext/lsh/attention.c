/* LSH attention as kinds of attention: queries are keys. */
#include "ext/lsh/lsh.h"
#include "extend.h"

static LshAttentionOptions lsh_options(const Attention *attention, const AttentionContext *context)
{
    return (LshAttentionOptions){ .rounds = attention->lsh_rounds,
                                  .chunk = attention->lsh_chunk,
                                  .buckets = attention->lsh_buckets,
                                  .key_lengths = context->options.key_lengths };
}

/* packed [B, N, 2 H, D]: the H heads of queries, which are also the keys, then those of values. */
static Tensor *attend_causal_lsh(Tape *tape, const Attention *attention, Tensor *packed,
                                 Tensor *none, Tensor *nothing, const AttentionContext *context)
{
    (void)none, (void)nothing;
    return op_causal_lsh_attention(tape, packed, NULL, lsh_options(attention, context));
}

static Tensor *attend_lsh(Tape *tape, const Attention *attention, Tensor *packed, Tensor *none,
                          Tensor *nothing, const AttentionContext *context)
{
    (void)none, (void)nothing;
    return op_lsh_attention(tape, packed, NULL, lsh_options(attention, context));
}

const struct AttentionFunctions nn_causal_lsh_attention = {
    .name = "ATTENTION_CAUSAL_LSH",
    .projections = { "query", "value" },
    .attend = attend_causal_lsh,
};

const struct AttentionFunctions nn_lsh_attention = {
    .name = "ATTENTION_LSH",
    .projections = { "query", "value" },
    .attend = attend_lsh,
};
