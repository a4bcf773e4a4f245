/* Generation: the time of a decode step and its share of the memory bandwidth.
 *
 * For small batches a decode step is bound by reading every weight once. Its share is the weights'
 * bytes per second, divided by the bytes per second that the same threads read from a buffer larger
 * than the caches; it exceeds 1 if the weights stay in a cache. Softmax attention, which reads the
 * whole KV cache, is measured near the beginning and near the end of a sequence. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>

enum {
    LENGTH = 784,      /* positions per sequence */
    STEPS = 16,        /* consecutive measured steps */
    BUFFER = 1 << 28,  /* bytes of the buffer, larger than the caches */
    PART = BUFFER / 4, /* bytes per measurement of the bandwidth */
};

/* ----------------------------------------------------------------------------- memory bandwidth */
static volatile Real nowhere;

/* Sums x [n], n a multiple of BLOCK, by all threads. */
static void read_all(const Real *x, int64_t n)
{
    enum { BLOCK = 4096, LANES = 64 };
    Real sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) num_threads(device_threads())
    for (int64_t start = 0; start < n; start += BLOCK) {
        Real part[LANES] = { 0 };
        for (int64_t i = start; i < start + BLOCK; i += LANES)
#pragma omp simd
            for (int64_t lane = 0; lane < LANES; lane++)
                part[lane] += x[i + lane];
        for (int lane = 0; lane < LANES; lane++)
            sum += part[lane];
    }
    nowhere = sum;
}

/* The maximum bytes per second of reading a part of the buffer, over four passes. */
static double read_bandwidth(const Tensor *buffer)
{
    const int64_t part = PART / (int64_t)sizeof(Real);
    double best = 0;
    for (int pass = 0; pass < 4; pass++)
        for (int64_t i = 0; i < tensor_count(buffer); i += part) {
            const double start = bench_seconds();
            read_all(buffer->data + i, part);
            best = fmax(best, PART / (bench_seconds() - start));
        }
    return best;
}

/* ---------------------------------------------------------------------------------------- steps */
typedef struct Case {
    const char *name;
    TransformerConfig config;
    bool softmax;
    int64_t batch, start; /* number of sequences; position of the first step */
} Case;

typedef struct Model {
    Params *params;
    Transformer transformer;
    TransformerState *state;
    Tape *tape, *steps; /* of prefills, and of replayed steps */
    Tensor *x, *prompt; /* [batch, width], [batch, start, width] */
} Model;

static int64_t int8_weights;

/* Bytes per weight of a product. */
static double weight_bytes(const BenchOptions *options)
{
    return int8_weights ? 1 : options->precision == PRECISION_BF16 ? 2 : (double)sizeof(Real);
}

static Model model_new(const BenchOptions *options, const Case *c)
{
    const int64_t width = c->config.heads * c->config.head_dim;
    Model model = { .params = params_new(options->device, 1),
                    .tape = bench_tape(options),
                    .steps = bench_tape(options) };
    TransformerConfig config = c->config;
    if (c->softmax)
        config.attention = nn_causal_softmax_attention(model.params, (CausalSoftmaxConfig){ 0 });
    model.transformer = nn_transformer(model.params, "", config);
    model.state = nn_transformer_state(&model.transformer,
                                       (GenerationConfig){ .sequences = c->batch,
                                                           .max_length = LENGTH,
                                                           .precision = options->precision,
                                                           .int8_weights = int8_weights });
    tape_set_recording(model.tape, false);
    tape_set_training(model.tape, false);
    model.x = tape_persistent(model.steps, shape(c->batch, width));
    if (c->start > 0)
        model.prompt = tape_persistent(model.tape, shape(c->batch, c->start, width));
    return model;
}

static void model_free(Model *model)
{
    nn_transformer_state_free(model->state);
    tape_free(model->tape);
    tape_free(model->steps);
    params_free(model->params);
}

static void step(void *context)
{
    Model *model = context;
    nn_transformer_step(model->state, model->x);
}

static void take_step(const BenchOptions *options, Model *model)
{
    if (options->eager)
        step(model);
    else
        tape_replay(model->steps, step, model);
}

/* Resets every sequence to the start position; on CUDA also captures the step. */
static void restart(const BenchOptions *options, Model *model)
{
    nn_transformer_state_reset(model->state, NN_ALL_SEQUENCES);
    if (model->prompt) {
        nn_transformer_prefill(model->tape, model->state, model->prompt, NULL);
        tape_reset(model->tape);
    }
    for (int i = 0; i < 2; i++)
        take_step(options, model);
}

/* Microseconds per step, the mean of count steps. */
static double time_steps(const BenchOptions *options, Model *model, int count)
{
    device_wait(options->device);
    const double start = bench_seconds();
    for (int i = 0; i < count; i++)
        take_step(options, model);
    device_wait(options->device);
    return (bench_seconds() - start) / count * 1e6;
}

/* Repeats the steps from the start position; times each on the CPU, all STEPS together on CUDA. */
static Timing time_case(const BenchOptions *options, Model *model)
{
    enum { MIN_COUNT = 5 * STEPS, MAX_COUNT = 1000 * STEPS };
    static double us[MAX_COUNT];
    const int together = device_is_cuda(options->device) ? STEPS : 1;
    const int min = options->seconds > 0 ? MIN_COUNT : 1;
    int count = 0;
    const double end = bench_seconds() + options->seconds;
    while (count < min || (count < MAX_COUNT && bench_seconds() < end)) {
        restart(options, model);
        for (int i = 0; i < STEPS; i += together)
            us[count++] = time_steps(options, model, together);
    }
    return bench_timing(us, count);
}

/* buffer: NULL on CUDA */
static void measure(BenchOptions *options, const Case *c, const Tensor *buffer)
{
    Model model = model_new(options, c);
    const double before = buffer ? read_bandwidth(buffer) : 0;
    const Timing us = time_case(options, &model);
    const double bandwidth = buffer ? fmax(before, read_bandwidth(buffer)) : 0;
    const double bytes = (double)params_elements(model.params) * weight_bytes(options);
    const int64_t kernels = tape_replay_kernels(model.steps);
    printf("%-6s %-7s %5lld %6lld %8.0f %10.1f %10.1f %9.0f %8.1f", c->name,
           c->softmax ? "softmax" : "linear", (long long)c->batch, (long long)c->start,
           bytes * 1e-6, us.median, us.min, (double)c->batch / us.median * 1e6,
           bytes / us.min * 1e-3);
    if (buffer)
        printf(" %8.1f %6.2f", bandwidth * 1e-9, bytes / us.min * 1e6 / bandwidth);
    else
        printf(" %8lld", (long long)kernels);
    printf("\n");
    fflush(stdout);
    bench_record(options,
                 "\"name\": \"generation\", \"model\": \"%s\", \"attention\": \"%s\", \"B\": %lld, "
                 "\"position\": %lld, \"weight_bytes\": %.0f, \"us\": %.5g, \"us_min\": %.5g, "
                 "\"us_max\": %.5g, \"memory_bytes_per_s\": %.4g, \"kernels\": %lld, "
                 "\"where\": \"%s\"",
                 c->name, c->softmax ? "softmax" : "linear", (long long)c->batch,
                 (long long)c->start, bytes, us.median, us.min, us.max, bandwidth,
                 (long long)kernels, bench_where(options).text);
    model_free(&model);
    device_release_cached(options->device);
}

/* The paper's image model, and one whose weights exceed every cache. */
static const TransformerConfig image = { .layers = 8, .heads = 8, .head_dim = 32 },
                               large = { .layers = 8, .heads = 12, .head_dim = 64 };

int main(int argc, char **argv)
{
    const BenchOption more[] = {
        { "int8", "on the CPU: weights in 8 bits", &int8_weights, BENCH_FLAG, NULL },
        { .name = NULL },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "a decode step and its share of bandwidth", more);
    Tape *tape = tape_new(options.device);
    const Tensor *buffer = NULL;
    if (!device_is_cuda(options.device))
        buffer = tape_persistent(tape, shape(BUFFER / (int64_t)sizeof(Real)));
    printf("generation, %s\nmodel  attention batch    at  weights   us, median    min   tokens/s"
           "     GB/s%s\n",
           bench_where(&options).text, buffer ? "  memory  share" : "  kernels");
    for (int64_t batch = 1; batch <= 256; batch *= 4)
        measure(&options, &(Case){ "image", image, false, batch, 0 }, buffer);
    for (int64_t batch = 1; batch <= 16; batch *= 16) {
        measure(&options, &(Case){ "image", image, true, batch, 0 }, buffer);
        measure(&options, &(Case){ "image", image, true, batch, LENGTH - 2 - STEPS }, buffer);
    }
    for (int64_t batch = 1; batch <= 16; batch *= 4)
        measure(&options, &(Case){ "large", large, false, batch, 0 }, buffer);
    tape_free(tape);
    bench_end(&options);
    return EXIT_SUCCESS;
}
