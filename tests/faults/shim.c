/* Preloaded, makes the FAULT_AT-th call of the function FAULT fail with the error number
 * FAULT_ERRNO; with FAULT_AT=0 none. Writes the number of calls to the file FAULT_COUNT.
 * FAULT=malloc counts malloc, calloc, realloc and the aligned allocations of all libraries or, with
 * FAULT_LIBRARY, those that a library with this in its path calls itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *faulty = "", *library;
static long at = -1;
static int number = EIO;
static atomic_long calls;

__attribute__((constructor)) static void configure(void)
{
    const char *name = getenv("FAULT"), *nth = getenv("FAULT_AT"), *error = getenv("FAULT_ERRNO");
    number = error ? atoi(error) : EIO;
    at = nth ? atol(nth) : 0;
    library = getenv("FAULT_LIBRARY");
    faulty = name ? name : "";
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("FAULT_COUNT");
    const long count = calls;
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%ld\n", count);
    fclose(file);
}

static bool fails(const char *name)
{
    if (strcmp(name, faulty) != 0 || ++calls != at)
        return false;
    errno = number;
    return true;
}

static bool allocation_fails(const void *caller)
{
    Dl_info info;
    if (library && (!dladdr(caller, &info) || !strstr(info.dli_fname, library)))
        return false;
    return fails("malloc");
}

#define CALLER __builtin_return_address(0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, parameters, arguments, failure)                                           \
    type name parameters                                                                           \
    {                                                                                              \
        return fails(#name) ? (failure) : REAL(name) arguments;                                    \
    }
WRAP(ssize_t, write, (int file, const void *bytes, size_t count), (file, bytes, count), -1)
WRAP(ssize_t, pread, (int file, void *bytes, size_t count, off_t from), (file, bytes, count, from),
     -1)
WRAP(size_t, fwrite, (const void *bytes, size_t size, size_t count, FILE *file),
     (bytes, size, count, file), 0)
WRAP(int, fflush, (FILE * file), (file), EOF)
WRAP(int, fsync, (int file), (file), -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), -1)
WRAP(int, close, (int file), (file), (REAL(close)(file), -1))
WRAP(int, fclose, (FILE * file), (file), (REAL(fclose)(file), EOF))

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fails("open") ? -1 : REAL(open)(path, flags, mode);
}

/* glibc's own names: dlsym itself allocates. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    return allocation_fails(CALLER) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return allocation_fails(CALLER) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return allocation_fails(CALLER) ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return allocation_fails(CALLER) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    if (allocation_fails(CALLER))
        return ENOMEM;
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}
