/* A prompt: many positions at once by the parallel form, which leaves in the state what as many steps
 * would have left. Sums are first put beside the state's, and copied when all layers are done: a
 * prefill that memory did not suffice for has changed nothing. Keys and values go where they belong
 * at once, since the counts, which come last, say that nothing is there. */
#include "nn/generation/state.h"
#include "ops/indices.h"

static void check_x(Tape *tape, const TransformerState *state, Tensor *x)
{
    const TransformerStep *step = &state->step;
    if (tape_is_recording(tape))
        tape_error(tape, "nn_transformer_prefill: the tape is recording, and no gradient passes "
                         "into a state; call tape_recording(tape, false) first");
    if (device_is_capturing(state->device))
        tape_error(tape, "nn_transformer_prefill: this step is replayed; fill the state before it");
    tape_use(tape, "nn_transformer_prefill: x", x);
    if (x->shape.rank != 3 || x->shape.size[0] != step->B || x->shape.size[2] != step->width)
        tape_error(tape,
                   "nn_transformer_prefill: x is %s, expected [%lld, N, %lld]: [sequences, "
                   "N, width]",
                   shape_text(x->shape).text, (long long)step->B, (long long)step->width);
}

static void check_lengths(Tape *tape, const TransformerState *state, int64_t N, Tensor *lengths)
{
    static const char label[] = "nn_transformer_prefill: lengths";
    tape_use_i32(tape, label, lengths);
    if (lengths->shape.rank != 1 || lengths->shape.size[0] != state->step.B)
        tape_error(tape, "%s is %s, expected [%lld]: [sequences]", label,
                   shape_text(lengths->shape).text, (long long)state->step.B);
    check_indices(tape, label, lengths, 1, N, "the number of positions");
}

/* after [B] <- the positions that each sequence will have had; raises where they are too many, or
 * softmax attention's sequence has begun. */
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
                       "nn_transformer_prefill: sequence %lld has had %d positions; softmax "
                       "attention takes a prompt at a sequence's beginning only",
                       (long long)b, (int)before[b]);
        if (count > step->max_length)
            tape_error(tape,
                       "nn_transformer_prefill: sequence %lld would have %lld positions, "
                       "max_length is %lld",
                       (long long)b, (long long)count, (long long)step->max_length);
        after[b] = (int32_t)count;
    }
}

/* The sums before as a tensor that an operation takes: [B, H, F, D + 1]. */
static Tensor sums_of(const TransformerState *state, int64_t layer)
{
    const TransformerStep *step = &state->step;
    Tensor sums = state->out;
    sums.shape = shape(step->B, step->H, step->F, step->D + 1);
    sums.data = step->layer[layer].sums;
    return sums;
}

static Tensor *run_layers(Tape *tape, const TransformerState *state, Tensor *x, Tensor *lengths,
                          const Tensor *sums_after)
{
    const TransformerStep *step = &state->step;
    const Transformer *transformer = &state->transformer;
    Real *after = sums_after ? sums_after->data : NULL;
    TapeMark mark = tape_mark(tape);
    for (int64_t i = 0; i < step->layers; i++) {
        Tensor sums = sums_of(state, i);
        const AttentionCache cache = { .sums = &sums,
                                       .sums_after = after ? after + i * state->layer_count : NULL,
                                       .keys = step->layer[i].keys,
                                       .values = step->layer[i].values,
                                       .max_length = step->max_length };
        x = nn_transformer_layer_forward_cached(tape, &transformer->layer[i], x, lengths, &cache);
        x = tape_release(tape, mark, x);
    }
    if (transformer->has_norm)
        x = nn_layer_norm_forward(tape, &transformer->norm, x);
    return tape_release(tape, mark, x);
}

Tensor *nn_transformer_prefill(Tape *tape, TransformerState *state, Tensor *x, Tensor *lengths)
{
    check_x(tape, state, x);
    const int64_t N = x->shape.size[1];
    if (lengths)
        check_lengths(tape, state, N, lengths);
    int32_t *after = state->counts + state->step.B;
    count_positions(tape, state, N, lengths, after);
    Tensor *sums = state->step.softmax ? NULL : tape_scratch(tape, shape(state->data_count));
    Tensor *out = run_layers(tape, state, x, lengths, sums);
    if (sums)
        device_copy(state->device, state->data, sums->data,
                    (size_t)state->data_count * sizeof(Real));
    tape_scratch_free(tape, sums);
    state_write_counts(state, after);
    return out;
}
