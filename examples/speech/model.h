/* The acoustic model: from the features of utterances to logits of SYMBOLS per position. */
#ifndef TAPEGRAD_SPEECH_MODEL_H
#define TAPEGRAD_SPEECH_MODEL_H

#include "examples/speech/data.h"
#include "examples/speech/options.h"

enum {
    TARGETS = LONGEST_STRING * MOST_PHONEMES,
    STRING_POSITIONS = 4096, /* more than a string of ten long recordings has */
};

typedef struct Model {
    bool is_lstm;
    Lstm lstm;         /* bidirectional: [model_inputs] to [2 hidden] */
    Linear input;      /* of the transformer: [model_inputs] to [width] */
    Tensor *positions; /* [max_positions, width] */
    Transformer transformer;
    Linear head; /* to [SYMBOLS] */
} Model;

/* max_positions: of the longest utterance. */
Model model_new(Params *params, const SpeechOptions *options, int64_t max_positions);

/* For titles: "linear attention". */
const char *model_kind(const SpeechOptions *options);

/* A position stands for `stride` frames, and sees `context` frames more on either side: the number
 * of its values, the number of positions for a number of samples, and the second at which its
 * frames begin. */
int64_t model_inputs(const SpeechOptions *options);
int64_t model_positions(const SpeechOptions *options, int64_t samples);
double model_seconds(const SpeechOptions *options, int64_t position);

/* Utterances in host memory. */
typedef struct Batch {
    int64_t size, positions, columns; /* columns: model_inputs */
    Real *inputs;                     /* [size, positions, columns], 0 after an utterance's end */
    int32_t *lengths;                 /* [size], in positions */
    int32_t *targets;                 /* [size, TARGETS] */
    int32_t *target_lengths;          /* [size] */
} Batch;
Batch batch_new(const SpeechOptions *options, const FilterBank *bank, const Utterance *utterances,
                int64_t size);
void batch_free(Batch *batch);

/* Logits [size, positions, SYMBOLS]; *lengths becomes the batch's lengths on the tape. */
Tensor *model_forward(Tape *tape, const Model *model, const Batch *batch, Tensor **lengths);

/* A trained model, for commands that do not train. */
typedef struct Recogniser {
    const SpeechOptions *options;
    Params *params;
    Tape *tape; /* records nothing */
    FilterBank *bank;
    Model model;
} Recogniser;

/* Reads the weights of options.checkpoint; ends the program on an error. */
Recogniser recogniser_new(const SpeechOptions *options, int64_t max_positions);
void recogniser_free(Recogniser *recogniser);

#endif
