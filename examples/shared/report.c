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
    FILE *log;
    bool terminal, lost_log;
    double seconds;     /* of the runs before a resume */
    double line, plain; /* time of the last update on a terminal, and of the last plain line */
    Record *records;    /* for the picture */
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

/* Parses a number and the separator after it; an empty field is NaN. */
static bool read_number(char **text, char end, double *number)
{
    char *start = *text;
    *number = strtod(start, text);
    if (*text == start)
        *number = NAN;
    return *(*text)++ == end;
}

static bool read_row(char *line, int values, Record *record)
{
    double step;
    bool ok = read_number(&line, ',', &step) && step >= 1 && step < 1e15 && step == floor(step);
    for (int i = 0; ok && i < values; i++)
        ok = read_number(&line, ',', &record->values[i]);
    record->step = ok ? (int64_t)step : 0;
    return ok && read_number(&line, '\n', &record->seconds) && !isnan(record->seconds);
}

/* Reads the rows of the steps before this run and truncates the file after them. */
static void read_log(Report *report)
{
    const char *path = report->config.log, *header = report->config.header;
    char line[256];
    if (!fgets(line, sizeof line, report->log) || strncmp(line, header, strlen(header)))
        fail(EXIT_FAILURE, "--log %s: expected a log that starts with %s", path, header);
    long end = ftell(report->log);
    while (fgets(line, sizeof line, report->log)) {
        Record record;
        if (!strchr(line, '\n') && feof(report->log)) /* an interrupted run cut it off */
            break;
        if (!strchr(line, '\n') || !read_row(line, report->config.values, &record))
            fail(EXIT_FAILURE, "--log %s: expected rows of a step and %d numbers, found %.40s",
                 path, report->config.values + 1, line);
        if (record.step >= report->config.first)
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
    const char *path = report->config.log;
    bool append = report->config.resumed && access(path, F_OK) == 0;
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
    for (int i = 0; i < report->config.values; i++) {
        if (isnan(record.values[i]))
            fputc(',', report->log);
        else
            fprintf(report->log, ",%.*g", report->config.digits[i], record.values[i]);
    }
    if (fprintf(report->log, ",%.3f\n", record.seconds) < 0 || ferror(report->log)) {
        caution("--log %s: %s; it ends at step %lld", report->config.log, strerror(errno),
                (long long)record.step);
        fclose(report->log);
        report->log = NULL;
        report->lost_log = true;
    }
}

Report *report_new(ReportConfig config)
{
    gnuplot_check(config.plot);
    Report *report = allocate(1, sizeof *report);
    report->config = config;
    report->terminal = isatty(STDOUT_FILENO);
    report->line = report->plain = -INFINITY;
    if (config.log)
        open_log(report);
    return report;
}

void report_free(Report *report)
{
    free(report->records);
    free(report);
}

/* ------------------------------------------------------------------------------------- progress */

static void print_progress(const Report *report, Record record)
{
    const ReportConfig *config = &report->config;
    double done = (double)(record.step - config->first + 1);
    long left = lround((double)(config->last - record.step) * record.seconds / done);
    printf("step %lld/%lld  %ld:%02ld left  ", (long long)record.step, (long long)config->last,
           left / 60, left % 60);
    config->print(record.values, config->context);
    double rate = done * config->items / record.seconds;
    printf("  %.*f %s/s", rate < 100, rate, config->unit);
}

static void show_progress(Report *report, Record record)
{
    int64_t steps = report->config.last;
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
    if (!report->config.quiet)
        show_progress(report, record);
    record.seconds += report->seconds;
    if (report->config.plot)
        append(report, record);
    if (report->log)
        write_row(report, record);
}

bool report_end(Report *report)
{
    if (!report->config.quiet && report->terminal && report->line > 0)
        printf("\n");
    if (report->log && fclose(report->log)) {
        caution("--log %s: %s", report->config.log, strerror(errno));
        report->lost_log = true;
    }
    report->log = NULL;
    return !report->lost_log;
}

/* -------------------------------------------------------------------------------------- picture */

static int curve_count(const ReportPanel *panel)
{
    int count = 0;
    while (count < REPORT_CURVES && panel->curves[count].factor != 0)
        count++;
    return count;
}

static bool has_points(const Report *report, const ReportCurve *curve)
{
    for (size_t i = 0; i < report->count; i++)
        if (isfinite(report->records[i].values[curve->value]))
            return true;
    return false;
}

/* Whether a curve of the panel has points. */
static bool is_drawn(const Report *report, const ReportPanel *panel)
{
    for (int c = 0; c < curve_count(panel); c++)
        if (has_points(report, &panel->curves[c]))
            return true;
    return false;
}

/* Mean, minimum and maximum of one value over the records; "?" if no record has it. */
static void print_range(const Record *start, const Record *end, int value, double factor,
                        double floor, FILE *gnuplot)
{
    double sum = 0, low = INFINITY, high = -INFINITY;
    int count = 0;
    for (const Record *record = start; record < end; record++) {
        double y = fmax(factor * record->values[value], floor);
        if (isnan(record->values[value]))
            continue;
        sum += y;
        low = fmin(low, y);
        high = fmax(high, y);
        count++;
    }
    if (count > 0)
        fprintf(gnuplot, " %.6g %.6g %.6g", sum / count, low, high);
    else
        fprintf(gnuplot, " ? ? ?");
}

/* A point of the picture, of which there are at most 400, averages this many records. */
static size_t records_per_point(const Report *report)
{
    return report->count / 400 + 1;
}

/* The records as a gnuplot data block. A point has the step of its last record and, per curve, the
 * mean, minimum and maximum. */
static void print_points(const Report *report, FILE *gnuplot)
{
    const ReportConfig *config = &report->config;
    size_t steps = records_per_point(report);
    fprintf(gnuplot, "set datafile missing '?'\n$points << END\n");
    for (size_t start = 0; start < report->count; start += steps) {
        size_t end = start + steps < report->count ? start + steps : report->count;
        fprintf(gnuplot, "%lld", (long long)report->records[end - 1].step);
        for (int p = 0; p < config->panels; p++) {
            const ReportPanel *panel = &config->panel[p];
            for (int c = 0; c < curve_count(panel); c++)
                print_range(report->records + start, report->records + end, panel->curves[c].value,
                            panel->curves[c].factor, panel->logarithmic ? 1e-9 : -INFINITY,
                            gnuplot);
        }
        fputc('\n', gnuplot);
    }
    fprintf(gnuplot, "END\n");
}

static void print_title(const ReportTitle *title, int64_t last, FILE *gnuplot)
{
    fprintf(gnuplot, "set label 1 ");
    gnuplot_text(gnuplot, title->title);
    fprintf(gnuplot, " at screen 0.545,0.955 center font ',17'\nset label 2 ");
    gnuplot_text(gnuplot, title->subtitle);
    fprintf(gnuplot, " at screen 0.545,0.905 center textcolor '#555555'\n");
    if (title->drop_at > 0 && title->drop_at < last)
        fprintf(gnuplot,
                "set arrow 1 from first %lld, graph 0 to first %lld, graph 1 nohead dashtype 2 "
                "linecolor '#999999'\n"
                "set label 3 '%s' at first %lld, graph 0.95 right offset -0.7,0 "
                "textcolor '#777777' font ',12'\n",
                (long long)title->drop_at, (long long)title->drop_at, title->drop,
                (long long)title->drop_at);
}

/* What the bands are, unless a point is one record. */
static void print_caption(const Report *report, FILE *gnuplot)
{
    bool bands = false;
    for (int p = 0; p < report->config.panels; p++)
        bands |= report->config.panel[p].curves[0].range != NULL;
    if (bands && records_per_point(report) > 1)
        fprintf(gnuplot,
                "set label 4 'mean of %zu values; band: minimum to maximum' at screen "
                "0.96,0.025 right textcolor '#777777' font ',12'\n",
                records_per_point(report));
}

/* Plots the curves of a panel that have points, the first one's mean from this column on. */
static void print_panel(const Report *report, const ReportPanel *panel, int column, bool lowest,
                        FILE *gnuplot)
{
    fprintf(gnuplot, "%s logscale y\nset format x '%s'\nset ylabel '%s'\nset xlabel '%s'\n%s\n",
            panel->logarithmic ? "set" : "unset", lowest ? "%g" : "", panel->label,
            lowest ? "step" : "", panel->settings);
    const char *separator = "plot ";
    for (int c = 0; c < curve_count(panel); c++, column += 3) {
        const ReportCurve *curve = &panel->curves[c];
        if (!has_points(report, curve))
            continue;
        if (curve->range)
            fprintf(gnuplot, "%s$points using 1:%d:%d with filledcurves fillcolor '%s' notitle",
                    separator, column + 1, column + 2, curve->range);
        fprintf(gnuplot, "%s$points using 1:%d with lines linewidth 2 linecolor '%s' %s",
                curve->range ? ", " : separator, column, curve->line,
                curve->title ? "title " : "notitle");
        if (curve->title)
            gnuplot_text(gnuplot, curve->title);
        separator = ", ";
    }
    fprintf(gnuplot, "\nunset label\n");
}

static void print_script(const Report *report, FILE *gnuplot, const ReportTitle *title, int drawn)
{
    const ReportConfig *config = &report->config;
    int64_t last = report->records[report->count - 1].step;
    fprintf(gnuplot, "set terminal svg size 820,%d font 'sans-serif,14' background 'white'\n",
            drawn > 1 ? 640 : 480);
    print_points(report, gnuplot);
    fprintf(gnuplot, "set multiplot layout %d,1 margins 0.13,0.96,%s,0.86 spacing 0,0.04\n", drawn,
            drawn > 1 ? "0.12" : "0.15");
    print_title(title, last, gnuplot);
    print_caption(report, gnuplot);
    fprintf(gnuplot,
            "set border 3 linecolor '#777777'\n"
            "set tics nomirror out textcolor '#333333'\n"
            "set grid ytics linetype 1 linecolor '#e4e4e4'\n"
            "set key noautotitle\n"
            "set xrange [0:%lld]\n",
            (long long)last);
    int column = 2;
    for (int p = 0; p < config->panels; p++) {
        const ReportPanel *panel = &config->panel[p];
        if (is_drawn(report, panel))
            print_panel(report, panel, column, --drawn == 0, gnuplot);
        column += 3 * curve_count(panel);
    }
    fprintf(gnuplot, "unset multiplot\n");
}

bool report_draw(const Report *report, const ReportTitle *title)
{
    const char *path = report->config.plot;
    int drawn = 0; /* panels */
    for (int p = 0; path && p < report->config.panels; p++)
        drawn += is_drawn(report, &report->config.panel[p]);
    if (path && !drawn)
        caution("--plot %s: no step has a value to draw", path);
    if (!drawn)
        return !path;
    FILE *commands = gnuplot_open();
    print_script(report, commands, title, drawn);
    return gnuplot_draw(commands, path);
}
