/* Parses and validates the header of a safetensors file; tensor/file.c describes the format. Files
 * are untrusted: nothing of a file is used before all of it is validated. */
#include "tensor/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------- shared with file_save.c */

const FileTypeFacts file_types[FILE_TYPES] = {
    [FILE_F32] = { "F32", 4 },
    [FILE_F64] = { "F64", 8 },
    [FILE_I32] = { "I32", 4 },
    [FILE_I64] = { "I64", 8 },
};

int64_t file_bytes(FileType type, Shape shape)
{
    int64_t bytes = file_types[type].size;
    if (shape.rank < 0 || shape.rank > MAX_RANK)
        return -1;
    for (int axis = 0; axis < shape.rank; axis++) {
        int64_t size = shape.size[axis];
        if (size < 1 || __builtin_mul_overflow(bytes, size, &bytes) || bytes >= FILE_LARGEST_SIZE)
            return -1;
    }
    return bytes;
}

size_t file_utf8_length(const char *text)
{
    /* The lead byte gives the number of continuation bytes. Overlong encodings are invalid. */
    static const uint32_t smallest[4] = { 0, 0x80, 0x800, 0x10000 };
    const unsigned char *start = (const unsigned char *)text, *p = start;
    while (*p != 0) {
        int more = *p < 0x80 ? 0 : *p >> 5 == 6 ? 1 : *p >> 4 == 14 ? 2 : *p >> 3 == 30 ? 3 : -1;
        if (more < 0)
            break;
        uint32_t code = more == 0 ? *p : *p & (0x3Fu >> more);
        int seen = 0;
        while (seen < more && (p[seen + 1] & 0xC0) == 0x80)
            code = code << 6 | (p[++seen] & 0x3Fu);
        bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        if (seen < more || code < smallest[more] || surrogate || code > 0x10FFFF)
            break;
        p += 1 + more;
    }
    return (size_t)(p - start);
}

int file_compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *file_sort_by_name(void *structs, int count, size_t size)
{
    const char *first = structs;
    if (count > 1)
        qsort(structs, (size_t)count, size, file_compare_names);
    for (int i = 1; i < count; i++) {
        const char *here = first + (size_t)i * size;
        if (file_compare_names(here - size, here) == 0)
            return *(const char *const *)here;
    }
    return NULL;
}

FileNameText file_name_text(const char *name)
{
    enum { LONGEST = 60 };
    FileNameText result;
    size_t length = strnlen(name, LONGEST + 1);
    const char *rest = "";
    if (length > LONGEST) {
        rest = "...";
        length = LONGEST;
        while (length > 0 && (name[length] & 0xC0) == 0x80) /* inside a character */
            length--;
    }
    snprintf(result.text, sizeof result.text, "%.*s%s", (int)length, name, rest);
    for (char *c = result.text; *c != 0; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    return result;
}

/* ----------------------------------------------------------------------------------- the header */

void *file_allocate(const TensorFile *file, int64_t count, size_t size)
{
    size_t bytes = (size_t)(count > 0 ? count : 1) * size;
    void *memory = memory_allocate(bytes);
    if (memory == NULL)
        file_fail(file, "memory is exhausted: %zu bytes requested", bytes);
    return memory;
}

bool file_fail(const TensorFile *file, const char *format, ...)
{
    char sentence[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return error_report("tensor_file_open: %s: %s", file->path, sentence);
}

__attribute__((format(printf, 3, 4))) static bool fail_entry(const TensorFile *file,
                                                             const char *name, const char *format,
                                                             ...)
{
    char sentence[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return file_fail(file, "entry \"%s\": %s", file_name_text(name).text, sentence);
}

/* What cJSON would let pass: text that is not UTF-8, a zero inside a name (which would cut it),
 * bare control characters, and anything before or after the object. */
bool file_parse_header(TensorFile *file, const char *header, size_t length)
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
    file->header = cJSON_ParseWithLengthOpts(header, length + 1, &end, /*to the zero*/ true);
    if (file->header == NULL)
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
        return fail_entry(file, entry->name, "the dtype is not a string");
    for (int type = 0; type < FILE_TYPES; type++)
        if (strcmp(item->valuestring, file_types[type].name) == 0) {
            entry->type = (FileType)type;
            return true;
        }
    return fail_entry(file, entry->name, "the dtype is \"%s\"; F32, F64, I32 and I64 can be read",
                      file_name_text(item->valuestring).text);
}

static bool parse_shape(const TensorFile *file, const cJSON *item, FileEntry *entry)
{
    if (!cJSON_IsArray(item))
        return fail_entry(file, entry->name, "the shape is not a list");
    Shape *shape = &entry->shape;
    shape->rank = cJSON_GetArraySize(item);
    if (shape->rank > MAX_RANK)
        return fail_entry(file, entry->name, "the shape has %d axes; at most %d can be read",
                          shape->rank, MAX_RANK);
    int axis = 0;
    for (const cJSON *size = item->child; size != NULL; size = size->next, axis++) {
        shape->size[axis] = whole_number(size);
        if (shape->size[axis] < 1)
            return fail_entry(file, entry->name,
                              "axis %d of the shape is not a whole number of 1 or more", axis);
    }
    if (file_bytes(entry->type, *shape) < 0)
        return fail_entry(file, entry->name, "the shape %s is too large", shape_text(*shape).text);
    return true;
}

static bool parse_offsets(const TensorFile *file, const cJSON *item, FileEntry *entry)
{
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    const cJSON *second = first != NULL ? first->next : NULL;
    int64_t begin = whole_number(first), end = whole_number(second);
    if (begin < 0 || end < 0 || second->next != NULL)
        return fail_entry(file, entry->name, "data_offsets is not a list of two whole numbers");
    if (begin > end)
        return fail_entry(file, entry->name,
                          "the data end at %" PRId64 ", before they begin at %" PRId64, end, begin);
    if (end > file->data_size)
        return fail_entry(file, entry->name,
                          "the data end at %" PRId64 ", but the file holds %" PRId64
                          " bytes of data",
                          end, file->data_size);
    int64_t bytes = file_bytes(entry->type, entry->shape);
    if (end - begin != bytes)
        return fail_entry(
            file, entry->name, "the data are %" PRId64 " bytes, but %s of %s takes %" PRId64,
            end - begin, shape_text(entry->shape).text, file_types[entry->type].name, bytes);
    entry->data = file->data + begin;
    return true;
}

/* {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}: exactly these three members. The size
 * is checked because cJSON keeps duplicate keys. */
static bool parse_entry(const TensorFile *file, const cJSON *item, FileEntry *entry)
{
    *entry = (FileEntry){ .name = item->string };
    if (entry->name[0] == 0)
        return file_fail(file, "an entry's name is empty");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (!cJSON_IsObject(item) || type == NULL || shape == NULL || offsets == NULL ||
        cJSON_GetArraySize(item) != 3)
        return fail_entry(file, entry->name, "not an object of dtype, shape and data_offsets");
    return parse_type(file, type, entry) && parse_shape(file, shape, entry) &&
           parse_offsets(file, offsets, entry);
}

static bool parse_metadata(TensorFile *file, const cJSON *object)
{
    if (!cJSON_IsObject(object))
        return file_fail(file, FILE_METADATA_NAME " is not an object");
    file->metadata = file_allocate(file, cJSON_GetArraySize(object), sizeof(FileMetadata));
    if (file->metadata == NULL)
        return false;
    for (const cJSON *item = object->child; item != NULL; item = item->next) {
        if (!cJSON_IsString(item))
            return file_fail(file, FILE_METADATA_NAME ": the value of \"%s\" is not a string",
                             file_name_text(item->string).text);
        file->metadata[file->metadata_count++] =
            (FileMetadata){ .key = item->string, .value = item->valuestring };
    }
    const char *twice =
        file_sort_by_name(file->metadata, file->metadata_count, sizeof(FileMetadata));
    if (twice != NULL)
        return file_fail(file, FILE_METADATA_NAME ": the key \"%s\" appears twice",
                         file_name_text(twice).text);
    return true;
}

static int compare_offsets(const void *a, const void *b)
{
    const unsigned char *x = ((const FileEntry *)a)->data, *y = ((const FileEntry *)b)->data;
    return (x > y) - (x < y);
}

/* Sorts the entries by offset: each must begin where the previous one ends. */
static bool check_offsets(const TensorFile *file)
{
    if (file->count > 1)
        qsort(file->entries, (size_t)file->count, sizeof(FileEntry), compare_offsets);
    int64_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const FileEntry *entry = &file->entries[i];
        int64_t begin = (const unsigned char *)entry->data - file->data;
        if (begin < end)
            return file_fail(file, "the data of \"%s\" and \"%s\" overlap",
                             file_name_text(file->entries[i - 1].name).text,
                             file_name_text(entry->name).text);
        if (begin > end)
            return file_fail(file,
                             "bytes %" PRId64 " to %" PRId64 " of the data belong to no entry", end,
                             begin - 1);
        end = begin + file_bytes(entry->type, entry->shape);
    }
    if (end != file->data_size)
        return file_fail(file, "bytes %" PRId64 " to %" PRId64 " of the data belong to no entry",
                         end, file->data_size - 1);
    return true;
}

bool file_parse_entries(TensorFile *file)
{
    int items = cJSON_GetArraySize(file->header), metadata_seen = 0;
    file->entries = file_allocate(file, items, sizeof(FileEntry));
    file->by_name = file_allocate(file, items, sizeof(FileEntry));
    if (file->entries == NULL || file->by_name == NULL)
        return false;
    for (const cJSON *item = file->header->child; item != NULL; item = item->next) {
        if (strcmp(item->string, FILE_METADATA_NAME) == 0) {
            if (metadata_seen++ > 0)
                return file_fail(file, FILE_METADATA_NAME " appears twice");
            if (!parse_metadata(file, item))
                return false;
        } else if (!parse_entry(file, item, &file->entries[file->count++])) {
            return false;
        }
    }
    memcpy(file->by_name, file->entries, (size_t)file->count * sizeof(FileEntry));
    const char *twice = file_sort_by_name(file->by_name, file->count, sizeof(FileEntry));
    if (twice != NULL)
        return file_fail(file, "the name \"%s\" appears twice", file_name_text(twice).text);
    return check_offsets(file);
}
