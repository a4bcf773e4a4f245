/* Writes safetensors files; tensor/file.c describes the format. The file is written under a
 * temporary name in the same folder, flushed to the disk and then renamed, so that the path always
 * holds the complete old or new file, even after a crash. */
#include "tensor/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reports "tensor_file_save: PATH: ..."; returns false. */
__attribute__((format(printf, 2, 3))) static bool fail(const char *path, const char *format, ...)
{
    char sentence[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return error_report("tensor_file_save: %s: %s", path, sentence);
}

/* ----------------------------------------------------------------------------------- validation */

static bool is_utf8(const char *text)
{
    return text[file_utf8_length(text)] == 0;
}

static bool check_entry(const char *path, const FileEntry *entry)
{
    if (entry->name == NULL || entry->name[0] == 0)
        return fail(path, "an entry's name is empty");
    FileNameText name = file_name_text(entry->name);
    if (strcmp(entry->name, FILE_METADATA_NAME) == 0)
        return fail(path, "an entry is named %s, which the format reserves", name.text);
    if (!is_utf8(entry->name))
        return fail(path, "the name \"%s\" is not UTF-8", name.text);
    if ((int)entry->type < 0 || (int)entry->type >= FILE_TYPES)
        return fail(path, "entry \"%s\" has an unknown FileType: %d", name.text, (int)entry->type);
    if (file_bytes(entry->type, entry->shape) < 0)
        return fail(path, "entry \"%s\" has an invalid shape", name.text);
    if (entry->data == NULL)
        return fail(path, "entry \"%s\" has no data", name.text);
    return true;
}

static bool check_metadata(const char *path, const FileMetadata *metadata)
{
    if (metadata->key == NULL || metadata->value == NULL)
        return fail(path, "a key or value of the metadata is NULL");
    if (!is_utf8(metadata->key) || !is_utf8(metadata->value))
        return fail(path, "the metadata of the key \"%s\" are not UTF-8",
                    file_name_text(metadata->key).text);
    return true;
}

/* Whether the structs, whose first member is their name, have distinct names. */
static bool check_unique(const char *path, const char *what, const void *structs, int count,
                         size_t size)
{
    if (count == 0)
        return true;
    void *sorted = memory_allocate((size_t)count * size);
    if (sorted == NULL)
        return fail(path, "memory is exhausted");
    memcpy(sorted, structs, (size_t)count * size);
    const char *twice = file_sort_by_name(sorted, count, size);
    free(sorted);
    return twice == NULL || fail(path, "%s \"%s\" appears twice", what, file_name_text(twice).text);
}

static bool check_request(const char *path, const FileEntry *entries, int entry_count,
                          const FileMetadata *metadata, int metadata_count)
{
    int64_t total = 0;
    if (entry_count < 0 || metadata_count < 0)
        return fail(path, "there are %d entries and %d metadata strings, expected 0 or more",
                    entry_count, metadata_count);
    for (int i = 0; i < entry_count; i++) {
        if (!check_entry(path, &entries[i]))
            return false;
        total += file_bytes(entries[i].type, entries[i].shape);
        if (total >= FILE_LARGEST_SIZE)
            return fail(path, "the entries take %" PRId64 " bytes or more", total);
    }
    for (int i = 0; i < metadata_count; i++)
        if (!check_metadata(path, &metadata[i]))
            return false;
    return check_unique(path, "the name", entries, entry_count, sizeof *entries) &&
           check_unique(path, "the metadata's key", metadata, metadata_count, sizeof *metadata);
}

/* ----------------------------------------------------------------------------------- the header */

static bool add_entry(cJSON *header, const FileEntry *entry, int64_t begin)
{
    int64_t end = begin + file_bytes(entry->type, entry->shape);
    cJSON *item = cJSON_AddObjectToObject(header, entry->name);
    if (item == NULL || !cJSON_AddStringToObject(item, "dtype", file_types[entry->type].name))
        return false;
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int axis = 0; axis < entry->shape.rank; axis++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry->shape.size[axis])))
            return false;
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    return shape != NULL && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
}

static bool fill_header(cJSON *header, const FileEntry *entries, int entry_count,
                        const FileMetadata *metadata, int metadata_count)
{
    if (metadata_count > 0) {
        cJSON *texts = cJSON_AddObjectToObject(header, FILE_METADATA_NAME);
        for (int i = 0; i < metadata_count; i++)
            if (!cJSON_AddStringToObject(texts, metadata[i].key, metadata[i].value))
                return false;
    }
    int64_t begin = 0;
    for (int i = 0; i < entry_count; i++) {
        if (!add_entry(header, &entries[i], begin))
            return false;
        begin += file_bytes(entries[i].type, entries[i].shape);
    }
    return true;
}

/* The header as text, which the caller frees; NULL when memory is exhausted. */
static char *header_text(const FileEntry *entries, int entry_count, const FileMetadata *metadata,
                         int metadata_count)
{
    cJSON *header = cJSON_CreateObject();
    bool good = fill_header(header, entries, entry_count, metadata, metadata_count);
    char *text = good ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

/* -------------------------------------------------------------------------------------- writing */

/* Pads the header with spaces so that the data begin at a multiple of 8. */
static bool write_all(FILE *stream, const char *header, const FileEntry *entries, int entry_count)
{
    size_t length = strlen(header), padding = (8 - length % 8) % 8;
    uint64_t padded = length + padding;
    if (fwrite(&padded, sizeof padded, 1, stream) != 1 ||
        fwrite(header, 1, length, stream) != length ||
        fwrite("        ", 1, padding, stream) != padding)
        return false;
    for (int i = 0; i < entry_count; i++) {
        size_t bytes = (size_t)file_bytes(entries[i].type, entries[i].shape);
        if (fwrite(entries[i].data, 1, bytes, stream) != bytes)
            return false;
    }
    return fflush(stream) == 0 && fsync(fileno(stream)) == 0;
}

/* Creates PATH.tmp.PROCESS.N with the first unused N: a crashed process of the same number may have
 * left its files. */
static FILE *open_temporary(const char *path, char *temporary, size_t size)
{
    for (int n = 0; n < 1000; n++) {
        snprintf(temporary, size, "%s.tmp.%ld.%d", path, (long)getpid(), n);
        int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0) {
            FILE *stream = fdopen(descriptor, "wb");
            if (stream == NULL) {
                close(descriptor);
                unlink(temporary);
            }
            return stream;
        }
        if (errno != EEXIST)
            break;
    }
    return NULL;
}

/* Flushes the path's folder, and with it the rename. Some file systems cannot and return EINVAL. */
static bool flush_folder(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    memcpy(folder, path, length);
    folder[length] = 0;
    int descriptor = open(length > 0 ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool good = fsync(descriptor) == 0 || errno == EINVAL;
    int reason = errno;
    close(descriptor);
    errno = reason;
    return good;
}

/* name: a buffer for the temporary name, then for the folder's. */
static bool replace_file(const char *path, char *name, size_t name_size, const char *header,
                         const FileEntry *entries, int entry_count)
{
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return fail(path, "it exists and is not a regular file");
    FILE *stream = open_temporary(path, name, name_size);
    if (stream == NULL)
        return fail(path, "cannot create a temporary file beside it: %s", strerror(errno));
    bool good = write_all(stream, header, entries, entry_count);
    int reason = errno;
    if (fclose(stream) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (good && rename(name, path) != 0) {
        good = false;
        reason = errno;
    }
    if (!good) {
        unlink(name);
        return fail(path, "cannot write: %s", strerror(reason));
    }
    return flush_folder(path, name) || fail(path, "cannot flush its folder: %s", strerror(errno));
}

bool tensor_file_save(const FileEntry *entries, int entry_count, const FileMetadata *metadata,
                      int metadata_count, const char *path)
{
    if (path == NULL)
        return error_report("tensor_file_save: the path is NULL");
    if (!check_request(path, entries, entry_count, metadata, metadata_count))
        return false;
    size_t name_size = strlen(path) + sizeof ".tmp." + 32;
    char *name = memory_allocate(name_size);
    char *header = header_text(entries, entry_count, metadata, metadata_count);
    bool good = name != NULL && header != NULL
                    ? replace_file(path, name, name_size, header, entries, entry_count)
                    : fail(path, "memory is exhausted");
    free(header);
    free(name);
    return good;
}
