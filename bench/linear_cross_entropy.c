/* The loss of a language model's last layer: op_linear_cross_entropy, alone and within
 * tape_recompute, beside op_linear and op_cross_entropy. Time of the forward pass and of both
 * passes, in turn, the ratio to the two operations, and the peak of memory beyond the arguments
 * and their gradients. */
#include "bench/common.h"

#include <stdlib.h>

enum { TWO_OPERATIONS, ONE_OPERATION, RECOMPUTED, FORMS };
static const char *const names[FORMS] = { "two operations", "one", "one, recomputed" };

typedef struct Case {
    BenchOptions *options;
    Params *params;
    Tape *tape;
    Tensor *x, *weight, *targets; /* [R, D], [V, D], [R] */
} Case;

static Tensor *one_operation(Tape *tape, Tensor *x, const void *context)
{
    const Case *c = context;
    return op_linear_cross_entropy(tape, x, c->weight, NULL, c->targets, NULL);
}

static Tensor *loss_of(const Case *c, int form)
{
    if (form == RECOMPUTED)
        return tape_recompute(c->tape, one_operation, c->x, c, sizeof *c);
    if (form == ONE_OPERATION)
        return one_operation(c->tape, c->x, c);
    return op_cross_entropy(c->tape, op_linear(c->tape, c->x, c->weight, NULL), c->targets, NULL);
}

/* Milliseconds of the forward pass without recording, or of both passes. */
static double run(const Case *c, int form, bool backward)
{
    const double start = bench_seconds();
    tape_set_recording(c->tape, backward);
    Tensor *loss = loss_of(c, form);
    if (backward)
        tape_backward(c->tape, loss);
    device_wait(c->options->device);
    const double ms = 1e3 * (bench_seconds() - start);
    tape_reset(c->tape);
    params_zero_gradients(c->params);
    return ms;
}

static Case case_new(BenchOptions *options, int64_t R, int64_t D, int64_t V)
{
    Case c = { .options = options,
               .params = params_new(options->device, /*seed*/ 1),
               .tape = bench_tape(options) };
    c.weight = params_add(c.params, "weight", shape(V, D), (Initializer){ INITIAL_NORMAL, 0.02 });
    c.x = tape_persistent_variable(
        c.tape, options->precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL, shape(R, D));
    c.targets = tape_persistent_i32(c.tape, shape(R));
    bench_fill(c.x, 1);
    int32_t *targets = malloc((size_t)R * sizeof *targets);
    if (!targets)
        exit(EXIT_FAILURE);
    for (int64_t r = 0; r < R; r++)
        targets[r] = (int32_t)(r * 7919 % V);
    tensor_write_i32(c.targets, targets);
    free(targets);
    return c;
}

/* Bytes beyond the arguments and their gradients; that of the weight is its Params'. */
static size_t peak_of(const Case *c, int form)
{
    device_release_cached(c->options->device);
    const size_t before = device_memory(c->options->device).current;
    device_reset_peak(c->options->device);
    run(c, form, /*backward*/ true);
    const size_t bytes = c->x->type == TENSOR_BF16 ? sizeof(uint16_t) : sizeof(Real);
    return device_memory(c->options->device).peak - before - (size_t)tensor_count(c->x) * bytes;
}

enum { MAX_ROUNDS = 64 };
typedef struct Times {
    double ms[FORMS][2][MAX_ROUNDS]; /* forward, and both passes */
} Times;

/* The median of a / b, round by round, or of a if b is NULL. */
static double median_of(const double *a, const double *b, int64_t rounds)
{
    double sorted[MAX_ROUNDS];
    for (int64_t i = 0; i < rounds; i++)
        sorted[i] = a[i] / (b ? b[i] : 1);
    return bench_timing(sorted, (int)rounds).median;
}

static void measure(const Case *c, int64_t rounds)
{
    static Times t;
    for (int64_t round = -1; round < rounds; round++) /* the first is not measured */
        for (int form = 0; form < FORMS; form++)
            for (int both = 0; both < 2; both++) {
                const double ms = run(c, form, both);
                if (round >= 0)
                    t.ms[form][both][round] = ms;
            }
    for (int form = 0; form < FORMS; form++) {
        double ms[2], ratio[2];
        for (int both = 0; both < 2; both++) {
            ms[both] = median_of(t.ms[form][both], NULL, rounds);
            ratio[both] = median_of(t.ms[form][both], t.ms[TWO_OPERATIONS][both], rounds);
        }
        const size_t peak = peak_of(c, form);
        printf("%-16s %12.1f %8.3f %12.1f %8.3f %10.1f\n", names[form], ms[0], ratio[0], ms[1],
               ratio[1], (double)peak / 1e6);
        bench_record(c->options,
                     "\"form\": \"%s\", \"forward_ms\": %.5g, \"forward_ratio\": %.4g, "
                     "\"both_ms\": %.5g, \"both_ratio\": %.4g, \"bytes\": %zu",
                     names[form], ms[0], ratio[0], ms[1], ratio[1], peak);
    }
}

int main(int argc, char **argv)
{
    int64_t rows = 4096, width = 768, vocabulary = 50257, rounds = 5;
    const BenchOption more[] = {
        { "rows", "number of positions", &rows, 1, NULL },
        { "width", "elements of a position", &width, 1, NULL },
        { "vocabulary", "number of classes", &vocabulary, 1, NULL },
        { "rounds", "number of measurements, 64 at most", &rounds, 1, NULL },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "the loss of a linear layer by blocks of rows", more);
    if (rounds > MAX_ROUNDS) {
        fprintf(stderr, "--rounds is %lld, expected at most %d\n", (long long)rounds, MAX_ROUNDS);
        return 2;
    }
    printf("%lld x %lld to %lld classes, %s; ms, and MB beyond arguments and gradients\n",
           (long long)rows, (long long)width, (long long)vocabulary, bench_where(&options).text);
    printf("%-16s %12s %8s %12s %8s %10s\n", "", "forward", "ratio", "both", "ratio", "MB");
    Case c = case_new(&options, rows, width, vocabulary);
    measure(&c, rounds);
    tape_free(c.tape);
    params_free(c.params);
    bench_end(&options);
    return EXIT_SUCCESS;
}
