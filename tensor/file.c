/* Safetensors files (https://github.com/huggingface/safetensors).
 *
 *   8 bytes      n, the header's length, little-endian
 *   n bytes      {"__metadata__": {"key": "text", ...},
 *                 "name": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, ...}
 *   the rest     the entries' elements, little-endian and row-major; begin and end count from here,
 *                and the entries cover all of it without holes or overlaps
 *
 * Files are untrusted: nothing of a file is used before all of it is validated. */
#include "tensor/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* --------------------------------------------------------------------------- errors and memory */
bool file_fail(const TensorFile *file, const char *format, ...)
{
    char sentence[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    const char *entry = file->parsed;
    return error_report("%s: %s: %s%s%s%s", file->function, file->path, entry ? "entry \"" : "",
                        entry ? file_name_text(entry).text : "", entry ? "\": " : "", sentence);
}

void *file_allocate(const TensorFile *file, int64_t count, size_t size)
{
    size_t bytes = (size_t)(count > 0 ? count : 1) * size;
    void *memory = memory_allocate(bytes);
    if (!memory)
        file_fail(file, "memory is exhausted: %zu bytes requested", bytes);
    return memory;
}

/* -------------------------------------------------------------------------------------- sorting */

/* Compares structs by their first member, the name. */
static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A copy sorted by name; NULL after an error, as when a name appears twice. */
static void *sorted(const TensorFile *file, const char *label, const void *structs, int count,
                    size_t size)
{
    char *copy = file_allocate(file, count, size);
    if (!copy || count == 0)
        return copy;
    memcpy(copy, structs, (size_t)count * size);
    qsort(copy, (size_t)count, size, compare_names);
    for (const char *next = copy + size; next < copy + (size_t)count * size; next += size)
        if (compare_names(next - size, next) == 0) {
            file_fail(file, "%s \"%s\" appears twice", label,
                      file_name_text(*(const char *const *)next).text);
            free(copy);
            return NULL;
        }
    return copy;
}

bool file_sort(TensorFile *file, const char *key_label)
{
    file->by_name = sorted(file, "the name", file->entries, file->count, sizeof(FileEntry));
    if (file->by_name)
        file->by_key =
            sorted(file, key_label, file->metadata, file->metadata_count, sizeof(FileMetadata));
    return file->by_key != NULL;
}

/* --------------------------------------------------------------------------------------- access */
static void need_file(const char *function, const TensorFile *file)
{
    if (!file)
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
    return bsearch(&name, file->by_name, (size_t)file->count, sizeof(FileEntry), compare_names);
}

const char *tensor_file_metadata(const TensorFile *file, const char *key)
{
    need_file("tensor_file_metadata", file);
    const FileMetadata *found = bsearch(&key, file->by_key, (size_t)file->metadata_count,
                                        sizeof(FileMetadata), compare_names);
    return found ? found->value : NULL;
}

/* The named entry; NULL unless it has one of the two types and the expected shape. */
static const FileEntry *expect(const char *function, const TensorFile *file, const char *name,
                               FileType narrow, FileType wide, Shape expected)
{
    need_file(function, file);
    const FileEntry *entry = tensor_file_find(file, name);
    const FileNameText text = file_name_text(name);
    if (!entry)
        error_report("%s: %s: there is no entry \"%s\"", function, file->path, text.text);
    else if (entry->type != narrow && entry->type != wide)
        error_report("%s: %s: entry \"%s\" is of type %s, expected %s or %s", function, file->path,
                     text.text, file_types[entry->type].name, file_types[narrow].name,
                     file_types[wide].name);
    else if (!shape_equal(entry->shape, expected))
        error_report("%s: %s: entry \"%s\" has shape %s, expected %s", function, file->path,
                     text.text, shape_text(entry->shape).text, shape_text(expected).text);
    else
        return entry;
    return NULL;
}

/* A file's data may be unaligned. */
typedef float UnalignedFloat __attribute__((aligned(1)));
typedef double UnalignedDouble __attribute__((aligned(1)));
typedef int32_t UnalignedInt32 __attribute__((aligned(1)));
typedef int64_t UnalignedInt64 __attribute__((aligned(1)));

bool tensor_file_read(const TensorFile *file, const char *name, Shape expected, Real *host)
{
    const FileEntry *entry = expect("tensor_file_read", file, name, FILE_F32, FILE_F64, expected);
    const UnalignedFloat *narrow = entry ? entry->data : NULL;
    const UnalignedDouble *wide = entry ? entry->data : NULL;
    for (int64_t i = 0; entry && i < shape_count(expected); i++) {
        const double value = entry->type == FILE_F64 ? wide[i] : (double)narrow[i];
        host[i] = (Real)value;
        if (!isfinite(host[i]) && isfinite(value))
            return error_report("tensor_file_read: %s: entry \"%s\": element %" PRId64
                                " is %g, which does not fit a float",
                                file->path, file_name_text(name).text, i, value);
    }
    return entry != NULL;
}

bool tensor_file_read_i32(const TensorFile *file, const char *name, Shape expected, int32_t *host)
{
    const FileEntry *entry =
        expect("tensor_file_read_i32", file, name, FILE_I32, FILE_I64, expected);
    const UnalignedInt32 *narrow = entry ? entry->data : NULL;
    const UnalignedInt64 *wide = entry ? entry->data : NULL;
    for (int64_t i = 0; entry && i < shape_count(expected); i++) {
        const int64_t value = entry->type == FILE_I64 ? wide[i] : narrow[i];
        host[i] = (int32_t)value;
        if (host[i] != value)
            return error_report("tensor_file_read_i32: %s: entry \"%s\": element %" PRId64
                                " is %" PRId64 ", which does not fit 32 bits",
                                file->path, file_name_text(name).text, i, value);
    }
    return entry != NULL;
}
