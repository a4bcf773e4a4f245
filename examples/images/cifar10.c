/* The binary format, as CIFAR-10's page describes it: for every image
 *
 *   1 byte        the label, 0 to 9
 *   1024 bytes    the red values, row by row
 *   1024 bytes    the green values
 *   1024 bytes    the blue values */
#include "examples/images/cifar10.h"
#include "examples/shared/gzip/reader.h"

#include <stdlib.h>
#include <string.h>

enum { PLANE = CIFAR10_SIDE * CIFAR10_SIDE, RECORD = 1 + CIFAR10_BYTES };

/* Appends a record to images, whose capacity is doubled when it is full. */
static bool append(const Reader *reader, const uint8_t *record, Cifar10 *images, int64_t *capacity)
{
    if (images->count == *capacity) {
        const int64_t larger = *capacity ? 2 * *capacity : 1024;
        uint8_t *bytes = realloc(images->bytes, (size_t)(larger * CIFAR10_BYTES));
        images->bytes = bytes ? bytes : images->bytes;
        if (!bytes)
            return sentence_write(reader->sentence, "%s: memory is exhausted at %lld images",
                                  reader->path, (long long)larger);
        *capacity = larger;
    }
    uint8_t *to = images->bytes + images->count++ * CIFAR10_BYTES;
    for (int i = 0; i < CIFAR10_BYTES; i++)
        to[i] = record[1 + i % CIFAR10_CHANNELS * PLANE + i / CIFAR10_CHANNELS];
    return true;
}

static bool read_records(const Reader *reader, Cifar10 *images, int64_t *capacity)
{
    uint8_t record[RECORD];
    for (int64_t i = 0;; i++) {
        const int64_t got = reader_bytes(reader, record, RECORD);
        if (got < 0)
            return false;
        if (got == 0 && i > 0)
            return true;
        if (got < RECORD)
            return sentence_write(reader->sentence,
                                  "%s: ends after %lld bytes; expected one or more records of %d",
                                  reader->path, (long long)(i * RECORD + got), RECORD);
        if (record[0] >= CIFAR10_CLASSES)
            return sentence_write(reader->sentence,
                                  "%s: the label of image %lld is %d; expected 0 to %d",
                                  reader->path, (long long)i, record[0], CIFAR10_CLASSES - 1);
        if (!append(reader, record, images, capacity))
            return false;
    }
}

static bool read_file(const char *path, Cifar10 *images, int64_t *capacity, Sentence *sentence)
{
    Reader reader;
    if (!reader_open(&reader, path, "a file of CIFAR-10", sentence))
        return false;
    const bool ok = read_records(&reader, images, capacity);
    reader_close(&reader);
    return ok;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The paths of DIRECTORY/PATTERN.bin and of those with .gz, sorted; false: there are none */
static bool find_files(const char *directory, const char *pattern, glob_t *found)
{
    char *path = malloc(strlen(directory) * 2 + 64), *to = path;
    if (!path)
        return false;
    for (const char *from = directory; *from; from++) { /* the directory's name is no pattern */
        if (strchr("*?[]\\", *from))
            *to++ = '\\';
        *to++ = *from;
    }
    sprintf(to, "/%s.bin", pattern);
    const bool plain = glob(path, 0, NULL, found) == 0;
    const bool gzipped =
        glob(strcat(path, READER_GZIPPED), plain ? GLOB_APPEND : 0, NULL, found) == 0;
    free(path);
    if (plain || gzipped)
        qsort(found->gl_pathv, found->gl_pathc, sizeof *found->gl_pathv, by_name);
    return plain || gzipped;
}

/* Whether file i is a gzipped copy of the one before. */
static bool is_copy(const glob_t *found, size_t i)
{
    const size_t length = i > 0 ? strlen(found->gl_pathv[i - 1]) : 0;
    return i > 0 && !strncmp(found->gl_pathv[i], found->gl_pathv[i - 1], length) &&
           !strcmp(found->gl_pathv[i] + length, READER_GZIPPED);
}

bool cifar10_find(const char *directory, bool training, glob_t *files, Sentence *sentence)
{
    static const char *const patterns[] = { "test*", "data_batch_*", "train*" };
    *files = (glob_t){ 0 };
    return find_files(directory, patterns[training], files) ||
           (training && find_files(directory, patterns[2], files)) ||
           sentence_write(sentence,
                          "%s: there is no %s, with or without .gz; expected the directory of "
                          "CIFAR-10's binary files (Krizhevsky 2009), which are usually named "
                          "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
                          directory, training ? "data_batch_*.bin" : "test*.bin");
}

bool cifar10_read(const glob_t *files, Cifar10 *images, Sentence *sentence)
{
    Cifar10 all = { 0 };
    int64_t capacity = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < files->gl_pathc; i++)
        ok = is_copy(files, i) || read_file(files->gl_pathv[i], &all, &capacity, sentence);
    if (ok)
        *images = all;
    else
        cifar10_free(&all);
    return ok;
}

void cifar10_free(Cifar10 *images)
{
    free(images->bytes);
    *images = (Cifar10){ 0 };
}
