#include "examples/shared/gnuplot.h"
#include "examples/shared/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void gnuplot_check(const char *path)
{
    if (path && system("command -v gnuplot >/dev/null 2>&1"))
        fail(EXIT_FAILURE,
             "--plot %s: gnuplot, which draws it, was not found; install gnuplot-nox or omit "
             "--plot",
             path);
}

FILE *gnuplot_open(void)
{
    FILE *commands = tmpfile();
    if (!commands)
        fail(EXIT_FAILURE, "the temporary file of gnuplot's commands: %s", strerror(errno));
    return commands;
}

/* Runs gnuplot without the user's settings; returns its exit status, and what it printed in bytes
 * [size], to be freed. */
static int run(FILE *commands, char **bytes, size_t *size)
{
    char command[64];
    snprintf(command, sizeof command, "gnuplot --default-settings /dev/fd/%d", fileno(commands));
    FILE *memory = open_memstream(bytes, size), *gnuplot = memory ? popen(command, "r") : NULL;
    for (int c; gnuplot && (c = getc(gnuplot)) != EOF;)
        putc(c, memory);
    const int status = gnuplot ? pclose(gnuplot) : -1;
    return memory && fclose(memory) == 0 ? status : -1;
}

/* An SVG or a PNG has its end. */
static bool is_whole(const char *bytes, size_t size)
{
    static const char svg[] = "</svg>", png[] = "IEND\xae\x42\x60\x82";
    while (size > 0 && bytes[size - 1] == '\n')
        size--;
    return (size >= sizeof svg && !memcmp(bytes + size + 1 - sizeof svg, svg, sizeof svg - 1)) ||
           (size >= sizeof png && !memcmp(bytes + size + 1 - sizeof png, png, sizeof png - 1));
}

bool gnuplot_draw(FILE *commands, const char *path)
{
    char *bytes = NULL;
    size_t size = 0;
    bool ok = false;
    fflush(stdout);
    if (fflush(commands) || ferror(commands))
        caution("--plot %s: the temporary file of gnuplot's commands: %s", path, strerror(errno));
    else if (run(commands, &bytes, &size))
        caution("--plot %s: gnuplot could not draw it; its error is printed above", path);
    else if (!is_whole(bytes, size))
        caution("--plot %s: gnuplot printed %zu bytes, expected a whole picture", path, size);
    else if (!tensor_file_write(path, bytes, (int64_t)size))
        caution("--plot %s: %s", path, tapegrad_error());
    else
        ok = true;
    fclose(commands);
    free(bytes);
    return ok;
}

/* gnuplot doubles a quote inside. */
void gnuplot_text(FILE *commands, const char *text)
{
    fputc('\'', commands);
    for (; *text; text++)
        fprintf(commands, *text == '\'' ? "''" : "%c", *text);
    fputc('\'', commands);
}
