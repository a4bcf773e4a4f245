/* Shared by the programs of several files: errors, memory, clock, signals. */
#ifndef TAPEGRAD_PROGRAM_H
#define TAPEGRAD_PROGRAM_H

#include <tapegrad.h>

#include <signal.h>

/* Call it first, with argv[0]. The program's name, which is argv[0] without directories, starts
 * every message of fail; errors that the library raises (misuse, a missing GPU, out of memory) then
 * end the program by fail too. Opens /dev/null on standard descriptors that are closed. A program
 * that cannot write its standard output exits with EXIT_FAILURE. */
void program_start(const char *path);
const char *program_name(void);

/* A program's commands; one without a name ends them. argv[0] of run is the command's name; it
 * returns the exit status. */
typedef struct ProgramCommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} ProgramCommand;
/* program_start, then the command that argv[1] names, or --help. Returns the exit status. */
int program_run(const ProgramCommand *commands, int argc, char **argv);

/* Prints the name, ": " and the message to stderr and exits. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints likewise and goes on. */
void caution(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The exit status for a wrong command line. */
enum { BAD_USE = 2 };

/* Allocates zeroed memory for count elements of this size; fails if memory is exhausted. */
void *allocate(int64_t count, size_t size);

/* Fails if a weight is not finite; path: the file that they are of. */
void check_weights(Params *params, const char *path);
/* params_load, which must not fail, and check_weights. */
void load_weights(Params *params, const char *path);

/* Seconds of a monotonic clock. */
double now(void);

/* The first Ctrl-C (or SIGTERM) then only sets stopped_by; a second one kills the program. A lost
 * terminal (SIGHUP) and a lost reader of the output (SIGPIPE) set it, too. */
void catch_signals(void);
extern volatile sig_atomic_t stopped_by; /* the signal received, or 0 */

#endif
