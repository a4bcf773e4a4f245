/* A text as a stream of bytes: a file, plain or gzipped, or a string. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_SOURCE_H
#define TAPEGRAD_LANGUAGE_MODEL_SOURCE_H

#include "examples/shared/sentence.h"

#include <stdint.h>

typedef struct Source Source;

/* NULL, with the sentence, if the file cannot be opened. */
Source *source_open(const char *path, Sentence *sentence);
/* The string must outlive the source. */
Source *source_of_string(const char *string);
/* Closes and frees it. False, with the sentence, if the file could not be read to its end, as a
 * damaged gzip file. */
bool source_close(Source *source, Sentence *sentence);

/* The next byte, which source_next also removes, or -1 at the end. */
int source_peek(Source *source);
int source_next(Source *source);

const char *source_name(const Source *source);
/* The bytes that were removed so far. */
int64_t source_position(const Source *source);

#endif
