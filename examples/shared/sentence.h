/* An error message of one sentence, for the caller to print. */
#ifndef TAPEGRAD_SENTENCE_H
#define TAPEGRAD_SENTENCE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct Sentence {
    char text[1024];
} Sentence;

/* Formats the sentence; returns false. */
__attribute__((format(printf, 2, 3))) static inline bool sentence_write(Sentence *sentence,
                                                                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence->text, sizeof sentence->text, format, arguments);
    va_end(arguments);
    return false;
}

#endif
