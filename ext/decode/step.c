/* A decode step: one position of a causal transformer as a recurrent network (Katharopoulos et al.
 * 2020, Transformers are RNNs, section 3.4)
 *
 * Per layer and head, three products of x_i, a row of width elements, give q_i, k_i and v_i of D
 * elements. With the feature map phi from R^D to R^F, linear attention has the recurrent state
 *     S_0 = 0, z_0 = 0                                             (16, 17)
 *     S_i = S_{i-1} + phi(k_i) v_i^T                               (18)     [F, D]
 *     z_i = z_{i-1} + phi(k_i)                                     (19)     [F]
 *     out_i = S_i^T phi(q_i) / (phi(q_i).z_i + eps)                (20)     [D]
 * which are the causal sums of op_causal_linear_attention at position i; with a decay, S_{i-1} and
 * z_{i-1} are multiplied by e^{l_i} first. z is stored as one more
 * column of S, as if each v_i ended with a 1. Softmax attention has a KV cache of all keys and
 * values so far instead, and
 *     out_i = sum_{j<=i} p_j v_j,     p = softmax_j(q_i.k_j / sqrt D)
 *
 * The rest of (20), the output product, residual connections, norms and the feed-forward network,
 * acts on each position separately, as in nn/transformer.c. A layer has two branches, attention and
 * ff2(f(ff1(in))). Each reads in = norm(x) from the residual stream x and adds to it
 *     x <- x + branch(in)  in pre-norm        x <- in + branch(in)  in post-norm
 * so that post-norm's norm after one branch is the norm before the next. There is no dropout.
 *
 * step_on_operations below defines a step and runs where there is no engine: on a device without
 * one, and for layers that differ, or have a window, a learned sink, gates (the delta rule, gated
 * linear attention, a convolution, an output gate; on CUDA also a decay) or rotary positions. */
#include "ext/decode/kernels.h"

static void check_step_input(const TransformerState *state, const Tensor *x)
{
    const char *error = tensor_unreadable(x, TENSOR_REAL);
    if (error)
        error_raise("nn_transformer_step: x %s", error);
    if (x->device != state->device)
        error_raise("nn_transformer_step: x is on %s, the state on %s", device_name(x->device),
                    device_name(state->device));
    if (x->type == TENSOR_BF16)
        error_raise("nn_transformer_step: x is stored in bf16, expected type Real; see op_cast");
    if (!shape_equal(x->shape, state->out.shape))
        error_raise("nn_transformer_step: x %s, expected %s: [sequences, width]",
                    tensor_text(x).text, shape_text(state->out.shape).text);
    if ((x->base ? x->base : x)->requires_grad)
        error_raise("nn_transformer_step: x requires a gradient, and none passes through a step; "
                    "call tape_set_recording(tape, false) before x is made");
}

/* Raises when a sequence is full, unless the step is being recorded. */
static void check_counts(TransformerState *state)
{
    const int64_t max_length = state->max_length;
    const int32_t *counts = state_counts(state);
    for (int64_t b = 0; counts && b < state->B; b++)
        if (counts[b] >= max_length)
            error_raise(
                "nn_transformer_step: sequence %lld already has max_length (%lld) positions",
                (long long)b, (long long)max_length);
}

/* The definition of a step, on operations: the layers' parallel form for one position, which
 * continues from the recurrent state, or attends to the KV cache. */
static void step_on_operations(TransformerState *state, const Tensor *x)
{
    Tape *tape = state->tape;
    tape_reset(tape);
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    int32_t *after = state->counts + state->B, *lengths = after + state->B;
    for (int64_t b = 0; b < state->B; b++)
        after[b] = state->counts[b] + 1;
    Tensor row = { .device = x->device, .data = x->data };
    row.shape = shape(state->B, 1, state->width);
    const Tensor *out = state_advance(
        tape, state, (ParallelForm){ .x = &row, .cached_lengths = lengths, .counts = after });
    device_copy(state->device, state->out.data, out->data, tensor_bytes(out));
    tape_reset(tape);
}

Tensor *nn_transformer_step(TransformerState *state, Tensor *x)
{
    error_need("nn_transformer_step", "the state", state);
    state_check_weights("nn_transformer_step", &state->transformer);
    check_step_input(state, x);
    check_counts(state);
    if (state->tape) {
        if (device_is_capturing(state->device))
            error_raise("nn_transformer_step: this step is replayed, and layers that differ, or "
                        "have a window, a learned sink, gates or rotary positions have no captured "
                        "decode step");
        step_on_operations(state, x);
        return &state->out;
    }
    error_name("nn_transformer_step");
    decode_kernels(state->device)->step(state->out.data, x->data, state);
    if (device_is_capturing(state->device))
        state->recorded = true;
    else
        for (int64_t b = 0; b < state->B; b++)
            state->counts[b]++;
    return &state->out;
}
