#include "examples/shared/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *program = "";

static void fail_with(const char *sentence, void *context)
{
    (void)context;
    fail(EXIT_FAILURE, "%s", sentence);
}

void program_start(const char *name)
{
    program = name;
    tapegrad_on_error(fail_with, NULL);
}

void fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

void *allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    if (!memory)
        fail(EXIT_FAILURE, "out of memory for %lld elements of %zu bytes", (long long)count, size);
    return memory;
}

double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

volatile sig_atomic_t stopped_by;

static void stop(int signal_number)
{
    stopped_by = signal_number;
}

void catch_signals(void)
{
    struct sigaction action = { .sa_handler = stop, .sa_flags = (int)SA_RESETHAND | SA_RESTART };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
