/* Writes safetensors files; file_read.c describes the format, file_system.c replaces the old
 * file. */
#include "tensor/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- validation */

static bool check_entry(const TensorFile *file, const FileEntry *entry)
{
    if (!entry->name || entry->name[0] == 0)
        return file_fail(file, "an entry's name is empty");
    FileNameText name = file_name_text(entry->name);
    if (strcmp(entry->name, FILE_METADATA_NAME) == 0)
        return file_fail(file, "an entry is named %s, which the format reserves", name.text);
    if (*file_utf8_end(entry->name))
        return file_fail(file, "the name \"%s\" is not UTF-8", name.text);
    if ((int)entry->type < 0 || (int)entry->type >= FILE_TYPES)
        return file_fail(file, "entry \"%s\" has an unknown FileType: %d", name.text,
                         (int)entry->type);
    if (file_bytes(entry->type, entry->shape) < 0)
        return file_fail(file, "entry \"%s\" has an invalid shape", name.text);
    if (!entry->data)
        return file_fail(file, "entry \"%s\" has no data", name.text);
    return true;
}

/* Checks all, and places the entries one after the other. */
static bool check_contents(TensorFile *file, const FileEntry *entries)
{
    int64_t total = 0;
    if (file->count < 0 || file->metadata_count < 0)
        return file_fail(file, "there are %d entries and %d metadata strings, expected 0 or more",
                         file->count, file->metadata_count);
    file->entries = file_allocate(file, file->count, sizeof(PlacedEntry));
    if (!file->entries)
        return false;
    for (int i = 0; i < file->count; i++) {
        if (!check_entry(file, &entries[i]))
            return false;
        file->entries[i] = (PlacedEntry){ entries[i], total };
        total += file_bytes(entries[i].type, entries[i].shape);
        if (total >= FILE_MAX_SIZE)
            return file_fail(file, "the entries take %" PRId64 " bytes or more", total);
    }
    for (int i = 0; i < file->metadata_count; i++) {
        const char *key = file->metadata[i].key, *value = file->metadata[i].value;
        if (!key || !value)
            return file_fail(file, "a key or value of the metadata is NULL");
        if (*file_utf8_end(key) || *file_utf8_end(value))
            return file_fail(file, "the metadata of the key \"%s\" are not UTF-8",
                             file_name_text(key).text);
    }
    return true;
}

/* ----------------------------------------------------------------------------------- the header */

/* Text that grows; while text is NULL it is counted and not written. */
typedef struct Writer {
    char *text;
    size_t length, size;
} Writer;

__attribute__((format(printf, 2, 3))) static void put(Writer *writer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *end = writer->text ? writer->text + writer->length : NULL;
    const size_t space = writer->text ? writer->size - writer->length : 0;
    writer->length += (size_t)vsnprintf(end, space, format, arguments);
    va_end(arguments);
}

static void put_string(Writer *writer, const char *string)
{
    put(writer, "\"");
    for (; *string; string++) {
        const unsigned char c = (unsigned char)*string;
        put(writer, c < 0x20 || c == '"' || c == '\\' ? "\\u%04x" : "%c", c);
    }
    put(writer, "\"");
}

static void put_metadata(Writer *writer, const TensorFile *file)
{
    for (int i = 0; i < file->metadata_count; i++) {
        put(writer, i == 0 ? "\"" FILE_METADATA_NAME "\":{" : ",");
        put_string(writer, file->metadata[i].key);
        put(writer, ":");
        put_string(writer, file->metadata[i].value);
    }
    if (file->metadata_count > 0)
        put(writer, file->count > 0 ? "}," : "}");
}

static void put_entry(Writer *writer, const PlacedEntry *placed)
{
    const FileEntry *entry = &placed->entry;
    put_string(writer, entry->name);
    put(writer, ":{\"dtype\":\"%s\",\"shape\":[", file_types[entry->type].name);
    for (int axis = 0; axis < entry->shape.rank; axis++)
        put(writer, axis == 0 ? "%" PRId64 : ",%" PRId64, entry->shape.size[axis]);
    put(writer, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", placed->begin,
        placed->begin + file_bytes(entry->type, entry->shape));
}

/* The length and the header, padded with spaces so that the data begin at a multiple of 8. */
static void put_header(Writer *writer, const TensorFile *file)
{
    put(writer, "%8s{", ""); /* the length's bytes */
    put_metadata(writer, file);
    for (int i = 0; i < file->count; i++) {
        if (i > 0)
            put(writer, ",");
        put_entry(writer, &file->entries[i]);
    }
    put(writer, "}");
    put(writer, "%*s", (int)((8 - writer->length % 8) % 8), "");
    const uint64_t length = writer->length - sizeof length;
    if (writer->text)
        memcpy(writer->text, &length, sizeof length);
}

/* All bytes before the data, which the caller frees; text is NULL after an error. */
static Writer header_of(const TensorFile *file)
{
    Writer writer = { 0 };
    put_header(&writer, file);
    if (writer.length > FILE_MAX_HEADER)
        file_fail(file, "names and metadata make a header of %lld bytes; at most %d are allowed",
                  (long long)writer.length, FILE_MAX_HEADER);
    else
        writer.text = file_allocate(file, (int64_t)writer.length + 1, 1);
    writer.size = writer.length + 1;
    writer.length = 0;
    if (writer.text)
        put_header(&writer, file);
    return writer;
}

bool tensor_file_save(const FileEntry *entries, int entry_count, const FileMetadata *metadata,
                      int metadata_count, const char *path)
{
    if (!path)
        return error_report("tensor_file_save: the path is NULL");
    if (!entries && entry_count > 0)
        return error_report("tensor_file_save: entries is NULL");
    if (!metadata && metadata_count > 0)
        return error_report("tensor_file_save: metadata is NULL");
    TensorFile file = { .function = "tensor_file_save",
                        .path = path,
                        .count = entry_count,
                        .metadata = (FileMetadata *)metadata, /* only read */
                        .metadata_count = metadata_count };
    bool ok = check_contents(&file, entries) && file_sort(&file);
    const Writer header = ok ? header_of(&file) : (Writer){ 0 };
    ok = header.text && file_replace(&file, header.text, (int64_t)header.length, true);
    free(header.text);
    free(file.entries);
    free(file.by_name);
    free(file.by_key);
    return ok;
}
