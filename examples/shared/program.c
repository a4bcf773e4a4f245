#include "examples/shared/program.h"

#include <tapegrad.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *program = "";
volatile sig_atomic_t stopped_by;

static void fail_with(const char *sentence, void *context)
{
    (void)context;
    fail(EXIT_FAILURE, "%s", sentence);
}

/* Opens /dev/null in place of standard descriptors that are closed: else the next file that is
 * opened, as a log, would receive what is printed. Reading the input and writing the output still
 * fails. */
static void fill_descriptors(void)
{
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0)
            open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* At exit: output that cannot be written is an error, unless a signal ended the program. */
static void check_output(void)
{
    const int reason = fflush(stdout) ? errno : 0;
    if (!reason && !ferror(stdout))
        return;
    if (!stopped_by)
        fprintf(stderr, "%s: standard output: %s\n", program,
                reason ? strerror(reason) : "some of it could not be written");
    _exit(stopped_by ? 128 + stopped_by : EXIT_FAILURE);
}

static void leave_ranks(void)
{
    dist_finish();
}

/* Of several processes rank 0 alone prints. */
void program_start(const char *path)
{
    const char *slash = strrchr(path, '/');
    program = slash ? slash + 1 : path;
    fill_descriptors();
    dist_start();
    atexit(leave_ranks);
    atexit(check_output);
    tapegrad_on_error(fail_with, NULL);
    if (dist_rank() > 0 && !freopen("/dev/null", "w", stdout))
        fail(EXIT_FAILURE, "/dev/null: %s", strerror(errno));
}

const char *program_name(void)
{
    return program;
}

/* Control characters of arguments are not printed: the message stays one line. */
static void print_message(const char *format, va_list arguments)
{
    char message[4096];
    vsnprintf(message, sizeof message, format, arguments);
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    fflush(stdout);
    if (dist_ranks() > 1)
        fprintf(stderr, "%s: rank %d of %d: %s\n", program, dist_rank(), dist_ranks(), message);
    else
        fprintf(stderr, "%s: %s\n", program, message);
}

/* "prepare, train or sample" */
static void list_commands(const ProgramCommand *commands, char *list, size_t size)
{
    size_t used = 0;
    for (int i = 0; commands[i].name && used < size; i++)
        used += (size_t)snprintf(list + used, size - used, "%s%s",
                                 i == 0                 ? ""
                                 : commands[i + 1].name ? ", "
                                                        : " or ",
                                 commands[i].name);
}

int program_run(const ProgramCommand *commands, int argc, char **argv)
{
    char list[256];
    program_start(argv[0]);
    int width = 0;
    for (int i = 0; commands[i].name; i++) {
        if (argc > 1 && !strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
        const int length = (int)strlen(commands[i].name);
        width = length > width ? length : width;
    }
    list_commands(commands, list, sizeof list);
    if (argc < 2 || strcmp(argv[1], "--help"))
        fail(BAD_USE, "%s: expected %s; see --help", argc < 2 ? "no command" : argv[1], list);
    printf("usage: %s COMMAND [OPTION]...\n\n", program);
    for (int i = 0; commands[i].name; i++)
        printf("  %s %-*s  %s\n", program, width, commands[i].name, commands[i].help);
    printf("\n%s COMMAND --help lists its options.\n", program);
    return EXIT_SUCCESS;
}

void fail(int status, const char *format, ...)
{
    dist_wait_for_abort();
    va_list arguments;
    va_start(arguments, format);
    print_message(format, arguments);
    va_end(arguments);
    dist_abort(status);
}

void caution(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_message(format, arguments);
    va_end(arguments);
}

void *allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    if (!memory)
        fail(EXIT_FAILURE, "out of memory for %lld elements of %zu bytes", (long long)count, size);
    return memory;
}

void check_weights(Params *params, const char *path)
{
    const Tensor *all = params_flat_values(params);
    const int64_t n = tensor_count(all);
    Real *values = allocate(n, sizeof *values);
    tensor_read(all, values);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            fail(EXIT_FAILURE, "%s: a weight is %g, expected finite ones: its training diverged",
                 path, (double)values[i]);
    free(values);
}

void load_weights(Params *params, const char *path)
{
    if (!params_load(params, path))
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    check_weights(params, path);
}

double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void stop(int signal_number)
{
    stopped_by = signal_number;
}

void catch_signals(void)
{
    const struct sigaction once = { .sa_handler = stop,
                                    .sa_flags = (int)SA_RESETHAND | SA_RESTART };
    const struct sigaction always = { .sa_handler = stop, .sa_flags = SA_RESTART };
    struct sigaction before;
    sigaction(SIGINT, &once, NULL);
    sigaction(SIGTERM, &once, NULL);
    sigaction(SIGPIPE, &always, NULL);
    if (dist_ranks() > 1) /* mpirun forwards it */
        sigaction(SIGUSR1, &always, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* by nohup */
        sigaction(SIGHUP, &always, NULL);
}
