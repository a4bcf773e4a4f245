#include "examples/speech/picture.h"
#include "examples/shared/gnuplot.h"
#include "examples/shared/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The picture's range of colors: values more than this below the maximum are black. */
static const double SHOWN = 14; /* 61 dB, in ln of energy */

static void print_spectrogram(FILE *gnuplot, const FilterBank *bank, const Wave *wave)
{
    const int64_t frames = frame_count(wave->count);
    Real *values = allocate(frames * FILTERS, sizeof *values), max = -INFINITY;
    log_mel(bank, wave->samples, wave->count, values);
    for (int64_t i = 0; i < frames * FILTERS; i++)
        max = values[i] > max ? values[i] : max;
    fprintf(gnuplot, "set cbrange [%g:%g]\n$frames << END\n", (double)max - SHOWN, (double)max);
    for (int filter = 0; filter < FILTERS; filter++) {
        for (int64_t t = 0; t < frames; t++)
            fprintf(gnuplot, "%.4g ", (double)values[t * FILTERS + filter]);
        fputc('\n', gnuplot);
    }
    fprintf(gnuplot, "END\n");
    free(values);
}

/* A tick per kilohertz or part of it, at its position among the filters. */
static void print_ticks(FILE *gnuplot)
{
    static const double ticks[] = { 250, 500, 1000, 2000, 3000 };
    fprintf(gnuplot, "set ytics (");
    for (int i = 0; i < 5; i++) {
        int filter = 0;
        while (filter_frequency(filter + 1) < ticks[i])
            filter++;
        const double low = filter_frequency(filter), high = filter_frequency(filter + 1);
        fprintf(gnuplot, "%s'%g Hz' %g", i ? ", " : "", ticks[i],
                filter + (ticks[i] - low) / (high - low));
    }
    fprintf(gnuplot, ")\n");
}

static void print_marks(FILE *gnuplot, const Mark *marks, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const Mark *mark = &marks[i];
        fprintf(gnuplot, "set label '%s' at first %g, graph %g center\n", mark->text,
                (mark->start + mark->end) / 2, mark->row ? 1.14 : 1.05);
        for (int side = 0; side < 2 && mark->row == 0; side++)
            fprintf(gnuplot,
                    "set arrow from first %g, graph 0 to first %g, graph 1 nohead front "
                    "linewidth 1 linecolor rgb '#ffffff'\n",
                    side ? mark->end : mark->start, side ? mark->end : mark->start);
    }
}

static void print_script(FILE *gnuplot, const char *path, const FilterBank *bank, const Wave *wave,
                         const Mark *marks, int64_t count)
{
    const double seconds = (double)wave->count / RATE, width = fmin(fmax(700, 500 * seconds), 6000);
    const size_t length = strlen(path);
    const bool svg = length > 4 && !strcmp(path + length - 4, ".svg");
    fprintf(gnuplot, "set terminal %s size %.0f,360 font 'sans-serif,%d' background '#ffffff'\n",
            svg ? "svg" : "pngcairo", width, svg ? 13 : 11);
    fprintf(gnuplot,
            "set palette defined (0 '#000004', 1 '#3b0f70', 2 '#8c2981', 3 '#de4968', "
            "4 '#fe9f6d', 5 '#fcfdbf')\nunset colorbox\nset border linecolor '#777777'\n"
            "set tics nomirror out textcolor '#333333'\nset tmargin 4\nset lmargin 10\n"
            "set rmargin 3\nset xlabel 'seconds'\nset xrange [0:%g]\nset yrange [-0.5:%g]\n",
            seconds, FILTERS - 0.5);
    print_ticks(gnuplot);
    print_marks(gnuplot, marks, count);
    print_spectrogram(gnuplot, bank, wave);
    fprintf(gnuplot, "plot $frames matrix using (%g + %g * $1):2:3 with image notitle\n",
            WINDOW / 2. / RATE, (double)HOP / RATE);
}

bool picture_draw(const char *path, const FilterBank *bank, const Wave *wave, const Mark *marks,
                  int64_t count)
{
    FILE *gnuplot = gnuplot_open();
    print_script(gnuplot, path, bank, wave, marks, count);
    return gnuplot_draw(gnuplot, path);
}
