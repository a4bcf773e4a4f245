/* Reads safetensors files; tensor/file.c describes the format. Files are untrusted: nothing of a
 * file is used before all of it is validated. */
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

/* ----------------------------------------------------------------------------------- the header */

/* Parses the header's text, which ends in NUL, into file->header. Rejects what cJSON accepts: text
 * that is not UTF-8, a NUL in a name (which would truncate it), control characters, and anything
 * before or after the object. */
static bool parse_header(TensorFile *file, const char *header, size_t length)
{
    size_t valid = file_utf8_length(header);
    if (valid != length)
        return file_fail(file, "the header is not UTF-8 at byte %zu", valid);
    for (const char *c = header; *c != 0; c++) {
        if ((unsigned char)*c < 0x20 && strchr("\t\n\r", *c) == NULL)
            return file_fail(file, "the header has a control character at byte %td", c - header);
        if (strncmp(c, "\\u0000", 6) == 0)
            return file_fail(file, "the header has a NUL character inside a string at byte %td",
                             c - header);
        if (*c == '\\' && c[1] != 0)
            c++;
    }
    if (header[0] != '{')
        return file_fail(file, "the header does not begin with {");
    const char *end = header;
    file->header = cJSON_ParseWithLengthOpts(header, length + 1, &end, /*to the NUL*/ true);
    if (!file->header)
        return file_fail(file, "the header is not valid JSON near byte %td", end - header);
    return true;
}

/* The value of an integer from 0 to 2^53 - 1; -1 for anything else. */
static int64_t whole_number(const cJSON *item)
{
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    bool whole = value >= 0 && value < (double)FILE_LARGEST_SIZE && value == floor(value);
    return whole ? (int64_t)value : -1;
}

static bool parse_type(const TensorFile *file, const cJSON *item, FileEntry *entry)
{
    if (!cJSON_IsString(item))
        return file_fail(file, "the dtype is not a string");
    for (int type = 0; type < FILE_TYPES; type++)
        if (strcmp(item->valuestring, file_types[type].name) == 0) {
            entry->type = (FileType)type;
            return true;
        }
    return file_fail(file, "the dtype is \"%s\"; F32, F64, I32 and I64 can be read",
                     file_name_text(item->valuestring).text);
}

static bool parse_shape(const TensorFile *file, const cJSON *item, FileEntry *entry)
{
    if (!cJSON_IsArray(item))
        return file_fail(file, "the shape is not a list");
    Shape *shape = &entry->shape;
    shape->rank = cJSON_GetArraySize(item);
    if (shape->rank > MAX_RANK)
        return file_fail(file, "the shape has %d axes; at most %d can be read", shape->rank,
                         MAX_RANK);
    int axis = 0;
    for (const cJSON *size = item->child; size; size = size->next, axis++) {
        shape->size[axis] = whole_number(size);
        if (shape->size[axis] < 1)
            return file_fail(file, "axis %d of the shape is not a whole number of 1 or more", axis);
    }
    if (file_bytes(entry->type, *shape) < 0)
        return file_fail(file, "the shape %s is too large", shape_text(*shape).text);
    return true;
}

static bool parse_offsets(const TensorFile *file, const cJSON *item, FileEntry *entry)
{
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    const cJSON *second = first ? first->next : NULL;
    int64_t begin = whole_number(first), end = whole_number(second);
    if (begin < 0 || end < 0 || second->next != NULL)
        return file_fail(file, "data_offsets is not a list of two whole numbers");
    if (begin > end)
        return file_fail(file, "the data end at %" PRId64 ", before they begin at %" PRId64, end,
                         begin);
    if (end > file->data_size)
        return file_fail(
            file, "the data end at %" PRId64 ", but the file holds %" PRId64 " bytes of data", end,
            file->data_size);
    int64_t bytes = file_bytes(entry->type, entry->shape);
    if (end - begin != bytes)
        return file_fail(file, "the data are %" PRId64 " bytes, but %s of %s takes %" PRId64,
                         end - begin, shape_text(entry->shape).text, file_types[entry->type].name,
                         bytes);
    entry->data = file->data + begin;
    return true;
}

/* {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}: exactly these three members. The size
 * is checked because cJSON keeps duplicate keys. */
static bool parse_entry(TensorFile *file, const cJSON *item, FileEntry *entry)
{
    if (item->string[0] == 0)
        return file_fail(file, "an entry's name is empty");
    *entry = (FileEntry){ .name = item->string };
    file->parsed = entry->name;
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (!cJSON_IsObject(item) || !type || !shape || !offsets || cJSON_GetArraySize(item) != 3)
        return file_fail(file, "not an object of dtype, shape and data_offsets");
    if (!parse_type(file, type, entry) || !parse_shape(file, shape, entry) ||
        !parse_offsets(file, offsets, entry))
        return false;
    file->parsed = NULL;
    return true;
}

static bool parse_metadata(TensorFile *file, const cJSON *object)
{
    if (!cJSON_IsObject(object))
        return file_fail(file, FILE_METADATA_NAME " is not an object");
    FileMetadata *metadata = file_allocate(file, cJSON_GetArraySize(object), sizeof(FileMetadata));
    if (!metadata)
        return false;
    file->metadata = metadata;
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return file_fail(file, FILE_METADATA_NAME ": the value of \"%s\" is not a string",
                             file_name_text(item->string).text);
        metadata[file->metadata_count++] = (FileMetadata){ item->string, item->valuestring };
    }
    return true;
}

static int compare_offsets(const void *a, const void *b)
{
    const unsigned char *x = ((const FileEntry *)a)->data, *y = ((const FileEntry *)b)->data;
    return (x > y) - (x < y);
}

/* Sorts the entries by offset: each must begin where the previous one ends. */
static bool check_offsets(const TensorFile *file, FileEntry *entries)
{
    if (file->count > 1)
        qsort(entries, (size_t)file->count, sizeof(FileEntry), compare_offsets);
    int64_t end = 0;
    for (int i = 0; i <= file->count; i++) {
        const FileEntry *entry = i < file->count ? &entries[i] : NULL;
        int64_t begin = entry ? (const unsigned char *)entry->data - file->data : file->data_size;
        if (begin < end)
            return file_fail(file, "the data of \"%s\" and \"%s\" overlap",
                             file_name_text(entries[i - 1].name).text,
                             file_name_text(entry->name).text);
        if (begin > end)
            return file_fail(file,
                             "bytes %" PRId64 " to %" PRId64 " of the data belong to no entry", end,
                             begin - 1);
        end = begin + (entry ? file_bytes(entry->type, entry->shape) : 0);
    }
    return true;
}

/* file->data must be allocated but need not be read yet. */
static bool parse_entries(TensorFile *file)
{
    FileEntry *entries = file_allocate(file, cJSON_GetArraySize(file->header), sizeof(FileEntry));
    if (!entries)
        return false;
    file->entries = entries;
    for (const cJSON *item = file->header->child; item; item = item->next) {
        if (strcmp(item->string, FILE_METADATA_NAME) != 0) {
            if (!parse_entry(file, item, &entries[file->count++]))
                return false;
        } else if (file->metadata) {
            return file_fail(file, FILE_METADATA_NAME " appears twice");
        } else if (!parse_metadata(file, item)) {
            return false;
        }
    }
    return file_sort(file, FILE_METADATA_NAME ": the key") && check_offsets(file, entries);
}

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
    if (!header)
        return false;
    header[length] = 0;
    bool good = read_exactly(file, stream, header, length) && parse_header(file, header, length);
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
    return file->data && parse_entries(file) &&
           read_exactly(file, stream, file->data, (size_t)file->data_size);
}

TensorFile *tensor_file_open(const char *path)
{
    if (!path) {
        error_report("tensor_file_open: the path is NULL");
        return NULL;
    }
    TensorFile *file = memory_allocate(sizeof *file + strlen(path) + 1);
    if (!file) {
        error_report("tensor_file_open: %s: memory is exhausted", path);
        return NULL;
    }
    *file =
        (TensorFile){ .function = "tensor_file_open", .path = strcpy((char *)(file + 1), path) };
    FILE *stream = fopen(path, "rb");
    bool good = stream ? read_file(file, stream) : file_fail(file, "%s", strerror(errno));
    if (stream)
        fclose(stream);
    if (good)
        return file;
    tensor_file_close(file);
    return NULL;
}

void tensor_file_close(TensorFile *file)
{
    if (!file)
        return;
    cJSON_Delete(file->header);
    free((void *)file->metadata);
    free((void *)file->entries);
    free(file->by_name);
    free(file->by_key);
    free(file->data);
    free(file);
}
