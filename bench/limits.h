/* Measured limits of the machine, for comparison with the benchmarks' results. */
#ifndef TAPEGRAD_BENCH_LIMITS_H
#define TAPEGRAD_BENCH_LIMITS_H

#include "bench/common.h"

/* CPU: fused multiply-adds on registers, and a triad a = b + s c in memory, by all threads. CUDA: a
 * large matrix product by cuBLAS in the precision, and a large sum a + b. */
typedef struct Limits {
    bool cuda;
    double gflops; /* 10^9 floating-point operations per second */
    double gbytes; /* 10^9 bytes per second, read and written */
} Limits;

Limits bench_limits(const BenchOptions *options);

/* Only gbytes. The arrays exceed every cache; shrink > 1 divides their size, for rehearsals. */
double bench_bandwidth(const BenchOptions *options, int64_t shrink);

/* "fused multiply-adds 538 GFLOP/s, triad 53.0 GB/s" */
BenchText limits_text(const Limits *limits);

#endif
