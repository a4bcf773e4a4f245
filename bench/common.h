/* What the benchmarks share: the clock, medians, options, JSON records. */
#ifndef TAPEGRAD_BENCH_COMMON_H
#define TAPEGRAD_BENCH_COMMON_H

#include <stdio.h>
#include <tapegrad.h>

/* The names of the precisions, by Precision. */
extern const char *const bench_precisions[3];

typedef struct BenchOptions {
    double seconds;       /* --seconds: at least this long a figure (0.3) */
    Device *device;       /* --device: "cpu", "cuda", ... (cpu) */
    Precision precision;  /* --precision: of tapes (float32), */
    bool precision_given; /* and whether it was on the command line */
    bool eager;           /* --eager: on CUDA no step is recorded and replayed */
    FILE *json;           /* --json FILE: an array of records, or NULL */
    int records;
} BenchOptions;

/* Reads --device NAME, --precision NAME, --eager, --threads N, --json FILE, --seconds S; prints help;
 * exits on a bad option. */
BenchOptions bench_begin(int argc, char **argv, const char *purpose);

/* An option of one program: a whole number or a text, which holds the default, or a flag. */
enum { BENCH_FLAG = -1 };
typedef struct BenchOption {
    const char *name, *help;
    int64_t *number; /* or NULL: a text */
    int64_t least;   /* number, or BENCH_FLAG: --name takes no value and sets it to 1 */
    const char **text;
} BenchOption;
/* The same with more options; one without a name ends them. */
BenchOptions bench_begin_with(int argc, char **argv, const char *purpose, const BenchOption *more);
/* Opens the file of --json FILE. */
void bench_open_json(BenchOptions *options, const char *path);
/* Ends the JSON file. */
void bench_end(BenchOptions *options);

/* Writes a record to the JSON file (without --json: nothing). The format and its arguments make the
 * `"name": value` pairs; the braces around them and the comma between records are added. */
void bench_record(BenchOptions *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef struct Timing {
    double median, least, most; /* milliseconds */
} Timing;

/* A tape for the device in the precision. */
Tape *bench_tape(const BenchOptions *options);

/* Writes normal random values to the tensor; their period is 2^20. Zeros would draw less power,
 * and so let the clock of a GPU rise. */
void bench_fill(Tensor *tensor, uint64_t stream);

/* Times a step as tape_replay takes it: on CUDA as a graph, many of them between two looks at the
 * clock when they are short. */
Timing bench_step(const BenchOptions *options, Tape *tape, TapeStep *step, void *context);

/* "cpu, 2 threads" or "cuda:0, tf32, graphs", for headings. */
typedef struct BenchText {
    char text[64];
} BenchText;
BenchText bench_where(const BenchOptions *options);

/* Runs the function twice unmeasured, then until options->seconds have passed, at least five times;
 * with 0 seconds only once. */
Timing bench_time(const BenchOptions *options, void (*run)(void *), void *context);

/* Seconds of a monotonic clock. */
double bench_seconds(void);

#endif
