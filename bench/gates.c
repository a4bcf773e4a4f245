/* Causal linear attention with a decay beside the same without one, forward and backward pass: the
 * decay's cost against its strength; gated linear attention, whose decay is per key dimension,
 * beside unnormalized causal linear attention with one per head; and every operation with a decay
 * at weak and strong ones. All kinds are timed in turns, and a row's ratios are medians of ratios
 * per turn. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>

enum { HEADS = 8, ROUNDS = 9, KINDS = 5, QUERY = 0, KEY, VALUE, UPSTREAM, INPUTS };

/* The mean log decay of each kind; 0: none */
static const double mean_log_decay[KINDS] = { 0, -0.001, -0.1, -1, -5 };

typedef struct Case {
    Tape *tape;
    Tensor *inputs[INPUTS], *log_decay[KINDS];
    int kind;
} Case;

static void run(void *context)
{
    const Case *c = context;
    tape_reset(c->tape);
    Tensor *out = op_causal_linear_attention(
        c->tape, c->inputs[QUERY], c->inputs[KEY], c->inputs[VALUE],
        (CausalLinearAttentionOptions){ .eps = 1e-6, .log_decay = c->log_decay[c->kind] }, NULL);
    tape_backward_from(c->tape, out, c->inputs[UPSTREAM]);
    device_wait(tape_device(c->tape));
}

/* Exponentially distributed, with this mean */
static void fill_log_decay(Tensor *tensor, double mean)
{
    const int64_t count = tensor_count(tensor);
    Real *values = malloc((size_t)count * sizeof *values);
    if (!values)
        abort();
    Random random = random_new(1, 0);
    random_uniform(&random, values, count);
    for (int64_t i = 0; i < count; i++)
        values[i] = (Real)(mean * -log(1 - (double)values[i]));
    tensor_write(tensor, values);
    free(values);
}

static void measure(BenchOptions *options, int64_t N, int64_t D)
{
    Case c = { .tape = bench_tape(options) };
    double ratio[KINDS][ROUNDS], first[ROUNDS];
    BenchOptions once = *options;
    for (int i = 0; i < INPUTS; i++) {
        c.inputs[i] = tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, HEADS, D));
        bench_fill(c.inputs[i], (uint64_t)i);
    }
    for (int k = 1; k < KINDS; k++) {
        c.log_decay[k] = tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, HEADS));
        fill_log_decay(c.log_decay[k], mean_log_decay[k]);
    }
    once.seconds = options->seconds / ROUNDS;
    for (int round = 0; round < ROUNDS; round++)
        for (c.kind = 0; c.kind < KINDS; c.kind++) {
            const double ms = bench_time(&once, run, &c).median;
            if (c.kind == 0)
                first[round] = ms;
            ratio[c.kind][round] = ms / first[round];
        }
    const double ms = bench_timing(first, ROUNDS).median;
    printf("%6lld %4lld %10.3f ms", (long long)N, (long long)D, ms);
    for (int k = 1; k < KINDS; k++) {
        const double median = bench_timing(ratio[k], ROUNDS).median;
        printf(" %8.2f", median);
        bench_record(options,
                     "\"N\": %lld, \"D\": %lld, \"ms\": %.5g, \"log_decay\": %g, \"ratio\": %.4g",
                     (long long)N, (long long)D, ms, mean_log_decay[k], median);
    }
    printf("\n");
    fflush(stdout);
    tape_free(c.tape);
}

/* Log decays per head, and per key dimension */
typedef struct KeyCase {
    Tape *tape;
    Tensor *inputs[INPUTS], *log_decay[2];
    bool per_key, backward;
} KeyCase;

static void run_keys(void *context)
{
    const KeyCase *c = context;
    Tensor *const *x = c->inputs, *l = c->log_decay[c->per_key];
    const CausalLinearAttentionOptions per_head = { .features = FEATURE_MAP_IDENTITY,
                                                    .unnormalized = true,
                                                    .log_decay = l };
    tape_reset(c->tape);
    Tensor *out = c->per_key ? op_gated_linear_attention(c->tape, x[QUERY], x[KEY], x[VALUE], l,
                                                         (GatedLinearAttentionOptions){ 0 }, NULL)
                             : op_causal_linear_attention(c->tape, x[QUERY], x[KEY], x[VALUE],
                                                          per_head, NULL);
    if (c->backward)
        tape_backward_from(c->tape, out, x[UPSTREAM]);
    device_wait(tape_device(c->tape));
}

/* One row: ms with a decay per head, and the ratio to it with a decay per key dimension; forward,
 * then forward and backward. */
static void measure_keys(BenchOptions *options, int64_t N, int64_t D, double mean)
{
    KeyCase c = { .tape = bench_tape(options) };
    BenchOptions once = *options;
    for (int i = 0; i < INPUTS; i++) {
        c.inputs[i] = tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, HEADS, D));
        bench_fill(c.inputs[i], (uint64_t)i);
    }
    for (int per_key = 0; per_key < 2; per_key++) {
        const Shape gates = per_key ? shape(1, N, HEADS, D) : shape(1, N, HEADS);
        c.log_decay[per_key] = tape_persistent_variable(c.tape, TENSOR_REAL, gates);
        fill_log_decay(c.log_decay[per_key], mean);
    }
    once.seconds = options->seconds / ROUNDS;
    printf("%6lld %4lld %9g", (long long)N, (long long)D, mean);
    for (int backward = 0; backward < 2; backward++) {
        double ratio[ROUNDS], per_head[ROUNDS];
        c.backward = backward;
        for (int round = 0; round < ROUNDS; round++) {
            c.per_key = false;
            per_head[round] = bench_time(&once, run_keys, &c).median;
            c.per_key = true;
            ratio[round] = bench_time(&once, run_keys, &c).median / per_head[round];
        }
        const double ms = bench_timing(per_head, ROUNDS).median;
        const double of_ratio = bench_timing(ratio, ROUNDS).median;
        printf(" %10.3f ms %6.2f", ms, of_ratio);
        bench_record(options,
                     "\"N\": %lld, \"D\": %lld, \"log_decay_per_key\": %g, \"backward\": %d, "
                     "\"ms\": %.5g, \"ratio\": %.4g",
                     (long long)N, (long long)D, mean, backward, ms, of_ratio);
    }
    printf("\n");
    fflush(stdout);
    tape_free(c.tape);
}

static void measure_all(BenchOptions *options)
{
    printf("causal linear attention, forward and backward, B 1, H %d, on %s:\n"
           "without decay, and the ratio to it with mean log decays of\n"
           "     N    D      none      ",
           HEADS, bench_where(options).text);
    for (int k = 1; k < KINDS; k++)
        printf(" %8g", mean_log_decay[k]);
    printf("\n");
    for (int64_t N = 4096; N <= 65536; N *= 4)
        for (int64_t D = 32; D <= 64; D *= 2)
            measure(options, N, D);
}

static void measure_all_keys(BenchOptions *options)
{
    printf("unnormalized causal linear attention with a decay per head, B 1, H %d, on %s,\n"
           "and the ratio to it with one per key dimension:\n"
           "     N    D log decay      forward   ratio          both   ratio\n",
           HEADS, bench_where(options).text);
    for (int64_t D = 32; D <= 64; D *= 2)
        for (int k = 1; k < KINDS; k++)
            measure_keys(options, 2048, D, mean_log_decay[k]);
}

/* Strong decays: all operations */
enum { STRENGTHS = 5 };
static const double strong_log_decay[STRENGTHS] = { -0.06, -1, -5, -20, -60 };

typedef struct StrongCase {
    Tape *tape;
    Tensor *inputs[INPUTS], *beta, *log_decay[2][STRENGTHS]; /* per head, per key dimension */
    int strength;
    bool backward;
} StrongCase;

static Tensor *strong_linear(const StrongCase *c)
{
    return op_causal_linear_attention(
        c->tape, c->inputs[QUERY], c->inputs[KEY], c->inputs[VALUE],
        (CausalLinearAttentionOptions){ .eps = 1e-6, .log_decay = c->log_decay[0][c->strength] },
        NULL);
}

static Tensor *strong_gated_linear(const StrongCase *c)
{
    return op_gated_linear_attention(c->tape, c->inputs[QUERY], c->inputs[KEY], c->inputs[VALUE],
                                     c->log_decay[1][c->strength],
                                     (GatedLinearAttentionOptions){ 0 }, NULL);
}

static Tensor *strong_delta_rule_of(const StrongCase *c, bool per_key)
{
    return op_delta_rule(c->tape, c->inputs[QUERY], c->inputs[KEY], c->inputs[VALUE], c->beta,
                         (DeltaRuleOptions){ .log_decay = c->log_decay[per_key][c->strength] },
                         NULL);
}

static Tensor *strong_delta_rule(const StrongCase *c)
{
    return strong_delta_rule_of(c, false);
}

static Tensor *strong_delta_rule_per_key(const StrongCase *c)
{
    return strong_delta_rule_of(c, true);
}

static Tensor *strong_softmax(const StrongCase *c)
{
    return op_causal_softmax_attention(
        c->tape, c->inputs[QUERY], c->inputs[KEY], c->inputs[VALUE],
        (SoftmaxAttentionOptions){ .log_decay = c->log_decay[0][c->strength] });
}

typedef struct StrongOperation {
    const char *name;
    Tensor *(*operation)(const StrongCase *c);
} StrongOperation;
static const StrongOperation strong_operations[] = {
    { "causal linear attention", strong_linear },
    { "gated linear attention", strong_gated_linear },
    { "delta rule", strong_delta_rule },
    { "delta rule, per key", strong_delta_rule_per_key },
    { "causal softmax attention", strong_softmax },
};

typedef struct StrongRun {
    const StrongCase *c;
    Tensor *(*operation)(const StrongCase *c);
} StrongRun;

static void run_strong(void *context)
{
    const StrongRun *r = context;
    tape_reset(r->c->tape);
    Tensor *out = r->operation(r->c);
    if (r->c->backward)
        tape_backward_from(r->c->tape, out, r->c->inputs[UPSTREAM]);
    device_wait(tape_device(r->c->tape));
}

/* One row: ms at the weakest decay, and the ratios to it of the others */
static void measure_strong(const BenchOptions *options, StrongCase *c, StrongOperation operation)
{
    double ms[ROUNDS], ratio[STRENGTHS][ROUNDS];
    BenchOptions once = *options;
    StrongRun strong = { c, operation.operation };
    once.seconds = options->seconds / ROUNDS;
    for (int round = 0; round < ROUNDS; round++)
        for (c->strength = 0; c->strength < STRENGTHS; c->strength++) {
            const double time = bench_time(&once, run_strong, &strong).median;
            if (c->strength == 0)
                ms[round] = time;
            ratio[c->strength][round] = time / ms[round];
        }
    printf("%-26s %-8s %8.2f ms", operation.name, c->backward ? "both" : "forward",
           bench_timing(ms, ROUNDS).median);
    for (int k = 1; k < STRENGTHS; k++)
        printf(" %7.2f", bench_timing(ratio[k], ROUNDS).median);
    printf("\n");
    fflush(stdout);
}

/* x <- factor x + constant */
static void scale_values(Tensor *x, Real factor, Real constant)
{
    const int64_t count = tensor_count(x);
    Real *values = malloc((size_t)count * sizeof *values);
    if (!values)
        abort();
    tensor_read(x, values);
    for (int64_t i = 0; i < count; i++)
        values[i] = factor * values[i] + constant;
    tensor_write(x, values);
    free(values);
}

/* Keys of about length 1, betas of 1/2. */
static void measure_all_strong(BenchOptions *options)
{
    const int64_t N = 2048, D = 64;
    StrongCase c = { .tape = bench_tape(options) };
    for (int i = 0; i < INPUTS; i++) {
        c.inputs[i] = tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, HEADS, D));
        bench_fill(c.inputs[i], (uint64_t)i);
    }
    scale_values(c.inputs[KEY], (Real)0.125, 0);
    c.beta = tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, HEADS));
    scale_values(c.beta, 0, (Real)0.5);
    for (int per_key = 0; per_key < 2; per_key++)
        for (int k = 0; k < STRENGTHS; k++) {
            const Shape gates = per_key ? shape(1, N, HEADS, D) : shape(1, N, HEADS);
            c.log_decay[per_key][k] = tape_persistent_variable(c.tape, TENSOR_REAL, gates);
            fill_log_decay(c.log_decay[per_key][k], strong_log_decay[k]);
        }
    printf("B 1, N %lld, H %d, D %lld, on %s: mean log decay %g, and the ratio to it with\n%48s",
           (long long)N, HEADS, (long long)D, bench_where(options).text, strong_log_decay[0], "");
    for (int k = 1; k < STRENGTHS; k++)
        printf(" %7g", strong_log_decay[k]);
    printf("\n");
    for (size_t o = 0; o < sizeof strong_operations / sizeof *strong_operations; o++)
        for (int backward = 0; backward < 2; backward++) {
            c.backward = backward;
            measure_strong(options, &c, strong_operations[o]);
        }
    tape_free(c.tape);
}

int main(int argc, char **argv)
{
    int64_t keys = false, strong = false;
    const BenchOption more[] = {
        { "keys", "a decay per key dimension beside one per head", &keys, BENCH_FLAG, NULL },
        { "strong", "every operation with a decay, at strong ones", &strong, BENCH_FLAG, NULL },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "the cost of a decay in linear attention", more);
    if (strong)
        measure_all_strong(&options);
    else if (keys)
        measure_all_keys(&options);
    else
        measure_all(&options);
    bench_end(&options);
    return 0;
}
