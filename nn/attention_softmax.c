/* The kinds of softmax attention. */
#include "nn/internal.h"

typedef struct SoftmaxKind {
    AttentionKind kind;
    CausalSoftmaxConfig config;
    Tensor *sink_logits; /* of a layer, or NULL */
} SoftmaxKind;

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
    const SoftmaxKind *softmax = (const SoftmaxKind *)kind;
    SoftmaxAttentionOptions options = softmax_options(context);
    options.window = softmax->config.window;
    options.sinks = softmax->config.sinks;
    options.prefix = softmax->config.prefix;
    options.sink_logits = softmax->sink_logits;
    if (context->attend)
        return context->attend(tape, context, query, options);
    return op_causal_softmax_attention(tape, query, key, value, options);
}

static const AttentionKind *sink_of_layer(const AttentionKind *kind, Params *params,
                                          const char *name, const TransformerConfig *config)
{
    SoftmaxKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const SoftmaxKind *)kind;
    layer->sink_logits = params_add(params, nn_name(name, "sink_logits").text, shape(config->heads),
                                    (Initializer){ .kind = INITIAL_ZERO });
    return &layer->kind;
}

static void need_count(const char *option, int64_t value)
{
    if (value < 0)
        error_raise("nn_causal_softmax_attention: %s is %lld, expected 0 or more", option,
                    (long long)value);
}

/* Positions of a prefix attend to later ones: there is no decode step, and no decay. */
const AttentionKind *nn_causal_softmax_attention(Params *params, CausalSoftmaxConfig config)
{
    need_count("window", config.window);
    need_count("sinks", config.sinks);
    need_count("prefix", config.prefix);
    SoftmaxKind *softmax = params_memory(params, sizeof *softmax);
    *softmax = (SoftmaxKind){ { .name = config.prefix ? "prefix softmax" : "causal softmax",
                                .projections = { "query", "key", "value" },
                                .takes_mask = true,
                                .decays = config.prefix == 0,
                                .has_cache = config.prefix == 0,
                                .window = config.window,
                                .sinks = config.window ? config.sinks : 0,
                                .of_layer = config.learned_sink ? sink_of_layer : NULL,
                                .attend = attend_causal_softmax },
                              config,
                              NULL };
    return &softmax->kind;
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
