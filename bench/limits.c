#include "bench/limits.h"

/* --------------------------------------------------------------------------------------- the CPU */
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
#pragma omp parallel
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
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < t->n; i++)
        t->a[i] = t->b[i] + (Real)3 * t->c[i];
}

static Limits limits_cpu(const BenchOptions *options)
{
    Limits limits = { .cuda = false };
    Real sink = 0;
    const double flops = 2.0 * CHAINS * CHAIN_STEPS * (double)LANES * device_threads();
    limits.gflops = flops / bench_time(options, multiply_add, &sink).least * 1e-6;
    const int64_t n = 1 << 24;
    Params *arrays = params_new(options->device, 1);
    Triad t = { .n = n };
    Tensor *a = params_add(arrays, "a", shape(n), (Initializer){ INITIAL_ZERO, 0 });
    Tensor *b = params_add(arrays, "b", shape(n), (Initializer){ INITIAL_ONE, 0 });
    Tensor *c = params_add(arrays, "c", shape(n), (Initializer){ INITIAL_ONE, 0 });
    a->lay_out(a);
    t.a = a->data, t.b = b->data, t.c = c->data;
    const double triad_ms = bench_time(options, triad, &t).least;
    limits.gbytes = 3.0 * (double)n * (double)sizeof(Real) / triad_ms * 1e-6;
    params_free(arrays);
    return limits;
}

/* ----------------------------------------------------------------------------------------- CUDA */
enum { SQUARE = 8192, LONG = 1 << 28 };

typedef struct Pair {
    Tape *tape;
    Tensor *a, *b;
} Pair;

static void square_product(void *context)
{
    Pair *p = context;
    op_matmul(p->tape, p->a, p->b, false, false);
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
    const double ms = bench_step(options, p.tape, step, &p).least;
    tape_free(p.tape);
    device_release_cached(options->device);
    return ms;
}

static Limits limits_cuda(const BenchOptions *options)
{
    const double flops = 2.0 * SQUARE * SQUARE * SQUARE, bytes = 3.0 * LONG * sizeof(Real);
    return (Limits){
        .cuda = true,
        .gflops = flops / limit_ms(options, shape(SQUARE, SQUARE), square_product) * 1e-6,
        .gbytes = bytes / limit_ms(options, shape(LONG), long_sum) * 1e-6,
    };
}

Limits bench_limits(const BenchOptions *options)
{
    return device_is_cuda(options->device) ? limits_cuda(options) : limits_cpu(options);
}

BenchText limits_text(const Limits *limits)
{
    BenchText text;
    snprintf(text.text, sizeof text.text, "%s %.0f GFLOP/s, %s %.1f GB/s",
             limits->cuda ? "product" : "fused multiply-adds", limits->gflops,
             limits->cuda ? "a + b" : "triad", limits->gbytes);
    return text;
}
