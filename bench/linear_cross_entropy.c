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
    Case c = { options, params_new(options->device, /*seed*/ 1), bench_tape(options) };
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

/* Bytes beyond the arguments, and, as run's second call finds them, the gradients. */
static size_t peak_of(const Case *c, int form)
{
    device_release_cached(c->options->device);
    const size_t before = device_memory(c->options->device).current;
    device_reset_peak(c->options->device);
    run(c, form, /*backward*/ true);
    const size_t bytes = c->x->type == TENSOR_BF16 ? sizeof(uint16_t) : sizeof(Real);
    return device_memory(c->options->device).peak - before - (size_t)tensor_count(c->x) * bytes;
}

static void measure(const Case *c, int64_t rounds)
{
    double *times = calloc((size_t)(2 * FORMS * rounds), sizeof *times);
    double *ratios = calloc((size_t)rounds, sizeof *ratios);
    if (!times || !ratios)
        exit(EXIT_FAILURE);
    for (int64_t round = -1; round < rounds; round++) /* the first is not measured */
        for (int i = 0; i < 2 * FORMS; i++) {
            const double ms = run(c, i / 2, i % 2);
            if (round >= 0)
                times[i * rounds + round] = ms;
        }
    for (int i = 0; i < FORMS; i++) {
        const size_t peak = peak_of(c, i);
        double ms[2], ratio[2];
        for (int backward = 0; backward < 2; backward++) {
            double *mine = times + (2 * i + backward) * rounds;
            for (int64_t round = 0; round < rounds; round++)
                ratios[round] = mine[round] / times[backward * rounds + round];
            ratio[backward] = bench_timing(ratios, (int)rounds).median;
            ms[backward] = i == 0 ? 0 : bench_timing(mine, (int)rounds).median;
        }
        if (i == 0) /* the others' ratios need the rounds in order */
            for (int backward = 0; backward < 2; backward++) {
                double sorted[64];
                for (int64_t round = 0; round < rounds; round++)
                    sorted[round] = times[backward * rounds + round];
                ms[backward] = bench_timing(sorted, (int)rounds).median;
            }
        printf("%-16s %12.1f %8.3f %12.1f %8.3f %10.1f\n", names[i], ms[0], ratio[0], ms[1],
               ratio[1], (double)peak / 1e6);
        bench_record(c->options,
                     "\"form\": \"%s\", \"forward_ms\": %.5g, \"forward_ratio\": %.4g, "
                     "\"both_ms\": %.5g, \"both_ratio\": %.4g, \"bytes\": %zu",
                     names[i], ms[0], ratio[0], ms[1], ratio[1], peak);
    }
    free(ratios);
    free(times);
}

int main(int argc, char **argv)
{
    int64_t rows = 4096, width = 768, vocabulary = 50257, rounds = 5;
    const BenchOption more[] = {
        { "rows", "number of positions", &rows, 1, NULL },
        { "width", "elements of a position", &width, 1, NULL },
        { "vocabulary", "number of classes", &vocabulary, 1, NULL },
        { "rounds", "number of measurements", &rounds, 1, NULL },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "the loss of a linear layer by blocks of rows", more);
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
