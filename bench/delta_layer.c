/* One layer of the gated delta rule: time and memory of a forward and a backward pass against
 * length, beside causal linear attention of the same sizes. Memory beyond the arguments and their
 * gradients: out, u, and the workspace of the kernels. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>

enum { QUERY, KEY, VALUE, BETA, LOG_DECAY, UPSTREAM, INPUTS };

typedef struct Case {
    Tape *tape;
    Tensor *x[INPUTS];
    bool delta, backward;
} Case;

static void run(void *context)
{
    Case *c = context;
    Tensor **x = c->x;
    tape_reset(c->tape);
    const DeltaRuleOptions options = { .log_decay = x[LOG_DECAY] };
    Tensor *out =
        c->delta ? op_delta_rule(c->tape, x[QUERY], x[KEY], x[VALUE], x[BETA], options, NULL)
                 : op_causal_linear_attention(c->tape, x[QUERY], x[KEY], x[VALUE],
                                              (CausalLinearAttentionOptions){ .eps = 1e-6 }, NULL);
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
        for (int64_t r = 0; i == LOG_DECAY && r < count; r++)
            values[r] = -(Real)0.0625;
        tensor_write(c->x[i], values);
        free(values);
    }
}

static Case case_new(const BenchOptions *options, int64_t N, int64_t H, int64_t D)
{
    const TensorType type = options->precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Case c = { .tape = bench_tape(options), .delta = true, .backward = true };
    for (int i = 0; i < INPUTS; i++)
        c.x[i] = i == BETA || i == LOG_DECAY
                     ? tape_persistent_variable(c.tape, TENSOR_REAL, shape(1, N, H))
                     : tape_persistent_variable(c.tape, type, shape(1, N, H, D));
    fill(&c);
    return c;
}

static void measure(BenchOptions *options, int64_t N, int64_t H, int64_t D)
{
    Case c = case_new(options, N, H, D);
    double ms[2][2];
    size_t bytes = 0;
    for (int delta = 1; delta >= 0; delta--)
        for (int backward = 0; backward < 2; backward++) {
            c.delta = delta;
            c.backward = backward;
            ms[delta][backward] = bench_time(options, run, &c).median;
        }
    tape_reset(c.tape);
    device_release_cached(options->device);
    device_reset_peak(options->device);
    const size_t before = device_memory(options->device).peak;
    c.delta = c.backward = true;
    run(&c);
    bytes = device_memory(options->device).peak - before;
    for (int i = 0; i < UPSTREAM; i++) /* the gradients belong to the arguments */
        bytes -= (size_t)tensor_count(c.x[i]) *
                 (c.x[i]->type == TENSOR_BF16 ? sizeof(uint16_t) : sizeof(Real));
    printf("%8lld %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f %10.1f\n", (long long)N, ms[1][0],
           ms[1][1], ms[0][0], ms[0][1], ms[1][0] / ms[0][0], ms[1][1] / ms[0][1],
           (double)bytes / 1e6);
    bench_record(options,
                 "\"N\": %lld, \"heads\": %lld, \"size\": %lld, \"forward_ms\": %.4g, "
                 "\"both_ms\": %.4g, \"linear_forward_ms\": %.4g, \"linear_both_ms\": %.4g, "
                 "\"bytes\": %zu",
                 (long long)N, (long long)H, (long long)D, ms[1][0], ms[1][1], ms[0][0], ms[0][1],
                 bytes);
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
    printf("gated delta rule, %lld heads of %lld x %lld, %s; ms, and MB beyond arguments\n",
           (long long)heads, (long long)size, (long long)size, bench_where(&options).text);
    printf("%8s %10s %10s %10s %10s %8s %8s %10s\n", "N", "forward", "both", "linear", "both",
           "ratio", "ratio", "MB");
    for (int64_t N = min; N <= max; N *= 2)
        measure(&options, N, heads, size);
    bench_end(&options);
    return 0;
}
