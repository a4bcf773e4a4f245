/* Shared by the figures: time and memory against context length, one line per method. Each point is
 * measured in a separate process, so a point that exceeds the memory ends only its line. */
#ifndef TAPEGRAD_BENCH_FIGURE_H
#define TAPEGRAD_BENCH_FIGURE_H

#include "bench/common.h"

enum { FIGURE_LINES = 12, FIGURE_POINTS = 32 };

typedef struct Point {
    int64_t length, batch;
    double ms, bytes; /* of the whole batch */
} Point;

/* A method: its name in the data, its title in the legend, its style, its points. */
typedef struct Line {
    const char *name, *title, *color;
    bool dashed;
    Point points[FIGURE_POINTS];
    int count;
} Line;

/* A figure: its options and lines. */
typedef struct Figure {
    int64_t shortest, longest; /* lengths, doubled from one to the next */
    int64_t limit, memory;     /* limits per point: seconds, MiB */
    int64_t total;             /* seconds for all points; 0: no limit */
    const char *output;
    const char *draw;   /* records of an earlier run to draw instead of measuring, or NULL */
    const char *method; /* measure one point of this method, or NULL */
    int64_t length, batch;
    Line lines[FIGURE_LINES];
    int count;
    char sizes[128];      /* sizes of the measured model, for the subtitle */
    char where[64];       /* bench_where, for the subtitle */
    double first_started; /* time when the first point was started, or 0 */
} Figure;

/* The rows of its options for bench_begin_with. */
/* clang-format off */
#define FIGURE_OPTIONS(f)                                                                          \
    { "shortest", "first context length", &(f).shortest, 1, NULL },                                \
    { "longest", "last context length; each is twice the previous one", &(f).longest, 1, NULL },   \
    { "limit", "maximum seconds per point", &(f).limit, 1, NULL },                                 \
    { "memory", "maximum MiB per point on the CPU; 0: three quarters of the free memory",          \
      &(f).memory, 0, NULL },                                                                      \
    { "total", "maximum seconds for all points; 0: no limit", &(f).total, 0, NULL },               \
    { "output", "write TEXT.csv, TEXT.json, TEXT.svg", NULL, 0, &(f).output },                     \
    { "draw", "no measurement: draw the SVG of --output from these records (TEXT.json)", NULL, 0,  \
      &(f).draw },                                                                                 \
    { "method", "measure and print one point of this method", NULL, 0, &(f).method },              \
    { "length", "with --method: the context length", &(f).length, 1, NULL },                       \
    { "batch", "with --method: the number of sequences", &(f).batch, 1, NULL }
/* clang-format on */

/* -------------------------------------------------------------------------- one point's process */

/* Milliseconds per step: the median of bench_step; on the CPU the second run of a step longer than
 * 1 s, and the first run of a step longer than 10 s. */
double figure_time(const BenchOptions *options, Tape *tape, TapeStep *step, void *context);
/* The index of the line that --method names; exits if there is none. */
int figure_method(const Figure *figure, const Line *lines, int count);
/* Prints the point for figure_measure of the parent process. */
void figure_print(double ms, double bytes);

/* ----------------------------------------------------------------------------------- the figure */
typedef struct Command {
    char text[4096];
} Command;
void command_append(Command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* 'text', quoted for the shell. */
Command command_quoted(const char *text);
/* The command line of this program, without --json. */
Command command_again(int argc, char **argv);
/* Runs the command by popen and reads its output. The command may use all processors. */
FILE *command_run(Command command);

/* Adds a line and measures its points, from the shortest length until one fails. The command is
 * called with --method NAME --length N --batch B, B = max(1, tokens / N). */
void figure_measure(Figure *figure, const BenchOptions *options, Line line, Command command,
                    int64_t tokens);

/* Adds lines with their points from the records of --draw; also reads sizes and where. */
void figure_read(Figure *figure, const Line *lines, int count);

/* Ends the program if there are no points. */
void figure_need_points(const Figure *figure);

/* Opens OUTPUT.ENDING and writes its path; ends the program on failure. figure_close_table ends
 * it. */
FILE *figure_open(const char *output, const char *ending, char path[4096]);
void figure_close_table(FILE *table, const char *path);

/* Writes the table and the records, also to --json; ends the program if there are no points. */
void figure_save(const Figure *figure, BenchOptions *options);

/* Starts gnuplot for OUTPUT.svg, with the style of all figures; commands that it gives to a shell
 * find the name of the records' file in "$TABLE". Without gnuplot: returns NULL and prints the
 * command that draws the picture elsewhere, from OUTPUT.ENDING. figure_close ends it. */
FILE *figure_gnuplot(const char *output, const char *program, const char *table, const char *ending,
                     int width, int height);
void figure_close(const char *output, FILE *gnuplot);

/* Likewise with the points and axes of this figure. Then figure_plot draws the lines of a panel; y
 * is a gnuplot expression, in which column 2 is milliseconds per sample and column 3 MiB per
 * sample. */
FILE *figure_draw(const Figure *figure, const char *program, int width, int height);
void figure_plot(const Figure *figure, FILE *gnuplot, const char *y);
void figure_end(const Figure *figure, FILE *gnuplot);

/* A figure of one panel: its title, its label of y, y as of figure_plot, and NULL or a function
 * that prints what follows from the points. figure_run measures all lines, one sample per point,
 * and saves them, or with --draw reads them; then it reports and draws. */
typedef struct Panel {
    const char *title, *label, *y;
    void (*report)(const Figure *figure);
} Panel;
void figure_run(Figure *figure, BenchOptions *options, const Line *lines, int count, Command again,
                const char *program, Panel panel);

#endif
