/* What copy_task tells while it trains: progress, the log, the picture. */
#ifndef TAPEGRAD_COPY_TASK_REPORT_H
#define TAPEGRAD_COPY_TASK_REPORT_H

#include "examples/copy_task_options.h"

/* What one step left: a row of the log. */
typedef struct Record {
    int64_t step;
    double loss, accuracy, learning_rate, seconds;
} Record;

typedef struct Report Report;

/* Opens the log, if one is asked for. A run that was resumed at step first - 1 keeps the log's
 * rows up to there and cuts off what an interrupted run wrote beyond. */
Report *report_new(const Options *options, int64_t first);
void report_free(Report *report);

/* Adds a step to the log and shows the progress: on a terminal in a live line, else in a plain line
 * now and then. seconds are those since report_new. */
void report_step(Report *report, Record record);

/* Ends the live line and draws the picture, if one is asked for; subtitle stands above it. */
void report_finish(Report *report, const char *subtitle);

#endif
