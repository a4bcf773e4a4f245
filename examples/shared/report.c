#include "examples/shared/report.h"
#include "examples/shared/gnuplot.h"
#include "examples/shared/program.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Report {
    ReportConfig config;
    const TrainingOptions *options;
    bool quiet;
    const char *plot;    /* or NULL */
    int64_t first, last; /* this run's steps */
    FILE *log;
    bool terminal, lost_log;
    double seconds;     /* of the runs before a resume */
    double line, plain; /* time of the last update on a terminal, and of the last plain line */
    double latest[REPORT_VALUES];
    Record *records; /* for the picture */
    size_t count, capacity;
};

static void append(Report *report, Record record)
{
    if (report->count == report->capacity) {
        report->capacity = 2 * report->capacity + 1024;
        report->records = realloc(report->records, report->capacity * sizeof(Record));
        if (!report->records)
            fail(EXIT_FAILURE, "out of memory for the records of %zu steps", report->count);
    }
    report->records[report->count++] = record;
}

/* ------------------------------------------------------------------------------------------ log */

/* Parses a step, the values, of which empty ones are NaN, and seconds. */
static bool read_row(const char *line, int values, Record *record)
{
    double numbers[REPORT_VALUES + 2];
    for (int i = 0; i < values + 2; i++) {
        char *end;
        numbers[i] = strtod(line, &end);
        if (end == line)
            numbers[i] = NAN;
        if (*end != (i <= values ? ',' : '\n'))
            return false;
        line = end + 1;
    }
    const double step = numbers[0];
    if (!(step >= 1 && step < 1e15 && step == floor(step)) || isnan(numbers[values + 1]))
        return false;
    *record = (Record){ .step = (int64_t)step, .seconds = numbers[values + 1] };
    memcpy(record->values, numbers + 1, (size_t)values * sizeof *numbers);
    return true;
}

/* Reads the rows of the steps before this run and truncates the file after them. */
static void read_log(Report *report)
{
    const char *path = report->options->log, *header = report->config.header;
    char line[256];
    if (!fgets(line, sizeof line, report->log) || strncmp(line, header, strlen(header)))
        fail(EXIT_FAILURE, "--log %s: expected a log that starts with %s", path, header);
    long end = ftell(report->log);
    while (fgets(line, sizeof line, report->log)) {
        Record record;
        if (!strchr(line, '\n') && feof(report->log)) /* an interrupted run cut it off */
            break;
        if (!read_row(line, report->config.count, &record))
            fail(EXIT_FAILURE, "--log %s: expected rows of a step and %d numbers, found %.40s",
                 path, report->config.count + 1, line);
        if (record.step >= report->first)
            break;
        append(report, record);
        report->seconds = record.seconds;
        end = ftell(report->log);
    }
    if (fseek(report->log, end, SEEK_SET) || ftruncate(fileno(report->log), end))
        fail(EXIT_FAILURE, "--log %s: %s", path, strerror(errno));
}

static void open_log(Report *report)
{
    const char *path = report->options->log;
    bool append = report->options->resume && access(path, F_OK) == 0;
    report->log = fopen(path, append ? "r+" : "w");
    if (!report->log)
        fail(EXIT_FAILURE, "--log %s: %s", path, strerror(errno));
    setvbuf(report->log, NULL, _IOLBF, 0);
    if (append)
        read_log(report);
    else
        fprintf(report->log, "%s\n", report->config.header);
}

/* A full disk must not end hours of training. */
static void write_row(Report *report, Record record)
{
    fprintf(report->log, "%lld", (long long)record.step);
    for (int i = 0; i < report->config.count; i++) {
        const int digits = i + 1 < report->config.count ? 9 : 6;
        if (isnan(record.values[i]))
            fputc(',', report->log);
        else
            fprintf(report->log, ",%.*g", digits, record.values[i]);
    }
    if (fprintf(report->log, ",%.3f\n", record.seconds) < 0 || ferror(report->log)) {
        caution("--log %s: %s; it ends at step %lld", report->options->log, strerror(errno),
                (long long)record.step);
        fclose(report->log);
        report->log = NULL;
        report->lost_log = true;
    }
}

Report *report_new(ReportConfig config, const TrainingOptions *options, int64_t first, int64_t last)
{
    const bool reports = dist_rank() == 0;
    Report *report = allocate(1, sizeof *report);
    *report = (Report){ .config = config,
                        .options = options,
                        .quiet = options->quiet || !reports,
                        .plot = reports ? options->plot : NULL,
                        .first = first,
                        .last = last,
                        .terminal = isatty(STDOUT_FILENO),
                        .line = -INFINITY,
                        .plain = -INFINITY };
    gnuplot_check(report->plot);
    for (int i = 0; i < REPORT_VALUES; i++)
        report->latest[i] = NAN;
    if (reports && options->log)
        open_log(report);
    return report;
}

void report_free(Report *report)
{
    free(report->records);
    free(report);
}

/* ------------------------------------------------------------------------------------- progress */

/* A value as it is shown. */
static double scaled(const Report *report, int i, double value)
{
    return report->config.values[i].percent ? 100 * value : value;
}

static void print_progress(const Report *report, Record record)
{
    const ReportConfig *config = &report->config;
    double done = (double)(record.step - report->first + 1);
    long left = lround((double)(report->last - record.step) * record.seconds / done);
    printf("step %lld/%lld  %ld:%02ld left  ", (long long)record.step, (long long)report->last,
           left / 60, left % 60);
    for (int i = 0; i < config->count; i++)
        if (config->values[i].progress && !isnan(report->latest[i]))
            printf(config->values[i].progress, scaled(report, i, report->latest[i]));
    double rate = done * config->items / record.seconds;
    printf("  %.*f %s/s", rate < 100, rate, config->unit);
}

static void show_progress(Report *report, Record record)
{
    int64_t steps = report->last;
    bool last = record.step == steps, tenth = record.step % ((steps + 9) / 10) == 0;
    if (report->terminal && (last || record.seconds - report->line >= 0.1)) {
        printf("\r\033[?7l"); /* no wrap: a longer line is cut at the last column */
        print_progress(report, record);
        printf("\033[K\033[?7h");
        report->line = record.seconds;
    } else if (!report->terminal && (last || tenth || record.seconds - report->plain >= 10)) {
        print_progress(report, record);
        printf("\n");
        report->plain = record.seconds;
    }
    fflush(stdout);
}

void report_step(Report *report, Record record)
{
    for (int i = 0; i < report->config.count; i++)
        if (!isnan(record.values[i]))
            report->latest[i] = record.values[i];
    if (!report->quiet)
        show_progress(report, record);
    record.seconds += report->seconds;
    if (report->plot)
        append(report, record);
    if (report->log)
        write_row(report, record);
}

bool report_end(Report *report)
{
    if (!report->quiet && report->terminal && report->line > 0)
        printf("\n");
    if (report->log && fclose(report->log)) {
        caution("--log %s: %s", report->options->log, strerror(errno));
        report->lost_log = true;
    }
    report->log = NULL;
    return !report->lost_log;
}

/* -------------------------------------------------------------------------------------- picture */

enum { CURVES = 2 };

static bool has_points(const Report *report, int curve)
{
    for (size_t i = 0; i < report->count; i++)
        if (isfinite(report->records[i].values[curve]))
            return true;
    return false;
}

/* Mean, minimum and maximum of a curve over some records; "?" if none has its value. */
static void print_range(const Report *report, int curve, size_t start, size_t end, FILE *gnuplot)
{
    const double least = report->config.values[curve].logarithmic ? 1e-9 : -INFINITY;
    double sum = 0, low = INFINITY, high = -INFINITY;
    int count = 0;
    for (size_t i = start; i < end; i++) {
        const double y = scaled(report, curve, report->records[i].values[curve]);
        if (isnan(y))
            continue;
        sum += fmax(y, least);
        low = fmin(low, fmax(y, least));
        high = fmax(high, fmax(y, least));
        count++;
    }
    if (count > 0)
        fprintf(gnuplot, " %.6g %.6g %.6g", sum / count, low, high);
    else
        fprintf(gnuplot, " ? ? ?");
}

/* The records as a gnuplot data block. A point of n records has the step of the last one. */
static void print_points(const Report *report, size_t n, FILE *gnuplot)
{
    fprintf(gnuplot, "set datafile missing '?'\n$points << END\n");
    for (size_t start = 0; start < report->count; start += n) {
        const size_t end = start + n < report->count ? start + n : report->count;
        fprintf(gnuplot, "%lld", (long long)report->records[end - 1].step);
        for (int curve = 0; curve < CURVES; curve++)
            print_range(report, curve, start, end, gnuplot);
        fputc('\n', gnuplot);
    }
    fprintf(gnuplot, "END\n");
}

/* The titles, the step at which the learning rate drops, and the meaning of the bands. */
static void print_labels(const Report *report, const char *title, const char *subtitle, size_t n,
                         FILE *gnuplot)
{
    const long long drop = report->config.drop_at;
    fprintf(gnuplot, "set label 1 ");
    gnuplot_text(gnuplot, title);
    fprintf(gnuplot, " at screen 0.545,0.955 center font ',17'\nset label 2 ");
    gnuplot_text(gnuplot, subtitle);
    fprintf(gnuplot, " at screen 0.545,0.905 center textcolor '#555555'\n");
    if (drop > 0 && drop < report->records[report->count - 1].step)
        fprintf(gnuplot,
                "set arrow 1 from first %lld, graph 0 to first %lld, graph 1 nohead dashtype 2 "
                "linecolor '#999999'\n"
                "set label 3 'learning rate / 10' at first %lld, graph 0.95 right offset -0.7,0 "
                "textcolor '#777777' font ',12'\n",
                drop, drop, drop);
    if (n > 1)
        fprintf(gnuplot,
                "set label 4 'mean of %zu values; band: minimum to maximum' at screen "
                "0.96,0.025 right textcolor '#777777' font ',12'\n",
                n);
}

/* Plots those of the curves from first to last that have points. */
static void print_panel(const Report *report, int first, int last, bool lowest, FILE *gnuplot)
{
    static const char *const lines[CURVES] = { "#2166ac", "#b2541a" };
    static const char *const bands[CURVES] = { "#c6dbef", "#f7cdb4" };
    const ReportValue *panel = &report->config.values[first];
    fprintf(gnuplot, "%s logscale y\nset format x '%s'\nset ylabel '%s'\nset xlabel '%s'\n%s\n",
            panel->logarithmic ? "set" : "unset", lowest ? "%g" : "", panel->label,
            lowest ? "step" : "", panel->settings);
    const char *separator = "plot ";
    for (int c = first; c <= last; c++) {
        const ReportValue *curve = &report->config.values[c];
        const int column = 2 + 3 * c; /* of the mean; then the minimum and the maximum */
        if (!has_points(report, c))
            continue;
        if (!curve->sparse)
            fprintf(gnuplot, "%s$points using 1:%d:%d with filledcurves fillcolor '%s' notitle",
                    separator, column + 1, column + 2, bands[c]);
        fprintf(gnuplot, "%s$points using 1:%d with lines linewidth 2 linecolor '%s' %s",
                curve->sparse ? separator : ", ", column, lines[c],
                curve->title ? "title " : "notitle");
        if (curve->title)
            gnuplot_text(gnuplot, curve->title);
        separator = ", ";
    }
    fprintf(gnuplot, "\nunset label\n");
}

bool report_draw(const Report *report, const char *title, const char *subtitle)
{
    const char *path = report->plot;
    const bool one_panel = !report->config.values[1].label;
    const bool drawn[CURVES] = { has_points(report, 0), has_points(report, 1) };
    const int panels = one_panel ? drawn[0] || drawn[1] : drawn[0] + drawn[1];
    if (path && !panels)
        caution("--plot %s: no step has a value to draw", path);
    if (!path || !panels)
        return !path;
    const size_t n =
        report->count / 400 + 1; /* records per point, of which at most 400 are drawn */
    FILE *gnuplot = gnuplot_open();
    fprintf(gnuplot, "set terminal svg size 820,%d font 'sans-serif,14' background 'white'\n",
            panels > 1 ? 640 : 480);
    print_points(report, n, gnuplot);
    fprintf(gnuplot, "set multiplot layout %d,1 margins 0.13,0.96,%s,0.86 spacing 0,0.04\n", panels,
            panels > 1 ? "0.12" : "0.15");
    print_labels(report, title, subtitle, n, gnuplot);
    fprintf(gnuplot,
            "set border 3 linecolor '#777777'\n"
            "set tics nomirror out textcolor '#333333'\n"
            "set grid ytics linetype 1 linecolor '#e4e4e4'\n"
            "set key noautotitle\n"
            "set xrange [0:%lld]\n",
            (long long)report->records[report->count - 1].step);
    if (one_panel || drawn[0])
        print_panel(report, 0, one_panel ? 1 : 0, panels == 1, gnuplot);
    if (!one_panel && drawn[1])
        print_panel(report, 1, 1, true, gnuplot);
    fprintf(gnuplot, "unset multiplot\n");
    return gnuplot_draw(gnuplot, path);
}
