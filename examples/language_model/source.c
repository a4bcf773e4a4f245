#include "examples/language_model/source.h"
#include "examples/shared/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { BUFFER = 1 << 16 };

/* zlib's gzread reads plain and gzipped files; of the latter it verifies lengths and checksums. */
struct Source {
    const char *name;
    gzFile file; /* NULL: a string */
    const uint8_t *at, *end;
    int64_t before; /* bytes removed with earlier buffers */
    const uint8_t *start;
    uint8_t buffer[BUFFER];
};

Source *source_open(const char *path, Sentence *sentence)
{
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) { /* opening a FIFO would block */
        sentence_write(sentence, "%s is not a regular file", path);
        return NULL;
    }
    gzFile file = gzopen(path, "rb");
    if (!file) {
        sentence_write(sentence, "%s: %s", path, strerror(errno));
        return NULL;
    }
    Source *source = allocate(1, sizeof *source);
    source->name = path;
    source->file = file;
    source->at = source->end = source->start = source->buffer;
    return source;
}

Source *source_of_string(const char *string)
{
    Source *source = allocate(1, sizeof *source);
    source->name = "the text";
    source->at = source->start = (const uint8_t *)string;
    source->end = source->at + strlen(string);
    return source;
}

bool source_close(Source *source, Sentence *sentence)
{
    int code = Z_OK;
    const char *reason = source->file ? gzerror(source->file, &code) : "";
    const bool ok = code == Z_OK || code == Z_STREAM_END;
    if (!ok)
        sentence_write(sentence, "%s: expected text, or gzipped text without damage: %s",
                       source->name, code == Z_ERRNO ? strerror(errno) : reason);
    if (source->file)
        gzclose_r(source->file);
    free(source);
    return ok;
}

int source_peek(Source *source)
{
    if (source->at == source->end && source->file) {
        const int got = gzread(source->file, source->buffer, BUFFER);
        source->before += source->end - source->start;
        source->at = source->start = source->buffer;
        source->end = source->buffer + (got > 0 ? got : 0);
    }
    return source->at < source->end ? *source->at : -1;
}

int source_next(Source *source)
{
    const int byte = source_peek(source);
    source->at += byte >= 0;
    return byte;
}

const char *source_name(const Source *source)
{
    return source->name;
}

int64_t source_position(const Source *source)
{
    return source->before + (source->at - source->start);
}
