/* Estimates from a figure's points: a curve is straight between neighboring points on log-log
 * axes, and continues the line through the first two and the last two points. */
#ifndef TAPEGRAD_BENCH_CURVE_H
#define TAPEGRAD_BENCH_CURVE_H

#include "bench/figure.h"

typedef struct Curve {
    double x[FIGURE_POINTS], y[FIGURE_POINTS]; /* x in ascending order */
    int count;
} Curve;

/* A value; NaN if there are too few points. measured: interpolated between measured points. */
typedef struct Estimate {
    double value;
    bool measured;
} Estimate;

/* Milliseconds per sample against length. */
Curve curve_of_times(const Line *line);
Estimate curve_at(const Curve *curve, double x);
/* The x from which on `fast` is at most `slow`, at the points that both have: 0 if it is so at all
 * of them, NaN if it is not at the last one. */
double curve_crossing(const Curve *slow, const Curve *fast);

/* Three significant digits, after ~ unless measured; "-" for NaN. */
BenchText estimate_text(Estimate estimate);

/* Prints the longest length of one sequence that fits in 1, 4 and 16 GiB, by method, from the bytes
 * per position of its longest point: no method's memory grows faster than the length, but that of
 * shorter points is shared by the sequences of a batch. */
void print_longest_lengths(const Figure *figure);
/* Prints where each of the first `count` lines overtakes line 0. */
void print_crossings(const Figure *figure, int count);

#endif
