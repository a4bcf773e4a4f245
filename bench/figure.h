/* What the figures share: lines of points against the length of the context. Each point is measured
 * by a process of its own, so that one that does not fit in memory ends its line and nothing else. */
#ifndef TAPEGRAD_BENCH_FIGURE_H
#define TAPEGRAD_BENCH_FIGURE_H

#include "bench/common.h"

enum { MOST_LINES = 12, MOST_POINTS = 32 };

typedef struct Point {
    int64_t length, batch;
    double ms, bytes; /* of the whole batch */
} Point;

/* A method: its name in the data, in the legend, and how it is drawn. */
typedef struct Line {
    const char *name, *title, *colour;
    bool dashed;
    Point points[MOST_POINTS];
    int count;
} Line;

/* The options of every figure, and its lines. */
typedef struct Figure {
    int64_t shortest, longest; /* lengths; each is twice the one before */
    int64_t limit, memory;     /* what a point's process may take */
    int64_t total;             /* seconds for all points, or 0: no limit */
    const char *output;
    const char *draw;   /* nothing is measured: records of an earlier run, or NULL */
    const char *method; /* one point alone: of this method, or NULL */
    int64_t length, batch;
    Line lines[MOST_LINES];
    int count;
    char sizes[128];      /* of what is measured, in words, */
    char where[64];       /* and bench_where: the picture's second line */
    double first_started; /* the clock when the first point was started, or 0 */
} Figure;

/* Their rows for bench_begin_with. */
/* clang-format off */
#define FIGURE_OPTIONS(f)                                                                          \
    { "shortest", "context length to begin with", &(f).shortest, 1, NULL },                        \
    { "longest", "context length to end at, doubled on the way", &(f).longest, 1, NULL },          \
    { "limit", "seconds that a point's process may take", &(f).limit, 1, NULL },                   \
    { "memory", "MiB that it may take on the CPU; 0: three quarters of what is free",              \
      &(f).memory, 0, NULL },                                                                      \
    { "total", "seconds for all points; later ones are left out; 0: no limit", &(f).total, 0,      \
      NULL },                                                                                      \
    { "output", "write TEXT.csv, TEXT.json, TEXT.svg", NULL, 0, &(f).output },                     \
    { "draw", "measure nothing: write TEXT.svg of --output from these records (TEXT.json)", NULL,  \
      0, &(f).draw },                                                                              \
    { "method", "measure one point, of this method, and print it", NULL, 0, &(f).method },         \
    { "length", "with --method: the context length", &(f).length, 1, NULL },                       \
    { "batch", "with --method: sequences", &(f).batch, 1, NULL }
/* clang-format on */

/* ---------------------------------------------------------------------------- one point's process */

/* Milliseconds a step: bench_step's median or, on the CPU, of a step of more than a second its second
 * run, and of one of more than ten its first. */
double figure_time(const BenchOptions *options, Tape *tape, TapeStep *step, void *context);
/* Prints what figure_measure reads. */
void figure_print(double ms, double bytes);

/* -------------------------------------------------------------------------------------- the figure */
typedef struct Command {
    char text[4096];
} Command;
void command_append(Command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* 'text', for the shell. */
Command command_quoted(const char *text);
/* The program again, with its arguments. */
Command command_again(int argc, char **argv);
/* popen for reading what it prints. It may use all processors. */
FILE *command_run(Command command);

/* Adds a line and measures its points, from the shortest on until one fails. The command gets
 * --method NAME --length N --batch B behind it, B = tokens / N, but 1 at least. */
void figure_measure(Figure *figure, const BenchOptions *options, Line line, Command command,
                    int64_t tokens);

/* Adds a line with the points that --draw's records have of it, and reads sizes and where. */
void figure_read(Figure *figure, Line line);

/* Writes the table and the records; ends the program when there are no points at all. */
void figure_save(const Figure *figure, BenchOptions *options);

/* Starts gnuplot with the points and what all pictures have in common, or returns NULL and prints
 * the command that draws the picture where gnuplot is installed. Then, for every panel,
 * figure_plot draws the lines by an expression of gnuplot's for y: of a sample, column 2 has the
 * milliseconds and 3 the MiB. */
FILE *figure_draw(const Figure *figure, const char *program, int width, int height);
void figure_plot(const Figure *figure, FILE *gnuplot, const char *y);
void figure_end(const Figure *figure, FILE *gnuplot);

#endif
