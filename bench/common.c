#include "bench/common.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static clockid_t bench_clock = CLOCK_MONOTONIC; /* --processor-time: another */

double bench_seconds(void)
{
    struct timespec now;
    clock_gettime(bench_clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_flag(const BenchOption *option)
{
    return option->number && option->min == BENCH_FLAG;
}

static _Noreturn void usage(const char *program, const char *purpose, const BenchOption *more,
                            int status)
{
    FILE *file = status ? stderr : stdout;
    fprintf(file,
            "%s: %s\n"
            "  --device NAME   plain, cpu, cpu:repeatable, cuda, cuda:1, ... (default: cpu)\n"
            "  --precision P   float32, tf32 or bf16 (default: float32; tf32 on CUDA only)\n"
            "  --eager         on CUDA: without graph capture and replay\n"
            "  --threads N     number of CPU threads (default: all)\n"
            "  --seconds S     minimum duration of a measurement (default 0.3); 0: one run\n"
            "  --processor-time  of all threads, without waiting for other programs\n"
            "  --json FILE     also write the results as an array of records\n",
            program, purpose);
    for (; more->name; more++) {
        char option[32];
        snprintf(option, sizeof option, "--%s%s", more->name,
                 is_flag(more)  ? ""
                 : more->number ? " N"
                                : " TEXT");
        fprintf(file, "  %-15s %s", option, more->help);
        if (more->number && !is_flag(more))
            fprintf(file, " (default %lld)\n", (long long)*more->number);
        else if (!more->number && *more->text)
            fprintf(file, " (default: %s)\n", *more->text);
        else
            fprintf(file, "\n");
    }
    exit(status);
}

const char *const bench_precisions[] = { "float32", "tf32", "bf16" };

static Precision precision_named(const char *name)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(name, bench_precisions[i]) == 0)
            return (Precision)i;
    fprintf(stderr, "--precision is %s, expected float32, tf32 or bf16\n", name);
    exit(2);
}

static int64_t whole_number(const char *name, const char *text, int64_t min)
{
    char *end = NULL;
    const long long number = strtoll(text, &end, 10);
    if (!*text || *end || number < min) {
        fprintf(stderr, "--%s is %s, expected a whole number of at least %lld\n", name, text,
                (long long)min);
        exit(2);
    }
    return number;
}

static double seconds_of(const char *text)
{
    char *end = NULL;
    const double seconds = strtod(text, &end);
    if (!*text || *end || !(seconds >= 0)) {
        fprintf(stderr, "--seconds is %s, expected a number of at least 0\n", text);
        exit(2);
    }
    return seconds;
}

void bench_open_json(BenchOptions *options, const char *path)
{
    options->json = fopen(path, "w");
    if (!options->json) {
        perror(path);
        exit(1);
    }
    fprintf(options->json, "[");
}

/* Applies an option that all programs share, by its getopt letter. */
static void apply(BenchOptions *options, int letter, const char *text)
{
    if (letter == 't')
        device_set_threads((int)whole_number("threads", text, 1));
    else if (letter == 'd')
        options->device = device_open(text);
    else if (letter == 'p') {
        options->precision_given = true;
        options->precision = precision_named(text);
    } else if (letter == 'e')
        options->eager = true;
    else if (letter == 's')
        options->seconds = seconds_of(text);
    else if (letter == 'c')
        bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    else if (letter == 'j')
        bench_open_json(options, text);
}

enum { COMMON = 8, MAX_OPTIONS = 32, FIRST_OWN = 256 };

static const struct option common[COMMON] = {
    { "device", required_argument, NULL, 'd' },  { "precision", required_argument, NULL, 'p' },
    { "eager", no_argument, NULL, 'e' },         { "threads", required_argument, NULL, 't' },
    { "seconds", required_argument, NULL, 's' }, { "json", required_argument, NULL, 'j' },
    { "help", no_argument, NULL, 'h' },          { "processor-time", no_argument, NULL, 'c' },
};

BenchOptions bench_begin_with(int argc, char **argv, const char *purpose, const BenchOption *more)
{
    struct option known[MAX_OPTIONS] = { 0 };
    memcpy(known, common, sizeof common);
    for (int i = 0; more[i].name; i++)
        known[COMMON + i] =
            (struct option){ more[i].name, is_flag(&more[i]) ? no_argument : required_argument,
                             NULL, FIRST_OWN + i };
    BenchOptions options = { .seconds = 0.3, .device = device_open("cpu") };
    for (int letter; (letter = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (letter == 'h' || letter == '?')
            usage(argv[0], purpose, more, letter == 'h' ? 0 : 2);
        const BenchOption *own = letter < FIRST_OWN ? NULL : &more[letter - FIRST_OWN];
        if (!own)
            apply(&options, letter, optarg);
        else if (is_flag(own))
            *own->number = 1;
        else if (own->number)
            *own->number = whole_number(own->name, optarg, own->min);
        else
            *own->text = optarg;
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected argument; see --help\n", argv[optind]);
        exit(2);
    }
    return options;
}

BenchOptions bench_begin(int argc, char **argv, const char *purpose)
{
    return bench_begin_with(argc, argv, purpose, &(BenchOption){ 0 });
}

void bench_end(BenchOptions *options)
{
    if (!options->json)
        return;
    if (options->records == 0)
        fprintf(stderr, "--json: this program has no records; the file has an empty array\n");
    fprintf(options->json, "\n]\n");
    if (fclose(options->json) != 0) {
        perror("--json");
        exit(1);
    }
}

void bench_record(BenchOptions *options, const char *format, ...)
{
    if (!options->json)
        return;
    fprintf(options->json, "%s\n  { ", options->records++ ? "," : "");
    va_list arguments;
    va_start(arguments, format);
    vfprintf(options->json, format, arguments);
    va_end(arguments);
    fprintf(options->json, " }");
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

Timing bench_timing(double *times, int count)
{
    qsort(times, (size_t)count, sizeof times[0], ascending);
    return (Timing){ times[count / 2], times[0], times[count - 1] };
}

typedef struct Repeated {
    const BenchOptions *options;
    Tape *tape;
    TapeStep *step;
    void *context;
    int64_t times;
} Repeated;

static void repeat(void *context)
{
    const Repeated *r = context;
    for (int64_t i = 0; i < r->times; i++) {
        if (r->options->eager) {
            tape_reset(r->tape);
            r->step(r->context);
        } else {
            tape_replay(r->tape, r->step, r->context);
        }
    }
    device_wait(r->options->device);
}

Tape *bench_tape(const BenchOptions *options)
{
    Tape *tape = tape_new(options->device);
    tape_set_precision(tape, options->precision);
    return tape;
}

void bench_fill(Tensor *tensor, uint64_t stream)
{
    enum { PERIOD = 1 << 20 };
    const int64_t count = tensor_count(tensor);
    Real *values = malloc((size_t)count * sizeof *values);
    if (!values) {
        perror("bench_fill");
        exit(1);
    }
    Random random = random_new(1, stream);
    random_normal(&random, values, count < PERIOD ? count : PERIOD);
    for (int64_t i = PERIOD; i < count; i++)
        values[i] = values[i - PERIOD];
    tensor_write(tensor, values);
    free(values);
}

Timing bench_step(const BenchOptions *options, Tape *tape, TapeStep *step, void *context)
{
    Repeated r = { options, tape, step, context, 1 };
    tape_reset(tape); /* discards a step captured for an earlier measurement */
    for (int i = 0; i < 3; i++)
        repeat(&r);
    if (device_is_cuda(options->device) && options->seconds > 0) {
        const double before = bench_seconds();
        repeat(&r);
        r.times = 1 + (int64_t)(5e-3 / (bench_seconds() - before));
    }
    Timing ms = bench_time(options, repeat, &r);
    const double times = (double)r.times;
    return (Timing){ ms.median / times, ms.min / times, ms.max / times };
}

BenchText bench_where(const BenchOptions *options)
{
    BenchText where;
    const char *name = device_name(options->device);
    if (device_is_cuda(options->device))
        snprintf(where.text, sizeof where.text, "%s, %s, %s", name,
                 bench_precisions[options->precision], options->eager ? "eager" : "graphs");
    else
        snprintf(where.text, sizeof where.text, "%s, %d threads%s", name, device_threads(),
                 options->precision == PRECISION_BF16 ? ", bf16" : "");
    return where;
}

Timing bench_time(const BenchOptions *options, void (*run)(void *), void *context)
{
    enum { MAX_RUNS = 2000 };
    double times[MAX_RUNS];
    int count = 0;
    const int min = options->seconds > 0 ? 5 : 1;
    for (int i = 1; i < min; i += 2)
        run(context);
    const double start = bench_seconds();
    for (double before = start; count < MAX_RUNS;) {
        run(context);
        const double after = bench_seconds();
        times[count++] = 1e3 * (after - before);
        before = after;
        if (count >= min && after - start >= options->seconds)
            break;
    }
    return bench_timing(times, count);
}
