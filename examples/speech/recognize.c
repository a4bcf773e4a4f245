#include "examples/shared/gnuplot.h"
#include "examples/shared/program.h"
#include "examples/speech/decode.h"
#include "examples/speech/model.h"
#include "examples/speech/picture.h"

#include <stdio.h>
#include <stdlib.h>

static Wave read_file(const char *path)
{
    Wave wave;
    Sentence sentence;
    if (!wave_read(path, &wave, &sentence))
        fail(EXIT_FAILURE, "%s", sentence.text);
    return wave;
}

int speech_features(int argc, char **argv)
{
    SpeechOptions options;
    const char *path = options_parse(&speech_features_command, argc, argv, &options).argument;
    if (!options.common.plot)
        fail(BAD_USE, "features: expected --plot FILE, a PNG or an SVG");
    option_check_file("plot", options.common.plot);
    gnuplot_check(options.common.plot);
    Wave wave = read_file(path);
    FilterBank *bank = filter_bank_new();
    const bool ok = picture_draw(options.common.plot, bank, &wave, NULL, 0);
    if (ok)
        printf("%s: %lld frames of %d filters, %.2f s\n", options.common.plot,
               (long long)frame_count(wave.count), FILTERS, (double)wave.count / RATE);
    filter_bank_free(bank);
    wave_free(&wave);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---------------------------------------------------------------------------------- recognition */

/* The text of an utterance and the frames that emit it. */
typedef struct Result {
    int32_t *phonemes, *digits;
    Interval *intervals; /* of the phonemes, in positions */
    int64_t *ends;       /* of the digits, in phonemes */
    int64_t phoneme_count, digit_count;
} Result;

static Result recognize(const Recognizer *recognizer, const Wave *wave)
{
    const SpeechOptions *options = recognizer->options;
    Utterance utterance = { .wave = *wave };
    Batch batch = batch_new(options, recognizer->bank, &utterance, 1);
    Tensor *lengths, *out = model_forward(recognizer->tape, &recognizer->model, &batch, &lengths);
    const int64_t n = batch.positions;
    Real *values = allocate(n * SYMBOLS, sizeof *values);
    tensor_read(out, values);
    const Logits logits = { values, n, SYMBOLS };
    Result result = { .phonemes = allocate(n, sizeof(int32_t)),
                      .digits = allocate(n, sizeof(int32_t)),
                      .intervals = allocate(n, sizeof(Interval)),
                      .ends = allocate(n, sizeof(int64_t)) };
    result.phoneme_count = decode_beam(logits, options->beam, result.phonemes, NULL);
    decode_align(logits, result.phonemes, result.phoneme_count, result.intervals);
    result.digit_count =
        digits_of_phonemes(result.phonemes, result.phoneme_count, result.digits, result.ends);
    free(values);
    batch_free(&batch);
    return result;
}

static void result_free(Result *result)
{
    free(result->phonemes);
    free(result->digits);
    free(result->intervals);
    free(result->ends);
}

/* The marks of the phonemes, then those of the digits. */
static Mark *marks_of(const Result *result, const SpeechOptions *options)
{
    Mark *marks = allocate(result->phoneme_count + result->digit_count + 1, sizeof *marks);
    for (int64_t i = 0; i < result->phoneme_count; i++)
        marks[i] = (Mark){ model_seconds(options, result->intervals[i].start),
                           model_seconds(options, result->intervals[i].end),
                           phoneme_names[result->phonemes[i]], 0 };
    for (int64_t d = 0, i = 0; d < result->digit_count; i = result->ends[d++])
        marks[result->phoneme_count + d] = (Mark){ marks[i].start, marks[result->ends[d] - 1].end,
                                                   digit_names[result->digits[d]], 1 };
    return marks;
}

static void print_result(const Result *result, const Mark *marks)
{
    printf("digits  ");
    for (int64_t d = 0; d < result->digit_count; d++)
        printf(" %d", result->digits[d]);
    printf("\nphonemes");
    for (int64_t i = 0; i < result->phoneme_count; i++)
        printf(" %s", phoneme_names[result->phonemes[i]]);
    printf("\n\n  start    end\n");
    for (int64_t d = 0, i = 0; d < result->digit_count; d++) {
        const Mark *digit = &marks[result->phoneme_count + d];
        printf("%7.2f %6.2f  %s\n", digit->start, digit->end, digit->text);
        for (; i < result->ends[d]; i++)
            printf("%7.2f %6.2f    %s\n", marks[i].start, marks[i].end, marks[i].text);
    }
}

int speech_recognize(int argc, char **argv)
{
    SpeechOptions options;
    const char *path = options_parse(&speech_recognize_command, argc, argv, &options).argument;
    speech_check_checkpoint(&options);
    option_check_file("plot", options.common.plot);
    gnuplot_check(options.common.plot);
    Wave wave = read_file(path);
    Recognizer recognizer = recognizer_new(&options, model_positions(&options, wave.count));
    Result result = recognize(&recognizer, &wave);
    Mark *marks = marks_of(&result, &options);
    print_result(&result, marks);
    const bool ok =
        !options.common.plot || picture_draw(options.common.plot, recognizer.bank, &wave, marks,
                                             result.phoneme_count + result.digit_count);
    free(marks);
    result_free(&result);
    recognizer_free(&recognizer);
    wave_free(&wave);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
