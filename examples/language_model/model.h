/* The language model: predicts every token from the previous ones. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_MODEL_H
#define TAPEGRAD_LANGUAGE_MODEL_MODEL_H

#include "examples/language_model/options.h"
#include "examples/language_model/tokens.h"

/* Pre-norm, gelu, and the output tied to the embedding, as in GPT-2. */
typedef struct Model {
    Embedding embedding; /* [vocabulary, width] */
    Tensor *positions;   /* [context, width], or NULL */
    Transformer transformer;
    Dropout dropout;
    int64_t context;
    bool rotary;
} Model;

/* A frozen weight "vocabulary" holds the vocabulary's items, so that a checkpoint is complete. */
Model model_new(Params *params, const LanguageOptions *options, const Vocabulary *vocabulary);

/* The vocabulary of a checkpoint. */
bool model_vocabulary(Vocabulary *vocabulary, TokenKind kind, const char *path, Sentence *sentence);

/* tokens int32 [B, n]: the first layer's input, [B, n, width]. */
Tensor *model_embed(Tape *tape, const Model *model, Tensor *tokens);

/* tokens int32 [B, n]: the logits of each next token, [B, n, vocabulary]. */
Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens);

/* Windows of a text, with the token after each token. */
typedef struct Batch {
    int64_t size, length;
    int32_t *tokens, *targets; /* [size, length] */
    Real *weights;             /* [size, length]: 0 after the end of the text */
} Batch;

Batch batch_new(int64_t size, int64_t length);
void batch_free(Batch *batch);
/* Row `row` becomes the window from token start on. */
void batch_set(Batch *batch, int64_t row, const Tokens *tokens, int64_t start);
/* The number of targets that count, and of their bytes. */
int64_t batch_targets(const Batch *batch);
int64_t batch_bytes(const Batch *batch, const Vocabulary *vocabulary);

/* A sum over targets. */
typedef struct Loss {
    double nats;
    int64_t targets, bytes;
} Loss;
double loss_nats(Loss loss); /* per token */
double loss_bits(Loss loss); /* per byte */

/* Decode steps; the tape is not training and not recording. */
typedef struct Generator Generator;
Generator *generator_new(const Model *model, Tape *tape, GenerationConfig config);
void generator_free(Generator *generator);

/* The logits of the token after the history's last one, [1, vocabulary], by one decode step. Every
 * context / 2 tokens the state is rebuilt from the last context / 2 ones, since a model does not
 * extrapolate beyond the windows that it was trained on. */
Tensor *generator_next(Generator *generator, const int32_t *history, int64_t count);

/* Prints the prompt and `length` more tokens; false, with the sentence, if the vocabulary lacks a
 * character of the prompt. */
bool generate(Generator *generator, const Vocabulary *vocabulary, const char *prompt,
              int64_t length, Sampling sampling, Sentence *sentence);

/* The loss of all tokens but the first by decode steps, in windows as in training, config.sequences
 * at a time. */
Loss loss_by_steps(const Model *model, Tape *tape, GenerationConfig config, const Tokens *tokens,
                   const Vocabulary *vocabulary);

#endif
