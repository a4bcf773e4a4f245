/* The system calls of reading and writing files.
 *
 * On Unix a file is written under a temporary name in the same directory, flushed to the disk and
 * then renamed, so that the path always holds the complete old or new file, even after a crash. A
 * lock (flock) on the temporary file distinguishes the file of a save in progress from one that a
 * killed process left. Calls that a signal interrupts are repeated.
 *
 * Elsewhere the temporary file has neither lock nor flush. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* of POSIX and flock, in strict C11 */
#endif
#include "tensor/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef _WIN32
#include <io.h>
#define O_CLOEXEC 0
#define O_NONBLOCK 0

/* Not for several threads that read one file: the position is the descriptor's. */
static int64_t pread(int descriptor, void *to, unsigned bytes, int64_t from)
{
    return _lseeki64(descriptor, from, SEEK_SET) < 0 ? -1 : read(descriptor, to, bytes);
}
#else
#define O_BINARY 0
#endif

#ifndef PATH_MAX
#define PATH_MAX 4096
#endif

enum { MAX_CALL_BYTES = 1 << 30 }; /* per call of read and write */

/* A file that is to be replaced. */
typedef struct Destination {
    char path[PATH_MAX]; /* of the file itself, behind symbolic links */
    char temporary[PATH_MAX + 16];
    int descriptor;        /* of the temporary file, locked */
    int mode;              /* the permissions of the file that is replaced; -1: there is none */
    unsigned owner, group; /* with mode: of that file */
} Destination;

static int open_descriptor(const char *path, int flags, int mode)
{
    int descriptor;
    do
        descriptor = open(path, flags | O_CLOEXEC | O_BINARY, mode);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/* -------------------------------------------------------------------------------------- reading */
bool file_open(TensorFile *file, int64_t *size)
{
    struct stat status;
    file->descriptor = open_descriptor(file->path, O_RDONLY | O_NONBLOCK, 0); /* FIFOs, too */
    if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0)
        return file_fail(file, "%s", strerror(errno));
    *size = status.st_size;
    return S_ISREG(status.st_mode) || file_fail(file, "not a regular file");
}

/* The bytes of the next call. */
static unsigned call_bytes(int64_t left)
{
    return (unsigned)(left < MAX_CALL_BYTES ? left : MAX_CALL_BYTES);
}

bool file_read(const TensorFile *file, int64_t from, void *to, int64_t bytes)
{
    while (bytes > 0) {
        const int64_t count = pread(file->descriptor, to, call_bytes(bytes), from);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return file_fail(file, "%s",
                             count < 0 ? strerror(errno) : "the file ended while it was read");
        to = (char *)to + count;
        from += count;
        bytes -= count;
    }
    return true;
}

/* -------------------------------------------------------------------------------------- writing */
static bool write_bytes(int descriptor, const void *from, int64_t bytes)
{
    while (bytes > 0) {
        const int64_t count = write(descriptor, from, call_bytes(bytes));
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return false;
        from = (const char *)from + count;
        bytes -= count;
    }
    return true;
}

#if defined(__unix__) || defined(__APPLE__)
#include <libgen.h>
#include <stdlib.h>
#include <sys/file.h>

/* Some file systems flush no files or no directories, and return EINVAL. */
static bool flush_to_disk(int descriptor)
{
    int result;
    do
        result = fsync(descriptor);
    while (result < 0 && errno == EINTR);
    return result == 0 || errno == EINVAL;
}

static bool find_destination(const TensorFile *file, Destination *to)
{
    struct stat status;
    to->mode = -1;
    if (lstat(file->path, &status) != 0)
        return (errno != ENAMETOOLONG &&
                snprintf(to->path, PATH_MAX, "%s", file->path) < PATH_MAX) ||
               file_fail(file, "%s", strerror(ENAMETOOLONG));
    if (!realpath(file->path, to->path) || stat(to->path, &status) != 0)
        return file_fail(file, "cannot follow its symbolic links: %s", strerror(errno));
    to->mode = (int)(status.st_mode & 0777);
    to->owner = status.st_uid;
    to->group = status.st_gid;
    return S_ISREG(status.st_mode) || file_fail(file, "it exists and is not a regular file");
}

/* Another save may have removed the open file, and given its name to a file of its own. */
static bool is_named(int descriptor, const char *name)
{
    struct stat opened, named;
    return fstat(descriptor, &opened) == 0 && lstat(name, &named) == 0 && S_ISREG(named.st_mode) &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/* Removes a temporary file that no process writes. */
static void remove_stale(const char *temporary)
{
    const int descriptor = open_descriptor(temporary, O_WRONLY | O_NONBLOCK | O_NOFOLLOW, 0);
    if (descriptor < 0)
        return;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_named(descriptor, temporary))
        unlink(temporary);
    close(descriptor);
}

/* The length of the path without the last 8 bytes, those of ".tmp.999", and without a part of a
 * character that this leaves: some file systems refuse such names. */
static int shortened_length(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *end = strlen(name) > 8 ? strchr(name, 0) - 8 : name;
    while (end > name && (*end & 0xC0) == 0x80)
        end--;
    return (int)(end - path);
}

/* Creates and locks PATH.tmp.N with the first N that no other save uses, where PATH is shortened if
 * that makes a name that is too long. File systems that have no locks do without: the file is
 * new. */
static bool create_temporary(Destination *to)
{
    /* Until `finish`, its owner may write it, as remove_stale does, and the umask may narrow it. */
    const int mode = to->mode < 0 ? 0666 : to->mode | 0200;
    int length = (int)strlen(to->path);
    for (int n = 0; n < 1000; n++) {
        snprintf(to->temporary, sizeof to->temporary, "%.*s.tmp.%d", length, to->path, n);
        remove_stale(to->temporary);
        to->descriptor = open_descriptor(to->temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
        if (to->descriptor < 0 && errno == ENAMETOOLONG)
            length = shortened_length(to->path);
        if (to->descriptor < 0 && (errno == EEXIST || (errno == ENAMETOOLONG && n == 0)))
            continue;
        if (to->descriptor < 0)
            return false;
        if ((flock(to->descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
            is_named(to->descriptor, to->temporary))
            return true;
        close(to->descriptor); /* another save found it unlocked, and removes or has removed it */
    }
    return false;
}

static bool rename_temporary(const Destination *to)
{
    int result;
    do
        result = rename(to->temporary, to->path);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

/* Only the superuser may give a file to another owner, and some file systems refuse fchmod: the new
 * file then has the owner of the process, and the permissions that the umask leaves. */
static void keep_owner_and_permissions(const Destination *to)
{
    const bool owned = fchown(to->descriptor, to->owner, to->group) == 0;
    const bool permitted = fchmod(to->descriptor, (mode_t)to->mode) == 0;
    (void)owned, (void)permitted;
}

/* Closing the temporary file unlocks it, and so comes after the rename. */
static bool finish(Destination *to, bool ok, bool renames)
{
    if (ok && to->mode >= 0)
        keep_owner_and_permissions(to);
    ok = ok && flush_to_disk(to->descriptor) && (!renames || rename_temporary(to));
    const int reason = errno;
    if (!ok || !renames)
        unlink(to->temporary);
    close(to->descriptor);
    errno = reason;
    return ok;
}

/* Flushes the path's directory, and with it the rename; changes the path. A directory that can be
 * written, but not read, cannot be opened for this. */
static bool flush_directory(char *path)
{
    const int descriptor = open_descriptor(dirname(path), O_RDONLY | O_DIRECTORY, 0);
    if (descriptor < 0)
        return true;
    const bool ok = flush_to_disk(descriptor);
    const int reason = errno;
    close(descriptor);
    errno = reason;
    return ok;
}

#else

static bool find_destination(const TensorFile *file, Destination *to)
{
    return snprintf(to->path, PATH_MAX, "%s", file->path) < PATH_MAX ||
           file_fail(file, "the path has %d bytes or more", PATH_MAX);
}

static bool create_temporary(Destination *to)
{
    snprintf(to->temporary, sizeof to->temporary, "%s.tmp.0", to->path);
    to->descriptor = open_descriptor(to->temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    return to->descriptor >= 0;
}

/* Some systems rename to no file that exists. */
static bool finish(Destination *to, bool ok, bool renames)
{
    const bool closed = close(to->descriptor) == 0;
    ok = ok && closed &&
         (!renames || rename(to->temporary, to->path) == 0 ||
          (remove(to->path) == 0 && rename(to->temporary, to->path) == 0));
    const int reason = errno;
    if (!ok || !renames)
        remove(to->temporary);
    errno = reason;
    return ok;
}

static bool flush_directory(const char *path)
{
    return path[0] != 0;
}

#endif

bool file_replace(const TensorFile *file, const char *header, int64_t length, bool renames)
{
    Destination to;
    if (!file->path[0])
        return file_fail(file, "the name is empty");
    if (!find_destination(file, &to))
        return false;
    if (!create_temporary(&to))
        return file_fail(file, "cannot create a temporary file beside it: %s", strerror(errno));
    bool ok = write_bytes(to.descriptor, header, length);
    for (int i = 0; ok && i < file->count; i++) {
        const FileEntry *entry = &file->entries[i].entry;
        ok = write_bytes(to.descriptor, entry->data, file_bytes(entry->type, entry->shape));
    }
    if (!finish(&to, ok, renames))
        return file_fail(file, "cannot write: %s", strerror(errno));
    return flush_directory(to.path) ||
           file_fail(file, "cannot flush its folder: %s", strerror(errno));
}

bool tensor_file_can_save(const char *path)
{
    if (!path)
        return error_report("tensor_file_can_save: the path is NULL");
    const TensorFile file = { .function = "tensor_file_can_save", .path = path };
    return file_replace(&file, "", 1, false);
}

bool tensor_file_write(const char *path, const void *bytes, int64_t count)
{
    if (!path || (!bytes && count > 0) || count < 0)
        return error_report("tensor_file_write: expected a path and 0 or more bytes");
    const TensorFile file = { .function = "tensor_file_write", .path = path };
    return file_replace(&file, bytes, count, true);
}
