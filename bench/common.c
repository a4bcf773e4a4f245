#include "bench/common.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double bench_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static _Noreturn void usage(const char *program, const char *purpose, int status)
{
    fprintf(status ? stderr : stdout,
            "%s: %s\n"
            "  --device NAME   cpu, cuda, cuda:1, ... (default: cpu)\n"
            "  --precision P   float32, tf32 or bf16 (default: float32; the others on CUDA)\n"
            "  --eager         on CUDA: no step is recorded and replayed\n"
            "  --threads N     threads of the CPU to use (default: all)\n"
            "  --seconds S     measure each figure for at least so long (default 0.3)\n"
            "  --json FILE     also write the figures as an array of records\n",
            program, purpose);
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

BenchOptions bench_begin(int argc, char **argv, const char *purpose)
{
    static const struct option known[] = {
        { "device", required_argument, NULL, 'd' },  { "precision", required_argument, NULL, 'p' },
        { "eager", no_argument, NULL, 'e' },         { "threads", required_argument, NULL, 't' },
        { "seconds", required_argument, NULL, 's' }, { "json", required_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },          { NULL, 0, NULL, 0 },
    };
    BenchOptions options = { .seconds = 0.3, .device = device_open("cpu") };
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        char *end = NULL;
        if (option == 't') {
            long threads = strtol(optarg, &end, 10);
            if (*end || threads < 1 || threads > 4096) {
                fprintf(stderr, "--threads is %s, expected 1 to 4096\n", optarg);
                exit(2);
            }
            device_set_threads((int)threads);
        } else if (option == 'd') {
            options.device = device_open(optarg);
        } else if (option == 'p') {
            options.precision = precision_named(optarg);
        } else if (option == 'e') {
            options.eager = true;
        } else if (option == 's') {
            options.seconds = strtod(optarg, &end);
            if (*end || !(options.seconds >= 0)) {
                fprintf(stderr, "--seconds is %s, expected a number of at least 0\n", optarg);
                exit(2);
            }
        } else if (option == 'j') {
            options.json = fopen(optarg, "w");
            if (!options.json) {
                perror(optarg);
                exit(1);
            }
            fprintf(options.json, "[");
        } else {
            usage(argv[0], purpose, option == 'h' ? 0 : 2);
        }
    }
    if (optind < argc)
        usage(argv[0], purpose, 2);
    return options;
}

void bench_end(BenchOptions *options)
{
    if (!options->json)
        return;
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

Timing bench_step(const BenchOptions *options, Tape *tape, TapeStep *step, void *context)
{
    Repeated r = { options, tape, step, context, 1 };
    for (int i = 0; i < 3; i++)
        repeat(&r);
    if (device_is_cuda(options->device)) {
        const double before = bench_seconds();
        repeat(&r);
        r.times = 1 + (int64_t)(5e-3 / (bench_seconds() - before));
    }
    Timing ms = bench_time(options, repeat, &r);
    const double times = (double)r.times;
    return (Timing){ ms.median / times, ms.least / times, ms.most / times };
}

BenchText bench_where(const BenchOptions *options)
{
    BenchText where;
    const char *name = device_name(options->device);
    if (device_is_cuda(options->device))
        snprintf(where.text, sizeof where.text, "%s, %s, %s", name,
                 bench_precisions[options->precision], options->eager ? "eager" : "graphs");
    else
        snprintf(where.text, sizeof where.text, "%s, %d threads", name, device_threads());
    return where;
}

Timing bench_time(const BenchOptions *options, void (*run)(void *), void *context)
{
    enum { MOST_RUNS = 2000 };
    double times[MOST_RUNS];
    int count = 0;
    run(context);
    run(context);
    const double start = bench_seconds();
    for (double before = start; count < MOST_RUNS;) {
        run(context);
        const double after = bench_seconds();
        times[count++] = 1e3 * (after - before);
        before = after;
        if (count >= 5 && after - start >= options->seconds)
            break;
    }
    qsort(times, (size_t)count, sizeof times[0], ascending);
    return (Timing){ times[count / 2], times[0], times[count - 1] };
}
