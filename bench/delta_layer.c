/* One layer of the gated delta rule: time and memory of a forward and a backward pass against
 * length, beside causal linear attention of the same sizes, and the same with a decay per key
 * dimension beside it. All are timed in turns, and ratios are medians of ratios per turn. Memory
 * beyond the arguments and their gradients: out, u, and the workspace of the kernels. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>

enum { QUERY, KEY, VALUE, BETA, LOG_DECAY, KEY_DECAY, UPSTREAM, INPUTS };
enum { LINEAR, DELTA, KEY_DELTA, KINDS, ROUNDS = 7 };

typedef struct Case {
    Tape *tape;
    Tensor *x[INPUTS];
    int kind;
    bool backward;
} Case;

static void run(void *context)
{
    Case *c = context;
    Tensor **x = c->x;
    tape_reset(c->tape);
    const DeltaRuleOptions options = { .log_decay =
                                           x[c->kind == KEY_DELTA ? KEY_DECAY : LOG_DECAY] };
    Tensor *out =
        c->kind == LINEAR
            ? op_causal_linear_attention(c->tape, x[QUERY], x[KEY], x[VALUE],
                                         (CausalLinearAttentionOptions){ .eps = 1e-6 }, NULL)
            : op_delta_rule(c->tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, NULL);
    if (c->backward)
        tape_backward_from(c->tape, out, x[UPSTREAM]);
    device_wait(tape_device(c->tape));
}

/* Keys of length 1, betas of 1/2, log decays of -1/16. */
static void fill(Case *c)
{
    for (int i = 0; i < INPUTS; i++) {
        const int64_t count = tensor_count(c->x[i]), D = c->x[i]->shape.size[3];
        Real *values = malloc((size_t)count * sizeof *values);
        if (!values)
            abort();
        bench_fill(c->x[i], (uint64_t)i);
        tensor_read(c->x[i], values);
        for (int64_t r = 0; i == KEY && r < count; r += D) {
            double square = 0;
            for (int64_t d = r; d < r + D; d++)
                square += (double)values[d] * (double)values[d];
            for (int64_t d = r; d < r + D; d++)
                values[d] = (Real)((double)values[d] / sqrt(square));
        }
        for (int64_t r = 0; i == BETA && r < count; r++)
            values[r] = (Real)0.5;
        for (int64_t r = 0; (i == LOG_DECAY || i == KEY_DECAY) && r < count; r++)
            values[r] = -(Real)0.0625;
        tensor_write(c->x[i], values);
        free(values);
    }
}

static Case case_new(const BenchOptions *options, int64_t N, int64_t H, int64_t D)
{
    const TensorType type = options->precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Case c = { .tape = bench_tape(options) };
    for (int i = 0; i < INPUTS; i++)
        c.x[i] = i == BETA || i == LOG_DECAY
                     ? tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, H))
                     : tape_persistent_variable(c.tape, i == KEY_DECAY ? TENSOR_REAL : type,
                                                shape(1, N, H, D));
    fill(&c);
    return c;
}

/* The memory of both passes. */
static size_t bytes_of(const BenchOptions *options, Case *c, int kind)
{
    c->kind = kind;
    c->backward = true;
    tape_reset(c->tape);
    device_release_cached(options->device);
    device_reset_peak(options->device);
    const size_t before = device_memory(options->device).peak;
    run(c);
    size_t bytes = device_memory(options->device).peak - before;
    for (int i = 0; i < UPSTREAM; i++) /* the gradients belong to the arguments */
        if (i != (kind == KEY_DELTA ? LOG_DECAY : KEY_DECAY))
            bytes -= (size_t)tensor_count(c->x[i]) *
                     (c->x[i]->type == TENSOR_BF16 ? sizeof(uint16_t) : sizeof(Real));
    return bytes;
}

static double median_ratio(const double *a, const double *b)
{
    double ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        ratio[i] = a[i] / b[i];
    return bench_timing(ratio, ROUNDS).median;
}

static void measure(BenchOptions *options, int64_t N, int64_t H, int64_t D)
{
    Case c = case_new(options, N, H, D);
    double turn[KINDS][2][ROUNDS], ms[KINDS][2], ratio[KINDS][2];
    BenchOptions once = *options;
    once.seconds = options->seconds / ROUNDS;
    for (int round = 0; round < ROUNDS; round++)
        for (c.kind = 0; c.kind < KINDS; c.kind++)
            for (int backward = 0; backward < 2; backward++) {
                c.backward = backward;
                turn[c.kind][backward][round] = bench_time(&once, run, &c).median;
            }
    for (int kind = 0; kind < KINDS; kind++)
        for (int backward = 0; backward < 2; backward++) {
            const double *beside = turn[kind == KEY_DELTA ? DELTA : LINEAR][backward];
            ratio[kind][backward] = median_ratio(turn[kind][backward], beside);
            ms[kind][backward] = bench_timing(turn[kind][backward], ROUNDS).median;
        }
    const size_t bytes = bytes_of(options, &c, DELTA), key_bytes = bytes_of(options, &c, KEY_DELTA);
    printf("%8lld %9.1f %9.1f %9.1f %9.1f %6.2f %6.2f %8.1f %9.1f %9.1f %6.2f %6.2f %8.1f\n",
           (long long)N, ms[DELTA][0], ms[DELTA][1], ms[LINEAR][0], ms[LINEAR][1], ratio[DELTA][0],
           ratio[DELTA][1], (double)bytes / 1e6, ms[KEY_DELTA][0], ms[KEY_DELTA][1],
           ratio[KEY_DELTA][0], ratio[KEY_DELTA][1], (double)key_bytes / 1e6);
    bench_record(options,
                 "\"N\": %lld, \"heads\": %lld, \"size\": %lld, \"forward_ms\": %.4g, "
                 "\"both_ms\": %.4g, \"linear_forward_ms\": %.4g, \"linear_both_ms\": %.4g, "
                 "\"bytes\": %zu, \"key_forward_ms\": %.4g, \"key_both_ms\": %.4g, "
                 "\"key_ratio\": %.4g, \"key_bytes\": %zu",
                 (long long)N, (long long)H, (long long)D, ms[DELTA][0], ms[DELTA][1],
                 ms[LINEAR][0], ms[LINEAR][1], bytes, ms[KEY_DELTA][0], ms[KEY_DELTA][1],
                 ratio[KEY_DELTA][1], key_bytes);
    tape_free(c.tape);
    device_release_cached(options->device);
}

int main(int argc, char **argv)
{
    int64_t heads = 32, size = 128, min = 512, max = 16384;
    const BenchOption more[] = {
        { "heads", "number of heads", &heads, 1, NULL },
        { "size", "elements of queries, keys and values", &size, 1, NULL },
        { "min", "the shortest length", &min, 1, NULL },
        { "max", "the longest length; each is twice the previous one", &max, 1, NULL },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "the gated delta rule against length", more);
    printf("gated delta rule, %lld heads of %lld x %lld, %s; ms, and MB beyond arguments;\n"
           "ratios to linear attention, and of a decay per key dimension to one decay\n",
           (long long)heads, (long long)size, (long long)size, bench_where(&options).text);
    printf("%8s %9s %9s %9s %9s %6s %6s %8s %9s %9s %6s %6s %8s\n", "N", "forward", "both",
           "linear", "both", "ratio", "ratio", "MB", "by key", "both", "ratio", "ratio", "MB");
    for (int64_t N = min; N <= max; N *= 2)
        measure(&options, N, heads, size);
    bench_end(&options);
    return 0;
}
