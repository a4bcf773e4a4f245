/* What every program of several files needs: its memory, its clock, its ways to end. */
#ifndef TAPEGRAD_PROGRAM_H
#define TAPEGRAD_PROGRAM_H

#include <tapegrad.h>

#include <signal.h>

/* To be called first: the name that starts every sentence of fail. Misuse of the library, a missing
 * GPU and exhausted memory then end by fail too. */
void program_start(const char *name);

/* Prints the name, ": " and the sentence to the standard error and ends the program. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The status of a program that was called wrongly. */
enum { BAD_USE = 2 };

/* Zeroed memory for so many elements; fails when there is none. */
void *allocate(int64_t count, size_t size);

/* Seconds of a clock that only goes forward. */
double now(void);

/* From then on the first Ctrl-C (or SIGTERM) only sets stopped_by, and a second one ends the program
 * at once. */
void catch_signals(void);
extern volatile sig_atomic_t stopped_by; /* the signal that asked for the end, or 0 */

#endif
