#include "examples/speech/model.h"
#include "examples/shared/program.h"

#include <stdlib.h>
#include <string.h>

static AttentionKind attention_of(const SpeechOptions *options)
{
    const bool softmax = !strcmp(options->common.attention, "softmax"),
               lsh = !strcmp(options->common.attention, "lsh");
    return softmax ? ATTENTION_SOFTMAX : lsh ? ATTENTION_LSH : ATTENTION_LINEAR;
}

static bool is_lstm(const SpeechOptions *options)
{
    return !strcmp(options->model, "lstm");
}

const char *model_kind(const SpeechOptions *options)
{
    static const char *const names[] = { "linear attention", "softmax attention", "LSH attention" };
    return is_lstm(options) ? "bidirectional LSTM"
                            : names[(attention_of(options) - ATTENTION_LINEAR) / 2];
}

/* Pre-norm layers: without warm-up their gradients are well scaled from the first step on. */
static Transformer transformer_new(Params *params, const SpeechOptions *options)
{
    return nn_transformer(
        params, "transformer",
        (TransformerConfig){
            .layers = options->common.layers,
            .heads = options->common.heads,
            .head_dim = options->common.head_dim,
            .feed_forward = options->common.feed_forward,
            .attention = attention_of(options),
            .features = (Features)choice_index(feature_names, options->common.features),
            .lsh_rounds = options->rounds,
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
                                                .bidirectional = true,
                                                .dropout = options->common.dropout });
        model.head = nn_linear(params, "head", 2 * options->hidden, SYMBOLS);
    } else {
        model.input = nn_linear(params, "input", inputs, width);
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
    x = op_add(tape, x, op_slice(tape, model->positions, 0, 0, positions));
    x = nn_transformer_forward(tape, &model->transformer, x, lengths);
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
    return (options->stride + 2 * options->context) * FILTERS;
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

/* Position p has the frames from stride p - context on; beyond the ends, the end frames. */
static void stack_frames(const SpeechOptions *options, const Real *frames, int64_t count,
                         Real *inputs)
{
    const int64_t stacked = options->stride + 2 * options->context;
    const int64_t positions = (count + options->stride - 1) / options->stride;
    for (int64_t p = 0; p < positions; p++) {
        for (int64_t i = 0; i < stacked; i++) {
            int64_t t = p * options->stride - options->context + i;
            t = t < 0 ? 0 : t < count ? t : count - 1;
            memcpy(inputs + (p * stacked + i) * FILTERS, frames + t * FILTERS,
                   FILTERS * sizeof(Real));
        }
    }
}

static void read_wave(const SpeechOptions *options, const FilterBank *bank, const Wave *wave,
                      Real *inputs)
{
    const int64_t count = frame_count(wave->count);
    Real *frames = allocate(count * FILTERS, sizeof *frames);
    log_mel(bank, wave->samples, wave->count, frames);
    normalize_frames(frames, count);
    stack_frames(options, frames, count, inputs);
    free(frames);
}

Batch batch_new(const SpeechOptions *options, const FilterBank *bank, const Utterance *utterances,
                int64_t size)
{
    Batch batch = { .size = size,
                    .columns = model_inputs(options),
                    .lengths = allocate(size, sizeof(int32_t)),
                    .targets = allocate(size * TARGETS, sizeof(int32_t)),
                    .target_lengths = allocate(size, sizeof(int32_t)) };
    for (int64_t b = 0; b < size; b++) {
        const int64_t length = model_positions(options, utterances[b].wave.count);
        batch.positions = length > batch.positions ? length : batch.positions;
        batch.lengths[b] = (int32_t)length;
        batch.target_lengths[b] = (int32_t)utterances[b].phonemes;
        memcpy(batch.targets + b * TARGETS, utterances[b].phoneme, TARGETS * sizeof(int32_t));
    }
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

Recogniser recogniser_new(const SpeechOptions *options, int64_t max_positions)
{
    Device *device = training_device(&options->common);
    Params *params = params_new(device, (uint64_t)options->common.seed);
    Recogniser recogniser = { .options = options,
                              .params = params,
                              .tape = tape_new(device),
                              .bank = filter_bank_new(),
                              .model = model_new(params, options, max_positions) };
    tape_set_recording(recogniser.tape, false);
    tape_set_training(recogniser.tape, false);
    if (!params_load(params, options->checkpoint))
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    return recogniser;
}

void recogniser_free(Recogniser *recogniser)
{
    tape_free(recogniser->tape);
    params_free(recogniser->params);
    filter_bank_free(recogniser->bank);
}
