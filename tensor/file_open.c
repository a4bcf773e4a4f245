/* Reads safetensors files; tensor/file.c describes the format. Files are untrusted: nothing of a
 * file is used before all of it is validated. */
#include "tensor/file.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The least bytes that an entry, and a key with its value, take in a header. */
#define SHORTEST_ENTRY "\"a\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,0]}"
#define SHORTEST_METADATA "\"\":\"\""

/* ------------------------------------------------------------------------------------- JSON tokens
 * The header's JSON is parsed in one pass that accepts nothing but the members of the format.
 * Strings are decoded in place, which never lengthens them: the header's buffer holds them all. */
typedef struct Header {
    TensorFile *file;
    char *at; /* the next character; the text ends in NUL */
} Header;

static bool bad_json(const Header *header)
{
    return file_fail(header->file, "the header is not valid JSON near byte %td",
                     header->at - header->file->header);
}

static char next_token(Header *header)
{
    header->at += strspn(header->at, " \t\n\r");
    return *header->at;
}

static bool take(Header *header, char token)
{
    const bool found = next_token(header) == token;
    header->at += found;
    return found;
}

static bool need(Header *header, char token)
{
    return take(header, token) || bad_json(header);
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

static char *put_utf8(char *to, int32_t code)
{
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *to++ = (char)(more ? 0xFF00 >> (more + 1) | code >> 6 * more : code);
    for (int i = more - 1; i >= 0; i--)
        *to++ = (char)(0x80 | (code >> 6 * i & 0x3F));
    return to;
}

/* Decodes the escape sequence at header->at to `to`; returns the end of it, NULL after an error. */
static char *parse_escape(Header *header, char *to)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *start = header->at, *name = start[1] ? strchr(names, start[1]) : NULL;
    int32_t code = start[1] == 'u' ? hex_digits(start + 2) : name ? meanings[name - names] : -1;
    int length = name ? 2 : 6;
    if (code >= 0xD800 && code < 0xDC00) { /* the first half of a surrogate pair */
        const int32_t low = start[6] == '\\' && start[7] == 'u' ? hex_digits(start + 8) : -1;
        const bool pair = low >= 0xDC00 && low < 0xE000;
        code = pair ? 0x10000 + (code - 0xD800) * 1024 + (low - 0xDC00) : -1;
        length = 12;
    }
    if (code == 0) {
        file_fail(header->file, "the header has a NUL character inside a string at byte %td",
                  start - header->file->header);
        return NULL;
    }
    if (code < 0 || (code >= 0xDC00 && code < 0xE000))
        return bad_json(header), NULL;
    header->at += length;
    return put_utf8(to, code);
}

/* NULL after an error. */
static char *parse_string(Header *header)
{
    if (!need(header, '"'))
        return NULL;
    char *string = header->at, *end = string;
    while (*header->at != '"') {
        if (*header->at == '\\') {
            end = parse_escape(header, end);
            if (!end)
                return NULL;
        } else if ((unsigned char)*header->at >= 0x20) {
            *end++ = *header->at++;
        } else if (*header->at == 0) {
            return bad_json(header), NULL;
        } else {
            file_fail(header->file, "the header has a control character at byte %td",
                      header->at - header->file->header);
            return NULL;
        }
    }
    header->at++;
    *end = 0;
    return string;
}

/* An integer from 0 to 2^53 - 1 in digits; false for anything else. */
static bool parse_whole(Header *header, int64_t *whole)
{
    if (!isdigit((unsigned char)next_token(header)))
        return false;
    const char *digits = header->at;
    *whole = 0;
    for (; isdigit((unsigned char)*header->at) && *whole < FILE_LARGEST_SIZE; header->at++)
        *whole = 10 * *whole + (*header->at - '0');
    const bool leading_zero = digits[0] == '0' && header->at - digits > 1;
    return *whole < FILE_LARGEST_SIZE && !leading_zero && !strchr(".eE", *header->at);
}

/* ------------------------------------------------------------------------------------- the entries
 * A member of an entry, from its value on. */

static bool parse_type(Header *header, FileEntry *entry)
{
    if (next_token(header) != '"')
        return file_fail(header->file, "the dtype is not a string");
    const char *name = parse_string(header);
    for (int type = 0; name && type < FILE_TYPES; type++)
        if (strcmp(name, file_types[type].name) == 0) {
            entry->type = (FileType)type;
            return true;
        }
    return name && file_fail(header->file, "the dtype \"%s\" is none of the format",
                             file_name_text(name).text);
}

static bool parse_shape(Header *header, FileEntry *entry)
{
    int64_t sizes = 0, count = 1, size;
    if (!take(header, '['))
        return file_fail(header->file, "the shape is not a list");
    if (take(header, ']'))
        return true;
    do {
        if (!parse_whole(header, &size))
            return file_fail(header->file,
                             "axis %" PRId64 " of the shape is not a whole number of 0 or more",
                             sizes);
        if (count < 0 || __builtin_mul_overflow(count, size, &count))
            count = -1;
        if (sizes < MAX_RANK)
            entry->shape.size[sizes] = size;
        sizes++;
    } while (take(header, ','));
    entry->shape.rank = (int)sizes;
    if (sizes > MAX_RANK)
        entry->shape = (Shape){ 1, { count } };
    return need(header, ']');
}

static bool parse_offsets(Header *header, int64_t offsets[2])
{
    return (take(header, '[') && parse_whole(header, &offsets[0]) && take(header, ',') &&
            parse_whole(header, &offsets[1]) && take(header, ']')) ||
           file_fail(header->file, "data_offsets is not a list of two whole numbers");
}

/* Checks the members together; entry->data becomes the address. */
static bool place_entry(const TensorFile *file, FileEntry *entry, const int64_t offsets[2])
{
    const int64_t begin = offsets[0], end = offsets[1],
                  bytes = file_bytes(entry->type, entry->shape);
    if (bytes < 0)
        return file_fail(file, "%s of %s is too large or takes no whole bytes",
                         shape_text(entry->shape).text, file_types[entry->type].name);
    if (begin > end)
        return file_fail(file, "the data end at %" PRId64 ", before they begin at %" PRId64, end,
                         begin);
    if (end > file->data_size)
        return file_fail(
            file, "the data end at %" PRId64 ", but the file holds %" PRId64 " bytes of data", end,
            file->data_size);
    if (end - begin != bytes)
        return file_fail(file, "the data are %" PRId64 " bytes, but %s of %s takes %" PRId64,
                         end - begin, shape_text(entry->shape).text, file_types[entry->type].name,
                         bytes);
    entry->data = file->data + begin;
    return true;
}

/* {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}: exactly these three members. */
static bool parse_members(Header *header, FileEntry *entry, int64_t offsets[2])
{
    static const char *const names[] = { "dtype", "shape", "data_offsets" };
    int seen = 0;
    bool ok = take(header, '{') && next_token(header) != '}';
    while (ok) {
        const char *name = parse_string(header);
        if (!name || !need(header, ':'))
            return false;
        int member = 0;
        while (member < 3 && strcmp(name, names[member]) != 0)
            member++;
        ok = member < 3 && (seen >> member & 1) == 0;
        seen |= 1 << member;
        if (ok && !(member == 0   ? parse_type(header, entry)
                    : member == 1 ? parse_shape(header, entry)
                                  : parse_offsets(header, offsets)))
            return false;
        if (ok && !take(header, ','))
            break;
    }
    if (!ok || seen != 7)
        return file_fail(header->file, "not an object of dtype, shape and data_offsets");
    return need(header, '}');
}

static bool parse_entry(Header *header, const char *name, FileEntry *entry)
{
    int64_t offsets[2];
    TensorFile *file = header->file;
    if (name[0] == 0)
        return file_fail(file, "an entry's name is empty");
    *entry = (FileEntry){ .name = name };
    file->parsed = name;
    if (!parse_members(header, entry, offsets) || !place_entry(file, entry, offsets))
        return false;
    file->parsed = NULL;
    return true;
}

static bool parse_metadata(Header *header, size_t length)
{
    TensorFile *file = header->file;
    if (file->metadata)
        return file_fail(file, FILE_METADATA_NAME " appears twice");
    FileMetadata *metadata = file_allocate(file, (int64_t)(length / strlen(SHORTEST_METADATA) + 1),
                                           sizeof(FileMetadata));
    file->metadata = metadata;
    if (!metadata)
        return false;
    if (!take(header, '{'))
        return file_fail(file, FILE_METADATA_NAME " is not an object");
    if (take(header, '}'))
        return true;
    do {
        const char *key = parse_string(header);
        if (!key || !need(header, ':'))
            return false;
        if (next_token(header) != '"')
            return file_fail(file, FILE_METADATA_NAME ": the value of \"%s\" is not a string",
                             file_name_text(key).text);
        const char *value = parse_string(header);
        if (!value)
            return false;
        metadata[file->metadata_count++] = (FileMetadata){ key, value };
    } while (take(header, ','));
    return need(header, '}');
}

/* {"__metadata__": {...}, "name": {...}, ...} */
static bool parse_entries(Header *header, FileEntry *entries, size_t length)
{
    if (!take(header, '}')) {
        do {
            const char *name = parse_string(header);
            if (!name || !need(header, ':'))
                return false;
            if (strcmp(name, FILE_METADATA_NAME) == 0) {
                if (!parse_metadata(header, length))
                    return false;
            } else if (!parse_entry(header, name, &entries[header->file->count])) {
                return false;
            } else {
                header->file->count++;
            }
        } while (take(header, ','));
        if (!need(header, '}'))
            return false;
    }
    return next_token(header) == 0 || bad_json(header);
}

static int compare_offsets(const void *a, const void *b)
{
    const FileEntry *x = a, *y = b;
    const int64_t x_bytes = file_bytes(x->type, x->shape), y_bytes = file_bytes(y->type, y->shape);
    if (x->data != y->data)
        return (const char *)x->data > (const char *)y->data ? 1 : -1;
    return (x_bytes > y_bytes) - (x_bytes < y_bytes); /* the empty ones first */
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

/* Parses file->header. file->data must be allocated but need not be read yet. */
static bool parse_header(TensorFile *file, size_t length)
{
    Header header = { file, file->header };
    const size_t valid = file_utf8_length(file->header);
    if (valid != length)
        return file_fail(file, "the header is not UTF-8 at byte %zu", valid);
    if (*header.at++ != '{')
        return file_fail(file, "the header does not begin with {");
    FileEntry *entries =
        file_allocate(file, (int64_t)(length / strlen(SHORTEST_ENTRY) + 1), sizeof(FileEntry));
    file->entries = entries;
    return entries && parse_entries(&header, entries, length) &&
           file_sort(file, FILE_METADATA_NAME ": the key") && check_offsets(file, entries);
}

/* -------------------------------------------------------------------------- opening and closing */
static bool read_header(TensorFile *file, FileStream stream, size_t length)
{
    file->header = file_allocate(file, (int64_t)length + 1, 1);
    if (!file->header)
        return false;
    file->header[length] = 0;
    return file_stream_read(file, stream, file->header, (int64_t)length);
}

static bool read_file(TensorFile *file, FileStream stream, int64_t size)
{
    uint64_t length, rest = (uint64_t)size - sizeof length;
    if ((uint64_t)size < sizeof length)
        return file_fail(file, "the file has %lld bytes; the header's length alone takes 8",
                         (long long)size);
    if (!file_stream_read(file, stream, &length, sizeof length))
        return false;
    if (length > rest)
        return file_fail(file, "the header's length is %" PRIu64 ", but %" PRIu64 " bytes follow",
                         length, rest);
    if (length > FILE_LARGEST_HEADER)
        return file_fail(file, "the header's length is %" PRIu64 "; at most %d is allowed", length,
                         FILE_LARGEST_HEADER);
    file->data_size = (int64_t)(rest - length);
    if (!read_header(file, stream, (size_t)length))
        return false;
    file->data = file_allocate(file, file->data_size, 1);
    return file->data && parse_header(file, (size_t)length) &&
           file_stream_read(file, stream, file->data, file->data_size);
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
    FileStream stream;
    int64_t size;
    if (file_stream_open(file, &stream, &size)) {
        const bool ok = read_file(file, stream, size);
        file_stream_close(stream);
        if (ok)
            return file;
    }
    tensor_file_close(file);
    return NULL;
}

void tensor_file_close(TensorFile *file)
{
    if (!file)
        return;
    free(file->header);
    free((void *)file->metadata);
    free((void *)file->entries);
    free(file->by_name);
    free(file->by_key);
    free(file->data);
    free(file);
}
