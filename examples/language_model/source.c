#include "examples/language_model/source.h"
#include "examples/shared/program.h"
#include "examples/shared/gzip/reader.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 16 };

struct Source {
    const char *name;
    Reader reader; /* of a file; path NULL: of a string */
    Sentence damage;
    bool damaged;
    const uint8_t *at, *end;
    int64_t before; /* bytes removed with earlier buffers */
    const uint8_t *start;
    uint8_t buffer[BUFFER];
};

Source *source_open(const char *path, Sentence *sentence)
{
    Source *source = allocate(1, sizeof *source);
    if (!reader_open(&source->reader, path, "a text", sentence)) {
        free(source);
        return NULL;
    }
    source->name = path;
    source->reader.sentence = &source->damage;
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
    const bool ok = !source->damaged;
    if (!ok)
        *sentence = source->damage;
    if (source->reader.path)
        reader_close(&source->reader);
    free(source);
    return ok;
}

int source_peek(Source *source)
{
    if (source->at == source->end && source->reader.path && !source->damaged) {
        const int64_t got = reader_bytes(&source->reader, source->buffer, BUFFER);
        source->damaged = got < 0;
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
