/* What an attention layer's gates add: a decay, a causal convolution, rotary positions, an output
 * gate and a norm. */
#include "nn/internal.h"

#include <math.h>
#include <stdlib.h>

/* Per head -r_h, or c_h; see DecayKind. */
static Tensor *decay_constants(Params *params, DecayKind decay, int64_t H)
{
    Tensor *constants = params_new_constant("nn_attention", params, NULL, shape(H));
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

/* The order of registration is that of offsets in the flat buffers: decay, weights of the kind,
 * convolution, gate, norm. */
void gates_add(Params *params, const char *name, Attention *attention,
               const TransformerConfig *config)
{
    const int64_t H = config->heads, D = config->head_dim, width = H * D;
    const DecayKind decay = config->softmax_decay ? config->softmax_decay : config->decay;
    if (decay)
        attention->decay_constant = decay_constants(params, decay, H);
    if (decay == DECAY_LEARNED)
        attention->decay = nn_linear_part(params, name, "decay", width, H, config->initial_std);
    if (config->attention->add)
        config->attention->add(params, name, attention, config);
    attention->unnormalized = config->unnormalized;
    if (config->convolution)
        attention->convolution = nn_causal_convolution(params, nn_name(name, "convolution").text,
                                                       3 * width, config->convolution);
    if (config->output_gate)
        attention->gate = nn_linear_part(params, name, "gate", width, width, config->initial_std);
    if (config->attention->is_unnormalized || attention->unnormalized)
        attention->norm = nn_rms_norm(params, nn_name(name, "norm").text, D);
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

/* silu of the causal convolution of packed [B, N, 3 H, D] */
static Tensor *convolve_heads(Tape *tape, const Attention *attention, Tensor *packed,
                              const AttentionContext *context)
{
    Tensor *after = NULL;
    const Shape heads = packed->shape;
    const int64_t taps = attention->convolution.weight->shape.size[1];
    CausalConvolutionOptions options = { .lengths = context->options.key_lengths };
    packed = op_reshape(tape, packed,
                        shape(heads.size[0], heads.size[1], heads.size[2] * heads.size[3]));
    const ConvolutionInputs inputs = { packed, taps - 1 };
    options.state = state_before(tape, context, STATE_CONVOLUTION, inputs_effect, &inputs);
    if (options.state)
        options.state = op_reshape(tape, options.state,
                                   shape(heads.size[0], taps - 1, heads.size[2] * heads.size[3]));
    packed = nn_causal_convolution_forward(tape, &attention->convolution, packed, options,
                                           context->state_after ? &after : NULL);
    if (after)
        context->state_after(context, STATE_CONVOLUTION, after);
    return op_reshape(tape, op_silu(tape, packed), heads);
}

Tensor *gates_before(Tape *tape, const Attention *attention, Tensor *packed,
                     const AttentionContext *context)
{
    if (attention->convolution.weight)
        packed = convolve_heads(tape, attention, packed, context);
    if (attention->rotary_dims)
        packed = op_rotary(tape, packed,
                           (RotaryOptions){ .dims = attention->rotary_dims,
                                            .heads = 2 * attention->heads,
                                            .base = attention->rotary_base,
                                            .halves = true,
                                            .positions = context->options.positions });
    return packed;
}

Tensor *gates_after(Tape *tape, const Attention *attention, Tensor *x, Tensor *out)
{
    if (attention->norm.weight)
        out = nn_rms_norm_forward(tape, &attention->norm, out);
    if (attention->gate.weight) {
        Tensor *gate = nn_linear_forward(tape, &attention->gate, x);
        out = op_multiply(tape, out, op_silu(tape, op_reshape(tape, gate, out->shape)));
    }
    return out;
}

Tensor *gates_log_decay(Tape *tape, const Attention *attention, Tensor *x)
{
    Tensor *constant = attention->decay_constant;
    if (attention->decay.weight) { /* in Real */
        Tensor *z = op_cast(tape, nn_linear_forward(tape, &attention->decay, x), TENSOR_REAL);
        return op_scale(tape, op_softplus(tape, op_add(tape, z, constant)), -1);
    }
    if (!constant)
        return NULL;
    return op_broadcast_to(tape, constant,
                           shape(x->shape.size[0], x->shape.size[1], attention->heads));
}
