/* Writes safetensors files; tensor/file.c describes the format. The file is written under a
 * temporary name in the same folder, flushed to the disk and then renamed, so that the path always
 * holds the complete old or new file, even after a crash. A lock (flock) on the temporary file
 * distinguishes the file of a save in progress from one that a killed process left. */
#include "tensor/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_BYTES = 1 << 30 }; /* per call of write */

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

/* Text that grows; while size is 0 it is counted and not written. */
typedef struct Writer {
    char *text;
    size_t length, size;
} Writer;

__attribute__((format(printf, 2, 3))) static void put(Writer *writer, const char *format, ...)
{
    const bool writes = writer->size > 0;
    va_list arguments;
    va_start(arguments, format);
    writer->length +=
        (size_t)vsnprintf(writes ? writer->text + writer->length : NULL,
                          writes ? writer->size - writer->length : 0, format, arguments);
    va_end(arguments);
}

static void put_string(Writer *writer, const char *string)
{
    put(writer, "\"");
    while (*string) {
        int plain = 0;
        while (plain < WRITE_BYTES && (unsigned char)string[plain] >= 0x20 &&
               !strchr("\"\\", string[plain]))
            plain++;
        put(writer, "%.*s", plain, string);
        string += plain;
        if (*string && plain < WRITE_BYTES)
            put(writer, "\\u%04x", *string++);
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

static void put_entry(Writer *writer, const FileEntry *entry, int64_t begin)
{
    put_string(writer, entry->name);
    put(writer, ":{\"dtype\":\"%s\",\"shape\":[", file_types[entry->type].name);
    for (int axis = 0; axis < entry->shape.rank; axis++)
        put(writer, axis == 0 ? "%" PRId64 : ",%" PRId64, entry->shape.size[axis]);
    put(writer, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin,
        begin + file_bytes(entry->type, entry->shape));
}

/* The length and the header, padded with spaces so that the data begin at a multiple of 8. */
static void put_header(Writer *writer, const TensorFile *file)
{
    int64_t begin = 0;
    put(writer, "%8s{", ""); /* the length's bytes */
    put_metadata(writer, file);
    for (int i = 0; i < file->count; i++) {
        if (i > 0)
            put(writer, ",");
        put_entry(writer, &file->entries[i], begin);
        begin += file_bytes(file->entries[i].type, file->entries[i].shape);
    }
    put(writer, "}");
    put(writer, "%*s", (int)((8 - writer->length % 8) % 8), "");
    const uint64_t length = writer->length - sizeof length;
    if (writer->size > 0)
        memcpy(writer->text, &length, sizeof length);
}

/* All bytes before the data, which the caller frees; text is NULL after an error. */
static Writer header_of(const TensorFile *file)
{
    Writer writer = { 0 };
    put_header(&writer, file);
    if (writer.length > FILE_LARGEST_HEADER) {
        file_fail(file, "names and metadata make a header of %zu bytes; at most %d are allowed",
                  writer.length, FILE_LARGEST_HEADER);
        return writer;
    }
    writer.size = writer.length + 1;
    writer.length = 0;
    writer.text = file_allocate(file, (int64_t)writer.size, 1);
    if (writer.text)
        put_header(&writer, file);
    return writer;
}

/* ------------------------------------------------------------------------------ the destination */

typedef struct Destination {
    char path[PATH_MAX]; /* of the file itself, behind symbolic links */
    char temporary[PATH_MAX + 16];
    int descriptor; /* of the temporary file, locked */
    int mode;       /* the permissions of the file that is replaced; -1: there is none */
} Destination;

static bool find_destination(const TensorFile *file, Destination *destination)
{
    struct stat status;
    destination->mode = -1;
    if (!file->path[0])
        return file_fail(file, "the name is empty");
    if (lstat(file->path, &status) != 0) /* a path that is too long is no file either */
        return snprintf(destination->path, PATH_MAX, "%s", file->path) < PATH_MAX ||
               file_fail(file, "%s", strerror(ENAMETOOLONG));
    if (!realpath(file->path, destination->path) || stat(destination->path, &status) != 0)
        return file_fail(file, "cannot follow its symbolic links: %s", strerror(errno));
    destination->mode = (int)(status.st_mode & 0777);
    return S_ISREG(status.st_mode) || file_fail(file, "it exists and is not a regular file");
}

/* Removes a temporary file that no process writes. The name may meanwhile belong to another file
 * than the one that was locked. */
static void remove_stale(const char *temporary)
{
    struct stat locked, named;
    const int descriptor = file_descriptor(temporary, O_WRONLY | O_NONBLOCK | O_NOFOLLOW);
    if (descriptor < 0)
        return;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &locked) == 0 &&
        lstat(temporary, &named) == 0 && S_ISREG(named.st_mode) && locked.st_dev == named.st_dev &&
        locked.st_ino == named.st_ino)
        unlink(temporary);
    close(descriptor);
}

/* Creates and locks PATH.tmp.N with the first N that no other save uses. File systems that have no
 * locks do without: the file is new. */
static bool create_temporary(const TensorFile *file, Destination *destination)
{
    for (int n = 0; n < 1000; n++) {
        snprintf(destination->temporary, sizeof destination->temporary, "%s.tmp.%d",
                 destination->path, n);
        remove_stale(destination->temporary);
        const int descriptor = file_descriptor(destination->temporary, O_WRONLY | O_CREAT | O_EXCL);
        if (descriptor < 0 && errno != EEXIST)
            break;
        if (descriptor >= 0 &&
            (flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)) {
            destination->descriptor = descriptor;
            return true;
        }
        if (descriptor >= 0) /* another save found it before it was locked, and removes it */
            close(descriptor);
    }
    return file_fail(file, "cannot create a temporary file beside it: %s", strerror(errno));
}

/* -------------------------------------------------------------------------------------- writing */

static bool write_bytes(int descriptor, const void *bytes, int64_t count)
{
    for (ssize_t written; count > 0; count -= written, bytes = (const char *)bytes + written) {
        written = write(descriptor, bytes, (size_t)(count < WRITE_BYTES ? count : WRITE_BYTES));
        if (written < 0 && errno != EINTR)
            return false;
        written = written < 0 ? 0 : written;
    }
    return true;
}

static bool flush(int descriptor)
{
    int result;
    do
        result = fsync(descriptor);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

static bool write_all(const TensorFile *file, int descriptor, const Writer *header)
{
    if (!write_bytes(descriptor, header->text, (int64_t)header->length))
        return false;
    for (int i = 0; i < file->count; i++) {
        const FileEntry *entry = &file->entries[i];
        if (!write_bytes(descriptor, entry->data, file_bytes(entry->type, entry->shape)))
            return false;
    }
    return flush(descriptor);
}

/* Flushes the path's folder, and with it the rename; changes the path. Some file systems cannot and
 * return EINVAL. */
static bool flush_folder(char *path)
{
    const int descriptor = file_descriptor(dirname(path), O_RDONLY | O_DIRECTORY);
    if (descriptor < 0)
        return false;
    const bool good = flush(descriptor) || errno == EINVAL;
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return good;
}

/* Closing the temporary file unlocks it, and so comes after the rename. */
static bool replace_file(const TensorFile *file, const Writer *header)
{
    Destination to;
    if (!find_destination(file, &to) || !create_temporary(file, &to))
        return false;
    const bool good = (to.mode < 0 || fchmod(to.descriptor, (mode_t)to.mode) == 0) &&
                      write_all(file, to.descriptor, header) && rename(to.temporary, to.path) == 0;
    const int reason = errno;
    if (!good)
        unlink(to.temporary);
    close(to.descriptor);
    if (!good)
        return file_fail(file, "cannot write: %s", strerror(reason));
    return flush_folder(to.path) || file_fail(file, "cannot flush its folder: %s", strerror(errno));
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
    const Writer header = header_of(&file);
    good = header.text && replace_file(&file, &header);
    free(header.text);
    return good;
}

bool tensor_file_can_save(const char *path)
{
    if (!path)
        return error_report("tensor_file_can_save: the path is NULL");
    const TensorFile file = { .function = "tensor_file_can_save", .path = path };
    Destination to;
    if (!find_destination(&file, &to) || !create_temporary(&file, &to))
        return false;
    unlink(to.temporary);
    close(to.descriptor);
    return true;
}
