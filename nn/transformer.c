/* The transformer encoder (Vaswani et al. 2017, section 3.1): per layer, attention and a
 * position-wise feed-forward network of two linear layers, each with a residual connection and a
 * norm. */
#include "nn/internal.h"

#include <stdio.h>

/* ------------------------------------------------------------------------------------ one layer */
TransformerLayer nn_transformer_layer(Params *params, const char *name, TransformerConfig config)
{
    config = nn_transformer_config("nn_transformer_layer", config);
    const int64_t width = config.heads * config.head_dim, inner = config.feed_forward;
    TransformerLayer layer = { .pre_norm = config.pre_norm, .activation = config.activation };
    layer.attention = nn_attention(params, nn_name(name, "attention").text, config);
    layer.norm1 = nn_layernorm(params, nn_name(name, "norm1").text, width);
    layer.ff1 = nn_linear_part(params, name, "ff1", width, inner, config.initial_std);
    layer.ff2 = nn_linear_part(params, name, "ff2", inner, width, nn_residual_std(&config));
    layer.norm2 = nn_layernorm(params, nn_name(name, "norm2").text, width);
    layer.dropout = nn_dropout(config.dropout);
    return layer;
}

static Tensor *feed_forward(Tape *tape, const TransformerLayer *layer, Tensor *x)
{
    x = op_linear_activation(tape, x, layer->ff1.weight, layer->ff1.bias, layer->activation);
    x = nn_dropout_forward(tape, &layer->dropout, x);
    return nn_linear_forward(tape, &layer->ff2, x);
}

/* norm(x + dropout(branch)) */
static Tensor *join_and_norm(Tape *tape, const TransformerLayer *layer, const LayerNorm *norm,
                             Tensor *x, Tensor *branch)
{
    return op_residual_layernorm(tape, x, branch, layer->dropout.probability, norm->weight,
                                 norm->bias, norm->eps);
}

static Tensor *post_norm(Tape *tape, const TransformerLayer *layer, Tensor *x,
                         const AttentionContext *context)
{
    x = join_and_norm(tape, layer, &layer->norm1, x,
                      nn_attention_forward_in(tape, &layer->attention, x, *context));
    return join_and_norm(tape, layer, &layer->norm2, x, feed_forward(tape, layer, x));
}

/* x + dropout(branch) */
static Tensor *add_branch(Tape *tape, const TransformerLayer *layer, Tensor *x, Tensor *branch)
{
    return op_add(tape, x, nn_dropout_forward(tape, &layer->dropout, branch));
}

static Tensor *pre_norm(Tape *tape, const TransformerLayer *layer, Tensor *x,
                        const AttentionContext *context)
{
    Tensor *normed = nn_layernorm_forward(tape, &layer->norm1, x);
    x = add_branch(tape, layer, x,
                   nn_attention_forward_in(tape, &layer->attention, normed, *context));
    normed = nn_layernorm_forward(tape, &layer->norm2, x);
    return add_branch(tape, layer, x, feed_forward(tape, layer, normed));
}

/* With recording off, no backward pass needs the tensors made since the mark, except the result. */
static Tensor *release(Tape *tape, TapeMark mark, Tensor *result)
{
    return tape_is_recording(tape) ? result : tape_release(tape, mark, result);
}

static Tensor *layer_forward(Tape *tape, const TransformerLayer *layer, Tensor *x,
                             const AttentionContext *context)
{
    TapeMark mark = tape_mark(tape);
    x = layer->pre_norm ? pre_norm(tape, layer, x, context) : post_norm(tape, layer, x, context);
    return release(tape, mark, x);
}

Tensor *nn_transformer_layer_forward(Tape *tape, const TransformerLayer *layer, Tensor *x,
                                     AttentionOptions options)
{
    error_need("nn_transformer_layer_forward", "the layer", layer);
    const AttentionContext context = nn_attention_context(options);
    return layer_forward(tape, layer, x, &context);
}

/* ------------------------------------------------------------------------------ the whole stack */
Transformer nn_transformer(Params *params, const char *name, TransformerConfig config)
{
    config = nn_transformer_config("nn_transformer", config);
    Transformer transformer = { .layers = config.layers,
                                .has_norm = !config.no_final_norm,
                                .recompute = config.recompute };
    for (int i = 0; i < config.layers; i++) {
        TransformerConfig own = config;
        char layer[32];
        if (config.layer_attention[i])
            own.attention = config.layer_attention[i];
        snprintf(layer, sizeof layer, "layers.%d", i);
        transformer.layer[i] = nn_transformer_layer(params, nn_name(name, layer).text, own);
    }
    if (transformer.has_norm)
        transformer.norm =
            nn_layernorm(params, nn_name(name, "norm").text, config.heads * config.head_dim);
    return transformer;
}

typedef struct LayerCall {
    TransformerLayer layer;
    AttentionContext context;
} LayerCall;

static Tensor *call_layer(Tape *tape, Tensor *x, const void *context)
{
    const LayerCall *call = context;
    return layer_forward(tape, &call->layer, x, &call->context);
}

static Tensor *forward(Tape *tape, const Transformer *transformer, Tensor *x,
                       AttentionOptions options, const AttentionContext *contexts)
{
    error_need("nn_transformer_forward", "the layer", transformer);
    if (transformer->layers < 1)
        tape_error(tape, "nn_transformer_forward: the transformer has no layers; see "
                         "nn_transformer");
    TapeMark mark = tape_mark(tape);
    for (int64_t i = 0; i < transformer->layers; i++) {
        const TransformerLayer *layer = &transformer->layer[i];
        const LayerCall call = { *layer, contexts ? contexts[i] : nn_attention_context(options) };
        x = transformer->recompute && !contexts
                ? tape_recompute(tape, call_layer, x, &call, sizeof call)
                : layer_forward(tape, layer, x, &call.context);
        x = release(tape, mark, x);
    }
    if (transformer->has_norm)
        x = nn_layernorm_forward(tape, &transformer->norm, x);
    return release(tape, mark, x);
}

Tensor *nn_transformer_forward(Tape *tape, const Transformer *transformer, Tensor *x,
                               AttentionOptions options)
{
    return forward(tape, transformer, x, options, NULL);
}

Tensor *nn_transformer_forward_in(Tape *tape, const Transformer *transformer, Tensor *x,
                                  const AttentionContext *contexts)
{
    return forward(tape, transformer, x, (AttentionOptions){ 0 }, contexts);
}
