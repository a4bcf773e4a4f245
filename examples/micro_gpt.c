/* A GPT of 4459 weights learns names, letter by letter, and makes up 20, as in the tutorials known
 * as microGPT; chapter 12 of the book explains it.
 * micro_gpt [FILE]: names of letters a to z, one per line */
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad.h>

enum { SYMBOLS = 27, LENGTH = 16, WIDTH = 16, HEADS = 4, BATCH = 16, MAX_NAMES = 1 << 16 };
static char names[MAX_NAMES][32];
static int name_count;
static Params *params;
static Embedding symbols, positions; /* symbol 0 ends a name, 1 is a, 26 is z */
static Transformer transformer;
static Linear head;
static Optimizer *optimizer;
static Tape *tape;

static void read_names(const char *path)
{
    FILE *file = fopen(path, "r");
    while (file && name_count < MAX_NAMES && fscanf(file, " %31[a-z]", names[name_count]) == 1)
        name_count++;
    if (!file || !feof(file) || name_count == 0) {
        fprintf(stderr, "%s: %s; read %d names, expected one per line, of letters a to z\n", path,
                file ? "empty, or other characters" : "no such file", name_count);
        exit(EXIT_FAILURE);
    }
    fclose(file);
}

static void make_model(Device *device, int layers)
{
    const Initializer normal = { INITIAL_NORMAL, 0.08 };
    TransformerConfig config = { .layers = layers, .heads = HEADS, .head_dim = WIDTH / HEADS };
    params = params_new(device, /*seed*/ 1);
    config.attention = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    config.pre_norm = true;
    config.activation = ACTIVATION_GELU;
    config.initial_std = normal.scale;
    symbols = nn_embedding_with(params, "symbols", SYMBOLS, WIDTH, normal);
    positions = nn_embedding_with(params, "positions", LENGTH, WIDTH, normal);
    transformer = nn_transformer(params, "", config);
    head = nn_linear_with(params, "head", WIDTH, SYMBOLS, (LinearConfig){ .weight = normal });
    optimizer = optim_adam(params, optim_adam_config(0.01));
    tape = tape_new(device);
}

static Tensor *predict(const int32_t *inputs, int lines)
{
    Tensor *x = tape_input_i32(tape, inputs, shape(lines, LENGTH));
    x = op_add(tape, nn_embedding_forward(tape, &symbols, x), positions.weight);
    x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    return nn_linear_forward(tape, &head, x); /* of the next symbol */
}

static Tensor *batch_loss(Random random)
{
    int32_t inputs[BATCH * LENGTH], targets[BATCH * LENGTH];
    const char *next = "";
    for (int i = 0; i < BATCH * LENGTH; i++) {
        next = i % LENGTH == 0 ? "" : next; /* a line begins with the end of a name */
        inputs[i] = *next ? *next - 'a' + 1 : 0;
        next = *next ? next + 1 : names[random_integer(&random, 0, name_count)];
        targets[i] = *next ? *next - 'a' + 1 : 0;
    }
    Tensor *classes = tape_input_i32(tape, targets, shape(BATCH, LENGTH));
    return op_cross_entropy(tape, predict(inputs, BATCH), classes, NULL);
}

static double train_step(void)
{
    const Random random = random_new((uint64_t)optim_steps(optimizer), /*stream*/ 0);
    Tensor *loss = batch_loss(random); /* reads the weights, and records */
    tape_backward(tape, loss);         /* contributes to their gradients */
    params_clip_gradients(params, 1);
    optim_step(optimizer); /* updates the weights, and empties the gradients */
    const double value = tensor_item(loss);
    tape_reset(tape); /* frees what the step recorded */
    return value;
}

static void print_name(Sampling sampling)
{
    int32_t inputs[LENGTH + 1] = { 0 }, drawn[LENGTH]; /* one of which is new */
    tape_set_recording(tape, false);
    for (int i = 0; i < LENGTH && (i == 0 || inputs[i] > 0); i++) {
        tensor_read_i32(op_sample(tape, predict(inputs, 1), sampling), drawn);
        inputs[i + 1] = i + 1 < LENGTH ? drawn[i] : 0;
        putchar(inputs[i + 1] > 0 ? 'a' + inputs[i + 1] - 1 : '\n');
        tape_reset(tape);
    }
    tape_set_recording(tape, true);
}

int main(int argc, char **argv)
{
    read_names(argc > 1 ? argv[1] : "examples/names.txt");
    make_model(device_best(), /*layers*/ 1);
    for (int step = 1; step <= 1000; step++) {
        const double loss = train_step();
        if (step % 100 == 0)
            printf("step %4d  loss %.4f\n", step, loss);
    }
    for (int n = 0; n < 20; n++)
        print_name((Sampling){ .temperature = 0.7 });
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
