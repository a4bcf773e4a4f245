/* The speed of every operation in percent of the machine's limits, which the same run measures:
 * products in GFLOP/s, the others in GB/s of the bytes that a perfect kernel would move (each input
 * read once, each output written once). */
#include "bench/limits.h"
#include "tests/operation_table.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- the operations */
enum {
    CPU_ROWS = 8192,
    CUDA_ROWS = 1 << 17,
    WIDTH = 256,
    WIDE = 1024,
    HEADS = 8,
    HEAD_DIM = 32,
    POSITIONS = 128,
    POLYNOMIAL = 1 + HEAD_DIM + HEAD_DIM * (HEAD_DIM + 1) / 2, /* features per head */
    RANDOM = 2 * HEAD_DIM
};

typedef struct Inputs {
    Tensor *x, *y, *row, *bias, *weight, *attention[3], *projection, *positive, *table;
    Tensor *integers;
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
static Tensor *run_add_row(Tape *tape, const Inputs *in)
{
    return op_add(tape, in->x, in->row);
}
static Tensor *run_polynomial_features(Tape *tape, const Inputs *in)
{
    return op_polynomial_features(tape, in->attention[0]);
}
static Tensor *run_random_features(Tape *tape, const Inputs *in)
{
    return op_random_features(tape, in->attention[0], in->projection);
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
static Tensor *run_residual_layernorm(Tape *tape, const Inputs *in)
{
    return op_residual_layernorm(tape, in->x, in->y, (Real)0.1, in->row, in->row, (Real)1e-5);
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
static Tensor *run_sum_columns(Tape *tape, const Inputs *in)
{
    return op_sum(tape, in->x, 0);
}

static Tensor *run_max(Tape *tape, const Inputs *in)
{
    return op_max(tape, in->x, -1);
}

static Tensor *run_broadcast_to(Tape *tape, const Inputs *in)
{
    return op_broadcast_to(tape, in->row, in->x->shape);
}

static Tensor *run_unfold(Tape *tape, const Inputs *in)
{
    Shape images = { 4, { in->x->shape.size[0] * WIDTH / (16 * 16 * 32), 16, 16, 32 } };
    return op_unfold(tape, op_reshape(tape, in->x, images), (Window){ 3, 3, 1, 1 });
}

static Tensor *run_sum(Tape *tape, const Inputs *in)
{
    return op_sum(tape, in->x, ALL_AXES);
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
    return op_concat(tape, (Tensor *[]){ in->x, in->y }, 2, -1);
}
static Tensor *run_slice(Tape *tape, const Inputs *in)
{
    return op_slice(tape, in->x, -1, 0, WIDTH / 2);
}
static Tensor *run_causal_linear(Tape *tape, const Inputs *in)
{
    return op_causal_linear_attention(tape, in->attention[0], in->attention[1], in->attention[2],
                                      (LinearAttention){ 0 });
}
static Tensor *run_linear_attention(Tape *tape, const Inputs *in)
{
    return op_linear_attention(tape, in->attention[0], in->attention[1], in->attention[2],
                               (LinearAttention){ 0 });
}
static Tensor *run_softmax_attention(Tape *tape, const Inputs *in)
{
    return op_softmax_attention(tape, in->attention[0], in->attention[1], in->attention[2], NULL,
                                true);
}

/* The cost per element of [rows, WIDTH], forward and forward with backward: flops, or passes, the
 * number of times an element is read from or written to memory. */
typedef struct Row {
    const char *name;
    Operation *operation;
    double flops, all_flops;
    double passes, all_passes;
} Row;

static const Row rows[] = {
    { "matmul", run_matmul, 2.0 * WIDE, 6.0 * WIDE, 0, 0 },
    { "linear", run_linear, 2.0 * WIDE, 6.0 * WIDE, 0, 0 },
    { "random_features", run_random_features, 2.0 * RANDOM, 6.0 * RANDOM, 0, 0 },
    { "causal_linear_attention", run_causal_linear, 4.0 * HEAD_DIM, 14.0 * HEAD_DIM, 0, 0 },
    { "linear_attention", run_linear_attention, 4.0 * HEAD_DIM, 14.0 * HEAD_DIM, 0, 0 },
    { "softmax_attention (causal)", run_softmax_attention, 2.0 * POSITIONS, 7.0 * POSITIONS, 0, 0 },
    { "add (a row)", run_add_row, 0, 0, 2, 5 },
    { "polynomial_features", run_polynomial_features, 0, 0, 1 + (double)POLYNOMIAL / HEAD_DIM,
      3 + 2 * (double)POLYNOMIAL / HEAD_DIM },
    { "softmax", run_softmax, 0, 0, 2, 5 },
    { "log_softmax", run_log_softmax, 0, 0, 2, 5 },
    { "layernorm", run_layernorm, 0, 0, 2, 5 },
    { "residual_layernorm", run_residual_layernorm, 0, 0, 3, 8 },
    { "dropout", run_dropout, 0, 0, 2, 4 },
    { "embedding", run_embedding, 0, 0, 1, 2 },
    { "cross_entropy", run_cross_entropy, 0, 0, 1, 3 },
    { "sum", run_sum, 0, 0, 1, 2 },
    { "sum (columns)", run_sum_columns, 0, 0, 1, 2 },
    { "max", run_max, 0, 0, 1, 2 },
    { "broadcast_to", run_broadcast_to, 0, 0, 1, 2 },
    { "cumulative_sum", run_cumulative_sum, 0, 0, 2, 4 },
    { "transpose", run_transpose, 0, 0, 2, 4 },
    { "concat", run_concat, 0, 0, 4, 8 },
    { "unfold (3 x 3)", run_unfold, 0, 0, 10, 20 },
    { "slice", run_slice, 0, 0, 1, 2.5 },
};

typedef struct Case {
    Tape *tape;
    Params *params;
    Inputs *inputs;
    double elements;
    const Row *row;
    const Unary *unary;   /* NULL, or the row of tests/operation_table.h to run instead */
    const Binary *binary; /* likewise */
    bool backward;
} Case;

static Tensor *run_forward(const Case *c)
{
    const Inputs *in = c->inputs;
    if (c->unary)
        return c->unary->operation(c->tape, c->unary->domain == POSITIVE ? in->positive : in->x);
    if (c->binary)
        return c->binary->operation(c->tape, in->x,
                                    c->binary->domain == POSITIVE ? in->positive : in->y);
    return c->row->operation(c->tape, in);
}

static void run_case(void *context)
{
    Case *c = context;
    Tensor *out = run_forward(c);
    if (c->backward)
        tape_backward_from(c->tape, out, out);
    params_zero_gradients(c->params);
}

static void measure(BenchOptions *options, Case c, double peak, double bandwidth)
{
    double share[2], ms[2], rate[2];
    const bool arithmetic = c.row->flops > 0;
    for (int pass = 0; pass < 2; pass++) {
        c.backward = pass == 1;
        ms[pass] = bench_step(options, c.tape, run_case, &c).median;
        const double work = arithmetic ? c.elements * (pass ? c.row->all_flops : c.row->flops)
                                       : c.elements * (pass ? c.row->all_passes : c.row->passes) *
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

/* The rows above, then those of tests/operation_table.h without the prefix "op_". */
static void measure_all(BenchOptions *options, Case c, Limits limits)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        c.row = &rows[i];
        measure(options, c, limits.gflops, limits.gbytes);
    }
    for (int i = 0; i < BINARIES; i++) {
        c.binary = &binaries[i];
        c.row = &(Row){ c.binary->name + strlen("op_"), NULL, 0, 0, 3, c.binary->passes };
        measure(options, c, limits.gflops, limits.gbytes);
    }
    c.binary = NULL;
    for (int i = 0; i < UNARIES; i++) {
        c.unary = &unaries[i];
        c.row = &(Row){ c.unary->name + strlen("op_"), NULL, 0, 0, 2, 5 };
        measure(options, c, limits.gflops, limits.gbytes);
    }
}

static Tensor *normal(Params *params, const char *name, Shape size)
{
    return params_add(params, name, size, (Initializer){ INITIAL_NORMAL, 1 });
}

static Tensor *integers(Tape *tape, int64_t n)
{
    Tensor *tensor = tape_persistent_i32(tape, shape(n));
    int32_t *host = malloc((size_t)n * sizeof *host);
    if (!host)
        exit(EXIT_FAILURE);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)(i * 37 % 11);
    tensor_write_i32(tensor, host);
    free(host);
    return tensor;
}

int main(int argc, char **argv)
{
    BenchOptions options = bench_begin(argc, argv, "every operation beside the machine's limits");
    const bool cuda = device_is_cuda(options.device);
    const int64_t count = cuda ? CUDA_ROWS : CPU_ROWS;
    const Limits limits = bench_limits(&options);

    Params *params = params_new(options.device, 1);
    Tape *tape = bench_tape(&options);
    Inputs in = { .integers = integers(tape, count) };
    const Shape size = shape(count, WIDTH);
    in.x = normal(params, "x", size);
    in.y = normal(params, "y", size);
    in.positive = params_add(params, "positive", size, (Initializer){ INITIAL_ONE, 0 });
    in.row = normal(params, "row", shape(WIDTH));
    in.weight = normal(params, "weight", shape(WIDE, WIDTH));
    in.bias = normal(params, "bias", shape(WIDE));
    in.table = normal(params, "table", shape(11, WIDTH));
    const Shape heads = shape(count / POSITIONS, POSITIONS, HEADS, HEAD_DIM);
    in.attention[0] = normal(params, "query", heads);
    in.attention[1] = normal(params, "key", heads);
    in.attention[2] = normal(params, "value", heads);
    in.projection = normal(params, "projection", shape(RANDOM, HEAD_DIM));

    printf("%s; %s; %lld rows of %d\n", bench_where(&options).text, limits_text(&limits).text,
           (long long)count, WIDTH);
    printf("%-28s %-37s forward+backward\n", "", "forward");
    bench_record(&options, "\"name\": \"machine\", \"gflops\": %.5g, \"gbytes_per_second\": %.5g",
                 limits.gflops, limits.gbytes);
    measure_all(&options, (Case){ tape, params, &in, .elements = (double)count * WIDTH }, limits);
    bench_end(&options);
    tape_free(tape);
    params_free(params);
    return EXIT_SUCCESS;
}
