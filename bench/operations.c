/* Every operation beside the machine's own limits, measured in the same run: fused multiply-adds
 * from registers, and a triad a = b + s c from memory. Products are given in GFLOP/s of the former,
 * the others in GB/s of the bytes that a perfect kernel would move (each input read once, each
 * output written once). */
#include "bench/common.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------- the machine's limits */
typedef Real Lanes __attribute__((vector_size(64)));

enum { CHAINS = 12, CHAIN_STEPS = 20000, LANES = 64 / sizeof(Real) };

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

/* --------------------------------------------------------------------------------- the operations */
enum { ROWS = 8192, WIDTH = 256, WIDE = 1024, HEADS = 8, HEAD_DIM = 32, POSITIONS = 128 };

typedef struct Inputs {
    Tensor *x, *y, *row, *bias, *weight, *attention[3], *positive, *table;
    Tensor *integers; /* made anew in each step: they are inputs of the tape */
    int32_t *integer_values;
} Inputs;

typedef Tensor *Operation(Tape *tape, const Inputs *in);

static Tensor *run_matmul(Tape *tape, const Inputs *in)
{
    return op_matmul(tape, in->x, in->weight, false, true);
}
static Tensor *run_linear(Tape *tape, const Inputs *in)
{
    return op_linear(tape, in->x, in->weight, in->bias);
}
static Tensor *run_add(Tape *tape, const Inputs *in)
{
    return op_add(tape, in->x, in->y);
}
static Tensor *run_add_row(Tape *tape, const Inputs *in)
{
    return op_add(tape, in->x, in->row);
}
static Tensor *run_multiply(Tape *tape, const Inputs *in)
{
    return op_multiply(tape, in->x, in->y);
}
static Tensor *run_divide(Tape *tape, const Inputs *in)
{
    return op_divide(tape, in->x, in->positive);
}
static Tensor *run_exp(Tape *tape, const Inputs *in)
{
    return op_exp(tape, in->x);
}
static Tensor *run_log(Tape *tape, const Inputs *in)
{
    return op_log(tape, in->positive);
}
static Tensor *run_tanh(Tape *tape, const Inputs *in)
{
    return op_tanh(tape, in->x);
}
static Tensor *run_sigmoid(Tape *tape, const Inputs *in)
{
    return op_sigmoid(tape, in->x);
}
static Tensor *run_relu(Tape *tape, const Inputs *in)
{
    return op_relu(tape, in->x);
}
static Tensor *run_gelu(Tape *tape, const Inputs *in)
{
    return op_gelu(tape, in->x);
}
static Tensor *run_gelu_tanh(Tape *tape, const Inputs *in)
{
    return op_gelu_tanh(tape, in->x);
}
static Tensor *run_elu_plus_one(Tape *tape, const Inputs *in)
{
    return op_elu_plus_one(tape, in->x);
}
static Tensor *run_softplus(Tape *tape, const Inputs *in)
{
    return op_softplus(tape, in->x);
}
static Tensor *run_softmax(Tape *tape, const Inputs *in)
{
    return op_softmax(tape, in->x);
}
static Tensor *run_log_softmax(Tape *tape, const Inputs *in)
{
    return op_log_softmax(tape, in->x);
}
static Tensor *run_layernorm(Tape *tape, const Inputs *in)
{
    return op_layernorm(tape, in->x, in->row, in->row, (Real)1e-5);
}
static Tensor *run_dropout(Tape *tape, const Inputs *in)
{
    return op_dropout(tape, in->x, (Real)0.1);
}
static Tensor *run_embedding(Tape *tape, const Inputs *in)
{
    return op_embedding(tape, in->table, in->integers);
}
static Tensor *run_cross_entropy(Tape *tape, const Inputs *in)
{
    return op_cross_entropy(tape, in->x, in->integers, NULL);
}
static Tensor *run_sum(Tape *tape, const Inputs *in)
{
    return op_sum(tape, in->x, OVER_ALL);
}
static Tensor *run_cumulative_sum(Tape *tape, const Inputs *in)
{
    return op_cumulative_sum(tape, in->x, -1, false);
}
static Tensor *run_transpose(Tape *tape, const Inputs *in)
{
    return op_transpose(tape, in->x, 0, 1);
}
static Tensor *run_concat(Tape *tape, const Inputs *in)
{
    return op_concat(tape, in->x, in->y, -1);
}
static Tensor *run_slice(Tape *tape, const Inputs *in)
{
    return op_slice(tape, in->x, -1, 0, WIDTH / 2);
}
static Tensor *run_causal_linear(Tape *tape, const Inputs *in)
{
    return op_causal_linear_attention(tape, in->attention[0], in->attention[1], in->attention[2],
                                      (Real)1e-6);
}
static Tensor *run_linear_attention(Tape *tape, const Inputs *in)
{
    return op_linear_attention(tape, in->attention[0], in->attention[1], in->attention[2], NULL,
                               (Real)1e-6);
}
static Tensor *run_softmax_attention(Tape *tape, const Inputs *in)
{
    return op_softmax_attention(tape, in->attention[0], in->attention[1], in->attention[2], NULL,
                                true);
}

#define ELEMENTS ((double)ROWS * WIDTH)
#define SCORES ((double)ROWS * HEADS * POSITIONS)

/* Arithmetic in flops, or passes over ROWS x WIDTH numbers; forward, and forward with backward. */
typedef struct Row {
    const char *name;
    Operation *operation;
    double flops, all_flops;
    double passes, all_passes;
} Row;

static const Row rows[] = {
    { "matmul", run_matmul, 2 * ELEMENTS *WIDE, 6 * ELEMENTS *WIDE, 0, 0 },
    { "linear", run_linear, 2 * ELEMENTS *WIDE, 6 * ELEMENTS *WIDE, 0, 0 },
    { "causal_linear_attention", run_causal_linear, 4 * ELEMENTS *HEAD_DIM, 14 * ELEMENTS *HEAD_DIM,
      0, 0 },
    { "linear_attention", run_linear_attention, 4 * ELEMENTS *HEAD_DIM, 14 * ELEMENTS *HEAD_DIM, 0,
      0 },
    { "softmax_attention (causal)", run_softmax_attention, 2 * SCORES *HEAD_DIM,
      7 * SCORES *HEAD_DIM, 0, 0 },
    { "add", run_add, 0, 0, 3, 6 },
    { "add (a row)", run_add_row, 0, 0, 2, 5 },
    { "multiply", run_multiply, 0, 0, 3, 9 },
    { "divide", run_divide, 0, 0, 3, 9 },
    { "exp", run_exp, 0, 0, 2, 5 },
    { "log", run_log, 0, 0, 2, 5 },
    { "tanh", run_tanh, 0, 0, 2, 5 },
    { "sigmoid", run_sigmoid, 0, 0, 2, 5 },
    { "relu", run_relu, 0, 0, 2, 5 },
    { "gelu", run_gelu, 0, 0, 2, 5 },
    { "gelu_tanh", run_gelu_tanh, 0, 0, 2, 5 },
    { "elu_plus_one", run_elu_plus_one, 0, 0, 2, 5 },
    { "softplus", run_softplus, 0, 0, 2, 5 },
    { "softmax", run_softmax, 0, 0, 2, 5 },
    { "log_softmax", run_log_softmax, 0, 0, 2, 5 },
    { "layernorm", run_layernorm, 0, 0, 2, 5 },
    { "dropout", run_dropout, 0, 0, 2, 4 },
    { "embedding", run_embedding, 0, 0, 1, 2 },
    { "cross_entropy", run_cross_entropy, 0, 0, 1, 3 },
    { "sum", run_sum, 0, 0, 1, 2 },
    { "cumulative_sum", run_cumulative_sum, 0, 0, 2, 4 },
    { "transpose", run_transpose, 0, 0, 2, 4 },
    { "concat", run_concat, 0, 0, 4, 8 },
    { "slice", run_slice, 0, 0, 1, 2.5 },
};

typedef struct Case {
    Tape *tape;
    Params *params;
    Inputs *inputs;
    const Row *row;
    bool backward;
} Case;

static void run_case(void *context)
{
    Case *c = context;
    c->inputs->integers = tape_input_i32(c->tape, c->inputs->integer_values, shape(ROWS));
    Tensor *out = c->row->operation(c->tape, c->inputs);
    if (c->backward)
        tape_backward_from(c->tape, out, out);
    tape_reset(c->tape);
    params_zero_gradients(c->params);
}

static void measure(BenchOptions *options, Case c, double peak, double bandwidth)
{
    double share[2], ms[2], rate[2];
    const bool arithmetic = c.row->flops > 0;
    for (int pass = 0; pass < 2; pass++) {
        c.backward = pass == 1;
        ms[pass] = bench_time(options, run_case, &c).median;
        const double work = arithmetic ? (pass ? c.row->all_flops : c.row->flops)
                                       : (pass ? c.row->all_passes : c.row->passes) * ELEMENTS *
                                             (double)sizeof(Real);
        rate[pass] = work / ms[pass] * 1e-6;
        share[pass] = 100 * rate[pass] / (arithmetic ? peak : bandwidth);
        bench_record(options,
                     "\"name\": \"%s\", \"pass\": \"%s\", \"ms\": %.5g, \"%s\": %.5g, "
                     "\"percent\": %.4g",
                     c.row->name, pass ? "forward+backward" : "forward", ms[pass],
                     arithmetic ? "gflops" : "gbytes_per_second", rate[pass], share[pass]);
    }
    printf("%-28s %8.3f ms %7.1f %s %4.0f %%   %8.3f ms %7.1f %s %4.0f %%\n", c.row->name, ms[0],
           rate[0], arithmetic ? "GFLOP/s" : "GB/s   ", share[0], ms[1], rate[1],
           arithmetic ? "GFLOP/s" : "GB/s   ", share[1]);
    fflush(stdout);
}

static Tensor *normal(Params *params, const char *name, Shape size)
{
    return params_add(params, name, size, (Initializer){ INITIAL_NORMAL, 1 });
}

int main(int argc, char **argv)
{
    BenchOptions options = bench_begin(argc, argv, "every operation beside the machine's limits");
    Device *device = device_open("cpu");

    Real sink = 0;
    const double flops = 2.0 * CHAINS * CHAIN_STEPS * (double)LANES * device_threads();
    const double peak = flops / bench_time(&options, multiply_add, &sink).least * 1e-6;
    const int64_t n = 1 << 24;
    Params *arrays = params_new(device, 1);
    Triad t = { .n = n };
    Tensor *a = params_add(arrays, "a", shape(n), (Initializer){ INITIAL_ZERO, 0 });
    Tensor *b = params_add(arrays, "b", shape(n), (Initializer){ INITIAL_ONE, 0 });
    Tensor *c = params_add(arrays, "c", shape(n), (Initializer){ INITIAL_ONE, 0 });
    a->lay_out(a);
    t.a = a->data, t.b = b->data, t.c = c->data;
    const double triad_ms = bench_time(&options, triad, &t).least;
    const double bandwidth = 3.0 * (double)n * (double)sizeof(Real) / triad_ms * 1e-6;
    params_free(arrays);

    Params *params = params_new(device, 1);
    Inputs in = { .integer_values = malloc(ROWS * sizeof(int32_t)) };
    if (!in.integer_values)
        return EXIT_FAILURE;
    for (int i = 0; i < ROWS; i++)
        in.integer_values[i] = (i * 37) % 11;
    const Shape size = shape(ROWS, WIDTH);
    in.x = normal(params, "x", size);
    in.y = normal(params, "y", size);
    in.positive = params_add(params, "positive", size, (Initializer){ INITIAL_ONE, 0 });
    in.row = normal(params, "row", shape(WIDTH));
    in.weight = normal(params, "weight", shape(WIDE, WIDTH));
    in.bias = normal(params, "bias", shape(WIDE));
    in.table = normal(params, "table", shape(11, WIDTH));
    const Shape heads = shape(ROWS / POSITIONS, POSITIONS, HEADS, HEAD_DIM);
    in.attention[0] = normal(params, "query", heads);
    in.attention[1] = normal(params, "key", heads);
    in.attention[2] = normal(params, "value", heads);

    printf("%d threads; fused multiply-adds %.0f GFLOP/s, triad %.1f GB/s; %d rows of %d\n",
           device_threads(), peak, bandwidth, ROWS, WIDTH);
    printf("%-28s %-37s forward+backward\n", "", "forward");
    bench_record(&options, "\"name\": \"machine\", \"gflops\": %.5g, \"gbytes_per_second\": %.5g",
                 peak, bandwidth);
    Tape *tape = tape_new(device);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        measure(&options, (Case){ tape, params, &in, &rows[i], false }, peak, bandwidth);
    bench_end(&options);
    tape_free(tape);
    params_free(params);
    free(in.integer_values);
    return EXIT_SUCCESS;
}
