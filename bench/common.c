#include "bench/common.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
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
            "  --threads N     threads to use (default: all)\n"
            "  --seconds S     measure each figure for at least so long (default 0.3)\n"
            "  --json FILE     also write the figures as an array of records\n",
            program, purpose);
    exit(status);
}

BenchOptions bench_begin(int argc, char **argv, const char *purpose)
{
    static const struct option known[] = {
        { "threads", required_argument, NULL, 't' },
        { "seconds", required_argument, NULL, 's' },
        { "json", required_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    BenchOptions options = { .seconds = 0.3 };
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        char *end = NULL;
        if (option == 't') {
            long threads = strtol(optarg, &end, 10);
            if (*end || threads < 1 || threads > 4096) {
                fprintf(stderr, "--threads is %s, expected 1 to 4096\n", optarg);
                exit(2);
            }
            device_set_threads((int)threads);
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
