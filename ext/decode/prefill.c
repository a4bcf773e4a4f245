/* Prefill: a prompt through the parallel form leaves the same state as N decode steps. */
#include "ext/decode/state.h"

#include <stdlib.h>

static void check_prefill_input(Tape *tape, const TransformerState *state, Tensor *x)
{
    if (tape_is_recording(tape))
        tape_error(tape, "nn_transformer_prefill: the tape is recording, and no gradient passes "
                         "into a state; call tape_set_recording(tape, false) first");
    for (int64_t i = 0; i < state->transformer.layers && tape_is_training(tape); i++)
        if (state->transformer.layer[i].dropout.probability > 0)
            tape_error(tape, "nn_transformer_prefill: the tape is training, and decode steps have "
                             "no dropout; call tape_set_training(tape, false) first");
    if (device_is_capturing(state->device))
        tape_error(tape, "nn_transformer_prefill: this step is replayed; fill the state before it");
    tape_use(tape, "nn_transformer_prefill: x", x);
    if (x->shape.rank != 3 || x->shape.size[0] != state->B || x->shape.size[2] != state->width)
        tape_error(tape,
                   "nn_transformer_prefill: x %s, expected [%lld, N, %lld]: [sequences, N, width]",
                   tensor_text(x).text, (long long)state->B, (long long)state->width);
}

/* after [B] <- positions per sequence after the prompt; raises when they exceed max_length, or when
 * a sequence of softmax attention is not empty. */
static void count_positions(Tape *tape, TransformerState *state, int64_t N, const Tensor *lengths,
                            int32_t *after)
{
    const int32_t *before = state_counts(state);
    if (lengths)
        tensor_read_i32(lengths, after);
    for (int64_t b = 0; b < state->B; b++) {
        const int64_t count = before[b] + (lengths ? after[b] : N);
        if (state->softmax && before[b] > 0)
            tape_error(tape,
                       "nn_transformer_prefill: sequence %lld already has %d positions; softmax "
                       "attention prefills empty sequences only",
                       (long long)b, (int)before[b]);
        if (count > state->max_length)
            tape_error(tape,
                       "nn_transformer_prefill: sequence %lld would have %lld positions, "
                       "max_length is %lld",
                       (long long)b, (long long)count, (long long)state->max_length);
        after[b] = (int32_t)count;
    }
}

/* [B, N]: those of x */
static Tensor *positions_of(Tape *tape, const TransformerState *state, const Tensor *x)
{
    const int64_t B = state->B, N = x->shape.size[1];
    if (N == 1)
        return tape_input_i32(tape, state->counts, shape(B, 1));
    Tensor *tensor = tape_tensor_i32(tape, shape(B, N));
    int32_t *positions = memory_allocate((size_t)(B * N) * sizeof *positions);
    if (!positions)
        tape_error(tape, "nn_transformer: memory is exhausted: positions [%lld,%lld]", (long long)B,
                   (long long)N);
    for (int64_t i = 0; i < B * N; i++)
        positions[i] = state->counts[i / N] + (int32_t)(i % N);
    tensor_write_i32(tensor, positions);
    free(positions);
    return tensor;
}

Tensor *state_advance(Tape *tape, TransformerState *state, ParallelForm form)
{
    Tensor *after = state->recurrent ? tape_tensor(tape, shape(state->recurrent)) : NULL;
    AttentionCache caches[NN_MAX_LAYERS] = { 0 };
    for (int64_t i = 0; i < state->transformer.layers; i++)
        caches[i] = (AttentionCache){
            .state = &state->layer[i],
            .before = state->counts,
            .counts = form.counts,
            .lengths = form.cached_lengths,
        };
    StateTensor list[MAX_STATE_TENSORS];
    const int tensors = state_tensors(state, list);
    for (int i = 0; i < tensors && list[i].recurrent; i++)
        caches[list[i].layer].after[list[i].state] = after->data + list[i].offset;
    const AttentionOptions options = { .key_lengths = form.lengths,
                                       .positions = positions_of(tape, state, form.x) };
    AttentionContext contexts[NN_MAX_LAYERS];
    for (int64_t i = 0; i < state->transformer.layers; i++)
        contexts[i] = cache_context(options, &caches[i]);
    Tensor *out = nn_transformer_forward_in(tape, &state->transformer, form.x, contexts);
    if (after)
        device_copy(state->device, state->data.data, after->data, tensor_bytes(after));
    tape_scratch_free(tape, after);
    state_write_counts(state, form.counts);
    return out;
}

Tensor *nn_transformer_prefill(Tape *tape, TransformerState *state, Tensor *x, Tensor *lengths)
{
    error_need("nn_transformer_prefill", "the state", state);
    check_prefill_input(tape, state, x);
    const int64_t N = x->shape.size[1];
    if (lengths)
        op_check_sequence_lengths(tape, "nn_transformer_prefill: lengths", lengths, state->B, 1, N,
                                  "the number of positions");
    int32_t *counts = state->counts + state->B;
    count_positions(tape, state, N, lengths, counts);
    return state_advance(tape, state,
                         (ParallelForm){ .x = x, .lengths = lengths, .counts = counts });
}
