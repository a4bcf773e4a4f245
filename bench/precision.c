/* The accuracy of each precision: relative errors of the loss and the gradients of a transformer on
 * --device after one pass, against float32 on the CPU.
 *
 * The error of the gradients is |g - g_cpu| / |g_cpu| in the Euclidean norm, over all weights
 * together and for the worst weight tensor. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>

enum { BATCH = 8, LENGTH = 100, SYMBOLS = 11, WIDTH = 128 };

typedef struct Pass {
    Params *params;
    double loss;
} Pass;

static Pass run(Device *device, Precision precision, const int32_t *tokens)
{
    Params *params = params_new(device, 1);
    Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, WIDTH / 2);
    Tensor *positions = nn_sinusoidal_positions(params, LENGTH, WIDTH / 2);
    const TransformerConfig config = {
        .layers = 4, .heads = 4, .head_dim = WIDTH / 4, .feed_forward = 4 * WIDTH
    };
    Transformer transformer = nn_transformer(params, "transformer", config);
    Linear head = nn_linear(params, "head", WIDTH, SYMBOLS);
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    Tensor *read = tape_input_i32(tape, tokens, shape(BATCH, LENGTH));
    Tensor *x = nn_embedding_forward(tape, &embedding, read);
    Tensor *parts[] = { x, op_broadcast_to(tape, positions, x->shape) };
    x = op_concat(tape, parts, 2, -1);
    x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    Tensor *loss = op_cross_entropy(tape, nn_linear_forward(tape, &head, x), read, NULL);
    tape_backward(tape, loss);
    const Pass pass = { params, tensor_item(loss) };
    tape_free(tape);
    return pass;
}

/* Sums of squares of a gradient's error and of the expected gradient. */
typedef struct Squares {
    double error, whole;
} Squares;

static Real *gradient_of(const Params *params, int index, int64_t *count)
{
    Tensor *gradient = tensor_gradient(params_at(params, index));
    *count = tensor_count(gradient);
    Real *values = malloc((size_t)*count * sizeof *values);
    if (!values)
        exit(EXIT_FAILURE);
    tensor_read(gradient, values);
    return values;
}

static Squares compare(const Params *params, const Params *expected, int index)
{
    int64_t count;
    Real *values = gradient_of(params, index, &count);
    Real *reference = gradient_of(expected, index, &count);
    Squares squares = { 0, 0 };
    for (int64_t i = 0; i < count; i++) {
        const double difference = (double)(values[i] - reference[i]);
        squares.error += difference * difference;
        squares.whole += (double)reference[i] * (double)reference[i];
    }
    free(values);
    free(reference);
    return squares;
}

static void measure(BenchOptions *options, Precision precision, const int32_t *tokens, Pass cpu)
{
    const Pass pass = run(options->device, precision, tokens);
    Squares all = { 0, 0 };
    double worst = 0;
    for (int i = 0; i < params_count(cpu.params); i++) {
        const Squares one = compare(pass.params, cpu.params, i);
        all.error += one.error;
        all.whole += one.whole;
        worst = fmax(worst, sqrt(one.error / one.whole));
    }
    const double loss = fabs(pass.loss / cpu.loss - 1), gradients = sqrt(all.error / all.whole);
    printf("%-9s %8.1e %12.1e %12.1e\n", bench_precisions[precision], loss, gradients, worst);
    bench_record(options,
                 "\"precision\": \"%s\", \"loss\": %.3g, \"gradients\": %.3g, \"worst\": %.3g",
                 bench_precisions[precision], loss, gradients, worst);
    params_free(pass.params);
}

int main(int argc, char **argv)
{
    BenchOptions options =
        bench_begin(argc, argv, "errors of a transformer's loss and gradients, by precision");
    int32_t tokens[BATCH * LENGTH];
    Random random = random_new(1, 1);
    for (int i = 0; i < BATCH * LENGTH; i++)
        tokens[i] = (int32_t)random_integer(&random, 0, SYMBOLS);
    const Pass cpu = run(device_open("cpu"), PRECISION_FLOAT32, tokens);
    printf("relative errors against float32 on the CPU, on %s\n", device_name(options.device));
    printf("precision     loss    gradients  worst weight\n");
    measure(&options, PRECISION_FLOAT32, tokens, cpu);
    if (device_is_cuda(options.device))
        measure(&options, PRECISION_TF32, tokens, cpu);
    measure(&options, PRECISION_BF16, tokens, cpu);
    params_free(cpu.params);
    bench_end(&options);
    return EXIT_SUCCESS;
}
