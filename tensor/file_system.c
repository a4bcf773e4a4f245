/* The operating system's part of reading and writing files. On Unix a file is written under a
 * temporary name in the same directory, flushed to the disk and then renamed, so that the path
 * always holds the complete old or new file, even after a crash. A lock (flock) on the temporary
 * file distinguishes the file of a save in progress from one that a killed process left. Calls
 * that a signal interrupts are repeated.
 *
 * Elsewhere C's streams write the temporary file, without the lock and the flush. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* of POSIX and flock, in strict C11 */
#endif
#include "tensor/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_BYTES = 1 << 30 }; /* per call of read and write */

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* open(2), repeated when a signal interrupts it. */
static int file_descriptor(const char *path, int flags)
{
    int descriptor;
    do
        descriptor = open(path, flags | O_CLOEXEC, 0666);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/* ------------------------------------------------------------------------------------ reading */
bool file_stream_open(const TensorFile *file, FileStream *stream, int64_t *size)
{
    struct stat status;
    stream->descriptor = file_descriptor(file->path, O_RDONLY | O_NONBLOCK); /* of a FIFO, too */
    if (stream->descriptor < 0 || fstat(stream->descriptor, &status) != 0)
        return file_fail(file, "%s", strerror(errno));
    *size = status.st_size;
    return S_ISREG(status.st_mode) || file_fail(file, "not a regular file");
}

bool file_stream_read(const TensorFile *file, FileStream *stream, void *to, int64_t bytes)
{
    for (ssize_t got; bytes > 0; bytes -= got, to = (char *)to + got) {
        got = read(stream->descriptor, to, (size_t)(bytes < CALL_BYTES ? bytes : CALL_BYTES));
        if (got < 0 && errno == EINTR)
            got = 0;
        else if (got <= 0)
            return file_fail(file, "%s",
                             got < 0 ? strerror(errno) : "the file ended while it was read");
    }
    return true;
}

void file_stream_close(FileStream *stream)
{
    if (stream->descriptor >= 0)
        close(stream->descriptor);
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
        written = write(descriptor, bytes, (size_t)(count < CALL_BYTES ? count : CALL_BYTES));
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

static bool write_all(const TensorFile *file, int descriptor, const char *header, int64_t length)
{
    if (!write_bytes(descriptor, header, length))
        return false;
    for (int i = 0; i < file->count; i++) {
        const FileEntry *entry = &file->entries[i];
        if (!write_bytes(descriptor, entry->data, file_bytes(entry->type, entry->shape)))
            return false;
    }
    return flush(descriptor);
}

/* Flushes the path's directory, and with it the rename; changes the path. Some file systems
 * cannot and return EINVAL. */
static bool flush_directory(char *path)
{
    const int descriptor = file_descriptor(dirname(path), O_RDONLY | O_DIRECTORY);
    if (descriptor < 0)
        return false;
    const bool ok = flush(descriptor) || errno == EINVAL;
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return ok;
}

/* Closing the temporary file unlocks it, and so comes after the rename. */
bool file_replace(const TensorFile *file, const char *header, int64_t length)
{
    Destination to;
    if (!find_destination(file, &to) || !create_temporary(file, &to))
        return false;
    const bool ok = (to.mode < 0 || fchmod(to.descriptor, (mode_t)to.mode) == 0) &&
                    write_all(file, to.descriptor, header, length) &&
                    rename(to.temporary, to.path) == 0;
    const int reason = errno;
    if (!ok)
        unlink(to.temporary);
    close(to.descriptor);
    if (!ok)
        return file_fail(file, "cannot write: %s", strerror(reason));
    return flush_directory(to.path) ||
           file_fail(file, "cannot flush its folder: %s", strerror(errno));
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

#else

bool file_stream_open(const TensorFile *file, FileStream *stream, int64_t *size)
{
    FILE *opened = stream->stream = fopen(file->path, "rb");
    if (!opened || fseek(opened, 0, SEEK_END) != 0 || (*size = ftell(opened)) < 0 ||
        fseek(opened, 0, SEEK_SET) != 0)
        return file_fail(file, "%s", strerror(errno));
    return true;
}

bool file_stream_read(const TensorFile *file, FileStream *stream, void *to, int64_t bytes)
{
    for (size_t got; bytes > 0; bytes -= (int64_t)got, to = (char *)to + got) {
        got = fread(to, 1, (size_t)(bytes < CALL_BYTES ? bytes : CALL_BYTES), stream->stream);
        if (got == 0)
            return file_fail(file, "%s",
                             ferror((FILE *)stream->stream) ? strerror(errno)
                                                            : "the file ended while it was read");
    }
    return true;
}

void file_stream_close(FileStream *stream)
{
    if (stream->stream)
        fclose(stream->stream);
}

/* PATH.tmp.0, which the caller frees; NULL after an error. */
static char *temporary_path(const TensorFile *file)
{
    const size_t bytes = strlen(file->path) + sizeof ".tmp.0";
    char *temporary = file->path[0] ? file_allocate(file, (int64_t)bytes, 1) : NULL;
    if (temporary)
        snprintf(temporary, bytes, "%s.tmp.0", file->path);
    else if (!file->path[0])
        file_fail(file, "the name is empty");
    return temporary;
}

static FILE *create_temporary(const TensorFile *file, const char *temporary)
{
    FILE *stream = fopen(temporary, "wb");
    if (!stream)
        file_fail(file, "cannot create a temporary file beside it: %s", strerror(errno));
    return stream;
}

static bool write_bytes(FILE *stream, const void *bytes, int64_t count)
{
    return fwrite(bytes, 1, (size_t)count, stream) == (size_t)count;
}

/* Some systems rename to no file that exists. */
static bool rename_over(const char *from, const char *to)
{
    return rename(from, to) == 0 || (remove(to) == 0 && rename(from, to) == 0);
}

bool file_replace(const TensorFile *file, const char *header, int64_t length)
{
    char *temporary = temporary_path(file);
    FILE *stream = temporary ? create_temporary(file, temporary) : NULL;
    bool ok = stream && write_bytes(stream, header, length);
    for (int i = 0; ok && i < file->count; i++)
        ok = write_bytes(stream, file->entries[i].data,
                         file_bytes(file->entries[i].type, file->entries[i].shape));
    if (stream) {
        ok = fclose(stream) == 0 && ok && rename_over(temporary, file->path);
        if (!ok) {
            file_fail(file, "cannot write: %s", strerror(errno));
            remove(temporary);
        }
    }
    free(temporary);
    return ok;
}

bool tensor_file_can_save(const char *path)
{
    if (!path)
        return error_report("tensor_file_can_save: the path is NULL");
    const TensorFile file = { .function = "tensor_file_can_save", .path = path };
    char *temporary = temporary_path(&file);
    FILE *stream = temporary ? create_temporary(&file, temporary) : NULL;
    const bool ok = stream && fclose(stream) == 0 && remove(temporary) == 0;
    free(temporary);
    return ok;
}

#endif
