/* What the machine can do at most, measured: the benchmarks show it beside their figures. */
#ifndef TAPEGRAD_BENCH_LIMITS_H
#define TAPEGRAD_BENCH_LIMITS_H

#include "bench/common.h"

/* Of the CPU: fused multiply-adds from registers, and a triad a = b + s c from memory, by all threads.
 * Of a CUDA device: a large product of cuBLAS's in the precision, and a large sum a + b. */
typedef struct Limits {
    bool cuda;
    double gflops; /* 10^9 operations a second */
    double gbytes; /* 10^9 bytes a second, read and written */
} Limits;

Limits bench_limits(const BenchOptions *options);

/* The second of them alone: the rate of a sum a + b, or of the CPU's triad, whose arrays exceed every
 * cache; with shrink > 1 they are smaller by that factor, for rehearsals. */
double bench_bandwidth(const BenchOptions *options, int64_t shrink);

/* "fused multiply-adds 538 GFLOP/s, triad 53.0 GB/s" */
BenchText limits_text(const Limits *limits);

#endif
