/* Reader of files of data, gzipped or not. */
#ifndef TAPEGRAD_READER_H
#define TAPEGRAD_READER_H

#include "examples/shared/sentence.h"

#include <stdint.h>
#include <zlib.h>

#define READER_GZIPPED ".gz"

/* On errors the functions write the sentence, which begins with the path. */
typedef struct Reader {
    const char *path;
    gzFile file;
    Sentence *sentence;
} Reader;

/* expected: what file, for the sentence. Returns false on an error. */
bool reader_open(Reader *reader, const char *path, const char *expected, Sentence *sentence);
void reader_close(Reader *reader);

/* Reads count bytes, or fewer at the end of the file; returns the number, or -1 on a read error or
 * a failed gzip check. */
int64_t reader_bytes(const Reader *reader, uint8_t *to, int64_t count);

/* Whether the path exists; else whether it does with .gz, which is appended: the array of path is
 * large enough. Of any kind: reader_open reports if it is no regular file. */
bool reader_finds(char *path);

#endif
