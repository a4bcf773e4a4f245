#include "bench/limits.h"

/* -------------------------------------------------------------------------------------- the CPU */
#ifdef __AVX512F__
enum { VECTOR_BYTES = 64 };
#elif defined __AVX__
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
typedef Real Lanes __attribute__((vector_size(VECTOR_BYTES)));

enum { CHAINS = 12, CHAIN_STEPS = 20000, LANES = VECTOR_BYTES / sizeof(Real) };

static void multiply_add(void *context)
{
    Real *sink = context;
#pragma omp parallel num_threads(device_threads())
    {
        Lanes sums[CHAINS], factor = { 0 };
        for (int chain = 0; chain < CHAINS; chain++)
            sums[chain] = factor + (Real)chain;
        factor += (Real)0.999;
        for (int step = 0; step < CHAIN_STEPS; step++)
            for (int chain = 0; chain < CHAINS; chain++)
                sums[chain] = sums[chain] * factor + factor;
        Real total = 0;
        for (int chain = 0; chain < CHAINS; chain++)
            for (int lane = 0; lane < (int)LANES; lane++)
                total += sums[chain][lane];
#pragma omp critical
        *sink += total;
    }
}

typedef struct Triad {
    Real *a;
    const Real *b, *c;
    int64_t n;
} Triad;

static void triad(void *context)
{
    Triad *t = context;
#pragma omp parallel for simd schedule(static) num_threads(device_threads())
    for (int64_t i = 0; i < t->n; i++)
        t->a[i] = t->b[i] + (Real)3 * t->c[i];
}

static double bandwidth_cpu(const BenchOptions *options, int64_t n)
{
    Params *arrays = params_new(options->device, 1);
    Triad t = { .n = n };
    Tensor *a = params_add(arrays, "a", shape(n), (Initializer){ INITIAL_ZERO, 0 });
    Tensor *b = params_add(arrays, "b", shape(n), (Initializer){ INITIAL_ONE, 0 });
    Tensor *c = params_add(arrays, "c", shape(n), (Initializer){ INITIAL_ONE, 0 });
    a->allocate(a);
    t.a = a->data;
    t.b = b->data;
    t.c = c->data;
    const double triad_ms = bench_time(options, triad, &t).min;
    params_free(arrays);
    return 3.0 * (double)n * (double)sizeof(Real) / triad_ms * 1e-6;
}

static double gflops_cpu(const BenchOptions *options)
{
    Real sink = 0;
    const double flops = 2.0 * CHAINS * CHAIN_STEPS * (double)LANES * device_threads();
    return flops / bench_time(options, multiply_add, &sink).min * 1e-6;
}

/* ----------------------------------------------------------------------------------------- CUDA */
enum { SQUARE = 8192 };

typedef struct Pair {
    Tape *tape;
    Tensor *a, *b;
} Pair;

static void square_product(void *context)
{
    Pair *p = context;
    op_matmul(p->tape, p->a, p->b);
}

static void long_sum(void *context)
{
    Pair *p = context;
    op_add(p->tape, p->a, p->b);
}

static double limit_ms(const BenchOptions *options, Shape size, TapeStep *step)
{
    Pair p = { .tape = bench_tape(options) };
    p.a = tape_persistent(p.tape, size);
    p.b = tape_persistent(p.tape, size);
    bench_fill(p.a, 1);
    bench_fill(p.b, 2);
    const double ms = bench_step(options, p.tape, step, &p).min;
    tape_free(p.tape);
    device_release_cached(options->device);
    return ms;
}

static double bandwidth_cuda(const BenchOptions *options, int64_t n)
{
    const double bytes = 3.0 * (double)n * (double)sizeof(Real);
    return bytes / limit_ms(options, shape(n), long_sum) * 1e-6;
}

static double gflops_cuda(const BenchOptions *options)
{
    const double flops = 2.0 * SQUARE * SQUARE * SQUARE;
    return flops / limit_ms(options, shape(SQUARE, SQUARE), square_product) * 1e-6;
}

double bench_bandwidth(const BenchOptions *options, int64_t shrink)
{
    return device_is_cuda(options->device) ? bandwidth_cuda(options, (1 << 28) / shrink)
                                           : bandwidth_cpu(options, (1 << 24) / shrink);
}

Limits bench_limits(const BenchOptions *options)
{
    const bool cuda = device_is_cuda(options->device);
    return (Limits){ .cuda = cuda,
                     .gflops = cuda ? gflops_cuda(options) : gflops_cpu(options),
                     .gbytes = bench_bandwidth(options, 1) };
}

BenchText limits_text(const Limits *limits)
{
    BenchText text;
    snprintf(text.text, sizeof text.text, "%s %.0f GFLOP/s, %s %.1f GB/s",
             limits->cuda ? "product" : "fused multiply-adds", limits->gflops,
             limits->cuda ? "a + b" : "triad", limits->gbytes);
    return text;
}
