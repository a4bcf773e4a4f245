#include "examples/speech/stream.h"
#include "examples/shared/program.h"
#include "examples/speech/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Stream stream_new(const Recognizer *recognizer, int64_t max_positions)
{
    const Model *model = &recognizer->model;
    Stream stream = { .recognizer = recognizer, .inputs = inputs_new(recognizer->options) };
    if (model->is_lstm) {
        const Shape size = shape(model->lstm.stack.layers, 1, model->lstm.stack.hidden);
        stream.lstm.hidden = tape_persistent(recognizer->tape, size);
        stream.lstm.cell = tape_persistent(recognizer->tape, size);
    } else {
        const GenerationConfig config = { .max_length = max_positions };
        stream.transformer = nn_transformer_state(&model->transformer, config);
    }
    return stream;
}

void stream_free(Stream *stream)
{
    inputs_free(&stream->inputs);
    nn_transformer_state_free(stream->transformer);
}

static void copy(Tensor *to, const Tensor *from)
{
    Real *values = allocate(tensor_count(from), sizeof *values);
    tensor_read(from, values);
    tensor_write(to, values);
    free(values);
}

/* x [1, model_inputs]; returns [1, hidden]. */
static Tensor *lstm_step(Stream *stream, Tape *tape, Tensor *x)
{
    LstmState state = stream->lstm;
    x = op_reshape(tape, x, shape(1, 1, tensor_count(x)));
    x = nn_lstm_forward(tape, &stream->recognizer->model.lstm, x, NULL, &state);
    copy(stream->lstm.hidden, state.hidden);
    copy(stream->lstm.cell, state.cell);
    return op_reshape(tape, x, shape(1, tensor_count(x)));
}

/* The logits of inputs that have become those of the next position. */
static bool step(Stream *stream)
{
    const Model *model = &stream->recognizer->model;
    Tape *tape = stream->recognizer->tape;
    const int64_t columns = model_inputs(stream->recognizer->options);
    Tensor *x = tape_input(tape, stream->inputs.values, shape(1, columns));
    x = model->is_lstm
            ? lstm_step(stream, tape, x)
            : nn_transformer_step(stream->transformer, nn_linear_forward(tape, &model->input, x));
    tensor_read(nn_linear_forward(tape, &model->head, x), stream->logits);
    tape_reset(tape);
    return true;
}

bool stream_next(Stream *stream, const Real *samples, int64_t count)
{
    memcpy(stream->samples + stream->count, samples, (size_t)count * sizeof *samples);
    stream->count += count;
    if (stream->count < WINDOW)
        return false;
    Real frame[FILTERS];
    log_mel(stream->recognizer->bank, stream->samples, WINDOW, frame);
    stream->count -= HOP;
    memmove(stream->samples, stream->samples + HOP, (size_t)stream->count * sizeof *samples);
    return inputs_next(&stream->inputs, frame) && step(stream);
}

bool stream_end(Stream *stream)
{
    return inputs_end(&stream->inputs) && step(stream);
}

/* ---------------------------------------------------------------------------------- the command */

enum { MAX_PENDING = 8 * MAX_PHONEMES };

/* The text that was found, and the times that it took. */
typedef struct Found {
    int32_t before;    /* the last position's symbol */
    int32_t *phonemes; /* of digits that are not printed yet */
    int64_t count;     /* of them */
    double *seconds;   /* of computation by block */
    int64_t blocks;
} Found;

/* Prints the digits of the phonemes so far when the last digit's are exact, or at the end; those
 * before the last digit when many phonemes wait. */
static void print_digits(Found *found, double heard, bool end)
{
    const int64_t n = found->count;
    int32_t *digits = allocate(n + 1, sizeof *digits), word[MAX_PHONEMES];
    int64_t *ends = allocate(n + 1, sizeof *ends);
    const int64_t count = digits_of_phonemes(found->phonemes, n, digits, ends);
    const int64_t start = count > 1 ? ends[count - 2] : 0;
    const int64_t length = count > 0 ? digit_phonemes(digits[count - 1], word) : 0;
    int64_t shown = 0, left = n;
    if (end || edits_total(edits_between(word, length, found->phonemes + start, n - start)) == 0) {
        shown = count;
        left = 0;
    } else if (n >= MAX_PENDING && count > 1) {
        shown = count - 1;
        left = n - start;
    }
    for (int64_t i = 0; i < shown; i++)
        printf("%7.2f  %s\n", heard, digit_names[digits[i]]);
    memmove(found->phonemes, found->phonemes + n - left, (size_t)left * sizeof *found->phonemes);
    found->count = left;
    free(digits);
    free(ends);
}

static void print_found(Found *found, const Stream *stream, double heard)
{
    const int32_t symbol = decode_next(stream->logits, SYMBOLS, &found->before);
    if (!symbol)
        return;
    printf("%7.2f    %s\n", heard, phoneme_names[symbol]);
    found->phonemes[found->count++] = symbol;
    print_digits(found, heard, false);
    fflush(stdout);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_latency(Found *found, const SpeechOptions *options, double sound)
{
    const int64_t n = found->blocks;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += found->seconds[i];
    qsort(found->seconds, (size_t)n, sizeof *found->seconds, ascending);
    /* The last sample of a position's frames is in the block that completes its last frame. */
    const int64_t frames = options->stride + options->lookahead;
    const int64_t blocks = ((frames - 1) * HOP + WINDOW + HOP - 1) / HOP;
    printf("\nlatency per frame of 10 ms: mean %.0f us, 99th percentile %.0f us, maximum %.0f us\n"
           "look-ahead %lld ms, from the beginning of a position's sound to its end\n"
           "%.2f s of sound in %.3f s: real-time factor %.4f\n",
           1e6 * sum / (double)n, 1e6 * found->seconds[(99 * n + 99) / 100 - 1],
           1e6 * found->seconds[n - 1], (long long)(blocks * 1000 * HOP / RATE), sound, sum,
           sum / sound);
}

/* Reads the file, by blocks of 10 ms. */
static void recognize(Stream *stream, WaveFile *file, Found *found)
{
    Real samples[HOP];
    Sentence sentence;
    double heard = 0;
    for (int64_t n; (n = wave_next(file, samples, HOP, &sentence)) != 0;) {
        if (n < 0)
            fail(EXIT_FAILURE, "%s", sentence.text);
        const double start = now();
        heard += (double)n / RATE;
        if (stream_next(stream, samples, n))
            print_found(found, stream, heard);
        found->seconds[found->blocks++] = now() - start;
    }
    const double start = now();
    while (stream_end(stream))
        print_found(found, stream, heard);
    print_digits(found, heard, true);
    found->seconds[found->blocks - 1] += now() - start;
}

int speech_stream(int argc, char **argv)
{
    SpeechOptions options;
    const char *path = options_parse(&speech_stream_command, argc, argv, &options).argument;
    speech_check_checkpoint(&options);
    if (!model_is_causal(&options))
        fail(BAD_USE, "--load %s: %s, expected a causal model: train --preset streaming",
             options.common.load, model_kind(&options));
    if (model_is_lsh(&options))
        fail(BAD_USE,
             "--load %s: %s, which has no decode steps; expected linear or softmax "
             "attention, or an LSTM",
             options.common.load, model_kind(&options));
    Sentence sentence;
    WaveFile *file = wave_open(path, &sentence);
    if (!file)
        fail(EXIT_FAILURE, "%s", sentence.text);
    const int64_t samples = wave_count(file), positions = model_positions(&options, samples);
    Recognizer recognizer = recognizer_new(&options, positions);
    Stream stream = stream_new(&recognizer, positions);
    Found found = { .phonemes = allocate(positions, sizeof(int32_t)),
                    .seconds = allocate(samples / HOP + 1, sizeof(double)) };
    puts("  heard  found");
    recognize(&stream, file, &found);
    print_latency(&found, &options, (double)samples / RATE);
    free(found.phonemes);
    free(found.seconds);
    stream_free(&stream);
    recognizer_free(&recognizer);
    wave_close(file);
    return EXIT_SUCCESS;
}
