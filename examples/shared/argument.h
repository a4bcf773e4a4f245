/* Whole numbers on the command lines of programs of one file. */
#ifndef TAPEGRAD_ARGUMENT_H
#define TAPEGRAD_ARGUMENT_H

#include <err.h>
#include <stdlib.h>

/* argv[index] as a number of what, as "steps", or `standard` if there is none. Ends the program
 * with status 2 unless it is a whole number from min on. */
static inline int argument_number(int argc, char **argv, int index, const char *what, int min,
                                  int standard)
{
    enum { MAX = 1000000000 };
    char *end;
    const long number = index < argc ? strtol(argv[index], &end, 10) : standard;
    if (index < argc && (end == argv[index] || *end || number < min || number > MAX))
        errx(2, "%s: expected a whole number of %s from %d to %d", argv[index], what, min, MAX);
    return (int)number;
}

#endif
