/* Error rates of a model on strings of digits. */
#ifndef TAPEGRAD_SPEECH_SCORE_H
#define TAPEGRAD_SPEECH_SCORE_H

#include "examples/speech/decode.h"
#include "examples/speech/model.h"

/* Strings drawn by seed and number: the same in every run. */
typedef struct Strings {
    const SpeechOptions *options;
    const Corpus *corpus;
    const FilterBank *bank;
    Part part;
    uint64_t seed;
} Strings;

/* String `number` of the part; digits 0: --min-digits to --max-digits of them. */
Utterance string_draw(const Strings *strings, int64_t number, int64_t digits);

typedef struct Score {
    Edits greedy, beam; /* of phonemes */
    Edits digits;       /* of the better decoder, which is the beam's if there is one */
} Score;

/* The score of the first count strings. beam: the width of the beam search; 0: greedy only. */
Score score_strings(const Strings *strings, Tape *tape, const Model *model, int64_t count,
                    int64_t beam);

#endif
