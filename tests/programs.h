/* What tests of whole programs share: the programs of examples/ are run as a user runs them, from
 * $TAPEGRAD_BUILD/examples, and leave their files in a directory of the test program's own. */
#ifndef TAPEGRAD_TESTS_PROGRAMS_H
#define TAPEGRAD_TESTS_PROGRAMS_H

#include "tests/support.h"

#include <string.h>
#include <sys/types.h>

/* Runs every test of the list as run_tests_after does, after setup (or NULL), in a new directory
 * that is then removed. */
int run_program_tests(const char *name, void (*setup)(void), const TTest *const *tests);
extern char directory[64];

/* Runs BUILD/examples/ARGUMENTS, where every @ stands for the directory; returns its exit status and
 * leaves what it printed, errors included, in output. */
int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern char output[1 << 16];

#define assert_runs(...) ck_assert_msg(run(__VA_ARGS__) == 0, "%s", output)
#define assert_says(sentence) ck_assert_msg(strstr(output, sentence) != NULL, "%s", output)

/* The same, but as a child that goes on; what it prints goes to the directory's file out. */
pid_t start(const char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends it what Ctrl-C does; returns its exit status. */
int interrupt(pid_t child);

/* Whether gnuplot is installed; if not, prints that no picture is tested. */
bool draws(void);

/* The bytes of a file in the directory, a 0 behind them; to be freed. */
char *contents(const char *name, size_t *length);
void assert_same_files(const char *a, const char *b);

/* A log without its last column, the seconds; to be freed. */
char *log_without_seconds(const char *name);
void assert_same_logs(const char *a, const char *b);
/* How many lines the log has by now. */
int log_lines(const char *name);

#endif
