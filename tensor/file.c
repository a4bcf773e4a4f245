/* Reading safetensors files (https://github.com/huggingface/safetensors).
 *
 *   8 bytes      n, the header's length, little-endian
 *   n bytes      {"__metadata__": {"key": "text", ...},
 *                 "name": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, ...}
 *   the rest     the entries' elements, little-endian and row-major; begin and end count from here,
 *                and the entries cover all of it without holes or overlaps
 *
 * Files are untrusted: nothing of a file is used before all of it is validated. */
#include "tensor/file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The format's own limit, which protects a reader's memory from a malicious header. */
enum { HEADER_LIMIT = 100000000 };

/* -------------------------------------------------------------------------- opening and closing */

static bool read_exactly(const TensorFile *file, FILE *stream, void *to, size_t bytes)
{
    if (fread(to, 1, bytes, stream) == bytes)
        return true;
    return file_fail(file, "%s",
                     ferror(stream) ? strerror(errno) : "the file ended while it was read");
}

static bool read_header(TensorFile *file, FILE *stream, size_t length)
{
    char *header = file_allocate(file, (int64_t)length + 1, 1);
    if (header == NULL)
        return false;
    header[length] = 0;
    bool good =
        read_exactly(file, stream, header, length) && file_parse_header(file, header, length);
    free(header);
    return good;
}

static bool read_file(TensorFile *file, FILE *stream)
{
    struct stat status;
    if (fstat(fileno(stream), &status) != 0)
        return file_fail(file, "%s", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return file_fail(file, "not a regular file");
    uint64_t length, rest = (uint64_t)status.st_size - sizeof length;
    if ((uint64_t)status.st_size < sizeof length)
        return file_fail(file, "the file has %lld bytes; the header's length alone takes 8",
                         (long long)status.st_size);
    if (!read_exactly(file, stream, &length, sizeof length))
        return false;
    if (length > rest)
        return file_fail(file, "the header's length is %" PRIu64 ", but %" PRIu64 " bytes follow",
                         length, rest);
    if (length > HEADER_LIMIT)
        return file_fail(file, "the header's length is %" PRIu64 "; at most %d is allowed", length,
                         HEADER_LIMIT);
    file->data_size = (int64_t)(rest - length);
    if (!read_header(file, stream, (size_t)length))
        return false;
    file->data = file_allocate(file, file->data_size, 1);
    return file->data != NULL && file_parse_entries(file) &&
           read_exactly(file, stream, file->data, (size_t)file->data_size);
}

TensorFile *tensor_file_open(const char *path)
{
    if (path == NULL) {
        error_report("tensor_file_open: the path is NULL");
        return NULL;
    }
    TensorFile *file = memory_allocate(sizeof *file), empty = { .path = NULL };
    char *copy = memory_allocate(strlen(path) + 1);
    if (file == NULL || copy == NULL) {
        error_report("tensor_file_open: %s: memory is exhausted", path);
        free(copy);
        free(file);
        return NULL;
    }
    *file = empty;
    file->path = strcpy(copy, path);
    FILE *stream = fopen(path, "rb");
    bool good = stream != NULL ? read_file(file, stream) : file_fail(file, "%s", strerror(errno));
    if (stream != NULL)
        fclose(stream);
    if (good)
        return file;
    tensor_file_close(file);
    return NULL;
}

void tensor_file_close(TensorFile *file)
{
    if (file == NULL)
        return;
    cJSON_Delete(file->header);
    free(file->metadata);
    free(file->by_name);
    free(file->entries);
    free(file->data);
    free(file->path);
    free(file);
}

/* --------------------------------------------------------------------------------------- access */

static void need_file(const char *function, const TensorFile *file)
{
    if (file == NULL)
        error_raise("%s: the file is NULL: did tensor_file_open fail?", function);
}

int tensor_file_count(const TensorFile *file)
{
    need_file("tensor_file_count", file);
    return file->count;
}

const FileEntry *tensor_file_entry(const TensorFile *file, int index)
{
    need_file("tensor_file_entry", file);
    if (index < 0 || index >= file->count)
        error_raise("tensor_file_entry: %s: there is no entry %d; there are %d", file->path, index,
                    file->count);
    return &file->entries[index];
}

const FileEntry *tensor_file_find(const TensorFile *file, const char *name)
{
    need_file("tensor_file_find", file);
    return bsearch(&name, file->by_name, (size_t)file->count, sizeof(FileEntry),
                   file_compare_names);
}

const char *tensor_file_metadata(const TensorFile *file, const char *key)
{
    need_file("tensor_file_metadata", file);
    if (file->metadata == NULL)
        return NULL;
    const FileMetadata *found = bsearch(&key, file->metadata, (size_t)file->metadata_count,
                                        sizeof(FileMetadata), file_compare_names);
    return found != NULL ? found->value : NULL;
}

/* The named entry; NULL unless it has one of the two types and the expected shape. */
static const FileEntry *expect(const char *function, const TensorFile *file, const char *name,
                               FileType narrow, FileType wide, Shape expected)
{
    need_file(function, file);
    const FileEntry *entry = tensor_file_find(file, name);
    FileNameText text = file_name_text(name);
    if (entry == NULL) {
        error_report("%s: %s: there is no entry \"%s\"", function, file->path, text.text);
        return NULL;
    }
    if (entry->type != narrow && entry->type != wide) {
        error_report("%s: %s: entry \"%s\" is of type %s, expected %s or %s", function, file->path,
                     text.text, file_types[entry->type].name, file_types[narrow].name,
                     file_types[wide].name);
        return NULL;
    }
    if (!shape_equal(entry->shape, expected)) {
        error_report("%s: %s: entry \"%s\" has shape %s, expected %s", function, file->path,
                     text.text, shape_text(entry->shape).text, shape_text(expected).text);
        return NULL;
    }
    return entry;
}

/* An element, by memcpy because a file's data may be unaligned. */
static double real_element(const FileEntry *entry, int64_t i)
{
    float narrow;
    double wide;
    if (entry->type == FILE_F64) {
        memcpy(&wide, (const char *)entry->data + i * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)entry->data + i * 4, sizeof narrow);
    return (double)narrow;
}

static int64_t integer_element(const FileEntry *entry, int64_t i)
{
    int32_t narrow;
    int64_t wide;
    if (entry->type == FILE_I64) {
        memcpy(&wide, (const char *)entry->data + i * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)entry->data + i * 4, sizeof narrow);
    return narrow;
}

bool tensor_file_read(const TensorFile *file, const char *name, Shape expected, Real *host)
{
    const FileEntry *entry = expect("tensor_file_read", file, name, FILE_F32, FILE_F64, expected);
    if (entry == NULL)
        return false;
    int64_t count = shape_count(entry->shape);
    for (int64_t i = 0; i < count; i++) {
        double value = real_element(entry, i);
        host[i] = (Real)value;
        if (!isfinite(host[i]) && isfinite(value))
            return error_report("tensor_file_read: %s: entry \"%s\": element %" PRId64
                                " is %g, which does not fit a float",
                                file->path, file_name_text(name).text, i, value);
    }
    return true;
}

bool tensor_file_read_i32(const TensorFile *file, const char *name, Shape expected, int32_t *host)
{
    const FileEntry *entry =
        expect("tensor_file_read_i32", file, name, FILE_I32, FILE_I64, expected);
    if (entry == NULL)
        return false;
    int64_t count = shape_count(entry->shape);
    for (int64_t i = 0; i < count; i++) {
        int64_t value = integer_element(entry, i);
        host[i] = (int32_t)value;
        if (host[i] != value)
            return error_report("tensor_file_read_i32: %s: entry \"%s\": element %" PRId64
                                " is %" PRId64 ", which does not fit 32 bits",
                                file->path, file_name_text(name).text, i, value);
    }
    return true;
}
