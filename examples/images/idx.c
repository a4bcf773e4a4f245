/* The IDX format, as the MNIST database describes it:
 *
 *   4 bytes      0, 0, 8 (elements are unsigned bytes), the number of axes
 *   4 bytes      the size of an axis, for every axis
 *   the rest     the elements, row-major
 *
 * Numbers are big-endian. */
#include "examples/images/idx.h"
#include "examples/shared/gzip/reader.h"

#include <stdlib.h>
#include <string.h>

/* A header that promises more data than this is damaged. */
#define LARGEST_DATA ((int64_t)1 << 32)
enum { AXES = 3, HEADER = 4 + 4 * AXES, FIRST_CAPACITY = 1 << 20 };

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool ends_in_header(const Reader *reader, int64_t bytes)
{
    return sentence_write(reader->sentence, "%s: ends after %lld bytes; expected a header of %d",
                          reader->path, (long long)bytes, HEADER);
}

static bool read_magic(const Reader *reader)
{
    uint8_t bytes[4];
    int64_t got = reader_bytes(reader, bytes, 4);
    if (got < 0)
        return false;
    if (got == 0)
        return sentence_write(reader->sentence, "%s: is empty; expected an IDX file of images",
                              reader->path);
    if (got < 4)
        return ends_in_header(reader, got);
    uint32_t magic = big_endian(bytes), expected = 0x800 | AXES;
    return magic == expected ||
           sentence_write(reader->sentence,
                          "%s: begins with 0x%08x; expected 0x%08x, an IDX file of images",
                          reader->path, magic, expected);
}

/* Reads the sizes of the axes. Returns the number of data bytes that they imply, or -1. */
static int64_t read_sizes(const Reader *reader, int64_t size[AXES])
{
    uint8_t bytes[4 * AXES];
    int64_t got = reader_bytes(reader, bytes, 4 * AXES), total = 1;
    if (got < 0)
        return -1;
    if (got < 4 * AXES) {
        ends_in_header(reader, 4 + got);
        return -1;
    }
    for (int axis = 0; axis < AXES; axis++) {
        size[axis] = big_endian(bytes + 4 * axis);
        total = size[axis] > 0 && total <= LARGEST_DATA / size[axis] ? total * size[axis] : 0;
    }
    if (total > 0)
        return total;
    sentence_write(reader->sentence,
                   "%s: its sizes are %lld x %lld x %lld; expected 1 or more each, and %lld bytes "
                   "in all at most",
                   reader->path, (long long)size[0], (long long)size[1], (long long)size[2],
                   (long long)LARGEST_DATA);
    return -1;
}

/* Reads the data, to be freed. The buffer grows with the data read, so a damaged header does not
 * allocate its promised size. */
static uint8_t *read_data(const Reader *reader, int64_t total)
{
    uint8_t *data = NULL;
    for (int64_t capacity = 0, next; capacity < total; capacity = next) {
        next = capacity == 0 ? FIRST_CAPACITY : 2 * capacity;
        next = next < total ? next : total;
        uint8_t *larger = realloc(data, (size_t)next);
        int64_t got = -1;
        if (larger == NULL)
            sentence_write(reader->sentence, "%s: memory is exhausted at %lld bytes", reader->path,
                           (long long)next);
        else
            got = reader_bytes(reader, (data = larger) + capacity, next - capacity);
        if (got == next - capacity)
            continue;
        if (got >= 0)
            sentence_write(reader->sentence,
                           "%s: its data end after %lld bytes; expected %lld by its header",
                           reader->path, (long long)(capacity + got), (long long)total);
        free(data);
        return NULL;
    }
    return data;
}

/* Returns whether the file ends here; zlib verifies the checksum at this point. */
static bool read_end(const Reader *reader, int64_t total)
{
    uint8_t byte;
    int64_t got = reader_bytes(reader, &byte, 1);
    if (got > 0)
        sentence_write(reader->sentence,
                       "%s: continues after its data; expected %lld bytes of data by its header",
                       reader->path, (long long)total);
    return got == 0;
}

static bool read_all(const Reader *reader, Idx *idx)
{
    int64_t size[AXES];
    int64_t total = read_magic(reader) ? read_sizes(reader, size) : -1;
    uint8_t *bytes = total > 0 ? read_data(reader, total) : NULL;
    if (bytes == NULL)
        return false;
    if (!read_end(reader, total)) {
        free(bytes);
        return false;
    }
    *idx = (Idx){ .count = size[0], .rows = size[1], .columns = size[2], .bytes = bytes };
    return true;
}

bool idx_read(const char *path, Idx *idx, Sentence *sentence)
{
    Reader reader;
    if (!reader_open(&reader, path, "an IDX file", sentence))
        return false;
    bool ok = read_all(&reader, idx);
    reader_close(&reader);
    return ok;
}

void idx_free(Idx *idx)
{
    free(idx->bytes);
    *idx = (Idx){ .bytes = NULL };
}

/* ---------------------------------------------------------------------------------------- MNIST */

char *idx_find_mnist(const char *directory, bool training, Sentence *sentence)
{
    static const char *const names[] = { "t10k-images", "train-images" };
    const size_t size = strlen(directory) + 64;
    char *path = malloc(size);
    if (path == NULL) {
        sentence_write(sentence, "%s: memory is exhausted", directory);
        return NULL;
    }
    for (const char *separator = "-."; *separator; separator++) {
        snprintf(path, size, "%s/%s%cidx3-ubyte", directory, names[training], *separator);
        if (reader_finds(path))
            return path;
    }
    free(path);
    sentence_write(sentence,
                   "%s: there is no %s-idx3-ubyte, with or without .gz; expected the directory of "
                   "the MNIST database of handwritten digits (LeCun, Cortes and Burges), whose "
                   "files of images are usually named train-images-idx3-ubyte and "
                   "t10k-images-idx3-ubyte",
                   directory, names[training]);
    return NULL;
}
