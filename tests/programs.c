#include "tests/programs.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char directory[64];
char output[1 << 16];

int run_program_tests(const char *name, void (*setup)(void))
{
    snprintf(directory, sizeof directory, "/tmp/test_%s.XXXXXX", name);
    if (!mkdtemp(directory)) {
        perror(directory);
        return EXIT_FAILURE;
    }
    int result = test_main(name, setup, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command) == 0 ? result : EXIT_FAILURE;
}

typedef struct CommandLine {
    char text[4096];
} CommandLine;

/* BUILD/programs/ARGUMENTS, or of a program of one file BUILD/examples/ARGUMENTS, with the
 * directory for every @. */
__attribute__((format(printf, 1, 0))) static CommandLine command_line(const char *format,
                                                                      va_list list)
{
    CommandLine line;
    char arguments[1024];
    vsnprintf(arguments, sizeof arguments, format, list);
    const char *build = getenv("TAPEGRAD_BUILD");
    build = build ? build : "build";
    int used = snprintf(line.text, sizeof line.text, "%s/programs/%.*s", build,
                        (int)strcspn(arguments, " "), arguments);
    const bool large = access(line.text, X_OK) == 0;
    used = snprintf(line.text, sizeof line.text, "%s/%s/", build, large ? "programs" : "examples");
    for (const char *c = arguments; *c; c++)
        used += snprintf(line.text + used, sizeof line.text - (size_t)used,
                         *c == '@' ? "%s" : "%.1s", *c == '@' ? directory : c);
    return line;
}

bool draws(void)
{
    const bool found = system("command -v gnuplot >/dev/null 2>&1") == 0;
    if (!found)
        puts("not tested: pictures, without gnuplot");
    return found;
}

int run(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    CommandLine line = command_line(format, list);
    va_end(list);
    strncat(line.text, " 2>&1", sizeof line.text - strlen(line.text) - 1);
    FILE *pipe = popen(line.text, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = 0;
    int status = pclose(pipe);
    ck_assert_msg(WIFEXITED(status), "%s was killed: %s", line.text, output);
    return WEXITSTATUS(status);
}

double number_after(const char *text)
{
    const char *found = strstr(output, text);
    char *end = NULL;
    const double number = found ? strtod(found + strlen(text), &end) : 0;
    ck_assert_msg(found && end != found + strlen(text), "no number after \"%s\" in: %s", text,
                  output);
    return number;
}

pid_t start(const char *out, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    CommandLine line = command_line(format, list);
    va_end(list);
    char command[sizeof line.text + 8], path[128];
    snprintf(command, sizeof command, "exec %s", line.text);
    snprintf(path, sizeof path, "%s/%s", directory, out);
    pid_t child = fork();
    ck_assert_int_ne(child, -1);
    if (child == 0) {
        if (!freopen(path, "w", stdout))
            _exit(99);
        signal(SIGHUP, SIG_DFL); /* as if the tests did not run under nohup */
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(98);
    }
    return child;
}

int end_by(pid_t child, int signal_number)
{
    int status;
    ck_assert_int_eq(kill(child, signal_number), 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

char *contents(const char *name, size_t *length)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is not there: %s", path, output);
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *bytes = calloc(*length + 1, 1);
    ck_assert_uint_eq(fread(bytes, 1, *length, file), *length);
    fclose(file);
    return bytes;
}

void assert_file_contains(const char *name, const char *const *texts)
{
    size_t length;
    char *bytes = contents(name, &length);
    for (; *texts; texts++)
        ck_assert_msg(strstr(bytes, *texts) != NULL, "\"%s\" is not in %s", *texts, name);
    free(bytes);
}

void assert_same_files(const char *a, const char *b)
{
    size_t a_length, b_length;
    char *a_bytes = contents(a, &a_length), *b_bytes = contents(b, &b_length);
    ck_assert_uint_eq(a_length, b_length);
    ck_assert_msg(memcmp(a_bytes, b_bytes, a_length) == 0, "%s and %s differ", a, b);
    free(a_bytes);
    free(b_bytes);
}

/* The caller frees it. */
static char *log_without_seconds(const char *name)
{
    size_t length;
    char *text = contents(name, &length), *out = text;
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        char *comma = end;
        while (*comma != ',')
            comma--;
        memmove(out, line, (size_t)(comma - line));
        out += comma - line;
        *out++ = '\n';
    }
    *out = 0;
    return text;
}

static bool same_logs(const char *a, const char *b)
{
    char *a_text = log_without_seconds(a), *b_text = log_without_seconds(b);
    const bool same = strcmp(a_text, b_text) == 0;
    free(a_text);
    free(b_text);
    return same;
}

void assert_same_logs(const char *a, const char *b)
{
    ck_assert_msg(same_logs(a, b), "%s and %s differ", a, b);
}

void assert_other_logs(const char *a, const char *b)
{
    ck_assert_msg(!same_logs(a, b), "%s and %s are the same", a, b);
}

int log_lines(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

bool has_ended(pid_t child)
{
    siginfo_t ended = { 0 };
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    return ended.si_pid == child;
}

void await_lines(pid_t child, const char *log, int lines)
{
    while (log_lines(log) < lines && !has_ended(child))
        usleep(1000);
    ck_assert_msg(log_lines(log) >= lines, "the program ended before line %d of %s", lines, log);
}
