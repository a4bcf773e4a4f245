#define _GNU_SOURCE /* cpu_set_t */
#include "bench/figure.h"

#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* -------------------------------------------------------------------------- one point's process */
static double once(const BenchOptions *options, Tape *tape, TapeStep *step, void *context)
{
    const double start = bench_seconds();
    tape_replay(tape, step, context);
    device_wait(options->device);
    return bench_seconds() - start;
}

double figure_time(const BenchOptions *options, Tape *tape, TapeStep *step, void *context)
{
    enum { LONG = 1, VERY_LONG = 10 };
    const double first = once(options, tape, step, context);
    if (first <= LONG || device_is_cuda(options->device))
        return bench_step(options, tape, step, context).median;
    return 1e3 * (first > VERY_LONG ? first : once(options, tape, step, context));
}

int figure_method(const Figure *figure, const Line *lines, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(lines[i].name, figure->method) == 0)
            return i;
    fprintf(stderr, "--method is %s, which this program does not have\n", figure->method);
    exit(2);
}

void figure_print(double ms, double bytes)
{
    printf("{\"ms\": %.6g, \"bytes\": %.0f}\n", ms, bytes);
}

/* ------------------------------------------------------------------------------------- commands */
void command_append(Command *command, const char *format, ...)
{
    const size_t used = strlen(command->text), room = sizeof command->text - used;
    va_list arguments;
    va_start(arguments, format);
    const int more = vsnprintf(command->text + used, room, format, arguments);
    va_end(arguments);
    if (more < 0 || (size_t)more >= room) {
        fprintf(stderr, "a command is too long: %s\n", command->text);
        exit(1);
    }
}

Command command_quoted(const char *text)
{
    Command quoted = { "'" };
    for (; *text; text++)
        command_append(&quoted, *text == '\'' ? "'\\%c'" : "%c", *text);
    command_append(&quoted, "'");
    return quoted;
}

/* Without --json: the process that measures a point writes no records. */
Command command_again(int argc, char **argv)
{
    Command command = { "" };
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            i++;
        else if (strncmp(argv[i], "--json=", 7) != 0) {
            command_append(&command, "%s ", command_quoted(argv[i]).text);
        }
    }
    return command;
}

/* OMP_PROC_BIND binds this thread to one processor before main starts, and child processes inherit
 * the binding: reset it to all processors, which the kernel restricts to those allowed for the
 * process. */
static void unbind(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
}

FILE *command_run(Command command)
{
    unbind();
    return popen(command.text, "r");
}

/* ------------------------------------------------------------------------------------ measuring */
static int64_t available_mib(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    long long kib = 0;
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kib) != 1)
            kib = 0;
    if (file)
        fclose(file);
    return kib / 1024;
}

/* The command with limits on time and, on the CPU, on memory; its stderr joins stdout. */
static Command limited(const Figure *figure, const BenchOptions *options, int64_t seconds,
                       Command command)
{
    Command whole = { "" };
    const int64_t mib = figure->memory ? figure->memory : available_mib() * 3 / 4;
    if (mib && !device_is_cuda(options->device))
        command_append(&whole, "ulimit -d %lld; ", (long long)mib * 1024);
    command_append(&whole, "exec timeout %lld %s 2>&1", (long long)seconds, command.text);
    return whole;
}

static bool number_in(const char *line, const char *name, double *number)
{
    const char *field = strstr(line, name);
    return field && sscanf(field + strlen(name), "%lf", number) == 1;
}

/* Runs the command; prints the reason and returns false if it yields no point. */
static bool run(Point *point, Command command)
{
    char line[1024], last[1024] = "it printed nothing";
    bool found = false;
    FILE *pipe = command_run(command);
    while (pipe && fgets(line, sizeof line, pipe)) {
        line[strcspn(line, "\n")] = 0;
        if (number_in(line, "\"ms\": ", &point->ms) &&
            number_in(line, "\"bytes\": ", &point->bytes))
            found = true;
        else if (*line)
            memcpy(last, line, sizeof last);
    }
    enum { TIMED_OUT = 124 };
    const int status = pipe ? pclose(pipe) : -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == TIMED_OUT)
        strcpy(last, "it exceeded --limit or --total");
    if (status != 0 || !found)
        printf("  ends here: %s\n", last);
    return status == 0 && found;
}

/* The seconds left of --total, at most --limit. */
static int64_t seconds_left(Figure *figure)
{
    if (figure->first_started == 0)
        figure->first_started = bench_seconds();
    const int64_t passed = (int64_t)(bench_seconds() - figure->first_started);
    const int64_t left = figure->total ? figure->total - passed : figure->limit;
    return left < figure->limit ? left : figure->limit;
}

void figure_measure(Figure *figure, const BenchOptions *options, Line line, Command command,
                    int64_t tokens)
{
    snprintf(figure->where, sizeof figure->where, "%s", bench_where(options).text);
    printf("%s\n", line.name);
    for (int64_t length = figure->shortest; length <= figure->longest && line.count < FIGURE_POINTS;
         length *= 2) {
        Point point = { .length = length, .batch = tokens > length ? tokens / length : 1 };
        Command whole = command;
        command_append(&whole, " --method %s --length %lld --batch %lld", line.name,
                       (long long)length, (long long)point.batch);
        printf("%8lld", (long long)length);
        const int64_t seconds = seconds_left(figure);
        if (seconds <= 0)
            printf("  ends here: the seconds of --total have passed\n");
        fflush(stdout);
        if (seconds <= 0 || !run(&point, limited(figure, options, seconds, whole)))
            break;
        const double samples = (double)point.batch;
        printf("  %10.3f ms  %10.2f MiB per sample\n", point.ms / samples,
               point.bytes / samples / (1 << 20));
        line.points[line.count++] = point;
    }
    figure->lines[figure->count++] = line;
}

/* ---------------------------------------------------------------------------------- the results */
/* The text of a record's field, truncated to size - 1 characters; "" if it is missing. */
static void text_in(const char *record, const char *field, char *text, size_t size)
{
    char name[32];
    snprintf(name, sizeof name, "\"%s\": \"", field);
    const char *place = strstr(record, name);
    place = place ? place + strlen(name) : "";
    snprintf(text, size, "%.*s", (int)strcspn(place, "\""), place);
}

/* Parses a line of records written by bench_record. */
static bool read_point(const char *record, const char *method, Point *point)
{
    char name[64];
    double length, batch;
    text_in(record, "method", name, sizeof name);
    if (strcmp(name, method) != 0 || !number_in(record, "\"N\": ", &length) ||
        !number_in(record, "\"B\": ", &batch) ||
        !number_in(record, "\"ms_per_sample\": ", &point->ms) ||
        !number_in(record, "\"bytes_per_sample\": ", &point->bytes))
        return false;
    point->length = (int64_t)length;
    point->batch = (int64_t)batch;
    point->ms *= batch;
    point->bytes *= batch;
    return true;
}

static void read_line(Figure *figure, Line line)
{
    FILE *file = fopen(figure->draw, "r");
    char record[1024];
    if (!file) {
        perror(figure->draw);
        exit(1);
    }
    while (line.count < FIGURE_POINTS && fgets(record, sizeof record, file))
        if (read_point(record, line.name, &line.points[line.count])) {
            line.count++;
            text_in(record, "sizes", figure->sizes, sizeof figure->sizes);
            text_in(record, "where", figure->where, sizeof figure->where);
        }
    fclose(file);
    figure->lines[figure->count++] = line;
}

void figure_read(Figure *figure, const Line *lines, int count)
{
    for (int i = 0; i < count; i++)
        read_line(figure, lines[i]);
}

FILE *figure_open(const char *output, const char *ending, char path[4096])
{
    snprintf(path, 4096, "%s.%s", output, ending);
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

void figure_close_table(FILE *table, const char *path)
{
    if (fclose(table) != 0) {
        perror(path);
        exit(1);
    }
}

void figure_need_points(const Figure *figure)
{
    for (int l = 0; l < figure->count; l++)
        if (figure->lines[l].count > 0)
            return;
    fflush(stdout);
    if (figure->draw)
        fprintf(stderr, "--draw %s: it has no record of this figure\n", figure->draw);
    else
        fprintf(stderr, "no point was measured; the reasons are printed above\n");
    exit(1);
}

/* The record of a point, from which --draw reads it again. */
static void record_point(BenchOptions *options, const Figure *figure, const Line *line,
                         const Point *point)
{
    const double batch = (double)point->batch;
    bench_record(options,
                 "\"method\": \"%s\", \"N\": %lld, \"B\": %lld, \"ms_per_sample\": %.6g, "
                 "\"bytes_per_sample\": %.0f, \"sizes\": \"%s\", \"where\": \"%s\"",
                 line->name, (long long)point->length, (long long)point->batch, point->ms / batch,
                 point->bytes / batch, figure->sizes, figure->where);
}

void figure_save(const Figure *figure, BenchOptions *options)
{
    figure_need_points(figure);
    char csv[4096], json[4096];
    FILE *table = figure_open(figure->output, "csv", csv);
    fprintf(table, "method,length,batch,ms_per_sample,bytes_per_sample\n");
    BenchOptions own = { .json = NULL }; /* beside those of --json */
    snprintf(json, sizeof json, "%s.json", figure->output);
    bench_open_json(&own, json);
    for (int l = 0; l < figure->count; l++)
        for (int p = 0; p < figure->lines[l].count; p++) {
            const Line *line = &figure->lines[l];
            const Point *point = &line->points[p];
            const double batch = (double)point->batch;
            fprintf(table, "%s,%lld,%lld,%.6g,%.0f\n", line->name, (long long)point->length,
                    (long long)point->batch, point->ms / batch, point->bytes / batch);
            record_point(&own, figure, line, point);
            record_point(options, figure, line, point);
        }
    bench_end(&own);
    figure_close_table(table, csv);
}

/* The minimum and maximum length of all points. */
static void lengths(const Figure *figure, int64_t *min, int64_t *max)
{
    *min = INT64_MAX;
    *max = 0;
    for (int l = 0; l < figure->count; l++)
        for (int p = 0; p < figure->lines[l].count; p++) {
            const int64_t length = figure->lines[l].points[p].length;
            *min = length < *min ? length : *min;
            *max = length > *max ? length : *max;
        }
}

static void print_points(const Line *line, FILE *gnuplot, int index)
{
    fprintf(gnuplot, "$line%d << END\n", index);
    for (int p = 0; p < line->count; p++)
        fprintf(gnuplot, "%lld %.6g %.6g\n", (long long)line->points[p].length,
                line->points[p].ms / (double)line->points[p].batch,
                line->points[p].bytes / (double)line->points[p].batch / (1 << 20));
    fprintf(gnuplot, "END\n");
}

FILE *figure_gnuplot(const char *output, const char *program, const char *table, const char *ending,
                     int width, int height)
{
    const Command name = command_quoted(output);
    if (system("command -v gnuplot >/dev/null 2>&1") != 0) {
        printf("%s.svg is not drawn: gnuplot was not found; this command draws it elsewhere:\n"
               "  %s --draw %s.%s --output %s\n",
               output, program, name.text, ending, name.text);
        return NULL;
    }
    Command command = { "" };
    command_append(&command, "gnuplot -d >%s.svg", name.text);
    FILE *gnuplot = setenv("TABLE", table, 1) == 0 ? popen(command.text, "w") : NULL;
    if (!gnuplot) {
        perror("gnuplot");
        exit(1);
    }
    fprintf(gnuplot,
            "set terminal svg size %d,%d font 'sans-serif,14' background 'white'\n"
            "set border 3 linecolor '#777777'\n"
            "set tics nomirror out textcolor '#333333'\n"
            "set grid linetype 1 linecolor '#e4e4e4'\n",
            width, height);
    return gnuplot;
}

FILE *figure_draw(const Figure *figure, const char *program, int width, int height)
{
    int64_t min, max;
    figure_need_points(figure);
    lengths(figure, &min, &max);
    FILE *gnuplot = figure_gnuplot(figure->output, program, "", "json", width, height);
    if (!gnuplot)
        return NULL;
    fprintf(gnuplot,
            "set logscale x 2\nset format x '2^{%%L}'\n"
            "set logscale y 10\nset format y '10^{%%T}'\n"
            "set xlabel 'length of the sequence, positions'\n"
            "set xrange [%lld*0.9:%lld*1.1]\n"
            "set key at screen 0.795,0.8 left top reverse Left samplen 2 spacing 1.2 font ',13'\n",
            (long long)min, (long long)max);
    for (int l = 0; l < figure->count; l++)
        if (figure->lines[l].count > 0)
            print_points(&figure->lines[l], gnuplot, l);
    return gnuplot;
}

void figure_plot(const Figure *figure, FILE *gnuplot, const char *y)
{
    const char *before = "plot ";
    for (int l = 0; l < figure->count; l++) {
        const Line *line = &figure->lines[l];
        if (line->count == 0)
            continue;
        fprintf(gnuplot,
                "%s$line%d using 1:%s with linespoints linewidth 2 pointsize 0.6 pointtype %d "
                "dashtype %d linecolor '%s' title '%s'",
                before, l, y, line->dashed ? 6 : 7, line->dashed ? 2 : 1, line->color, line->title);
        before = ", \\\n     ";
    }
    fprintf(gnuplot, "\n");
}

void figure_close(const char *output, FILE *gnuplot)
{
    if (pclose(gnuplot) != 0) {
        fprintf(stderr, "gnuplot could not draw %s.svg; its error is printed above\n", output);
        exit(1);
    }
}

void figure_end(const Figure *figure, FILE *gnuplot)
{
    figure_close(figure->output, gnuplot);
    if (figure->draw)
        printf("%s.svg\n", figure->output);
    else
        printf("%s.csv, %s.json, %s.svg\n", figure->output, figure->output, figure->output);
}

/* ------------------------------------------------------------------------------------ one panel */
static void draw_panel(const Figure *figure, const char *program, Panel panel)
{
    FILE *gnuplot = figure_draw(figure, program, 860, 500);
    if (!gnuplot)
        return;
    fprintf(gnuplot,
            "set lmargin at screen 0.11\nset rmargin at screen 0.71\n"
            "set bmargin at screen 0.16\nset tmargin at screen 0.84\n"
            "set key at screen 0.73,0.8\n"
            "set label 1 '%s' at screen 0.41,0.955 center font ',17'\n"
            "set label 2 '%s; %s' at screen 0.41,0.9 center textcolor '#555555'\n"
            "set ylabel '%s'\n",
            panel.title, figure->sizes, figure->where, panel.label);
    figure_plot(figure, gnuplot, panel.y);
    figure_end(figure, gnuplot);
}

void figure_run(Figure *figure, BenchOptions *options, const Line *lines, int count, Command again,
                const char *program, Panel panel)
{
    if (figure->draw) {
        figure_read(figure, lines, count);
    } else {
        printf("%s, %s, %s\n", panel.title, figure->sizes, bench_where(options).text);
        for (int i = 0; i < count; i++)
            figure_measure(figure, options, lines[i], again, 0);
        figure_save(figure, options);
        bench_end(options);
    }
    figure_need_points(figure);
    if (panel.report)
        panel.report(figure);
    draw_panel(figure, program, panel);
}
