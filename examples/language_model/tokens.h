/* The tokens of a text file. They are encoded once, as a stream, into an unnamed temporary file of
 * two bytes per token ($TMPDIR, else /tmp), which is mapped: so windows are read at random from
 * texts that are compressed, or larger than memory. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_TOKENS_H
#define TAPEGRAD_LANGUAGE_MODEL_TOKENS_H

#include "examples/language_model/vocabulary.h"

typedef struct Tokens {
    const uint16_t *data; /* [count] */
    int64_t count;
    const uint16_t *map; /* the mapped file that data is in; [mapped] */
    int64_t mapped;
} Tokens;

/* Encodes the file at path. False, with the sentence, also if it has no token. */
bool tokens_read(Tokens *tokens, const Vocabulary *vocabulary, const char *path,
                 Sentence *sentence);
void tokens_free(Tokens *tokens);

/* Splits off the last `part` of the tokens: nanoGPT's first 90 % and last 10 % are part 0.1. The
 * result shares the memory of tokens. */
Tokens tokens_split(Tokens *tokens, double part);

#endif
