/* LSH attention as kinds of attention: queries are keys. */
#include "ext/lsh/lsh.h"
#include "extend.h"

typedef struct LshKind {
    AttentionKind kind;
    LshConfig config;
} LshKind;

static LshAttentionOptions lsh_options(const AttentionKind *kind, const AttentionContext *context)
{
    const LshConfig *config = &((const LshKind *)kind)->config;
    return (LshAttentionOptions){ .rounds = config->rounds,
                                  .chunk = config->chunk,
                                  .buckets = config->buckets,
                                  .key_lengths = context->options.key_lengths };
}

/* packed [B, N, 2 H, D]: the H heads of queries, which are also the keys, then those of values. */
static Tensor *attend_causal_lsh(Tape *tape, const AttentionKind *kind, Tensor *packed,
                                 Tensor *none, Tensor *nothing, const AttentionContext *context)
{
    (void)none, (void)nothing;
    return op_causal_lsh_attention(tape, packed, NULL, lsh_options(kind, context));
}

static Tensor *attend_lsh(Tape *tape, const AttentionKind *kind, Tensor *packed, Tensor *none,
                          Tensor *nothing, const AttentionContext *context)
{
    (void)none, (void)nothing;
    return op_lsh_attention(tape, packed, NULL, lsh_options(kind, context));
}

static const AttentionKind *lsh_kind(const char *function, Params *params, AttentionKind kind,
                                     LshConfig config)
{
    shape_need_size(function, "rounds", &config.rounds, 1, 64);
    shape_need_size(function, "chunk", &config.chunk, 32, 1 << 20);
    shape_need_size(function, "buckets", &config.buckets, 0, 1 << 20);
    if (config.buckets != 1 && config.buckets % 2 != 0)
        error_raise("%s: buckets is %lld, expected an even number, or 1", function,
                    (long long)config.buckets);
    LshKind *lsh = params_memory(params, sizeof *lsh);
    *lsh = (LshKind){ kind, config };
    return &lsh->kind;
}

const AttentionKind *nn_causal_lsh_attention(Params *params, LshConfig config)
{
    const AttentionKind kind = { .name = "causal LSH",
                                 .projections = { "query", "value" },
                                 .attend = attend_causal_lsh };
    return lsh_kind("nn_causal_lsh_attention", params, kind, config);
}

const AttentionKind *nn_lsh_attention(Params *params, LshConfig config)
{
    const AttentionKind kind = { .name = "LSH",
                                 .projections = { "query", "value" },
                                 .attend = attend_lsh };
    return lsh_kind("nn_lsh_attention", params, kind, config);
}
