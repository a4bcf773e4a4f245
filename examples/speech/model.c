#include "examples/speech/model.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"

#include <stdlib.h>
#include <string.h>

bool model_is_causal(const SpeechOptions *options)
{
    return !strcmp(options->causal, "yes");
}

static const AttentionKind *attention_of(Params *params, const SpeechOptions *options)
{
    const bool causal = model_is_causal(options);
    if (!strcmp(options->common.attention, "softmax"))
        return causal ? nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 })
                      : nn_softmax_attention(params);
    if (!strcmp(options->common.attention, "lsh"))
        return (causal ? nn_causal_lsh_attention
                       : nn_lsh_attention)(params, (LshConfig){ .rounds = options->rounds });
    return attention_linear(params, options->common.features, causal, FORM_BEST);
}

static bool is_lstm(const SpeechOptions *options)
{
    return !strcmp(options->model, "lstm");
}

bool model_is_lsh(const SpeechOptions *options)
{
    return !is_lstm(options) && !strcmp(options->common.attention, "lsh");
}

const char *model_kind(const SpeechOptions *options)
{
    const bool causal = model_is_causal(options);
    if (is_lstm(options))
        return causal ? "LSTM" : "bidirectional LSTM";
    if (!strcmp(options->common.attention, "softmax"))
        return causal ? "causal softmax attention" : "softmax attention";
    if (!strcmp(options->common.attention, "lsh"))
        return causal ? "causal LSH attention" : "LSH attention";
    return causal ? "causal linear attention" : "linear attention";
}

/* Pre-norm layers: without warm-up their gradients are well scaled from the first step on. */
static Transformer transformer_new(Params *params, const SpeechOptions *options)
{
    return nn_transformer(params, "transformer",
                          (TransformerConfig){
                              .layers = options->common.layers,
                              .heads = options->common.heads,
                              .head_dim = options->common.head_dim,
                              .feed_forward = options->common.feed_forward,
                              .attention = attention_of(params, options),
                              .dropout = options->common.dropout,
                              .pre_norm = true,
                          });
}

Model model_new(Params *params, const SpeechOptions *options, int64_t max_positions)
{
    Model model = { .is_lstm = is_lstm(options) };
    const int64_t inputs = model_inputs(options),
                  width = options->common.heads * options->common.head_dim;
    if (model.is_lstm) {
        model.lstm = nn_lstm(params, "lstm",
                             (RecurrentConfig){ .input = inputs,
                                                .hidden = options->hidden,
                                                .layers = options->common.layers,
                                                .bidirectional = !model_is_causal(options),
                                                .dropout = options->common.dropout });
        const int64_t directions = model.lstm.stack.directions;
        model.head = nn_linear(params, "head", directions * options->hidden, SYMBOLS);
    } else {
        model.input = nn_linear(params, "input", inputs, width);
        if (!model_is_causal(options))
            model.positions = nn_sinusoidal_positions(params, max_positions, width);
        model.transformer = transformer_new(params, options);
        model.head = nn_linear(params, "head", width, SYMBOLS);
    }
    return model;
}

/* x [size, positions, model_inputs]; returns the logits. */
static Tensor *transform(Tape *tape, const Model *model, Tensor *x, Tensor *lengths)
{
    const int64_t positions = shape_size(x->shape, 1);
    x = nn_linear_forward(tape, &model->input, x);
    if (model->positions)
        x = op_add(tape, x, op_slice(tape, model->positions, 0, 0, positions));
    x = nn_transformer_forward(tape, &model->transformer, x,
                               (AttentionOptions){ .key_lengths = lengths });
    return nn_linear_forward(tape, &model->head, x);
}

Tensor *model_forward(Tape *tape, const Model *model, const Batch *batch, Tensor **lengths)
{
    const Shape inputs = shape(batch->size, batch->positions, batch->columns);
    Tensor *x = tape_input(tape, batch->inputs, inputs);
    *lengths = tape_input_i32(tape, batch->lengths, shape(batch->size));
    if (!model->is_lstm)
        return transform(tape, model, x, *lengths);
    x = nn_lstm_forward(tape, &model->lstm, x, *lengths, NULL);
    return nn_linear_forward(tape, &model->head, x);
}

/* --------------------------------------------------------------------------------------- inputs */

int64_t model_inputs(const SpeechOptions *options)
{
    return (options->stride + options->context + options->lookahead) * FILTERS;
}

int64_t model_positions(const SpeechOptions *options, int64_t samples)
{
    return (frame_count(samples) + options->stride - 1) / options->stride;
}

double model_seconds(const SpeechOptions *options, int64_t position)
{
    const double middle =
        (WINDOW - HOP) / 2.; /* a frame stands for the HOP samples in its middle */
    return ((double)(position * options->stride * HOP) + middle) / RATE;
}

Inputs inputs_new(const SpeechOptions *options)
{
    return (Inputs){ .options = options, .values = allocate(model_inputs(options), sizeof(Real)) };
}

void inputs_free(Inputs *inputs)
{
    free(inputs->values);
}

/* Returns whether values have become those of the next position: it has the frames from
 * stride p - context to stride (p + 1) + lookahead - 1. frame NULL: repeats the last one. */
static bool append(Inputs *inputs, const Real *frame)
{
    const int64_t last = model_inputs(inputs->options) - FILTERS;
    memmove(inputs->values, inputs->values + FILTERS, (size_t)last * sizeof(Real));
    if (frame)
        memcpy(inputs->values + last, frame, FILTERS * sizeof(Real));
    const bool complete = ++inputs->appended == inputs->options->stride * (inputs->positions + 1) +
                                                    inputs->options->lookahead;
    inputs->positions += complete;
    return complete;
}

bool inputs_next(Inputs *inputs, const Real *frame)
{
    Real next[FILTERS];
    memcpy(next, frame, sizeof next);
    if (model_is_causal(inputs->options))
        normalize_next(&inputs->normalizer, next);
    for (int64_t i = 0; inputs->frames == 0 && i < model_inputs(inputs->options); i += FILTERS)
        memcpy(inputs->values + i, next, sizeof next);
    inputs->frames++;
    return append(inputs, next);
}

bool inputs_end(Inputs *inputs)
{
    while (inputs->positions * inputs->options->stride < inputs->frames) {
        if (append(inputs, NULL))
            return true;
    }
    return false;
}

/* values [model_positions, model_inputs] of the wave */
static void read_wave(const SpeechOptions *options, const FilterBank *bank, const Wave *wave,
                      Real *values)
{
    const int64_t count = frame_count(wave->count), columns = model_inputs(options);
    Real *frames = allocate(count * FILTERS, sizeof *frames);
    log_mel(bank, wave->samples, wave->count, frames);
    if (!model_is_causal(options))
        normalize_frames(frames, count);
    Inputs inputs = inputs_new(options);
    for (int64_t t = 0; t < count || inputs.positions * options->stride < count; t++) {
        if (t < count ? inputs_next(&inputs, frames + t * FILTERS) : inputs_end(&inputs))
            memcpy(values + (inputs.positions - 1) * columns, inputs.values,
                   (size_t)columns * sizeof(Real));
    }
    inputs_free(&inputs);
    free(frames);
}

Batch batch_new(const SpeechOptions *options, const FilterBank *bank, const Utterance *utterances,
                int64_t size)
{
    Batch batch = { .size = size,
                    .columns = model_inputs(options),
                    .phonemes = 1,
                    .lengths = allocate(size, sizeof(int32_t)),
                    .target_lengths = allocate(size, sizeof(int32_t)) };
    for (int64_t b = 0; b < size; b++) {
        const int64_t length = model_positions(options, utterances[b].wave.count);
        batch.positions = length > batch.positions ? length : batch.positions;
        batch.lengths[b] = (int32_t)length;
        batch.target_lengths[b] = (int32_t)utterances[b].phonemes;
        batch.phonemes =
            utterances[b].phonemes > batch.phonemes ? utterances[b].phonemes : batch.phonemes;
    }
    batch.targets = allocate(size * batch.phonemes, sizeof(int32_t));
    for (int64_t b = 0; b < size; b++)
        memcpy(batch.targets + b * batch.phonemes, utterances[b].phoneme,
               (size_t)utterances[b].phonemes * sizeof(int32_t));
    const int64_t elements = batch.positions * batch.columns;
    batch.inputs = allocate(size * elements, sizeof(Real));
#pragma omp parallel for schedule(dynamic)
    for (int64_t b = 0; b < size; b++)
        read_wave(options, bank, &utterances[b].wave, batch.inputs + b * elements);
    return batch;
}

void batch_free(Batch *batch)
{
    free(batch->inputs);
    free(batch->lengths);
    free(batch->targets);
    free(batch->target_lengths);
    *batch = (Batch){ 0 };
}

/* ---------------------------------------------------------------------------------- recognition */

Recognizer recognizer_new(const SpeechOptions *options, int64_t max_positions)
{
    Device *device = training_device(&options->common);
    Params *params = params_new(device, (uint64_t)options->common.seed);
    Recognizer recognizer = { .options = options,
                              .params = params,
                              .tape = tape_new(device),
                              .bank = filter_bank_new(),
                              .model = model_new(params, options, max_positions) };
    tape_set_recording(recognizer.tape, false);
    tape_set_training(recognizer.tape, false);
    load_weights(params, options->common.load);
    return recognizer;
}

void recognizer_free(Recognizer *recognizer)
{
    tape_free(recognizer->tape);
    params_free(recognizer->params);
    filter_bank_free(recognizer->bank);
}
