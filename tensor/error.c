/* The error handler, the sentence of the thread's last error, and the library's version. */
#include "tensor/internal.h"
#include "tensor/lock.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Handler {
    ErrorHandler *function;
    void *context;
} Handler;
static Handler installed;
static atomic_flag error_lock = ATOMIC_FLAG_INIT; /* of `installed` and open_contexts */
static _Thread_local char last_sentence[1024];
_Thread_local void (*error_cleanup)(void);
static _Thread_local ErrorHandler *without_handler;

/* The context of this thread's work, by its id, or 0; and the operation. */
static _Thread_local struct {
    int64_t id;
    const char *operation;
} current;

void tapegrad_on_error(ErrorHandler *handler, void *context)
{
    spin_lock(&error_lock);
    installed = (Handler){ handler, context };
    spin_unlock(&error_lock);
}

void error_set_default(ErrorHandler *handler)
{
    without_handler = handler;
}

const char *tapegrad_error(void)
{
    return last_sentence;
}

/* All open contexts. A thread's context may have been closed by another thread, so it is marked
 * only if it is found in this list. */
static ErrorContext *open_contexts;

void error_context_open(ErrorContext *context)
{
    static int64_t count;
    spin_lock(&error_lock);
    *context = (ErrorContext){ .id = ++count, .next = open_contexts };
    open_contexts = context;
    spin_unlock(&error_lock);
}

void error_context_close(ErrorContext *context)
{
    error_leave(context);
    spin_lock(&error_lock);
    ErrorContext **link = &open_contexts;
    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    spin_unlock(&error_lock);
}

bool error_claim(ErrorContext *context, const char *function)
{
    const void *worker = NULL;
    const bool claimed = __atomic_compare_exchange_n(&context->worker, &worker, &current, false,
                                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    if (!claimed && worker != &current)
        error_raise("%.*s: another thread is using the tape, expected one thread at a time",
                    (int)strcspn(function, ":"), function);
    return claimed;
}

void error_release(ErrorContext *context, bool claimed)
{
    if (claimed)
        __atomic_store_n(&context->worker, NULL, __ATOMIC_RELEASE);
}

static void mark_context(void)
{
    spin_lock(&error_lock);
    for (ErrorContext *context = open_contexts; context; context = context->next) {
        error_release(context, __atomic_load_n(&context->worker, __ATOMIC_RELAXED) == &current);
        if (context->id == current.id)
            context->failed = true;
    }
    spin_unlock(&error_lock);
}

void error_enter(const ErrorContext *context, const char *operation)
{
    if (context)
        current.id = context->id;
    current.operation = operation;
}

void error_name(const char *operation)
{
    error_enter(NULL, operation);
}

void error_leave(ErrorContext *context)
{
    context->failed = false;
    if (current.id == context->id) {
        current.id = 0;
        current.operation = NULL;
    }
}

const char *error_operation(void)
{
    return current.operation ? current.operation : "tapegrad";
}

void error_raise_operation(const char *format, ...)
{
    char sentence[sizeof last_sentence];
    const char *operation = error_operation();
    const int name = (int)strcspn(operation, ":");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    error_raise("%.*s: %s", name, operation, sentence);
}

/* An argument may be the last sentence itself. */
static void set_sentence(const char *format, va_list arguments)
{
    char sentence[sizeof last_sentence];
    vsnprintf(sentence, sizeof sentence, format, arguments);
    strcpy(last_sentence, sentence);
}

void error_raise_arguments(const char *format, va_list arguments)
{
    set_sentence(format, arguments);
    mark_context();
    if (error_cleanup)
        error_cleanup();
    device_workspace_free_all();
    spin_lock(&error_lock);
    const Handler handler = installed;
    spin_unlock(&error_lock);
    if (handler.function)
        handler.function(last_sentence, handler.context);
    if (without_handler)
        without_handler(last_sentence, NULL);
    fflush(NULL); /* abort loses what the program has printed */
    fprintf(stderr, "tapegrad: %s\n", last_sentence);
    abort();
}

void error_raise(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error_raise_arguments(format, arguments);
}

bool error_report(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_sentence(format, arguments);
    va_end(arguments);
    return false;
}

const char *tapegrad_version(void)
{
    return TAPEGRAD_VERSION;
}
