/* A training step of the copy task's model: forward, backward, RAdam.
 *
 * The table has the rate of its matrix products, 6 floating-point operations per weight and token.
 * The rest of the step's time is spent in other kernels and in memory accesses.
 *
 * Under mpirun the ranks share the batch: the table then has the time of the update, too, which
 * exchanges gradients and weights, and the time of a sum over the ranks, which is all latency. */
#include "bench/common.h"

#include <stdlib.h>
#include <string.h>

enum { SYMBOLS = 11 };

typedef struct Preset {
    const char *name;
    TransformerConfig config;
    int64_t batch, length;
} Preset;

/* quick and paper are presets of examples/copy_task; small is for quick experiments. */
static const Preset presets[] = {
    { "small", { .layers = 2, .heads = 4, .head_dim = 16, .feed_forward = 256 }, 32, 32 },
    { "quick", { .layers = 2, .heads = 6, .head_dim = 16, .feed_forward = 256 }, 16, 64 },
    { "paper", { .layers = 4, .heads = 8, .head_dim = 32, .feed_forward = 1024 }, 64, 128 },
};

typedef struct Step {
    Params *params;
    Embedding embedding;
    Tensor *positions;
    Transformer transformer;
    Linear head;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *tokens; /* [batch, length], of this rank's part of the batch */
    bool timed;     /* whether to wait for the device around optim_step */
    double update;  /* then its seconds */
} Step;

static void run(void *context)
{
    Step *s = context;
    Tensor *x = nn_embedding_forward(s->tape, &s->embedding, s->tokens);
    Tensor *parts[] = { x, op_broadcast_to(s->tape, s->positions, x->shape) };
    x = op_concat(s->tape, parts, 2, -1);
    x = nn_transformer_forward(s->tape, &s->transformer, x, (AttentionOptions){ 0 });
    Tensor *logits = nn_linear_forward(s->tape, &s->head, x);
    Tensor *loss = op_cross_entropy(s->tape, logits, s->tokens, NULL);
    tape_backward(s->tape, loss);
    if (s->timed)
        device_wait(tape_device(s->tape));
    const double start = bench_seconds();
    optim_step(s->optimizer);
    if (s->timed)
        device_wait(tape_device(s->tape));
    s->update = bench_seconds() - start;
}

enum { MAX_STEPS = 1000 };

/* Ranks take the same number of steps. */
static Timing step_of_ranks(Step *s, int64_t steps)
{
    double times[MAX_STEPS], updates[MAX_STEPS], sums[MAX_STEPS];
    s->timed = true;
    for (int64_t i = -2; i < steps; i++) {
        double sum = 0, start = bench_seconds();
        tape_reset(s->tape);
        run(s);
        const double end = bench_seconds();
        dist_sum(&sum, 1);
        if (i < 0)
            continue;
        times[i] = 1e3 * (end - start);
        updates[i] = 1e3 * s->update;
        sums[i] = 1e3 * (bench_seconds() - end);
    }
    s->update = bench_timing(updates, (int)steps).median;
    printf("update %.2f ms, sum %.3f ms\n", s->update, bench_timing(sums, (int)steps).median);
    return bench_timing(times, (int)steps);
}

static void measure(BenchOptions *options, Preset preset, bool linear, Real dropout, int64_t steps)
{
    Device *device = options->device;
    preset.config.dropout = dropout;
    const int64_t width = preset.config.heads * preset.config.head_dim;
    const int64_t all_tokens = preset.batch * preset.length;
    const int64_t batch = dist_part(preset.batch).count, tokens = batch * preset.length;
    Params *params = params_new(device, 1);
    if (!linear)
        preset.config.attention = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    Step s = { .params = params };
    s.embedding = nn_embedding(params, "embedding", SYMBOLS, width / 2);
    s.positions = nn_sinusoidal_positions(params, preset.length, width / 2);
    s.transformer = nn_transformer(params, "transformer", preset.config);
    s.head = nn_linear(params, "head", width, SYMBOLS);
    AdamConfig adam = optim_adam_config(1e-3);
    adam.weight_decay = 0.01;
    s.optimizer = optim_radam(params, adam);
    dist_optimizer(s.optimizer);
    dist_set_weight(params, (double)batch);
    s.tape = bench_tape(options);
    s.tokens = tape_persistent_i32(s.tape, shape(batch, preset.length));
    int32_t *host = malloc((size_t)tokens * sizeof *host);
    if (!host)
        exit(EXIT_FAILURE);
    Random random = random_new(1, 1);
    for (int64_t i = 0; i < tokens; i++)
        host[i] = (int32_t)random_integer(&random, 0, SYMBOLS);
    tensor_write_i32(s.tokens, host);
    free(host);

    device_reset_peak(device);
    Timing ms = steps ? step_of_ranks(&s, steps) : bench_step(options, s.tape, run, &s);
    const double peak = (double)device_memory(device).peak / (1 << 20);
    const double products = 6.0 * (double)all_tokens * (double)params_elements(params);
    const int64_t kernels = tape_replay_kernels(s.tape);
    printf("%-6s %-8s %5.1f %10.2f ms (%.2f to %.2f) %9.0f tokens/s %6.0f GFLOP/s %8.1f MiB",
           preset.name, linear ? "linear" : "softmax", (double)dropout, ms.median, ms.min, ms.max,
           1e3 * (double)all_tokens / ms.median, products / ms.median * 1e-6, peak);
    if (kernels > 0)
        printf(" %4lld kernels", (long long)kernels);
    printf("\n");
    fflush(stdout);
    bench_record(options,
                 "\"preset\": \"%s\", \"attention\": \"%s\", \"dropout\": %g, \"ms\": %.5g, "
                 "\"ms_min\": %.5g, \"ms_max\": %.5g, \"kernels\": %lld, \"where\": \"%s\"",
                 preset.name, linear ? "linear" : "softmax", (double)dropout, ms.median, ms.min,
                 ms.max, (long long)kernels, bench_where(options).text);
    tape_free(s.tape);
    optim_free(s.optimizer);
    params_free(params);
    device_release_cached(device);
}

/* Exits unless the option, if given, is one of the count names. */
static void check_name(const char *option, const char *value, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!value || strcmp(value, names[i]) == 0)
            return;
    fprintf(stderr, "--%s is %s, expected %s", option, value, names[0]);
    for (int i = 1; i < count; i++)
        fprintf(stderr, "%s%s", i < count - 1 ? ", " : " or ", names[i]);
    fprintf(stderr, "\n");
    exit(2);
}

int main(int argc, char **argv)
{
    dist_start();
    if (dist_rank() > 0 && !freopen("/dev/null", "w", stdout))
        return EXIT_FAILURE;
    const char *only = NULL, *kind = NULL;
    int64_t steps = dist_ranks() > 1 ? 10 : 0;
    const BenchOption more[] = {
        { "preset", "measure only this one: small, quick or paper", NULL, 0, &only },
        { "attention", "measure only this one: linear or softmax", NULL, 0, &kind },
        { "steps", "exactly this number of steps, at most 1000 (else as --seconds says)", &steps, 1,
          NULL },
        { 0 },
    };
    BenchOptions options = bench_begin_with(argc, argv, "a training step of the copy task", more);
    check_name("preset", only, (const char *[]){ "small", "quick", "paper" }, 3);
    check_name("attention", kind, (const char *[]){ "linear", "softmax" }, 2);
    if (steps > MAX_STEPS) {
        fprintf(stderr, "--steps is %lld, expected at most %d\n", (long long)steps, MAX_STEPS);
        return 2;
    }
    printf("%s; GFLOP/s counts only matrix products\npreset attention dropout\n",
           bench_where(&options).text);
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        for (int form = 0; form < 4 && !(only && strcmp(only, presets[i].name)); form++)
            if (!kind || strcmp(kind, form < 2 ? "softmax" : "linear"))
                measure(&options, presets[i], form < 2, form % 2 ? (Real)0.1 : 0, steps);
    bench_end(&options);
    dist_finish();
    return EXIT_SUCCESS;
}
