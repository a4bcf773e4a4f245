/* Multi-head attention (Vaswani et al. 2017, section 3.2.2). One product computes the queries, keys
 * and values of all heads; the kind of attention combines positions; the output product combines
 * heads. */
#include "nn/internal.h"

static AttentionState state_of_inner(const AttentionKind *kind, int state, AttentionSizes sizes)
{
    return kind->inner->state(kind->inner, state, sizes);
}

AttentionKind nn_kind_around(const AttentionKind *inner)
{
    AttentionKind kind = *inner; /* whose functions expect the inner kind's struct */
    kind.inner = inner;
    kind.state = state_of_inner;
    kind.of_layer = NULL;
    kind.attend = NULL;
    return kind;
}

static Linear input_new(Params *params, const char *name, const AttentionKind *kind, int64_t width,
                        double std)
{
    int count = 0;
    while (kind->projections[count])
        count++;
    const LinearConfig initial = nn_linear_config(width, std);
    Linear input;
    input.weight = params_add_joined(params, name, kind->projections, count, "weight",
                                     shape(width, width), initial.weight);
    input.bias = params_add_joined(params, name, kind->projections, count, "bias", shape(width),
                                   initial.bias);
    return input;
}

Attention nn_attention(Params *params, const char *name, TransformerConfig config)
{
    config = nn_transformer_config("nn_attention", config);
    const AttentionKind *kind = nn_kind_or_default(params, config.attention);
    const int64_t width = config.heads * config.head_dim;
    Attention attention = { .heads = config.heads, .head_dim = config.head_dim };
    attention.input = input_new(params, name, kind, width, config.initial_std);
    attention.output = nn_linear_part(params, name, "out", width, width, nn_residual_std(&config));
    attention.kind = nn_kind_of_layer(kind, params, name, &config);
    return attention;
}

CrossAttention nn_cross_attention(Params *params, const char *name, int64_t memory_width,
                                  TransformerConfig config)
{
    config = nn_transformer_config("nn_cross_attention", config);
    const AttentionKind *kind = nn_kind_or_default(params, config.attention);
    if (!kind->crosses)
        error_raise("nn_cross_attention: attention is %s, expected linear or softmax", kind->name);
    const int64_t width = config.heads * config.head_dim;
    const double std = config.initial_std;
    Attention attention = { .heads = config.heads, .head_dim = config.head_dim };
    attention.input = nn_linear_part(params, name, "query", width, width, std);
    const Linear key = nn_linear_part(params, name, "key", memory_width, width, std);
    const Linear value = nn_linear_part(params, name, "value", memory_width, width, std);
    attention.output = nn_linear_part(params, name, "out", width, width, nn_residual_std(&config));
    attention.kind = nn_kind_of_layer(kind, params, name, &config);
    return (CrossAttention){ attention, key, value };
}

/* label: "function: x" */
static void check_attention_input(Tape *tape, const char *label, Tensor *x, int64_t width)
{
    tape_use(tape, label, x);
    if (x->shape.rank != 3 || x->shape.size[2] != width)
        tape_error(tape, "%s %s, expected [B, N, %lld]", label, tensor_text(x).text,
                   (long long)width);
}

/* A sequence is split over processes: options.states_before passes the states on. */
static Tensor *state_of_processes(Tape *tape, const AttentionContext *context, int state,
                                  StateEffect *effect, const void *operands)
{
    Tensor *after = NULL, *transition = NULL;
    (void)state;
    effect(tape, operands, &after, &transition);
    return context->options.states_before(tape, after, transition);
}

static void check_options(Tape *tape, const AttentionKind *kind, AttentionOptions options)
{
    if (options.mask && !kind->takes_mask)
        tape_error(tape, "nn_attention: %s attention takes no mask; softmax attention does",
                   kind->name);
    if (options.states_before && (kind->has_cache || !kind->states))
        tape_error(
            tape,
            "nn_attention: states_before with %s attention, expected a kind that has a state "
            "and no cache, such as causal linear attention",
            kind->name);
    if (options.states_before && options.key_lengths)
        tape_error(tape, "nn_attention: states_before with key_lengths, expected NULL: positions "
                         "of other processes follow");
}

AttentionContext nn_attention_context(AttentionOptions options)
{
    return (AttentionContext){ .options = options,
                               .state_before = options.states_before ? state_of_processes : NULL };
}

/* [B, N, width] to [B, N, H, D], and back */
static Tensor *split_heads(Tape *tape, const Linear *linear, Tensor *x, int64_t D)
{
    const int64_t B = x->shape.size[0], N = x->shape.size[1];
    x = nn_linear_forward(tape, linear, x);
    return op_reshape(tape, x, shape(B, N, x->shape.size[2] / D, D));
}

static Tensor *join_heads(Tape *tape, const Linear *linear, Tensor *x)
{
    const int64_t *size = x->shape.size;
    return nn_linear_forward(tape, linear,
                             op_reshape(tape, x, shape(size[0], size[1], size[2] * size[3])));
}

Tensor *nn_attention_forward_in(Tape *tape, const Attention *attention, Tensor *x,
                                AttentionContext context)
{
    const AttentionKind *kind = attention->kind;
    const int64_t D = attention->head_dim;
    check_attention_input(tape, "nn_attention_forward: x", x, attention->heads * D);
    check_options(tape, kind, context.options);
    context.x = x;
    Tensor *packed = split_heads(tape, &attention->input, x, D);
    Tensor *out = kind->attend(tape, kind, packed, NULL, NULL, &context);
    return join_heads(tape, &attention->output, out);
}

Tensor *nn_attention_forward(Tape *tape, const Attention *attention, Tensor *x,
                             AttentionOptions options)
{
    error_need("nn_attention_forward", "the layer", attention);
    return nn_attention_forward_in(tape, attention, x, nn_attention_context(options));
}

Tensor *nn_cross_attention_forward(Tape *tape, const CrossAttention *cross, Tensor *x,
                                   Tensor *memory, AttentionOptions options)
{
    error_need("nn_cross_attention_forward", "the layer", cross);
    const Attention *attention = &cross->attention;
    const AttentionKind *kind = attention->kind;
    const int64_t D = attention->head_dim, memory_width = cross->key.weight->shape.size[1];
    check_attention_input(tape, "nn_cross_attention_forward: x", x, attention->heads * D);
    check_attention_input(tape, "nn_cross_attention_forward: memory", memory, memory_width);
    check_options(tape, kind, options);
    const AttentionContext context = nn_attention_context(options);
    Tensor *query = split_heads(tape, &attention->input, x, D);
    Tensor *key = split_heads(tape, &cross->key, memory, D);
    Tensor *value = split_heads(tape, &cross->value, memory, D);
    Tensor *out = kind->attend(tape, kind, query, key, value, &context);
    return join_heads(tape, &attention->output, out);
}
