/* Prefill: a prompt through the parallel form leaves the same state as N decode steps. States are
 * committed last, so an out-of-memory prefill changes nothing: new recurrent states go to a buffer
 * and are copied when all layers are done; keys and values go to the KV cache at once, where they
 * do not count until the counts are written at the end. */
#include "nn/decode/state.h"
#include "ops/shared/indices.h"

static void check_prefill_input(Tape *tape, const TransformerState *state, Tensor *x)
{
    const TransformerStep *step = &state->step;
    if (tape_is_recording(tape))
        tape_error(tape, "nn_transformer_prefill: the tape is recording, and no gradient passes "
                         "into a state; call tape_set_recording(tape, false) first");
    for (int64_t i = 0; i < step->layers && tape_is_training(tape); i++)
        if (state->transformer.layer[i].dropout.probability > 0)
            tape_error(tape, "nn_transformer_prefill: the tape is training, and decode steps have "
                             "no dropout; call tape_set_training(tape, false) first");
    if (device_is_capturing(state->device))
        tape_error(tape, "nn_transformer_prefill: this step is replayed; fill the state before it");
    tape_use(tape, "nn_transformer_prefill: x", x);
    if (x->shape.rank != 3 || x->shape.size[0] != step->B || x->shape.size[2] != step->width)
        tape_error(tape,
                   "nn_transformer_prefill: x %s, expected [%lld, N, %lld]: [sequences, N, width]",
                   tensor_text(x).text, (long long)step->B, (long long)step->width);
}

static void check_prefill_lengths(Tape *tape, const TransformerState *state, int64_t N,
                                  Tensor *lengths)
{
    static const char label[] = "nn_transformer_prefill: lengths";
    tape_use_i32(tape, label, lengths);
    if (lengths->shape.rank != 1 || lengths->shape.size[0] != state->step.B)
        tape_error(tape, "%s %s, expected [%lld]: [sequences]", label, tensor_text(lengths).text,
                   (long long)state->step.B);
    check_indices(tape, label, lengths, 1, N, "the number of positions");
}

/* after [B] <- positions per sequence after the prompt; raises when they exceed max_length, or when
 * a sequence of softmax attention is not empty. */
static void count_positions(Tape *tape, TransformerState *state, int64_t N, const Tensor *lengths,
                            int32_t *after)
{
    const TransformerStep *step = &state->step;
    const int32_t *before = state_counts(state);
    if (lengths)
        tensor_read_i32(lengths, after);
    for (int64_t b = 0; b < step->B; b++) {
        const int64_t count = before[b] + (lengths ? after[b] : N);
        if (step->softmax && before[b] > 0)
            tape_error(tape,
                       "nn_transformer_prefill: sequence %lld already has %d positions; softmax "
                       "attention prefills empty sequences only",
                       (long long)b, (int)before[b]);
        if (count > step->max_length)
            tape_error(tape,
                       "nn_transformer_prefill: sequence %lld would have %lld positions, "
                       "max_length is %lld",
                       (long long)b, (long long)count, (long long)step->max_length);
        after[b] = (int32_t)count;
    }
}

Tensor *state_run_layers(Tape *tape, const TransformerState *state, ParallelForm form)
{
    const TransformerStep *step = &state->step;
    const Transformer *transformer = &state->transformer;
    TapeMark mark = tape_mark(tape);
    Tensor *x = form.x, sums = state->out;
    sums.shape = shape(step->B, step->H, step->F, step->D + 1);
    for (int64_t i = 0; i < step->layers; i++) {
        const LayerState *layer = &step->layer[i].state;
        sums.data = layer->sums;
        const AttentionCache cache = {
            .sums = &sums,
            .sums_after = form.sums_after ? form.sums_after->data + i * state->layer_count : NULL,
            .keys = layer->keys,
            .values = layer->values,
            .type = step->cache_type,
            .max_length = step->max_length,
            .counts = form.cached_lengths ? step->counts : NULL,
            .lengths = form.cached_lengths,
        };
        x = nn_transformer_layer_forward_cached(tape, &transformer->layer[i], x, form.lengths,
                                                &cache);
        x = tape_release(tape, mark, x);
    }
    if (transformer->has_norm)
        x = nn_layernorm_forward(tape, &transformer->norm, x);
    return tape_release(tape, mark, x);
}

void state_commit(Tape *tape, TransformerState *state, Tensor *sums_after)
{
    if (sums_after)
        device_copy(state->device, state->data, sums_after->data,
                    (size_t)state->data_count * sizeof(Real));
    tape_scratch_free(tape, sums_after);
}

Tensor *nn_transformer_prefill(Tape *tape, TransformerState *state, Tensor *x, Tensor *lengths)
{
    check_prefill_input(tape, state, x);
    const int64_t N = x->shape.size[1];
    if (lengths)
        check_prefill_lengths(tape, state, N, lengths);
    int32_t *after = state->counts + state->step.B;
    count_positions(tape, state, N, lengths, after);
    Tensor *sums = state->step.softmax ? NULL : tape_scratch(tape, shape(state->data_count));
    Tensor *out = state_run_layers(tape, state, (ParallelForm){ x, lengths, NULL, sums });
    state_commit(tape, state, sums);
    state_write_counts(state, after);
    return out;
}
