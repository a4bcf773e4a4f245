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
    [FILE_F32] = { "F32", 32 },
    [FILE_F64] = { "F64", 64 },
    [FILE_I32] = { "I32", 32 },
    [FILE_I64] = { "I64", 64 },
    [FILE_F16] = { "F16", 16 },
    [FILE_BF16] = { "BF16", 16 },
    [FILE_OPAQUE] = { "BOOL", 8 },
    { "U8", 8 },
    { "I8", 8 },
    { "U16", 16 },
    { "I16", 16 },
    { "U32", 32 },
    { "U64", 64 },
    { "C64", 64 },
    { "F8_E5M2", 8 },
    { "F8_E4M3", 8 },
    { "F8_E8M0", 8 },
    { "F8_E4M3FNUZ", 8 },
    { "F8_E5M2FNUZ", 8 },
    { "F6_E2M3", 6 },
    { "F6_E3M2", 6 },
    { "F4", 4 },
};

int64_t file_bytes(FileType type, Shape shape)
{
    int64_t bits = file_types[type].bits;
    if (shape.rank < 0 || shape.rank > MAX_RANK)
        return -1;
    for (int axis = 0; axis < shape.rank; axis++)
        if (shape.size[axis] < 0 || __builtin_mul_overflow(bits, shape.size[axis], &bits))
            return -1;
    return bits % 8 == 0 && bits / 8 < FILE_LARGEST_SIZE ? bits / 8 : -1;
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
    size_t length = strlen(name);
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
        file_fail(file, "memory is exhausted: %lld bytes requested", (long long)bytes);
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

/* The named entry; NULL unless it has one of the types, a sum of 1 << FileType, and the expected
 * shape. */
static const FileEntry *expect(const char *function, const TensorFile *file, const char *name,
                               uint32_t types, const char *types_text, Shape expected)
{
    need_file(function, file);
    const FileEntry *entry = tensor_file_find(file, name);
    const FileNameText text = file_name_text(name);
    if (!entry)
        error_report("%s: %s: there is no entry \"%s\"", function, file->path, text.text);
    else if ((types >> entry->type & 1) == 0)
        error_report("%s: %s: entry \"%s\" is of type %s, expected %s", function, file->path,
                     text.text, file_types[entry->type].name, types_text);
    else if (!shape_equal(entry->shape, expected))
        error_report("%s: %s: entry \"%s\" has shape %s, expected %s", function, file->path,
                     text.text, shape_text(entry->shape).text, shape_text(expected).text);
    else
        return entry;
    return NULL;
}

/* F16: a sign, 5 bits of exponent, 10 of mantissa. */
static double double_of_f16(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31)
        value = mantissa ? (double)NAN : (double)INFINITY;
    return bits >> 15 ? -value : value;
}

/* A file's data may be unaligned. */
typedef uint16_t UnalignedBits __attribute__((aligned(1)));
typedef float UnalignedFloat __attribute__((aligned(1)));
typedef double UnalignedDouble __attribute__((aligned(1)));
typedef int32_t UnalignedInt32 __attribute__((aligned(1)));
typedef int64_t UnalignedInt64 __attribute__((aligned(1)));

static double float_at(const FileEntry *entry, int64_t i)
{
    if (entry->type == FILE_F64)
        return ((const UnalignedDouble *)entry->data)[i];
    if (entry->type == FILE_F32)
        return (double)((const UnalignedFloat *)entry->data)[i];
    const uint16_t bits = ((const UnalignedBits *)entry->data)[i];
    return entry->type == FILE_F16 ? double_of_f16(bits) : (double)real_of_bf16(bits);
}

bool tensor_file_read(const TensorFile *file, const char *name, Shape expected, Real *host)
{
    const FileEntry *entry = expect("tensor_file_read", file, name,
                                    1 << FILE_F16 | 1 << FILE_BF16 | 1 << FILE_F32 | 1 << FILE_F64,
                                    "F16, BF16, F32 or F64", expected);
    for (int64_t i = 0; entry && i < shape_count(expected); i++) {
        const double value = float_at(entry, i);
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
    const FileEntry *entry = expect("tensor_file_read_i32", file, name,
                                    1 << FILE_I32 | 1 << FILE_I64, "I32 or I64", expected);
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
