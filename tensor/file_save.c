/* Writes safetensors files; tensor/file.c describes the format. The file is written under a
 * temporary name in the same folder, flushed to the disk and then renamed, so that the path always
 * holds the complete old or new file, even after a crash. */
#include "tensor/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ----------------------------------------------------------------------------------- validation */

static bool is_utf8(const char *text)
{
    return text[file_utf8_length(text)] == 0;
}

static bool check_entry(const TensorFile *file, const FileEntry *entry)
{
    if (!entry->name || entry->name[0] == 0)
        return file_fail(file, "an entry's name is empty");
    FileNameText name = file_name_text(entry->name);
    if (strcmp(entry->name, FILE_METADATA_NAME) == 0)
        return file_fail(file, "an entry is named %s, which the format reserves", name.text);
    if (!is_utf8(entry->name))
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

static bool check_contents(const TensorFile *file)
{
    int64_t total = 0;
    if (file->count < 0 || file->metadata_count < 0)
        return file_fail(file, "there are %d entries and %d metadata strings, expected 0 or more",
                         file->count, file->metadata_count);
    for (int i = 0; i < file->count; i++) {
        const FileEntry *entry = &file->entries[i];
        if (!check_entry(file, entry))
            return false;
        total += file_bytes(entry->type, entry->shape);
        if (total >= FILE_LARGEST_SIZE)
            return file_fail(file, "the entries take %" PRId64 " bytes or more", total);
    }
    for (int i = 0; i < file->metadata_count; i++) {
        const char *key = file->metadata[i].key, *value = file->metadata[i].value;
        if (!key || !value)
            return file_fail(file, "a key or value of the metadata is NULL");
        if (!is_utf8(key) || !is_utf8(value))
            return file_fail(file, "the metadata of the key \"%s\" are not UTF-8",
                             file_name_text(key).text);
    }
    return true;
}

/* ----------------------------------------------------------------------------------- the header */

static bool add_numbers(cJSON *object, const char *key, const double *numbers, int count)
{
    cJSON *list = cJSON_CreateDoubleArray(numbers, count);
    if (cJSON_AddItemToObject(object, key, list))
        return true;
    cJSON_Delete(list);
    return false;
}

static bool add_entry(cJSON *header, const FileEntry *entry, int64_t begin)
{
    const double end = (double)(begin + file_bytes(entry->type, entry->shape));
    double sizes[MAX_RANK];
    for (int axis = 0; axis < entry->shape.rank; axis++)
        sizes[axis] = (double)entry->shape.size[axis];
    cJSON *item = cJSON_AddObjectToObject(header, entry->name);
    return cJSON_AddStringToObject(item, "dtype", file_types[entry->type].name) &&
           add_numbers(item, "shape", sizes, entry->shape.rank) &&
           add_numbers(item, "data_offsets", (const double[]){ (double)begin, end }, 2);
}

/* The header as text, which the caller frees; NULL when memory is exhausted. */
static char *header_text(const TensorFile *file)
{
    cJSON *header = cJSON_CreateObject();
    bool good = header;
    cJSON *texts =
        file->metadata_count > 0 ? cJSON_AddObjectToObject(header, FILE_METADATA_NAME) : NULL;
    for (int i = 0; good && i < file->metadata_count; i++)
        good = cJSON_AddStringToObject(texts, file->metadata[i].key, file->metadata[i].value);
    int64_t begin = 0;
    for (int i = 0; good && i < file->count; i++) {
        good = add_entry(header, &file->entries[i], begin);
        begin += file_bytes(file->entries[i].type, file->entries[i].shape);
    }
    char *text = good ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

/* -------------------------------------------------------------------------------------- writing */

/* Pads the header with spaces so that the data begin at a multiple of 8. */
static bool write_all(FILE *stream, const TensorFile *file, const char *header)
{
    size_t length = strlen(header), padding = (8 - length % 8) % 8;
    uint64_t padded = length + padding;
    if (fwrite(&padded, sizeof padded, 1, stream) != 1 ||
        fwrite(header, 1, length, stream) != length ||
        fwrite("        ", 1, padding, stream) != padding)
        return false;
    for (int i = 0; i < file->count; i++) {
        size_t bytes = (size_t)file_bytes(file->entries[i].type, file->entries[i].shape);
        if (fwrite(file->entries[i].data, 1, bytes, stream) != bytes)
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
            if (!stream) {
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
    int descriptor = open(dirname(strcpy(folder, path)), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool good = fsync(descriptor) == 0 || errno == EINVAL;
    int reason = errno;
    close(descriptor);
    errno = reason;
    return good;
}

/* Writes and closes the temporary file, then renames it to the path; removes it after an error. */
static bool write_and_rename(const TensorFile *file, FILE *stream, const char *temporary,
                             const char *header)
{
    int error = write_all(stream, file, header) ? 0 : errno;
    if (fclose(stream) != 0 && !error)
        error = errno;
    if (!error && rename(temporary, file->path) != 0)
        error = errno;
    if (!error)
        return true;
    unlink(temporary);
    return file_fail(file, "cannot write: %s", strerror(error));
}

static bool replace_file(const TensorFile *file, const char *header)
{
    struct stat status;
    if (stat(file->path, &status) == 0 && !S_ISREG(status.st_mode))
        return file_fail(file, "it exists and is not a regular file");
    size_t size = strlen(file->path) + sizeof ".tmp." + 32;
    char *name = file_allocate(file, (int64_t)size, 1); /* the temporary name, then the folder's */
    if (!name)
        return false;
    bool good = false;
    FILE *stream = open_temporary(file->path, name, size);
    if (!stream)
        file_fail(file, "cannot create a temporary file beside it: %s", strerror(errno));
    else if (write_and_rename(file, stream, name, header))
        good = flush_folder(file->path, name) ||
               file_fail(file, "cannot flush its folder: %s", strerror(errno));
    free(name);
    return good;
}

bool tensor_file_save(const FileEntry *entries, int entry_count, const FileMetadata *metadata,
                      int metadata_count, const char *path)
{
    if (!path)
        return error_report("tensor_file_save: the path is NULL");
    TensorFile file = { .function = "tensor_file_save",
                        .path = path,
                        .entries = entries,
                        .count = entry_count,
                        .metadata = metadata,
                        .metadata_count = metadata_count };
    bool good = check_contents(&file) && file_sort(&file, "the metadata's key");
    free(file.by_name);
    free(file.by_key);
    if (!good)
        return false;
    char *header = header_text(&file);
    if (!header)
        return file_fail(&file, "memory is exhausted");
    good = replace_file(&file, header);
    free(header);
    return good;
}
