/* Gates as a kind of attention around another one: a decay, a causal convolution, an output gate
 * and a norm. */
#include "ext/gates/gates.h"
#include "extend.h"

#include <math.h>
#include <stdlib.h>

typedef struct GatedKind {
    AttentionKind kind;
    GatedConfig config;
    bool has_norm;
    Gates gates; /* of a layer */
} GatedKind;

/* Per head -r_h, or c_h; see DecayKind. */
static Tensor *decay_constants(Params *params, DecayKind decay, int64_t H)
{
    Tensor *constants = params_new_constant("nn_attention", params, NULL, shape(H), false);
    Real *host = memory_allocate((size_t)H * sizeof *host);
    if (!host)
        error_raise("nn_attention: memory is exhausted: a decay of %lld heads", (long long)H);
    for (int64_t h = 0; h < H; h++) {
        const double rate = exp2(-5 - (H > 1 ? 4.0 * (double)h / (double)(H - 1) : 0));
        host[h] = (Real)(decay == DECAY_CONSTANT ? -rate : log(expm1(rate)));
    }
    tensor_write(constants, host);
    free(host);
    return constants;
}

/* The order of registration is that of offsets in the flat buffers: decay, weights of the inner
 * kind, convolution, gate, norm. */
static const AttentionKind *gates_of_layer(const AttentionKind *kind, Params *params,
                                           const char *name, const TransformerConfig *config)
{
    GatedKind *layer = params_memory(params, sizeof *layer);
    *layer = *(const GatedKind *)kind;
    const GatedConfig *gated = &layer->config;
    const int64_t H = config->heads, D = config->head_dim, width = H * D;
    Gates *gates = &layer->gates;
    if (gated->decay)
        gates->decay_constant = decay_constants(params, gated->decay, H);
    if (gated->decay == DECAY_LEARNED)
        gates->decay = nn_linear_part(params, name, "decay", width, H, config->initial_std);
    layer->kind.inner = nn_kind_of_layer(kind->inner, params, name, config);
    if (gated->convolution)
        gates->convolution = nn_causal_convolution(params, nn_name(name, "convolution").text,
                                                   3 * width, gated->convolution);
    if (gated->output_gate)
        gates->gate = nn_linear_part(params, name, "gate", width, width, config->initial_std);
    if (layer->has_norm)
        gates->norm = nn_rms_norm(params, nn_name(name, "norm").text, D);
    return &layer->kind;
}

/* The last taps - 1 inputs of the process before: states whose log decay is -infinity, as a part
 * of that many positions leaves nothing of the inputs before it. */
typedef struct ConvolutionInputs {
    Tensor *x; /* [B, N, C] */
    int64_t count;
} ConvolutionInputs;

static void inputs_effect(Tape *tape, const void *operands, Tensor **state, Tensor **transition)
{
    const ConvolutionInputs *of = operands;
    Tensor *x = of->x;
    const int64_t B = x->shape.size[0], N = x->shape.size[1], C = x->shape.size[2];
    if (N < of->count)
        tape_error(tape,
                   "nn_attention: states_before: %lld positions, expected at least %lld: the "
                   "convolution's taps - 1",
                   (long long)N, (long long)of->count);
    Tensor *last = op_cast(tape, op_slice(tape, x, 1, N - of->count, of->count), TENSOR_REAL);
    *transition = tape_tensor(tape, shape(B, 1));
    tensor_fill(*transition, (Real)-INFINITY);
    *state = op_reshape(tape, last, shape(B, 1, of->count, C));
}

/* silu of the causal convolution of packed [B, N, 3 H, D]; its state follows the inner kind's. */
static Tensor *convolve_heads(Tape *tape, const CausalConvolution *convolution, Tensor *packed,
                              const AttentionContext *context, int state)
{
    Tensor *after = NULL;
    const Shape heads = packed->shape;
    const int64_t B = heads.size[0], channels = heads.size[2] * heads.size[3];
    const int64_t taps = convolution->weight->shape.size[1];
    CausalConvolutionOptions options = { .lengths = context->options.key_lengths };
    packed = op_reshape(tape, packed, shape(B, heads.size[1], channels));
    const ConvolutionInputs inputs = { packed, taps - 1 };
    options.state = state_before(tape, context, state, inputs_effect, &inputs);
    if (options.state)
        options.state = op_reshape(tape, options.state, shape(B, taps - 1, channels));
    packed = nn_causal_convolution_forward(tape, convolution, packed, options,
                                           context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, state, after);
    return op_reshape(tape, op_silu(tape, packed), heads);
}

static AttentionState gated_state(const AttentionKind *kind, int state, AttentionSizes sizes)
{
    const AttentionKind *inner = kind->inner;
    const int64_t taps = ((const GatedKind *)kind)->config.convolution;
    const int64_t channels = 3 * sizes.heads * sizes.head_dim;
    if (state < inner->states)
        return inner->state(inner, state, sizes);
    return (AttentionState){ "convolution", shape(sizes.B, taps - 1, channels) };
}

/* [B, N, H] of x, in Real, or NULL */
static Tensor *log_decay_of(Tape *tape, const Gates *gates, Tensor *x)
{
    Tensor *constant = gates->decay_constant;
    if (gates->decay.weight) {
        Tensor *z = op_cast(tape, nn_linear_forward(tape, &gates->decay, x), TENSOR_REAL);
        return op_scale(tape, op_softplus(tape, op_add(tape, z, constant)), -1);
    }
    if (!constant)
        return NULL;
    return op_broadcast_to(tape, constant,
                           shape(x->shape.size[0], x->shape.size[1], constant->shape.size[0]));
}

static Tensor *attend_gated(Tape *tape, const AttentionKind *kind, Tensor *packed, Tensor *none,
                            Tensor *nothing, const AttentionContext *context)
{
    const Gates *gates = &((const GatedKind *)kind)->gates;
    const AttentionKind *inner = kind->inner;
    AttentionContext decaying = *context;
    if (gates->convolution.weight)
        packed = convolve_heads(tape, &gates->convolution, packed, context, inner->states);
    decaying.log_decay = log_decay_of(tape, gates, context->x);
    Tensor *out = inner->attend(tape, inner, packed, none, nothing, &decaying);
    if (gates->norm.weight)
        out = nn_rms_norm_forward(tape, &gates->norm, out);
    if (gates->gate.weight) {
        Tensor *gate = nn_linear_forward(tape, &gates->gate, context->x);
        out = op_multiply(tape, out, op_silu(tape, op_reshape(tape, gate, out->shape)));
    }
    return out;
}

const AttentionKind *nn_gated_attention(Params *params, GatedConfig config)
{
    static const char function[] = "nn_gated_attention";
    const AttentionKind *inner = nn_kind_or_default(params, config.inner);
    if (!inner->decays)
        error_raise("%s: inner is %s attention, expected causal linear, gated linear or "
                    "causal softmax attention, or the delta rule",
                    function, inner->name);
    for (const AttentionKind *of = inner; of; of = of->inner)
        if (of->attend == attend_gated)
            error_raise("%s: inner has gates already, expected attention without", function);
    if ((unsigned)config.decay > DECAY_LEARNED)
        error_raise("%s: decay is %d, expected DECAY_NONE to DECAY_LEARNED", function,
                    (int)config.decay);
    shape_need_size(function, "convolution", &config.convolution, 0, 1 << 20);
    if (config.convolution == 1)
        error_raise("%s: convolution is 1, expected 2 or more taps, or 0: none", function);
    GatedKind *gated = params_memory(params, sizeof *gated);
    *gated = (GatedKind){ nn_kind_around(inner), config, .has_norm = inner->is_unnormalized };
    AttentionKind *kind = &gated->kind;
    kind->crosses = kind->is_unnormalized = false;
    kind->has_cache &= !config.decay; /* which has no decays */
    if (config.convolution && (kind->states || kind->has_cache))
        kind->states++;
    kind->state = gated_state;
    kind->of_layer = gates_of_layer;
    kind->attend = attend_gated;
    return kind;
}

const Gates *nn_attention_gates(const Attention *attention)
{
    const AttentionKind *kind = attention->kind;
    return kind->attend == attend_gated ? &((const GatedKind *)kind)->gates : NULL;
}
