/* The speed of every operation in percent of the machine's limits, which the same run measures:
 * products in GFLOP/s, the others in GB/s of the bytes that a perfect kernel would move (each input
 * read once, each output written once). */
#include "bench/limits.h"
#include "tests/operations.h"

#include <stdlib.h>
#include <string.h>

enum { CUDA_LONGER = 16 }; /* the factor of ROWS and SEQUENCES on CUDA */

/* One row of the tables. */
typedef struct Row {
    const char *name;
    const Operation *operation; /* or */
    const Unary *unary;         /* or */
    const Binary *binary;
    Cost cost;
} Row;

typedef struct Case {
    Tape *tape;
    Params *params;
    const Row *row;
    Tensor *x[MAX_INPUTS];
    double elements;
    bool backward;
} Case;

static Tensor *run_forward(Case *c)
{
    const Row *row = c->row;
    return row->operation ? row->operation->apply(c->tape, c->x)
           : row->unary   ? row->unary->operation(c->tape, c->x[0])
                          : row->binary->operation(c->tape, c->x[0], c->x[1]);
}

static void run_case(void *context)
{
    Case *c = context;
    Tensor *out = run_forward(c);
    if (c->backward && out->requires_grad) /* a comparison has no backward pass */
        tape_backward_from(c->tape, out, out);
    params_zero_gradients(c->params);
}

/* The shape with axes of ROWS and SEQUENCES as long as the device needs. */
static Shape longer(Shape of, bool cuda)
{
    for (int axis = 0; axis < of.rank && cuda; axis++)
        if (of.size[axis] == ROWS || of.size[axis] == SEQUENCES)
            of.size[axis] *= CUDA_LONGER;
    return of;
}

static Tensor *integers(Tape *tape, Shape of, int32_t below)
{
    Tensor *tensor = tape_persistent_i32(tape, of);
    int32_t *host = malloc((size_t)shape_count(of) * sizeof *host);
    if (!host)
        exit(EXIT_FAILURE);
    for (int64_t i = 0; i < shape_count(of); i++)
        host[i] = (int32_t)(i * 37 % below);
    tensor_write_i32(tensor, host);
    free(host);
    return tensor;
}

static void measure(BenchOptions *options, Case c, double peak, double bandwidth)
{
    double share[2], ms[2], rate[2];
    const bool arithmetic = c.row->cost.flops > 0;
    const double size = options->precision == PRECISION_BF16 ? 2 : sizeof(Real);
    for (int pass = 0; pass < 2; pass++) {
        c.backward = pass == 1;
        const Timing timing = bench_step(options, c.tape, run_case, &c);
        ms[pass] = timing.median;
        const double work =
            arithmetic ? c.elements * (pass ? c.row->cost.all_flops : c.row->cost.flops)
                       : c.elements * (pass ? c.row->cost.all_passes : c.row->cost.passes) * size;
        rate[pass] = work / ms[pass] * 1e-6;
        share[pass] = 100 * rate[pass] / (arithmetic ? peak : bandwidth);
        bench_record(options,
                     "\"name\": \"%s\", \"pass\": \"%s\", \"ms\": %.5g, \"ms_min\": %.5g, "
                     "\"%s\": %.5g, \"percent\": %.4g",
                     c.row->name, pass ? "forward+backward" : "forward", ms[pass], timing.min,
                     arithmetic ? "gflops" : "gbytes_per_second", rate[pass], share[pass]);
    }
    printf("%-28s %8.3f ms %7.1f %s %4.0f %%   %8.3f ms %7.1f %s %4.0f %%\n", c.row->name, ms[0],
           rate[0], arithmetic ? "GFLOP/s" : "GB/s   ", share[0], ms[1], rate[1],
           arithmetic ? "GFLOP/s" : "GB/s   ", share[1]);
    fflush(stdout);
}

/* Values from 0.5 to 1.5 */
static void fill_positive(Tensor *x)
{
    const int64_t count = tensor_count(x);
    Real *host = malloc((size_t)count * sizeof *host);
    if (!host)
        exit(EXIT_FAILURE);
    for (int64_t i = 0; i < count; i++)
        host[i] = (Real)(0.5 + (double)(i * 37 % 1024) / 1024);
    tensor_write(x, host);
    free(host);
}

/* Input i of the row: a weight, which stays Real in bf16, or an activation of the precision. */
static Tensor *make_input(const BenchOptions *options, Case *c, const Input *input, int i,
                          Domain domain)
{
    const Shape of = longer(input->shape, device_is_cuda(options->device));
    const bool bf16 = options->precision == PRECISION_BF16;
    if (input->below)
        return integers(c->tape, of, input->below);
    if (input->parameter) {
        const char name[] = { (char)('a' + i), '\0' };
        return params_add(c->params, name, of, (Initializer){ INITIAL_NORMAL, 1 });
    }
    Tensor *x = tape_persistent_variable(c->tape, bf16 ? TENSOR_BF16 : TENSOR_REAL, of);
    if (domain == POSITIVE)
        fill_positive(x);
    else
        bench_fill(x, (uint64_t)i);
    return x;
}

/* --operation: the only row, and whether there is one of this name. */
static const char *only;
static bool found;

/* Makes the inputs, measures the row, frees them. */
static void measure_row(BenchOptions *options, Row row, Limits limits)
{
    const Input of_rows = S(ROWS, WIDTH), two[MAX_INPUTS] = { of_rows, of_rows };
    const Input *inputs = row.operation ? row.operation->cases[0] : two;
    const bool cuda = device_is_cuda(options->device);
    if (only && strcmp(only, row.name) != 0)
        return;
    found = true;
    const Domain domain = row.unary ? row.unary->domain : row.binary ? row.binary->domain : ANY;
    Case c = { .tape = bench_tape(options),
               .params = params_new(options->device, 1),
               .row = &row,
               .elements = (double)ROWS * WIDTH * (cuda ? CUDA_LONGER : 1) };
    for (int i = 0; i < MAX_INPUTS && inputs[i].shape.rank > 0; i++)
        c.x[i] = make_input(options, &c, &inputs[i], i, domain);
    measure(options, c, limits.gflops, limits.gbytes);
    tape_free(c.tape);
    params_free(c.params);
}

static void measure_all(BenchOptions *options, Limits limits)
{
    const size_t prefix = strlen("op_");
    for (int i = 0; i < OPERATION_COUNT; i++) {
        const Operation *o = &operations[i];
        if (o->cost.flops + o->cost.passes > 0)
            measure_row(options, (Row){ .name = o->name, .operation = o, .cost = o->cost }, limits);
    }
    for (int i = 0; i < BINARIES; i++)
        measure_row(options,
                    (Row){ .name = binaries[i].name + prefix,
                           .binary = &binaries[i],
                           .cost = { .passes = 3, .all_passes = binaries[i].passes } },
                    limits);
    for (int i = 0; i < UNARIES; i++)
        measure_row(options,
                    (Row){ .name = unaries[i].name + prefix,
                           .unary = &unaries[i],
                           .cost = { .passes = 2, .all_passes = 5 } },
                    limits);
}

int main(int argc, char **argv)
{
    const BenchOption more[] = { { "operation", "measure only this one", NULL, 0, &only }, { 0 } };
    BenchOptions options =
        bench_begin_with(argc, argv, "every operation beside the machine's limits", more);
    const Limits limits = bench_limits(&options);
    const long long rows = (long long)ROWS * (device_is_cuda(options.device) ? CUDA_LONGER : 1);
    printf("%s; %s; %lld rows of %d\n", bench_where(&options).text, limits_text(&limits).text, rows,
           WIDTH);
    printf("%-28s %-37s forward+backward\n", "", "forward");
    bench_record(&options, "\"name\": \"machine\", \"gflops\": %.5g, \"gbytes_per_second\": %.5g",
                 limits.gflops, limits.gbytes);
    measure_all(&options, limits);
    if (!found) {
        fprintf(stderr, "--operation is %s, which is no row of the table\n", only);
        return 2;
    }
    bench_end(&options);
    return EXIT_SUCCESS;
}
