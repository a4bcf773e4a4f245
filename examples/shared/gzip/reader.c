/* zlib's gzread reads plain and gzipped files; of the latter it verifies lengths and checksums. */
#include "examples/shared/gzip/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 1 << 20 };

bool reader_open(Reader *reader, const char *path, const char *expected, Sentence *sentence)
{
    struct stat status;
    *reader = (Reader){ .path = path, .sentence = sentence };
    if (stat(path, &status) != 0)
        return sentence_write(sentence, "%s: cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return sentence_write(sentence, "%s: %s; expected %s", path,
                              S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file",
                              expected);
    reader->file = gzopen(path, "rb");
    return reader->file ||
           sentence_write(sentence, "%s: cannot be read: %s", path, strerror(errno));
}

void reader_close(Reader *reader)
{
    gzclose_r(reader->file);
}

int64_t reader_bytes(const Reader *reader, uint8_t *to, int64_t count)
{
    int64_t done = 0;
    for (int got = 1; done < count && got > 0; done += got > 0 ? got : 0) {
        int64_t piece = count - done < PIECE ? count - done : PIECE;
        got = gzread(reader->file, to + done, (unsigned)piece);
    }
    int code;
    const char *reason = gzerror(reader->file, &code);
    if (done == count || code == Z_OK)
        return done;
    size_t length = strlen(reader->path); /* some zlib messages start with the path */
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

bool reader_finds(char *path)
{
    struct stat status;
    const size_t length = strlen(path);
    for (int i = 0; i < 2; i++) {
        if (stat(path, &status) == 0 || errno != ENOENT)
            return true;
        strcpy(path + length, i == 0 ? READER_GZIPPED : "");
    }
    return false;
}
