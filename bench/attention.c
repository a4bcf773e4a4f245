/* Causal linear attention with feature map and normalizer: time and memory against length; with
 * --goals the times against goals for one H200.
 *
 * The floor (roofline) is the longer of two times at the machine's limits. Arithmetic: 4 D M flops
 * per position and head for the forward pass (update S, read S), 14 D M with the backward pass.
 * Memory: q, k, v, out once in the forward pass, and q, k, v, out, dout, dq, dk, dv once in the
 * backward pass. Inputs that fit in a cache may be faster than the memory floor. The floor of a
 * goal is the memory floor. */
#include "bench/limits.h"

#include <math.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------------------------- a case
 * A replayed step contains several calls, which amortizes the graph launch. Each call has its own
 * backward pass and then releases its tensors: it is a step of a second tape, inside the graph of
 * the first one. The inputs have the dtype that the operation reads. */
enum { BATCH = 1, HEADS = 8, QUERY = 0, KEY, VALUE, UPSTREAM, INPUTS };

typedef struct Case {
    Tape *steps, *tape; /* of the replayed step, and of one call */
    Tensor *inputs[INPUTS];
    Tensor *out;
    int64_t calls; /* per step */
    bool backward;
} Case;

static void run(void *context)
{
    Case *c = context;
    for (int64_t i = 0; i < c->calls; i++) {
        tape_reset(c->tape);
        c->out =
            op_causal_linear_attention(c->tape, c->inputs[QUERY], c->inputs[KEY], c->inputs[VALUE],
                                       (CausalLinearAttentionOptions){ .eps = 1e-6 }, NULL);
        if (c->backward)
            tape_backward_from(c->tape, c->out, c->inputs[UPSTREAM]);
    }
}

/* size: [B, N, H, D] */
static Case case_new(const BenchOptions *options, Shape size, int64_t calls)
{
    const TensorType type = options->precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Case c = { .steps = bench_tape(options), .tape = bench_tape(options), .calls = calls };
    for (int i = 0; i < INPUTS; i++)
        c.inputs[i] = tape_persistent_variable(c.tape, type, size);
    return c;
}

static void case_fill(Case *c)
{
    for (int i = 0; i < INPUTS; i++)
        bench_fill(c->inputs[i], (uint64_t)i);
}

static void case_free(Case *c)
{
    Device *device = tape_device(c->tape);
    tape_free(c->steps);
    tape_free(c->tape);
    device_release_cached(device);
}

static int64_t element_bytes(const BenchOptions *options)
{
    return options->precision == PRECISION_BF16 ? 2 : (int64_t)sizeof(Real);
}

/* Bytes of q, k, v, out; with the backward pass also of q, k, v, out, dout, dq, dk, dv. */
static double min_bytes(const BenchOptions *options, Shape size, bool backward)
{
    return (double)((backward ? 12 : 4) * shape_count(size) * element_bytes(options));
}

static const char *pass_name(bool backward)
{
    return backward ? "forward+backward" : "forward";
}

/* ------------------------------------------------------------------------------- against length */
static void measure(BenchOptions *options, const Limits *limits, int64_t positions,
                    int64_t head_dim)
{
    Device *device = options->device;
    const Shape size = shape(BATCH, positions, HEADS, head_dim);
    Case c = case_new(options, size, 1);
    case_fill(&c);
    printf("%6lld %4lld", (long long)positions, (long long)head_dim);
    for (int pass = 0; pass < 2; pass++) {
        c.backward = pass == 1;
        const double flops = (pass ? 14.0 : 4.0) * (double)(shape_count(size) * head_dim);
        const double floor_ms =
            fmax(flops / limits->gflops, min_bytes(options, size, pass == 1) / limits->gbytes) *
            1e-6;
        const int64_t gradients = pass ? UPSTREAM * shape_count(size) * element_bytes(options) : 0;
        tape_reset(c.tape);
        const size_t before = device_memory(device).current + (size_t)gradients;
        device_reset_peak(device);
        Timing ms = bench_step(options, c.steps, run, &c);
        const size_t peak = device_memory(device).peak - before;
        const double times_floor = ms.median / floor_ms;
        printf("  %9.3f ms %5.2f floor %7.2f MiB", ms.median, times_floor,
               (double)peak / (1 << 20));
        bench_record(options,
                     "\"name\": \"causal_linear_attention\", \"B\": %d, \"H\": %d, \"N\": %lld, "
                     "\"D\": %lld, \"pass\": \"%s\", \"ms\": %.5g, \"ms_min\": %.5g, "
                     "\"ms_max\": %.5g, \"times_floor\": %.3g, \"peak_bytes\": %zu, "
                     "\"where\": \"%s\"",
                     BATCH, HEADS, (long long)positions, (long long)head_dim, pass_name(pass == 1),
                     ms.median, ms.min, ms.max, times_floor, peak, bench_where(options).text);
    }
    printf("\n");
    fflush(stdout);
    case_free(&c);
}

static void against_length(BenchOptions *options)
{
    const Limits limits = bench_limits(options);
    printf("causal linear attention, B=%d H=%d D=M, %s; %s; memory without inputs and their "
           "gradients\n     N    D  forward                              forward+backward\n",
           BATCH, HEADS, bench_where(options).text, limits_text(&limits).text);
    for (int64_t head_dim = 16; head_dim <= 128; head_dim *= 2)
        for (int64_t positions = 512; positions <= 65536; positions *= 2)
            measure(options, &limits, positions, head_dim);
}

/* ---------------------------------------------------------------------------------------- goals */
typedef struct Goal {
    int64_t batch, heads, positions, head_dim;
    double bf16[2], float32[2]; /* microseconds of one H200: forward, forward+backward */
} Goal;

static const Goal goals[] = {
    { 1, 8, 512, 32, { 6, 16 }, { 6, 18 } },
    { 1, 8, 4096, 32, { 9, 26 }, { 12, 36 } },
    { 1, 8, 65536, 32, { 65, 210 }, { 120, 390 } },
    { 8, 8, 4096, 64, { 65, 220 }, { 120, 400 } },
    { 1, 16, 65536, 64, { 240, 800 }, { 450, 1500 } },
    { 4, 16, 8192, 128, { 260, 900 }, { 480, 1900 } },
};
/* The divisor of the lengths with --quick. */
enum { QUICK = 64 };

/* |x - y| / |y| in Euclidean norms. */
static double relative_error(const Real *x, const Real *y, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)x[i] - (double)y[i];
        difference += d * d;
        norm += (double)y[i] * (double)y[i];
    }
    return sqrt(difference / norm);
}

/* errors[0]: the relative error of out; errors[1]: the maximum of out, dq, dk and dv, after a call
 * with its backward pass. The reference is float32 on the CPU from the same inputs. */
static void errors_of(const Case *c, double *errors)
{
    const int64_t count = tensor_count(c->out);
    Real *found = malloc((size_t)count * sizeof *found);
    Real *expected = malloc((size_t)count * sizeof *expected);
    if (!found || !expected) {
        perror("attention --goals");
        exit(EXIT_FAILURE);
    }
    const BenchOptions cpu = { .device = device_open("cpu") };
    Case reference = case_new(&cpu, c->out->shape, 1);
    reference.backward = true;
    for (int i = 0; i < INPUTS; i++) { /* rounded to bf16 already */
        tensor_read(c->inputs[i], found);
        tensor_write(reference.inputs[i], found);
    }
    run(&reference);
    tensor_read(c->out, found);
    tensor_read(reference.out, expected);
    errors[0] = errors[1] = relative_error(found, expected, count);
    for (int i = 0; i < UPSTREAM; i++) {
        tensor_read(tensor_gradient(c->inputs[i]), found);
        tensor_read(tensor_gradient(reference.inputs[i]), expected);
        const double error = relative_error(found, expected, count);
        errors[1] = isnan(errors[1]) || error <= errors[1] ? errors[1] : error;
    }
    free(found);
    free(expected);
    case_free(&reference);
}

/* Prints and records one pass; returns whether it meets its goal. */
static bool judge(BenchOptions *options, const Goal *goal, const Case *c, bool backward, Timing ms,
                  double gbytes, double error, bool quick)
{
    const bool bf16 = options->precision == PRECISION_BF16;
    const Shape size = c->out->shape;
    const double us_per_call = 1e3 / (double)c->calls, us = ms.median * us_per_call;
    const double floor_us = min_bytes(options, size, backward) / gbytes * 1e-3;
    const double goal_us = (bf16 ? goal->bf16 : goal->float32)[backward];
    const bool right = error <= (bf16 ? 1e-2 : 2e-5), met = us <= goal_us && right;
    const char *verdict = met ? "met" : right ? "missed" : "missed: error";
    const long long B = size.size[0], N = size.size[1], H = size.size[2], D = size.size[3];
    const char *type = bench_precisions[options->precision], *pass = pass_name(backward);
    printf("%2lld %2lld %6lld %4lld  %-8s %-17s %9.1f %8.1f %8.1f %9.2f %9.1e  %s\n", B, H, N, D,
           type, pass, us, floor_us, goal_us, us / floor_us, error, quick ? "" : verdict);
    fflush(stdout);
    bench_record(options,
                 "\"name\": \"attention_goal\", \"B\": %lld, \"H\": %lld, \"N\": %lld, "
                 "\"D\": %lld, \"type\": \"%s\", \"pass\": \"%s\", \"calls\": %lld, \"us\": %.5g, "
                 "\"us_min\": %.5g, \"us_max\": %.5g, \"floor_us\": %.4g, \"goal_us\": %g, "
                 "\"error\": %.3g, \"verdict\": \"%s\", \"where\": \"%s\"",
                 B, H, N, D, type, pass, (long long)c->calls, us, ms.min * us_per_call,
                 ms.max * us_per_call, floor_us, goal_us, error, quick ? "none" : verdict,
                 bench_where(options).text);
    return met;
}

/* Measures both passes; returns the number of goals met. */
static int measure_goal(BenchOptions *options, const Goal *goal, double gbytes, bool quick)
{
    const int64_t calls = !quick && device_is_cuda(options->device) ? 10 : 1;
    Case c = case_new(options,
                      shape(goal->batch, quick ? goal->positions / QUICK : goal->positions,
                            goal->heads, goal->head_dim),
                      calls);
    case_fill(&c);
    Timing ms[2];
    for (int pass = 0; pass < 2; pass++) {
        c.backward = pass == 1;
        ms[pass] = bench_step(options, c.steps, run, &c);
    }
    double errors[2];
    errors_of(&c, errors);
    int met = 0;
    for (int pass = 0; pass < 2; pass++)
        met += judge(options, goal, &c, pass == 1, ms[pass], gbytes, errors[pass], quick);
    case_free(&c);
    return met;
}

static void against_goals(BenchOptions *options, bool quick)
{
    static const Precision types[] = { PRECISION_BF16, PRECISION_FLOAT32 };
    const bool with_bf16 = device_is_cuda(options->device) && sizeof(Real) == sizeof(float);
    BenchOptions rates = *options;
    rates.precision = PRECISION_FLOAT32;
    const double gbytes = bench_bandwidth(&rates, quick ? QUICK : 1);
    printf("causal linear attention against the goals for one H200, on %s; memory %.1f GB/s\n%s"
           " B  H      N    D  dtype    pass                us/call    floor     goal  us/floor"
           "     error\n",
           device_name(options->device), gbytes,
           quick ? "quick: not comparable with the goals\n" : "");
    int met = 0, count = 0;
    for (size_t i = 0; i < sizeof goals / sizeof goals[0]; i++)
        for (int type = 0; type < 2; type++) {
            BenchOptions row = *options;
            row.precision = types[type];
            if (options->precision_given ? row.precision != options->precision
                                         : row.precision == PRECISION_BF16 && !with_bf16)
                continue;
            met += measure_goal(&row, &goals[i], gbytes, quick);
            count += 2;
            options->records = row.records;
        }
    if (!quick)
        printf("%d of %d goals met\n", met, count);
}

int main(int argc, char **argv)
{
    int64_t with_goals = 0, quick = 0;
    const BenchOption more[] = {
        { "goals", "compare with the goals for one H200, in bf16 and float32", &with_goals,
          BENCH_FLAG, NULL },
        { "quick", "with --goals, as a rehearsal: lengths / 64, one run each", &quick, BENCH_FLAG,
          NULL },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "causal linear attention against length", more);
    if (with_goals && options.precision == PRECISION_TF32) {
        fprintf(stderr, "--goals: --precision is tf32, expected bf16 or float32\n");
        return 2;
    }
    if (quick)
        options.seconds = 0;
    if (with_goals)
        against_goals(&options, quick != 0);
    else
        against_length(&options);
    bench_end(&options);
    return EXIT_SUCCESS;
}
