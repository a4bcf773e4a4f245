/* Reads safetensors files (https://github.com/huggingface/safetensors).
 *
 *   8 bytes      n, the header's length, little-endian
 *   n bytes      {"__metadata__": {"key": "text", ...},
 *                 "name": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}, ...}
 *   the rest     the entries' elements, little-endian and row-major; begin and end count from here,
 *                and the entries cover all of it without holes or overlaps
 *
 * Files are untrusted: opening one validates its header against its size, and then entries are read
 * one by one, so that memory holds what a program reads and no more. */
#include "tensor/file.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The types from FILE_OPAQUE on are checked by their bits and saved under their name, no more. */
const FileTypeFacts file_types[FILE_TYPES] = {
    { "F32", 32 },    { "F64", 64 },        { "I32", 32 },        { "I64", 64 },
    { "F16", 16 },    { "BF16", 16 },       { "BOOL", 8 },        { "U8", 8 },
    { "I8", 8 },      { "U16", 16 },        { "I16", 16 },        { "U32", 32 },
    { "U64", 64 },    { "C64", 64 },        { "F8_E5M2", 8 },     { "F8_E4M3", 8 },
    { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "F6_E2M3", 6 },
    { "F6_E3M2", 6 }, { "F4", 4 }
};

int64_t file_bytes(FileType type, Shape shape)
{
    int64_t bits = file_types[type].bits;
    if (shape.rank < 0 || shape.rank > MAX_RANK)
        return -1;
    for (int axis = 0; axis < shape.rank; axis++)
        if (shape.size[axis] < 0 || __builtin_mul_overflow(bits, shape.size[axis], &bits))
            return -1;
    return bits % 8 == 0 && bits / 8 < FILE_MAX_SIZE ? bits / 8 : -1;
}

/* Writes a character as UTF-8; returns the end of its 1 to 4 bytes. */
static char *put_utf8(char *to, uint32_t code)
{
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *to++ = (char)(more ? 0xFF00u >> (more + 1) | code >> 6 * more : code);
    for (int i = more - 1; i >= 0; i--)
        *to++ = (char)(0x80 | (code >> 6 * i & 0x3F));
    return to;
}

const char *file_utf8_end(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    while (*p != 0) {
        const int more = *p < 0x80 ? 0 : *p < 0xE0 ? 1 : *p < 0xF0 ? 2 : 3;
        uint32_t code = more == 0 ? *p : *p & (0x3Fu >> more);
        for (int i = 1; i <= more && p[i] != 0; i++)
            code = code << 6 | (p[i] & 0x3Fu);
        /* Only the bytes that encode the character are valid: no overlong form, no lone byte. */
        char bytes[4];
        const size_t length = (size_t)(put_utf8(bytes, code) - bytes);
        const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        if (surrogate || code > 0x10FFFF || strncmp((const char *)p, bytes, length) != 0)
            break;
        p += length;
    }
    return (const char *)p;
}

FileNameText file_name_text(const char *name)
{
    enum { MAX_LENGTH = 60 };
    FileNameText result;
    size_t length = strlen(name);
    const char *rest = "";
    if (length > MAX_LENGTH) {
        rest = "...";
        length = MAX_LENGTH;
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

bool file_sort(TensorFile *file)
{
    file->by_name = sorted(file, "the name", file->entries, file->count, sizeof(PlacedEntry));
    if (file->by_name)
        file->by_key = sorted(file, "the metadata's key", file->metadata, file->metadata_count,
                              sizeof(FileMetadata));
    return file->by_key != NULL;
}

/* The structs of the most members that the header can have, each at least as long as shortest. */
#define MIN_ENTRY "\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,0]}"
#define MIN_METADATA "\"\":\"\""
static void *allocate_members(const TensorFile *file, const char *shortest, size_t size)
{
    return file_allocate(file, file->header_length / (int64_t)strlen(shortest) + 1, size);
}

/* ------------------------------------------------------------------------------------- JSON tokens
 * The header's JSON is parsed in one pass that accepts nothing but the members of the format.
 * Strings are decoded in place, which never lengthens them: the header's buffer holds them all. */
static bool bad_json(const TensorFile *file)
{
    return file_fail(file, "the header is not valid JSON near byte %lld",
                     (long long)(file->at - file->header));
}

static char next_token(TensorFile *file)
{
    file->at += strspn(file->at, " \t\n\r");
    return *file->at;
}

static bool take(TensorFile *file, char token)
{
    const bool found = next_token(file) == token;
    file->at += found;
    return found;
}

static bool need(TensorFile *file, char token)
{
    return take(file, token) || bad_json(file);
}

/* The 4 digits of \uXXXX; -1 if they are not. */
static int32_t hex_digits(const char *digits)
{
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)digits[i]))
            return -1;
        code = 16 * code + (digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 32) - 'a' + 10);
    }
    return code;
}

/* Decodes the escape sequence at file->at to `to`; returns the end of it, NULL after an error. */
static char *parse_escape(TensorFile *file, char *to)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *start = file->at, *name = start[1] ? strchr(names, start[1]) : NULL;
    int32_t code = start[1] == 'u' ? hex_digits(start + 2) : name ? meanings[name - names] : -1;
    int length = name ? 2 : 6;
    if (code >= 0xD800 && code < 0xDC00) { /* the first half of a surrogate pair */
        const int32_t low = start[6] == '\\' && start[7] == 'u' ? hex_digits(start + 8) : -1;
        const bool pair = low >= 0xDC00 && low < 0xE000;
        code = pair ? 0x10000 + (code - 0xD800) * 1024 + (low - 0xDC00) : -1;
        length = 12;
    }
    if (code == 0) {
        file_fail(file, "the header has a NUL character inside a string at byte %lld",
                  (long long)(start - file->header));
        return NULL;
    }
    if (code < 0 || (code >= 0xDC00 && code < 0xE000)) {
        bad_json(file);
        return NULL;
    }
    file->at += length;
    return put_utf8(to, (uint32_t)code);
}

/* NULL after an error. */
static char *parse_string(TensorFile *file)
{
    if (!need(file, '"'))
        return NULL;
    char *string = file->at, *end = string;
    while (*file->at != '"') {
        if (*file->at == '\\') {
            end = parse_escape(file, end);
            if (!end)
                return NULL;
        } else if ((unsigned char)*file->at >= 0x20) {
            *end++ = *file->at++;
        } else {
            bad_json(file);
            return NULL;
        }
    }
    file->at++;
    *end = 0;
    return string;
}

/* An integer from 0 to 2^53 - 1 in digits; false for anything else. */
static bool parse_integer(TensorFile *file, int64_t *integer)
{
    if (!isdigit((unsigned char)next_token(file)))
        return false;
    const char *digits = file->at;
    *integer = 0;
    for (; isdigit((unsigned char)*file->at) && *integer < FILE_MAX_SIZE; file->at++)
        *integer = 10 * *integer + (*file->at - '0');
    const bool leading_zero = digits[0] == '0' && file->at - digits > 1;
    return *integer < FILE_MAX_SIZE && !leading_zero && !strchr(".eE", *file->at);
}

/* The members of an object, after its {. */
static bool parse_members(TensorFile *file, bool (*parse_value)(TensorFile *file, const char *name))
{
    if (take(file, '}'))
        return true;
    do {
        const char *name = parse_string(file);
        if (!name || !need(file, ':') || !parse_value(file, name))
            return false;
    } while (take(file, ','));
    return need(file, '}');
}

/* ------------------------------------------------------------------------------------- the entries
 * A member of the entry file->entries[file->count], from its value on. */

static bool parse_type(TensorFile *file)
{
    if (next_token(file) != '"')
        return file_fail(file, "the dtype is not a string");
    const char *name = parse_string(file);
    for (int type = 0; name && type < FILE_TYPES; type++)
        if (strcmp(name, file_types[type].name) == 0) {
            file->entries[file->count].entry.type = (FileType)type;
            return true;
        }
    return name &&
           file_fail(file, "the dtype \"%s\" is none of the format", file_name_text(name).text);
}

/* The axes of more than MAX_RANK are joined. */
static bool parse_shape(TensorFile *file)
{
    Shape *shape = &file->entries[file->count].entry.shape;
    int64_t rank = 0, count = 1, size;
    if (!take(file, '['))
        return file_fail(file, "the shape is not a list");
    if (take(file, ']'))
        return true;
    do {
        if (!parse_integer(file, &size))
            return file_fail(
                file, "axis %" PRId64 " of the shape is not a whole number of 0 or more", rank);
        if (count < 0 || __builtin_mul_overflow(count, size, &count))
            count = -1;
        if (rank < MAX_RANK)
            shape->size[rank] = size;
        rank++;
    } while (take(file, ','));
    shape->rank = (int)rank;
    if (rank > MAX_RANK)
        *shape = (Shape){ 1, { count } };
    return need(file, ']');
}

static bool parse_offsets(TensorFile *file)
{
    return (take(file, '[') && parse_integer(file, &file->begin) && take(file, ',') &&
            parse_integer(file, &file->end) && take(file, ']')) ||
           file_fail(file, "data_offsets is not a list of two whole numbers");
}

static bool not_an_entry(const TensorFile *file)
{
    return file_fail(file, "not an object of dtype, shape and data_offsets");
}

static bool parse_entry_member(TensorFile *file, const char *name)
{
    static const struct {
        const char *name;
        bool (*parse)(TensorFile *file);
    } members[] = { { "dtype", parse_type },
                    { "shape", parse_shape },
                    { "data_offsets", parse_offsets } };
    for (int i = 0; i < 3; i++)
        if (strcmp(name, members[i].name) == 0 && (file->seen >> i & 1) == 0) {
            file->seen |= 1u << i;
            return members[i].parse(file);
        }
    return not_an_entry(file);
}

/* Checks the members together. */
static bool check_placement(const TensorFile *file, const FileEntry *entry)
{
    const int64_t bytes = file_bytes(entry->type, entry->shape);
    const char *type = file_types[entry->type].name;
    if (bytes < 0)
        return file_fail(file, "%s of %s is too large or takes no whole bytes",
                         shape_text(entry->shape).text, type);
    if (file->end > file->data_size)
        return file_fail(
            file, "the data end at %" PRId64 ", but the file holds %" PRId64 " bytes of data",
            file->end, file->data_size);
    if (file->end - file->begin != bytes)
        return file_fail(
            file, "data_offsets is [%" PRId64 ",%" PRId64 "], but %s of %s takes %" PRId64 " bytes",
            file->begin, file->end, shape_text(entry->shape).text, type, bytes);
    return true;
}

/* {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}: exactly these three members. */
static bool parse_entry(TensorFile *file, const char *name)
{
    PlacedEntry *placed = &file->entries[file->count];
    if (name[0] == 0)
        return file_fail(file, "an entry's name is empty");
    *placed = (PlacedEntry){ { .name = name }, 0 };
    file->parsed = name;
    file->seen = 0;
    if (!take(file, '{'))
        return not_an_entry(file);
    if (!parse_members(file, parse_entry_member))
        return false;
    if (file->seen != 7)
        return not_an_entry(file);
    if (!check_placement(file, &placed->entry))
        return false;
    placed->begin = file->begin;
    file->parsed = NULL;
    file->count++;
    return true;
}

static bool parse_metadata_member(TensorFile *file, const char *key)
{
    if (next_token(file) != '"')
        return file_fail(file, FILE_METADATA_NAME ": the value of \"%s\" is not a string",
                         file_name_text(key).text);
    const char *value = parse_string(file);
    if (value)
        file->metadata[file->metadata_count++] = (FileMetadata){ key, value };
    return value != NULL;
}

/* {"__metadata__": {"key": "text", ...}, "name": {...}, ...} */
static bool parse_header_member(TensorFile *file, const char *name)
{
    if (strcmp(name, FILE_METADATA_NAME) != 0)
        return parse_entry(file, name);
    if (file->metadata)
        return file_fail(file, FILE_METADATA_NAME " appears twice");
    file->metadata = allocate_members(file, MIN_METADATA, sizeof(FileMetadata));
    if (!file->metadata)
        return false;
    if (!take(file, '{'))
        return file_fail(file, FILE_METADATA_NAME " is not an object");
    return parse_members(file, parse_metadata_member);
}

static int64_t end_of(const PlacedEntry *placed)
{
    return placed->begin + file_bytes(placed->entry.type, placed->entry.shape);
}

static int compare_offsets(const void *a, const void *b)
{
    const PlacedEntry *x = a, *y = b;
    const int64_t x_end = end_of(x), y_end = end_of(y);
    if (x->begin != y->begin)
        return x->begin > y->begin ? 1 : -1;
    return (x_end > y_end) - (x_end < y_end); /* the empty ones first */
}

/* Sorts the entries by offset: each must begin where the previous one ends. */
static bool check_data_offsets(const TensorFile *file)
{
    PlacedEntry *entries = file->entries;
    if (file->count > 1)
        qsort(entries, (size_t)file->count, sizeof(PlacedEntry), compare_offsets);
    int64_t end = 0;
    for (int i = 0; i <= file->count; i++) {
        const int64_t begin = i < file->count ? entries[i].begin : file->data_size;
        if (begin < end)
            return file_fail(file, "the data of \"%s\" and \"%s\" overlap",
                             file_name_text(entries[i - 1].entry.name).text,
                             file_name_text(entries[i].entry.name).text);
        if (begin > end)
            return file_fail(file,
                             "bytes %" PRId64 " to %" PRId64 " of the data belong to no entry", end,
                             begin - 1);
        end = i < file->count ? end_of(&entries[i]) : end;
    }
    return true;
}

static bool parse_header(TensorFile *file)
{
    const int64_t valid = file_utf8_end(file->header) - file->header;
    if (valid != file->header_length)
        return file_fail(file, "the header is not UTF-8 at byte %" PRId64, valid);
    file->at = file->header;
    if (*file->at++ != '{')
        return file_fail(file, "the header does not begin with {");
    file->entries = allocate_members(file, MIN_ENTRY, sizeof(PlacedEntry));
    if (!file->entries || !parse_members(file, parse_header_member))
        return false;
    if (next_token(file) != 0)
        return bad_json(file);
    return file_sort(file) && check_data_offsets(file);
}

/* -------------------------------------------------------------------------- opening and closing */

/* Reports what a file is whose first 8 bytes are no header's length; first ends with a 0. */
static bool not_safetensors(const TensorFile *file, const char *first)
{
    static const struct {
        const char *begin, *kind;
    } kinds[] = { { "<", "an HTML or XML page" },
                  { "version ", "a Git LFS pointer: git lfs pull fetches the file" },
                  { "PK\x03\x04", "a zip archive, as torch.save writes" },
                  { "\x80\x02", "a Python pickle, as torch.save wrote" },
                  { "\x1f\x8b", "a gzip file" },
                  { "{", "JSON, as the index of a model in several files" },
                  { "GGUF", "a GGUF file" },
                  { "\x89HDF", "an HDF5 file" },
                  { "\x93NUMPY", "a NumPy file" } };
    size_t blanks = 0;
    while (blanks < 7 && isspace((unsigned char)first[blanks]))
        blanks++;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(first + blanks, kinds[i].begin, strlen(kinds[i].begin)) == 0)
            return file_fail(file, "it is not a safetensors file, but %s", kinds[i].kind);
    return file_fail(file, "it is not a safetensors file: no header follows the first 8 bytes");
}

/* Reads the header's length, and checks it. */
static bool read_length(TensorFile *file, int64_t size)
{
    char first[10] = ""; /* ends with a 0 */
    uint64_t length, rest = (uint64_t)size - sizeof length;
    if ((uint64_t)size < sizeof length)
        return file_fail(file, "the file has %lld bytes; the header's length alone takes 8",
                         (long long)size);
    if (!file_read(file, 0, first, size < 9 ? 8 : 9))
        return false;
    memcpy(&length, first, sizeof length);
    if ((length > rest || length > FILE_MAX_HEADER) && first[8] != '{')
        return not_safetensors(file, first);
    if (length > rest)
        return file_fail(file, "the header's length is %" PRIu64 ", but %" PRIu64 " bytes follow",
                         length, rest);
    if (length > FILE_MAX_HEADER)
        return file_fail(file, "the header's length is %" PRIu64 "; at most %d is allowed", length,
                         FILE_MAX_HEADER);
    file->header_length = (int64_t)length;
    file->data_size = (int64_t)(rest - length);
    return true;
}

static bool read_header(TensorFile *file, int64_t size)
{
    if (!read_length(file, size))
        return false;
    file->header = file_allocate(file, file->header_length + 1, 1);
    if (!file->header || !file_read(file, 8, file->header, file->header_length))
        return false;
    file->header[file->header_length] = 0;
    return parse_header(file);
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
    *file = (TensorFile){ .function = "tensor_file_open",
                          .path = strcpy((char *)(file + 1), path),
                          .descriptor = -1 };
    int64_t size;
    if (file_open(file, &size) && read_header(file, size))
        return file;
    tensor_file_close(file);
    return NULL;
}

void tensor_file_close(TensorFile *file)
{
    if (!file)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->header);
    free(file->metadata);
    free(file->entries);
    free(file->by_name);
    free(file->by_key);
    free(file);
}

/* --------------------------------------------------------------------------------------- access */
static void need_file(const char *function, const TensorFile *file, const char *name)
{
    if (!file)
        error_raise("%s: the file is NULL: did tensor_file_open fail?", function);
    if (!name)
        error_raise("%s: the name is NULL", function);
}

int tensor_file_count(const TensorFile *file)
{
    need_file("tensor_file_count", file, "");
    return file->count;
}

const FileEntry *tensor_file_entry(const TensorFile *file, int index)
{
    need_file("tensor_file_entry", file, "");
    if (index < 0 || index >= file->count)
        error_raise("tensor_file_entry: %s: there is no entry %d; there are %d", file->path, index,
                    file->count);
    return &file->entries[index].entry;
}

static const PlacedEntry *find(const TensorFile *file, const char *name)
{
    return bsearch(&name, file->by_name, (size_t)file->count, sizeof(PlacedEntry), compare_names);
}

const FileEntry *tensor_file_find(const TensorFile *file, const char *name)
{
    need_file("tensor_file_find", file, name);
    const PlacedEntry *placed = find(file, name);
    return placed ? &placed->entry : NULL;
}

const char *tensor_file_metadata(const TensorFile *file, const char *key)
{
    need_file("tensor_file_metadata", file, key);
    const FileMetadata *found = bsearch(&key, file->by_key, (size_t)file->metadata_count,
                                        sizeof(FileMetadata), compare_names);
    return found ? found->value : NULL;
}

/* A file whose messages name this function. */
static TensorFile as_of(const char *function, const TensorFile *file)
{
    TensorFile result = *file;
    result.function = function;
    return result;
}

/* The named entry; NULL unless it has one of the types, a sum of 1 << FileType, and the expected
 * shape. */
static const PlacedEntry *expect(const TensorFile *file, const char *name, uint32_t types,
                                 const char *types_text, Shape expected)
{
    if (expected.rank < 0 || expected.rank > MAX_RANK)
        shape_new(expected.rank, NULL); /* raises */
    const PlacedEntry *placed = find(file, name);
    const FileEntry *entry = placed ? &placed->entry : NULL;
    const FileNameText text = file_name_text(name);
    if (!entry)
        file_fail(file, "there is no entry \"%s\"", text.text);
    else if ((types >> entry->type & 1) == 0)
        file_fail(file, "entry \"%s\" is of type %s, expected %s", text.text,
                  file_types[entry->type].name, types_text);
    else if (!shape_equal(entry->shape, expected))
        file_fail(file, "entry \"%s\" has shape %s, expected %s", text.text,
                  shape_text(entry->shape).text, shape_text(expected).text);
    else
        return placed;
    return NULL;
}

/* Elements of an entry, as the file stores them. */
enum { FILE_CHUNK = 1 << 14 };
typedef union FileChunk {
    uint16_t bits[FILE_CHUNK / 2];
    float single[FILE_CHUNK / 4];
    double wide[FILE_CHUNK / 8];
    int32_t narrow_integer[FILE_CHUNK / 4];
    int64_t wide_integer[FILE_CHUNK / 8];
} FileChunk;

/* Where the entry begins in the file. */
static int64_t data_at(const TensorFile *file, const PlacedEntry *placed)
{
    return 8 + file->header_length + placed->begin;
}

/* Reads the elements from `start` on, at most n and as fit a chunk; their number, 0 on error. */
static int64_t read_elements(const TensorFile *file, const PlacedEntry *placed, int64_t start,
                             int64_t n, FileChunk *chunk)
{
    const int64_t width = file_types[placed->entry.type].bits / 8;
    const int64_t count = n - start < FILE_CHUNK / width ? n - start : FILE_CHUNK / width;
    return file_read(file, data_at(file, placed) + start * width, chunk, count * width) ? count : 0;
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

static double float_at(const FileChunk *chunk, FileType type, int64_t i)
{
    switch ((int)type) {
    case FILE_F64:
        return chunk->wide[i];
    case FILE_F32:
        return (double)chunk->single[i];
    case FILE_F16:
        return double_of_f16(chunk->bits[i]);
    default:
        return (double)real_of_bf16(chunk->bits[i]);
    }
}

bool file_read_reals(const TensorFile *file, const char *name, Shape expected, Real *host,
                     bool *unreadable)
{
    need_file("tensor_file_read", file, name);
    const TensorFile named = as_of("tensor_file_read", file);
    const PlacedEntry *placed =
        expect(&named, name, 1 << FILE_F16 | 1 << FILE_BF16 | 1 << FILE_F32 | 1 << FILE_F64,
               "F16, BF16, F32 or F64", expected);
    const int64_t n = placed ? shape_count(expected) : 0;
    FileChunk chunk;
    for (int64_t start = 0, count; start < n; start += count) {
        count = read_elements(&named, placed, start, n, &chunk);
        for (int64_t i = 0; i < count; i++) {
            const double value = float_at(&chunk, placed->entry.type, i);
            host[start + i] = (Real)value;
            if (!isfinite(host[start + i]) && isfinite(value))
                return file_fail(
                    &named, "entry \"%s\": element %" PRId64 " is %g, which does not fit a float",
                    file_name_text(name).text, start + i, value);
        }
        *unreadable = count == 0;
        if (count == 0)
            return false;
    }
    return placed != NULL;
}

bool tensor_file_read(const TensorFile *file, const char *name, Shape expected, Real *host)
{
    bool unreadable = false;
    return file_read_reals(file, name, expected, host, &unreadable);
}

bool tensor_file_read_i32(const TensorFile *file, const char *name, Shape expected, int32_t *host)
{
    need_file("tensor_file_read_i32", file, name);
    const TensorFile named = as_of("tensor_file_read_i32", file);
    const PlacedEntry *placed =
        expect(&named, name, 1 << FILE_I32 | 1 << FILE_I64, "I32 or I64", expected);
    const int64_t n = placed ? shape_count(expected) : 0;
    FileChunk chunk;
    for (int64_t start = 0, count; start < n; start += count) {
        count = read_elements(&named, placed, start, n, &chunk);
        for (int64_t i = 0; i < count; i++) {
            const bool wide = placed->entry.type == FILE_I64;
            const int64_t value = wide ? chunk.wide_integer[i] : chunk.narrow_integer[i];
            host[start + i] = (int32_t)value;
            if (host[start + i] != value)
                return file_fail(&named,
                                 "entry \"%s\": element %" PRId64 " is %" PRId64
                                 ", which does not fit 32 bits",
                                 file_name_text(name).text, start + i, value);
        }
        if (count == 0)
            return false;
    }
    return placed != NULL;
}

bool tensor_file_read_bytes(const TensorFile *file, const char *name, void *host)
{
    need_file("tensor_file_read_bytes", file, name);
    const TensorFile named = as_of("tensor_file_read_bytes", file);
    const PlacedEntry *placed = find(file, name);
    if (!placed)
        return file_fail(&named, "there is no entry \"%s\"", file_name_text(name).text);
    return file_read(&named, data_at(file, placed), host, end_of(placed) - placed->begin);
}
