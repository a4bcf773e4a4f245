/* Strings of spoken digits, joined from the recordings of the Free Spoken Digit Dataset (Jackson
 * and others, CC BY-SA 4.0) with random silences, and their phonemes. */
#ifndef TAPEGRAD_SPEECH_DATA_H
#define TAPEGRAD_SPEECH_DATA_H

#include "examples/shared/options.h"
#include "examples/speech/features.h"

enum {
    DIGITS = 10,
    PHONEMES = 19,          /* symbols 1 to 19 */
    SYMBOLS = 1 + PHONEMES, /* symbol 0 is the blank */
    MAX_PHONEMES = 5,       /* of a digit */
    MAX_DIGITS = 50,        /* of a string */
};

extern const char *const phoneme_names[SYMBOLS]; /* of the CMU pronouncing dictionary; [0]: "" */
extern const char *const digit_names[DIGITS];

/* A digit's phonemes [MAX_PHONEMES], their number. */
int64_t digit_phonemes(int digit, int32_t *phonemes);

/* The digits whose phonemes, one digit after another, need the fewest edits to become these.
 * digits [n] and ends [n]: the phonemes of digit i end before ends[i]. Returns the number of
 * digits. */
int64_t digits_of_phonemes(const int32_t *phonemes, int64_t n, int32_t *digits, int64_t *ends);

typedef struct Recording {
    int digit, speaker, index;
    Wave wave;
} Recording;

typedef enum { PART_TRAINING, PART_VALIDATION, PART_TEST, PARTS } Part;

/* The recordings, sorted by speaker, and those of each part by number. */
typedef struct Corpus {
    Recording *recordings;
    int64_t count;
    int speakers;
    int32_t *part[PARTS];
    int64_t part_count[PARTS];
} Corpus;

/* Reads the files DIGIT_SPEAKER_INDEX.wav of a folder or of recordings/ in it; ends the program on
 * an error, or if an option names one of them to be written. Test: the recordings 0 to 4, as the
 * data set's authors have it, or, by speaker, all recordings of the last two speakers by name, none
 * of whom is heard in training. Validation: of the others those from 45 on. Training: the rest. */
Corpus corpus_read(const Given *given, const char *folder, bool by_speaker);
void corpus_free(Corpus *corpus);

/* A string: samples and the phonemes of its digits. */
typedef struct Utterance {
    Wave wave;
    int64_t digits, phonemes;
    int32_t digit[MAX_DIGITS], phoneme[MAX_DIGITS * MAX_PHONEMES];
} Utterance;

/* Draws a string of one speaker of the part, with a silence of up to 0.3 s before each digit and
 * after the last, and white noise 30 to 50 dB below the speech. digits: at most MAX_DIGITS. */
Utterance utterance_draw(const Corpus *corpus, Part part, int64_t digits, Random *random);
void utterance_free(Utterance *utterance);

/* No string of these digits has more samples. */
int64_t string_samples(const Corpus *corpus, int64_t digits);

#endif
