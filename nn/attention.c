/* Multi-head attention (Vaswani et al. 2017, section 3.2.2). One product computes the queries, keys
 * and values of all heads; the kind of attention combines positions; the output product combines
 * heads. */
#include "nn/internal.h"

static Linear input_new(Params *params, const char *name, const Attention *attention, double std)
{
    const char *const *projections = attention->kind->projections;
    int count = 0;
    while (projections[count])
        count++;
    const int64_t width = attention->heads * attention->head_dim;
    const LinearConfig initial = nn_linear_config(width, std);
    Linear input;
    input.weight = params_add_joined(params, name, projections, count, "weight",
                                     shape(width, width), initial.weight);
    input.bias =
        params_add_joined(params, name, projections, count, "bias", shape(width), initial.bias);
    return input;
}

/* Without its linear layers */
static Attention attention_new(Params *params, const char *name, TransformerConfig config)
{
    Attention attention = {
        .heads = config.heads,
        .head_dim = config.head_dim,
        .kind = config.attention,
        .features = config.features,
        .form = config.form,
        .lsh_rounds = config.lsh_rounds,
        .lsh_chunk = config.lsh_chunk,
        .lsh_buckets = config.lsh_buckets,
        .max_beta = config.max_beta,
        .rotary_dims = config.rotary_dims,
        .rotary_base = config.rotary_base,
    };
    if (config.features == FEATURES_RANDOM)
        attention.projection = nn_projection(params, name, config.projections, config.head_dim);
    return attention;
}

Attention nn_attention(Params *params, const char *name, TransformerConfig config)
{
    config = nn_layer_config("nn_attention", config);
    const int64_t width = config.heads * config.head_dim;
    Attention attention = attention_new(params, name, config);
    attention.input = input_new(params, name, &attention, config.initial_std);
    attention.output = nn_linear_part(params, name, "out", width, width, nn_residual_std(&config));
    gates_add(params, name, &attention, &config);
    return attention;
}

CrossAttention nn_cross_attention(Params *params, const char *name, int64_t memory_width,
                                  TransformerConfig config)
{
    config = nn_layer_config("nn_cross_attention", config);
    if (!config.attention->crosses)
        error_raise("nn_cross_attention: attention is %s, expected ATTENTION_LINEAR or "
                    "ATTENTION_SOFTMAX",
                    config.attention->name);
    const int64_t width = config.heads * config.head_dim;
    const double std = config.initial_std;
    Attention attention = attention_new(params, name, config);
    attention.input = nn_linear_part(params, name, "query", width, width, std);
    const Linear key = nn_linear_part(params, name, "key", memory_width, width, std);
    const Linear value = nn_linear_part(params, name, "value", memory_width, width, std);
    attention.output = nn_linear_part(params, name, "out", width, width, nn_residual_std(&config));
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
static Tensor *state_of_processes(Tape *tape, const AttentionContext *context, StateSlot slot,
                                  StateEffect *effect, const void *operands)
{
    Tensor *state = NULL, *transition = NULL;
    (void)slot;
    effect(tape, operands, &state, &transition);
    return context->options.states_before(tape, state, transition);
}

static void check_options(Tape *tape, const Attention *attention, AttentionOptions options)
{
    const AttentionKind kind = attention->kind;
    if (options.mask && !kind->takes_mask)
        tape_error(tape, "nn_attention: attention %s takes no mask; softmax attention does",
                   kind->name);
    if (!options.states_before)
        return;
    if (!kind->state_shape)
        tape_error(tape,
                   "nn_attention: states_before with attention %s, expected "
                   "ATTENTION_CAUSAL_LINEAR or ATTENTION_DELTA_RULE",
                   kind->name);
    if (options.key_lengths)
        tape_error(tape, "nn_attention: states_before with key_lengths, expected NULL: positions "
                         "of other processes follow");
    if (attention->rotary_dims && !options.positions)
        tape_error(tape, "nn_attention: states_before and rotary_dims without positions, expected "
                         "those of x in the whole sequence");
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
    const int64_t D = attention->head_dim;
    check_attention_input(tape, "nn_attention_forward: x", x, attention->heads * D);
    check_options(tape, attention, context.options);
    Tensor *packed = split_heads(tape, &attention->input, x, D);
    packed = gates_before(tape, attention, packed, &context);
    context.x = x;
    context.log_decay = gates_log_decay(tape, attention, x);
    Tensor *out = attention->kind->attend(tape, attention, packed, NULL, NULL, &context);
    return join_heads(tape, &attention->output, gates_after(tape, attention, x, out));
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
    const int64_t D = attention->head_dim, memory_width = cross->key.weight->shape.size[1];
    check_attention_input(tape, "nn_cross_attention_forward: x", x, attention->heads * D);
    check_attention_input(tape, "nn_cross_attention_forward: memory", memory, memory_width);
    check_options(tape, attention, options);
    const AttentionContext context = nn_attention_context(options);
    Tensor *query = split_heads(tape, &attention->input, x, D);
    Tensor *key = split_heads(tape, &cross->key, memory, D);
    Tensor *value = split_heads(tape, &cross->value, memory, D);
    Tensor *out = attention->kind->attend(tape, attention, query, key, value, &context);
    return join_heads(tape, &attention->output, out);
}
