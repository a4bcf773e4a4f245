/* Reading IDX files (as the MNIST database describes them):
 *
 *   4 bytes      0, 0, 8 (the elements are unsigned bytes), the number of axes
 *   4 bytes      for every axis: its size
 *   the rest     the elements, row-major
 *
 * All numbers are big-endian. zlib's gzread reads gzipped files and others alike; in the gzipped
 * ones it checks lengths and checksums. */
#include "examples/mnist/idx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* No file that these programs could use is larger: a larger one is damaged. */
#define LARGEST_DATA ((int64_t)1 << 32)
enum { FIRST_ROOM = 1 << 20 };

typedef struct Reader {
    const char *path;
    gzFile file;
    Sentence *sentence;
} Reader;

/* Reads so many bytes, or fewer where the file ends; returns how many, -1 when they cannot be read
 * or are not what was packed. */
static int64_t read_bytes(const Reader *reader, uint8_t *to, int64_t count)
{
    int64_t done = 0;
    for (int got = 1; done < count && got > 0; done += got > 0 ? got : 0) {
        int64_t piece = count - done < FIRST_ROOM ? count - done : FIRST_ROOM;
        got = gzread(reader->file, to + done, (unsigned)piece);
    }
    int code;
    const char *reason = gzerror(reader->file, &code);
    if (done == count || code == Z_OK)
        return done;
    size_t length = strlen(reader->path); /* zlib's own sentence begins with it, or says no more */
    if (strncmp(reason, reader->path, length) == 0 && reason[length] == ':')
        reason += length + 2;
    if (code == Z_ERRNO)
        sentence_write(reader->sentence, "%s: cannot be read: %s", reader->path, reason);
    else
        sentence_write(reader->sentence,
                       "%s: expected gzipped data without damage, but zlib says: %s", reader->path,
                       reason);
    return -1;
}

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool ends_in_header(const Reader *reader, IdxKind kind, int64_t bytes)
{
    return sentence_write(reader->sentence, "%s: ends after %lld bytes; expected a header of %d",
                          reader->path, (long long)bytes, 4 + 4 * (int)kind);
}

static bool read_magic(const Reader *reader, IdxKind kind)
{
    uint8_t bytes[4];
    int64_t got = read_bytes(reader, bytes, 4);
    if (got < 0)
        return false;
    const char *what = kind == IDX_IMAGES ? "images" : "labels";
    if (got == 0)
        return sentence_write(reader->sentence, "%s: is empty; expected an IDX file of %s",
                              reader->path, what);
    if (got < 4)
        return ends_in_header(reader, kind, got);
    uint32_t magic = big_endian(bytes), expected = 0x800 | (uint32_t)kind;
    return magic == expected ||
           sentence_write(reader->sentence,
                          "%s: begins with 0x%08x; expected 0x%08x, an IDX file of %s",
                          reader->path, magic, expected, what);
}

/* Reads the axes' sizes into size, those that the file lacks being 1; returns the bytes of data
 * that they ask for, or -1. */
static int64_t read_sizes(const Reader *reader, IdxKind kind, int64_t size[3])
{
    uint8_t bytes[12];
    int64_t got = read_bytes(reader, bytes, 4 * (int)kind), total = 1;
    if (got < 0)
        return -1;
    if (got < 4 * (int)kind) {
        ends_in_header(reader, kind, 4 + got);
        return -1;
    }
    for (int axis = 0; axis < 3; axis++) {
        size[axis] = axis < (int)kind ? big_endian(bytes + 4 * axis) : 1;
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

/* The data, to be freed. Memory is taken as the file proves that long. */
static uint8_t *read_data(const Reader *reader, int64_t total)
{
    uint8_t *data = NULL;
    for (int64_t room = 0, next; room < total; room = next) {
        next = room == 0 ? FIRST_ROOM : 2 * room;
        next = next < total ? next : total;
        uint8_t *larger = realloc(data, (size_t)next);
        int64_t got = -1;
        if (larger == NULL)
            sentence_write(reader->sentence, "%s: memory is exhausted at %lld bytes", reader->path,
                           (long long)next);
        else
            got = read_bytes(reader, (data = larger) + room, next - room);
        if (got == next - room)
            continue;
        if (got >= 0)
            sentence_write(reader->sentence,
                           "%s: its data end after %lld bytes; by its header there are %lld",
                           reader->path, (long long)(room + got), (long long)total);
        free(data);
        return NULL;
    }
    return data;
}

/* Whether the file ends here; this is also where zlib compares the checksums. */
static bool read_end(const Reader *reader, int64_t total)
{
    uint8_t byte;
    int64_t got = read_bytes(reader, &byte, 1);
    if (got > 0)
        sentence_write(reader->sentence,
                       "%s: goes on behind its data; by its header there are %lld bytes of them",
                       reader->path, (long long)total);
    return got == 0;
}

static bool read_all(const Reader *reader, IdxKind kind, Idx *idx)
{
    int64_t size[3];
    int64_t total = read_magic(reader, kind) ? read_sizes(reader, kind, size) : -1;
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

bool idx_read(const char *path, IdxKind kind, Idx *idx, Sentence *sentence)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return sentence_write(sentence, "%s: cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return sentence_write(sentence, "%s: %s; expected an IDX file", path,
                              S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file");
    gzFile file = gzopen(path, "rb");
    if (file == NULL)
        return sentence_write(sentence, "%s: cannot be read: %s", path, strerror(errno));
    bool good = read_all(&(Reader){ path, file, sentence }, kind, idx);
    gzclose_r(file);
    return good;
}

void idx_free(Idx *idx)
{
    free(idx->bytes);
    *idx = (Idx){ .bytes = NULL };
}

/* ---------------------------------------------------------------------------------------- MNIST */

/* Whether there is anything under this name: what it is, idx_read will say. */
static bool is_there(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 || errno != ENOENT;
}

bool idx_read_mnist(const char *directory, MnistPart part, IdxKind kind, Idx *idx,
                    Sentence *sentence)
{
    const char *prefix = part == MNIST_TRAINING ? "train" : "t10k";
    const char *suffix = kind == IDX_IMAGES ? "images-idx3-ubyte" : "labels-idx1-ubyte";
    size_t size = strlen(directory) + 64;
    char *path = malloc(size);
    if (path == NULL)
        return sentence_write(sentence, "%s: memory is exhausted", directory);
    snprintf(path, size, "%s/%s-%s", directory, prefix, suffix);
    if (!is_there(path))
        strcat(path, ".gz");
    bool good =
        is_there(path)
            ? idx_read(path, kind, idx, sentence)
            : sentence_write(
                  sentence,
                  "%s: there is no %s-%s, with or without .gz; expected the directory of the "
                  "MNIST database of handwritten digits (LeCun, Cortes and Burges), "
                  "whose files are usually named train-images-idx3-ubyte, "
                  "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
                  "t10k-labels-idx1-ubyte",
                  directory, prefix, suffix);
    free(path);
    return good;
}
