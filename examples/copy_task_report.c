#include "examples/copy_task_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char header[] = "step,loss,accuracy,learning_rate,seconds";

struct Report {
    const Options *options;
    FILE *log;
    bool terminal;
    int64_t first;      /* the first step of this run */
    double seconds;     /* of the runs before */
    double line, plain; /* when the last live line and the last plain line were written */
    Record *records;    /* all that the picture shows */
    size_t count, room;
};

static void keep(Report *report, Record record)
{
    if (report->count == report->room) {
        report->room = 2 * report->room + 1024;
        report->records = realloc(report->records, report->room * sizeof(Record));
        if (!report->records)
            fail(EXIT_FAILURE, "out of memory for the records of %zu steps", report->count);
    }
    report->records[report->count++] = record;
}

/* Reads the rows of the steps before this run and leaves the file's position behind them. */
static void read_log(Report *report, const char *path)
{
    char line[256];
    if (!fgets(line, sizeof line, report->log) || strncmp(line, header, strlen(header)))
        fail(EXIT_FAILURE, "--log %s: expected a log that starts with %s", path, header);
    long end = ftell(report->log);
    while (fgets(line, sizeof line, report->log) && strchr(line, '\n')) {
        Record record;
        long long step;
        if (sscanf(line, "%lld,%lf,%lf,%lf,%lf", &step, &record.loss, &record.accuracy,
                   &record.learning_rate, &record.seconds) != 5)
            fail(EXIT_FAILURE, "--log %s: expected rows of five numbers, found %s", path, line);
        record.step = step;
        if (step >= report->first)
            break;
        keep(report, record);
        report->seconds = record.seconds;
        end = ftell(report->log);
    }
    if (fseek(report->log, end, SEEK_SET) || ftruncate(fileno(report->log), end))
        fail(EXIT_FAILURE, "--log %s: %s", path, strerror(errno));
}

static void open_log(Report *report, const char *path)
{
    bool append = report->options->resume && access(path, F_OK) == 0;
    report->log = fopen(path, append ? "r+" : "w");
    if (!report->log)
        fail(EXIT_FAILURE, "--log %s: %s", path, strerror(errno));
    setvbuf(report->log, NULL, _IOLBF, 0);
    if (append)
        read_log(report, path);
    else
        fprintf(report->log, "%s\n", header);
}

Report *report_new(const Options *options, int64_t first)
{
    if (options->plot && system("command -v gnuplot >/dev/null 2>&1"))
        fail(EXIT_FAILURE,
             "--plot %s: gnuplot draws it and was not found; install gnuplot-nox, or leave --plot "
             "out",
             options->plot);
    Report *report = calloc(1, sizeof *report);
    if (!report)
        fail(EXIT_FAILURE, "out of memory");
    report->options = options;
    report->first = first;
    report->terminal = isatty(STDOUT_FILENO);
    report->line = report->plain = -INFINITY;
    if (options->log)
        open_log(report, options->log);
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
    const Options *options = report->options;
    double done = (double)(record.step - report->first + 1);
    double tokens = done * (double)(options->batch * options->length) / record.seconds;
    long left = lround((double)(options->steps - record.step) * record.seconds / done);
    printf("step %lld/%lld  loss %.4f  accuracy %6.2f %%  %.0f tokens/s  %ld:%02ld left",
           (long long)record.step, (long long)options->steps, record.loss, 100 * record.accuracy,
           tokens, left / 60, left % 60);
}

static void show_progress(Report *report, Record record)
{
    const Options *options = report->options;
    bool last = record.step == options->steps,
         tenth = record.step % ((options->steps + 9) / 10) == 0;
    if (report->terminal && (last || record.seconds - report->line >= 0.1)) {
        printf("\r");
        print_progress(report, record);
        printf("\033[K");
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
    if (!report->options->quiet)
        show_progress(report, record);
    record.seconds += report->seconds;
    if (report->options->plot)
        keep(report, record);
    if (report->log &&
        fprintf(report->log, "%lld,%.9g,%.9g,%.6g,%.3f\n", (long long)record.step, record.loss,
                record.accuracy, record.learning_rate, record.seconds) < 0)
        fail(EXIT_FAILURE, "--log %s: %s", report->options->log, strerror(errno));
}

/* -------------------------------------------------------------------------------------- picture */

/* The records as a gnuplot data block of some hundred points: step, and of loss and accuracy (in
 * per cent) the mean, the least and the greatest of the steps that a point stands for. */
static void print_points(const Report *report, FILE *gnuplot)
{
    size_t steps = report->count / 400 + 1; /* a point */
    fprintf(gnuplot, "$points << END\n");
    for (size_t start = 0; start < report->count; start += steps) {
        size_t end = start + steps < report->count ? start + steps : report->count;
        double sum[2] = { 0, 0 }, low[2] = { INFINITY, INFINITY },
               high[2] = { -INFINITY, -INFINITY };
        for (size_t i = start; i < end; i++) {
            const Record *record = &report->records[i];
            double value[2] = { fmax(record->loss, 1e-9), 100 * record->accuracy };
            for (int k = 0; k < 2; k++) {
                sum[k] += value[k];
                low[k] = fmin(low[k], value[k]);
                high[k] = fmax(high[k], value[k]);
            }
        }
        double n = (double)(end - start);
        fprintf(gnuplot, "%lld %.6g %.6g %.6g %.6g %.6g %.6g\n",
                (long long)report->records[end - 1].step, sum[0] / n, low[0], high[0], sum[1] / n,
                low[1], high[1]);
    }
    fprintf(gnuplot, "END\n");
}

/* 'text' as gnuplot quotes it: a quote inside is doubled. */
static void print_quoted(FILE *gnuplot, const char *text)
{
    fputc('\'', gnuplot);
    for (; *text; text++)
        fprintf(gnuplot, *text == '\'' ? "''" : "%c", *text);
    fputs("'\n", gnuplot);
}

static void print_script(const Report *report, FILE *gnuplot, const char *subtitle)
{
    const Options *options = report->options;
    fprintf(gnuplot, "set terminal svg size 820,640 font 'sans-serif,14' background 'white'\n"
                     "set output ");
    print_quoted(gnuplot, options->plot);
    print_points(report, gnuplot);
    fprintf(gnuplot,
            "set multiplot layout 2,1 margins 0.13,0.96,0.12,0.86 spacing 0,0.04\n"
            "set label 1 'Learning to copy: causal %s attention, %lld layers, %lld heads of %lld, "
            "length %lld' at screen 0.545,0.955 center font ',17'\n"
            "set label 2 ",
            options->attention, (long long)options->layers, (long long)options->heads,
            (long long)options->head_dim, (long long)options->length);
    fprintf(gnuplot, "\"%s\" at screen 0.545,0.905 center textcolor '#555555'\n", subtitle);
    fprintf(gnuplot,
            "set border 3 linecolor '#777777'\n"
            "set tics nomirror out textcolor '#333333'\n"
            "set grid ytics linetype 1 linecolor '#e4e4e4'\n"
            "set key off\n"
            "set xrange [0:%lld]\n",
            (long long)report->records[report->count - 1].step);
    if (options->drop_at > 0 && options->drop_at < report->records[report->count - 1].step)
        fprintf(gnuplot,
                "set arrow 1 from first %lld, graph 0 to first %lld, graph 1 nohead dashtype 2 "
                "linecolor '#999999'\n"
                "set label 3 'learning rate / 10' at first %lld, graph 0.95 right offset -0.7,0 "
                "textcolor '#777777' font ',12'\n",
                (long long)options->drop_at, (long long)options->drop_at,
                (long long)options->drop_at);
    fprintf(gnuplot, "set logscale y\n"
                     "set format y '10^{%%T}'\n"
                     "set format x ''\n"
                     "unset mytics\n"
                     "set ylabel 'loss'\n"
                     "plot $points using 1:3:4 with filledcurves fillcolor '#c6dbef', "
                     "$points using 1:2 with lines linewidth 2 linecolor '#2166ac'\n"
                     "unset logscale y\n"
                     "unset label\n"
                     "set format y '%%g %%%%'\n"
                     "set format x '%%g'\n"
                     "set yrange [0:102]\n"
                     "set ylabel 'accuracy'\n"
                     "set xlabel 'step'\n"
                     "plot $points using 1:6:7 with filledcurves fillcolor '#f7cdb4', "
                     "$points using 1:5 with lines linewidth 2 linecolor '#b2541a'\n"
                     "unset multiplot\n");
}

static void draw(const Report *report, const char *subtitle)
{
    FILE *gnuplot = popen("gnuplot", "w");
    if (!gnuplot)
        fail(EXIT_FAILURE, "--plot %s: %s", report->options->plot, strerror(errno));
    print_script(report, gnuplot, subtitle);
    if (pclose(gnuplot) != 0)
        fail(EXIT_FAILURE, "--plot %s: gnuplot could not draw it; what it says stands above",
             report->options->plot);
}

void report_finish(Report *report, const char *subtitle)
{
    if (!report->options->quiet && report->terminal && report->line > 0)
        printf("\n");
    if (report->log && fclose(report->log))
        fail(EXIT_FAILURE, "--log %s: %s", report->options->log, strerror(errno));
    report->log = NULL;
    if (report->options->plot && report->count > 0)
        draw(report, subtitle);
}
