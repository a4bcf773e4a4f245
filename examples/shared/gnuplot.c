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

FILE *gnuplot_open(const char *path)
{
    FILE *gnuplot = popen("gnuplot", "w");
    if (!gnuplot)
        fail(EXIT_FAILURE, "--plot %s: %s", path, strerror(errno));
    return gnuplot;
}

void gnuplot_close(FILE *gnuplot, const char *path)
{
    if (pclose(gnuplot) != 0)
        fail(EXIT_FAILURE, "--plot %s: gnuplot could not draw it; its error is printed above",
             path);
}

/* gnuplot doubles a quote inside. */
void gnuplot_text(FILE *gnuplot, const char *text)
{
    fputc('\'', gnuplot);
    for (; *text; text++)
        fprintf(gnuplot, *text == '\'' ? "''" : "%c", *text);
    fputc('\'', gnuplot);
}
