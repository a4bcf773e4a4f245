/* An LSTM in both directions, forward and with backward: an acoustic model's sizes. The rate counts
 * the products, 2 flops per weight and position forward, 6 with backward. --save writes inputs,
 * weights, out and gradients for bench/peers/lstm.py --values. */
#include "bench/common.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH, LENGTH, INPUTS, HIDDEN, LAYERS, SIZES };

typedef struct Case {
    Tape *tape;
    Params *params;
    Lstm lstm;
    Tensor *x, *upstream, *out;
    bool backward;
} Case;

static void run(void *context)
{
    Case *c = context;
    c->out = nn_lstm_forward(c->tape, &c->lstm, c->x, NULL, NULL);
    if (c->backward)
        tape_backward_from(c->tape, c->out, c->upstream);
    params_zero_gradients(c->params);
}

static void measure(BenchOptions *options, Case *c, double flops)
{
    for (int backward = 0; backward < 2; backward++) {
        c->backward = backward;
        const bool before = tape_set_recording(c->tape, backward);
        const Timing ms = bench_step(options, c->tape, run, c);
        tape_reset(c->tape);
        tape_set_recording(c->tape, before);
        const double rate = (backward ? 3 : 1) * flops / ms.median * 1e-6;
        const char *pass = backward ? "forward+backward" : "forward";
        printf("%-16s %10.2f ms (%.2f to %.2f) %6.0f GFLOP/s\n", pass, ms.median, ms.min, ms.max,
               rate);
        fflush(stdout);
        bench_record(options,
                     "\"name\": \"lstm\", \"pass\": \"%s\", \"ms\": %.5g, \"ms_min\": %.5g, "
                     "\"ms_max\": %.5g, \"gflops\": %.4g",
                     pass, ms.median, ms.min, ms.max, rate);
    }
}

/* An entry with a copy of the tensor's elements. */
static FileEntry entry(const char *prefix, const char *name, const Tensor *tensor)
{
    char *path = malloc(strlen(prefix) + strlen(name) + 1);
    void *data = malloc((size_t)tensor_count(tensor) * sizeof(Real));
    if (!path || !data)
        exit(EXIT_FAILURE);
    strcat(strcpy(path, prefix), name);
    tensor_read(tensor, data);
    const FileType type = sizeof(Real) == sizeof(float) ? FILE_F32 : FILE_F64;
    return (FileEntry){ path, type, tensor->shape, data };
}

static void save(Case *c, const char *path)
{
    Tensor *out = nn_lstm_forward(c->tape, &c->lstm, c->x, NULL, NULL);
    tensor_keep(out);
    tape_backward_from(c->tape, out, c->upstream);
    const int weights = params_count(c->params), count = 4 + 2 * weights;
    FileEntry *entries = calloc((size_t)count, sizeof *entries);
    if (!entries)
        exit(EXIT_FAILURE);
    entries[0] = entry("", "x", c->x);
    entries[1] = entry("", "out", out);
    entries[2] = entry("", "grad_out", c->upstream);
    entries[3] = entry("grad.", "x", tensor_gradient(c->x));
    for (int i = 0; i < weights; i++) {
        Tensor *weight = params_at(c->params, i);
        entries[4 + 2 * i] = entry("", weight->name, weight);
        entries[5 + 2 * i] = entry("grad.", weight->name, tensor_gradient(weight));
    }
    if (!tensor_file_save(entries, count, NULL, 0, path)) {
        fprintf(stderr, "%s\n", tapegrad_error());
        exit(EXIT_FAILURE);
    }
    for (int i = 0; i < count; i++) {
        free((void *)entries[i].name);
        free((void *)entries[i].data);
    }
    free(entries);
}

int main(int argc, char **argv)
{
    static int64_t size[SIZES] = { 16, 800, 80, 320, 3 };
    static const char *path;
    const BenchOption more[] = { { "batch", "sequences", &size[BATCH], 1, NULL },
                                 { "length", "positions", &size[LENGTH], 1, NULL },
                                 { "inputs", "the width of x", &size[INPUTS], 1, NULL },
                                 { "hidden", "units per direction", &size[HIDDEN], 1, NULL },
                                 { "layers", "of two directions", &size[LAYERS], 1, NULL },
                                 { "save", "no measurement: write values and gradients", NULL, 0,
                                   &path },
                                 { 0 } };
    BenchOptions options = bench_begin_with(argc, argv, "a bidirectional LSTM", more);
    Case c = { .tape = bench_tape(&options), .params = params_new(options.device, 1) };
    c.lstm = nn_lstm(c.params, "",
                     (RecurrentConfig){ .input = size[INPUTS],
                                        .hidden = size[HIDDEN],
                                        .layers = size[LAYERS],
                                        .bidirectional = true });
    const Shape in = shape(size[BATCH], size[LENGTH], size[INPUTS]);
    c.x = tape_persistent_variable(c.tape, TENSOR_REAL, in);
    c.upstream = tape_persistent(c.tape, shape(size[BATCH], size[LENGTH], 2 * size[HIDDEN]));
    bench_fill(c.x, 1);
    bench_fill(c.upstream, 2);
    printf("%s; B=%lld N=%lld, %lld inputs, %lld layers of 2 x %lld\n", bench_where(&options).text,
           (long long)size[BATCH], (long long)size[LENGTH], (long long)size[INPUTS],
           (long long)size[LAYERS], (long long)size[HIDDEN]);
    if (path)
        save(&c, path);
    else
        measure(&options, &c,
                2.0 * (double)(size[BATCH] * size[LENGTH] * params_elements(c.params)));
    bench_end(&options);
    tape_free(c.tape);
    params_free(c.params);
    return EXIT_SUCCESS;
}
