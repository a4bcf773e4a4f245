#include "examples/speech/score.h"
#include "examples/shared/program.h"

#include <stdlib.h>

Utterance string_draw(const Strings *strings, int64_t number, int64_t digits)
{
    static const char *const streams[PARTS] = { "speech training", "speech validation",
                                                "speech test" };
    Random random = random_new(strings->seed, random_stream(streams[strings->part]));
    random.counter = (uint64_t)number << 32;
    if (!digits)
        digits =
            random_integer(&random, strings->options->min_digits, strings->options->max_digits + 1);
    return utterance_draw(strings->corpus, strings->part, digits, &random);
}

static Score score_one(const Utterance *utterance, Logits logits, int64_t beam)
{
    int32_t *text = allocate(logits.frames, sizeof *text),
            *digits = allocate(logits.frames, sizeof *digits);
    int64_t *ends = allocate(logits.frames, sizeof *ends);
    Score score = { 0 };
    int64_t n = decode_greedy(logits, text);
    score.greedy = edits_between(utterance->phoneme, utterance->phonemes, text, n);
    if (beam > 0) {
        n = decode_beam(logits, beam, text, NULL);
        score.beam = edits_between(utterance->phoneme, utterance->phonemes, text, n);
    }
    n = digits_of_phonemes(text, n, digits, ends);
    score.digits = edits_between(utterance->digit, utterance->digits, digits, n);
    free(text);
    free(digits);
    free(ends);
    return score;
}

/* The scores of utterances [size]. */
static void score_batch(const Strings *strings, Tape *tape, const Model *model,
                        const Utterance *utterances, int64_t size, int64_t beam, Score *scores)
{
    Batch batch = batch_new(strings->options, strings->bank, utterances, size);
    Tensor *lengths, *logits = model_forward(tape, model, &batch, &lengths);
    const int64_t elements = batch.positions * SYMBOLS;
    Real *values = allocate(size * elements, sizeof *values);
    tensor_read(logits, values);
    tape_reset(tape);
#pragma omp parallel for schedule(dynamic)
    for (int64_t b = 0; b < size; b++)
        scores[b] = score_one(&utterances[b],
                              (Logits){ values + b * elements, batch.lengths[b], SYMBOLS }, beam);
    free(values);
    batch_free(&batch);
}

Score score_strings(const Strings *strings, Tape *tape, const Model *model, int64_t count,
                    int64_t beam)
{
    enum { TOGETHER = 16 };
    Score sum = { 0 };
    tape_seed(tape, strings->seed); /* of the hashes of LSH attention */
    for (int64_t first = 0; first < count; first += TOGETHER) {
        const int64_t size = count - first < TOGETHER ? count - first : TOGETHER;
        Utterance utterances[TOGETHER];
        Score scores[TOGETHER];
        for (int64_t b = 0; b < size; b++)
            utterances[b] = string_draw(strings, first + b, 0);
        score_batch(strings, tape, model, utterances, size, beam, scores);
        for (int64_t b = 0; b < size; b++) {
            edits_add(&sum.greedy, scores[b].greedy);
            edits_add(&sum.beam, scores[b].beam);
            edits_add(&sum.digits, scores[b].digits);
            utterance_free(&utterances[b]);
        }
    }
    return sum;
}
