/* The reports of a training run: progress lines, a CSV log, an SVG picture. */
#ifndef TAPEGRAD_REPORT_H
#define TAPEGRAD_REPORT_H

#include <tapegrad.h>

enum { REPORT_VALUES = 4, REPORT_PANELS = 2, REPORT_CURVES = 2 };

/* The values of one step, a row of the log. NaN: not measured in this step, empty in the log. */
typedef struct Record {
    int64_t step;
    double values[REPORT_VALUES];
    double seconds;
} Record;

/* A curve of the picture: factor times one of the values; factor 0: no curve. */
typedef struct ReportCurve {
    int value;
    double factor;
    const char *title;        /* in the legend, or NULL */
    const char *line, *range; /* colors of the mean and of the band from minimum to maximum; NULL:
                                 no band */
} ReportCurve;

/* Panels are stacked; settings are gnuplot commands. */
typedef struct ReportPanel {
    const char *label, *settings;
    bool logarithmic;
    ReportCurve curves[REPORT_CURVES];
} ReportPanel;

typedef struct ReportConfig {
    const char *log, *plot; /* files, or NULL */
    bool resumed, quiet;
    int64_t first, last;       /* this run's steps */
    int values;                /* number of values per record */
    int digits[REPORT_VALUES]; /* significant digits of each in the log */
    const char *header;        /* the log's first line: step, the values, seconds */
    double items;              /* items per step, for the rate */
    const char *unit;          /* their name, as "tokens" */
    void (*print)(const double *values, const void *context); /* the middle of the progress line */
    const void *context;
    int panels;
    ReportPanel panel[REPORT_PANELS];
} ReportConfig;

typedef struct Report Report;

/* Opens the log, if any. A run resumed after step first - 1 appends to an existing log: it reads
 * the rows up to that step and truncates those that an interrupted run wrote beyond it. */
Report *report_new(ReportConfig config);
void report_free(Report *report);

/* Appends a step to the log and shows the progress: on a terminal by updating one line, else by a
 * new line per tenth of the steps and per 10 seconds. record.seconds count from report_new. */
void report_step(Report *report, Record record);

/* Ends the progress line and closes the log. False if the log could not be written, of which a
 * caution was printed. */
bool report_end(Report *report);

/* The picture's titles, and a vertical line at step drop_at, if the picture includes it. */
typedef struct ReportTitle {
    char title[160], subtitle[160];
    int64_t drop_at;
    const char *drop; /* the line's label */
} ReportTitle;

/* Draws the picture, if any, after report_end. False if it could not, of which a caution was
 * printed: call it when the results are printed. */
bool report_draw(const Report *report, const ReportTitle *title);

#endif
