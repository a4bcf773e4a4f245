/* The acoustic model: from the features of utterances to logits of SYMBOLS per position. */
#ifndef TAPEGRAD_SPEECH_MODEL_H
#define TAPEGRAD_SPEECH_MODEL_H

#include "examples/speech/data.h"
#include "examples/speech/options.h"

typedef struct Model {
    bool is_lstm;
    Lstm lstm;         /* [model_inputs] to [hidden], or [2 hidden] unless causal */
    Linear input;      /* of the transformer: [model_inputs] to [width] */
    Tensor *positions; /* [max_positions, width]; NULL: causal, the mask shows the order */
    Transformer transformer;
    Linear head; /* to [SYMBOLS] */
} Model;

/* max_positions: of the longest utterance. */
Model model_new(Params *params, const SpeechOptions *options, int64_t max_positions);

/* For titles: "linear attention". */
const char *model_kind(const SpeechOptions *options);
bool model_is_causal(const SpeechOptions *options);
bool model_is_lsh(const SpeechOptions *options);

/* A position stands for `stride` frames, and reads `context` frames before and `lookahead` frames
 * after these: the number of its values, the number of positions for a number of samples, and the
 * second at which its frames begin. */
int64_t model_inputs(const SpeechOptions *options);
int64_t model_positions(const SpeechOptions *options, int64_t samples);
double model_seconds(const SpeechOptions *options, int64_t position);

/* The inputs of positions, frame by frame. A causal model's frames are normalized here, by
 * normalize_next; those of other models before, by normalize_frames. Beyond the ends of the sound
 * the end frames repeat. */
typedef struct Inputs {
    const SpeechOptions *options;
    Normalizer normalizer;
    int64_t frames, appended, positions; /* so far; appended: with those after the end */
    Real *values;                        /* [model_inputs]: the last frames */
} Inputs;
Inputs inputs_new(const SpeechOptions *options);
void inputs_free(Inputs *inputs);

/* Appends a frame [FILTERS]; after the last one, inputs_end until it returns false. Both return
 * whether values have become the inputs of the next position. */
bool inputs_next(Inputs *inputs, const Real *frame);
bool inputs_end(Inputs *inputs);

/* Utterances in host memory. */
typedef struct Batch {
    int64_t size, positions, columns; /* columns: model_inputs */
    int64_t phonemes;                 /* the maximum of an utterance, or 1 */
    Real *inputs;                     /* [size, positions, columns], 0 after an utterance's end */
    int32_t *lengths;                 /* [size], in positions */
    int32_t *targets;                 /* [size, phonemes] */
    int32_t *target_lengths;          /* [size] */
} Batch;
Batch batch_new(const SpeechOptions *options, const FilterBank *bank, const Utterance *utterances,
                int64_t size);
void batch_free(Batch *batch);

/* Logits [size, positions, SYMBOLS]; *lengths becomes the batch's lengths on the tape. */
Tensor *model_forward(Tape *tape, const Model *model, const Batch *batch, Tensor **lengths);

/* A trained model, for commands that do not train. */
typedef struct Recognizer {
    const SpeechOptions *options;
    Params *params;
    Tape *tape; /* records nothing */
    FilterBank *bank;
    Model model;
} Recognizer;

/* Reads the weights of options.common.load; ends the program on an error. */
Recognizer recognizer_new(const SpeechOptions *options, int64_t max_positions);
void recognizer_free(Recognizer *recognizer);

#endif
