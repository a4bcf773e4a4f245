/* Shared by the benchmarks: clock, timing, options, JSON records. */
#ifndef TAPEGRAD_BENCH_COMMON_H
#define TAPEGRAD_BENCH_COMMON_H

#include <stdio.h>
#include <tapegrad.h>

/* The names of the precisions, by Precision. */
extern const char *const bench_precisions[3];

typedef struct BenchOptions {
    double seconds;       /* --seconds: minimum duration of a measurement (0.3) */
    Device *device;       /* --device: "plain", "cpu", "cuda", ... (cpu) */
    Precision precision;  /* --precision: of tapes (float32) */
    bool precision_given; /* whether it was on the command line */
    bool eager;           /* --eager: on CUDA without graph capture and replay */
    FILE *json;           /* --json FILE: an array of records, or NULL */
    int records;
} BenchOptions;

/* Parses --device NAME, --precision NAME, --eager, --threads N, --json FILE, --seconds S,
 * --processor-time and --help; exits on a bad option. */
BenchOptions bench_begin(int argc, char **argv, const char *purpose);

/* An option of one program: a whole number, a text, or a flag. The variable holds the default. */
enum { BENCH_FLAG = -1 };
typedef struct BenchOption {
    const char *name, *help;
    int64_t *number; /* or NULL: a text */
    int64_t min;     /* minimum of number, or BENCH_FLAG: --name takes no value and sets it to 1 */
    const char **text;
} BenchOption;
/* Likewise with more options; an option without a name ends the array. */
BenchOptions bench_begin_with(int argc, char **argv, const char *purpose, const BenchOption *more);
/* Opens the file of --json FILE. */
void bench_open_json(BenchOptions *options, const char *path);
/* Closes the JSON file. */
void bench_end(BenchOptions *options);

/* Appends a record to the JSON file, if any. The format produces the `"name": value` pairs; braces
 * and commas between records are added. */
void bench_record(BenchOptions *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef struct Timing {
    double median, min, max; /* milliseconds */
} Timing;

/* Sorts count times and summarizes them. */
Timing bench_timing(double *times, int count);

/* A tape on options->device with options->precision. */
Tape *bench_tape(const BenchOptions *options);

/* Writes normal random values with period 2^20 to the tensor. (With zeros a GPU would draw less
 * power and raise its clock.) */
void bench_fill(Tensor *tensor, uint64_t stream);

/* Times a step by tape_replay: on CUDA as a captured graph. Short steps on CUDA are timed in
 * batches, with one synchronization per batch. */
Timing bench_step(const BenchOptions *options, Tape *tape, TapeStep *step, void *context);

/* For headings: "cpu, 2 threads", "cpu, 2 threads, bf16" or "cuda:0, tf32, graphs". */
typedef struct BenchText {
    char text[64];
} BenchText;
BenchText bench_where(const BenchOptions *options);

/* Runs the function twice unmeasured, then for options->seconds and at least five times; with 0
 * seconds exactly once. */
Timing bench_time(const BenchOptions *options, void (*run)(void *), void *context);

/* Seconds of a monotonic clock, or with --processor-time those that all threads have run. */
double bench_seconds(void);

#endif
