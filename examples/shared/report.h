/* The reports of a training run: progress lines, a CSV log, an SVG picture. */
#ifndef TAPEGRAD_REPORT_H
#define TAPEGRAD_REPORT_H

#include "examples/shared/options.h"

enum { REPORT_VALUES = 5 };

/* The values of one step, a row of the log; the last is the learning rate. NaN: not measured in
 * this step, empty in the log. */
typedef struct Record {
    int64_t step;
    double values[REPORT_VALUES];
    double seconds;
} Record;

/* How a value appears in the progress line and, if it is one of the first two, as a curve. */
typedef struct ReportValue {
    const char *progress; /* the format of its latest measurement */
    const char *label;    /* of a panel for this curve, or NULL: in the panel of the one before */
    const char *settings; /* gnuplot commands for this panel */
    const char *title;    /* in the legend, or NULL */
    bool logarithmic, percent;
    bool sparse; /* measured in few steps: without a band from minimum to maximum */
} ReportValue;

typedef struct ReportConfig {
    const char *header; /* the log's first line: step, the values, seconds */
    int count;          /* number of values, the learning rate included */
    ReportValue values[REPORT_VALUES];
    double items;     /* items per step, for the rate */
    const char *unit; /* their name, as "tokens" */
    int64_t drop_at;  /* from this step on the learning rate is lower, or 0 */
} ReportConfig;

typedef struct Report Report;

/* Opens the log, if any, of this run's steps; of several processes rank 0 alone reports. A resumed
 * run appends to an existing log: it reads the rows before its first step and truncates those that
 * an interrupted run wrote beyond them. */
Report *report_new(ReportConfig config, const TrainingOptions *options, int64_t first,
                   int64_t last);
void report_free(Report *report);

/* Appends a step to the log and shows the progress: on a terminal by updating one line, else by a
 * new line per tenth of the steps and per 10 seconds. record.seconds count from report_new. */
void report_step(Report *report, Record record);

/* Ends the progress line and closes the log. False if the log could not be written, of which a
 * caution was printed. */
bool report_end(Report *report);

/* Draws the picture, if any, after report_end. False if it could not, of which a caution was
 * printed: call it when the results are printed. */
bool report_draw(const Report *report, const char *title, const char *subtitle);

#endif
