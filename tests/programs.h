/* Shared by tests of whole programs: they run the programs of examples/ as a user does, from
 * $TAPEGRAD_BUILD/examples, and leave all files in a directory of the test program's own. */
#ifndef TAPEGRAD_TESTS_PROGRAMS_H
#define TAPEGRAD_TESTS_PROGRAMS_H

#include "tests/support.h"

#include <string.h>
#include <sys/types.h>

/* Runs the program's tests like test_main in a new directory, which is then removed. */
int run_program_tests(const char *name, void (*setup)(void));
extern char directory[64];

/* Runs BUILD/examples/ARGUMENTS, where every @ stands for the directory; returns the exit status.
 * output holds all that the program printed, errors included. */
int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern char output[1 << 16];

#define assert_runs(...) ck_assert_msg(run(__VA_ARGS__) == 0, "%s", output)
#define assert_says(sentence) ck_assert_msg(strstr(output, sentence) != NULL, "%s", output)

/* The number after the first occurrence of the text in output. */
double number_after(const char *text);

/* Starts the same as a child process; its output goes to the file out in the directory. */
pid_t start(const char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends the signal; returns the exit status. */
int end_by(pid_t child, int signal_number);

/* True if gnuplot is installed; otherwise prints that no picture is tested. */
bool draws(void);

/* The bytes of a file in the directory, followed by a 0; the caller frees them. */
char *contents(const char *name, size_t *length);
/* Fails unless the file contains each of the texts. */
#define assert_file_says(name, ...)                                                                \
    assert_file_contains(name, (const char *const[]){ __VA_ARGS__, NULL })
void assert_file_contains(const char *name, const char *const *texts);
void assert_same_files(const char *a, const char *b);

/* Compare logs without their last column, the seconds. */
void assert_same_logs(const char *a, const char *b);
void assert_other_logs(const char *a, const char *b);
/* The number of lines that the log has so far. */
int log_lines(const char *name);
/* Waits for lines of the log of a program that was started; fails if it ends before. */
void await_lines(pid_t child, const char *log, int lines);
/* Whether the child, which is not waited for, has ended. */
bool has_ended(pid_t child);

#endif
