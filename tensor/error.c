/* The error handler, the sentence of the thread's last error, and the library's version. */
#include "tensor/internal.h"

#include <stdio.h>
#include <stdlib.h>

static ErrorHandler *installed_handler;
static void *installed_context;
static _Thread_local char last_sentence[1024];
static _Thread_local int64_t raised;
static _Thread_local const char *operation;

void tapegrad_on_error(ErrorHandler *handler, void *context)
{
    installed_handler = handler;
    installed_context = context;
}

const char *tapegrad_error(void)
{
    return last_sentence;
}

void error_raise_arguments(const char *format, va_list arguments)
{
    vsnprintf(last_sentence, sizeof last_sentence, format, arguments);
    device_capture_abandon();
    device_workspace_free_all();
    if (installed_handler)
        installed_handler(last_sentence, installed_context);
    fprintf(stderr, "tapegrad: %s\n", last_sentence);
    abort();
}

void error_raise(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    raised++;
    error_raise_arguments(format, arguments);
}

void error_set_operation(const char *label)
{
    operation = label;
}

const char *error_operation(void)
{
    return operation;
}

int64_t error_count(void)
{
    return raised;
}

bool error_report(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_sentence, sizeof last_sentence, format, arguments);
    va_end(arguments);
    return false;
}

const char *tapegrad_version(void)
{
    return TAPEGRAD_VERSION;
}
