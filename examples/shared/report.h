/* What a program tells while it trains: progress, the log, the picture. */
#ifndef TAPEGRAD_REPORT_H
#define TAPEGRAD_REPORT_H

#include <tapegrad.h>

enum { REPORT_VALUES = 4, REPORT_PANELS = 2, REPORT_CURVES = 2 };

/* What one step left: a row of the log. A value that the step did not measure is NAN, and an empty
 * place in the log. */
typedef struct Record {
    int64_t step;
    double values[REPORT_VALUES];
    double seconds;
} Record;

/* A curve of the picture: one of the values, times factor; or nothing (factor 0). */
typedef struct ReportCurve {
    int value;
    double factor;
    const char *title;        /* in the key; NULL: there is none */
    const char *line, *range; /* colours of the mean, and of least to greatest; NULL: not shown */
} ReportCurve;

/* One above the other; settings are gnuplot's. */
typedef struct ReportPanel {
    const char *label, *settings;
    bool logarithmic;
    ReportCurve curves[REPORT_CURVES];
} ReportPanel;

typedef struct ReportConfig {
    const char *log, *plot; /* files, or NULL */
    bool resumed, quiet;
    int64_t first, last;       /* this run's steps */
    int values;                /* how many a record has, */
    int digits[REPORT_VALUES]; /* and with how many digits the log has them */
    const char *header;        /* the log's first line: step, the values, seconds */
    double items;              /* a step has, */
    const char *unit;          /* of this kind */
    void (*print)(const double *values, const void *context); /* the middle of the progress line */
    const void *context;
    int panels;
    ReportPanel panel[REPORT_PANELS];
} ReportConfig;

typedef struct Report Report;

/* Opens the log, if one is asked for. A run that was resumed at step first - 1 keeps the log's
 * rows up to there and cuts off what an interrupted run wrote beyond. */
Report *report_new(ReportConfig config);
void report_free(Report *report);

/* Adds a step to the log and shows the progress: on a terminal in a live line, else in a plain line
 * now and then. seconds are those since report_new. */
void report_step(Report *report, Record record);

/* What stands above the picture, and its vertical line, if drop_at is a step that it shows. */
typedef struct ReportTitle {
    char title[160], subtitle[160];
    int64_t drop_at;
    const char *drop; /* what happens there */
} ReportTitle;

/* Ends the live line and draws the picture, if one is asked for. */
void report_finish(Report *report, const ReportTitle *title);

#endif
