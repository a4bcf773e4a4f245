/* A GPT of 4459 weights learns given names, letter by letter, and then makes up 20. It has the sizes
 * of the tutorials known as microGPT; chapter 12 of the book explains it.
 * micro_gpt [FILE]: names of up to 15 letters a to z, one per line */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad.h>

enum { END, SYMBOLS = 27, LENGTH = 16, WIDTH = 16, HEADS = 4 }; /* a is symbol 1, z is 26 */
enum { BATCH = 16, STEPS = 1000, NAMES = 20, MAX_NAMES = 1 << 16 };

static char names[MAX_NAMES][LENGTH + 1];
static int name_count;
static Params *params;
static Embedding symbols, positions;
static Transformer transformer;
static Linear head;
static Optimizer *optimizer;
static Tape *tape;

static void read_names(const char *path)
{
    FILE *file = fopen(path, "r");
    while (file && name_count < MAX_NAMES && fscanf(file, " %16[a-z]", names[name_count]) == 1 &&
           strlen(names[name_count]) < LENGTH)
        name_count++;
    if (!file)
        perror(path);
    else if (name_count == 0 || !feof(file))
        fprintf(stderr, "%s: expected names of up to 15 letters a to z, found %d, then %s\n", path,
                name_count, feof(file) ? "the end" : "something else");
    if (name_count == 0 || !feof(file))
        exit(EXIT_FAILURE);
    fclose(file);
}

static void make_model(Device *device)
{
    const Initializer normal = { INITIAL_NORMAL, 0.08 };
    TransformerConfig config = { .layers = 1, .heads = HEADS, .head_dim = WIDTH / HEADS };
    config.attention = ATTENTION_CAUSAL_SOFTMAX;
    config.pre_norm = true;
    config.initial_std = normal.scale;
    params = params_new(device, /*seed*/ 1);
    symbols = nn_embedding_with(params, "symbols", SYMBOLS, WIDTH, normal);
    positions = nn_embedding_with(params, "positions", LENGTH, WIDTH, normal);
    transformer = nn_transformer(params, "", config);
    head = nn_linear_with(params, "head", WIDTH, SYMBOLS, (LinearConfig){ .weight = normal });
    optimizer = optim_adam(params, optim_adam_config(0.01));
    tape = tape_new(device);
}

/* Of the symbol after each of the inputs, count lines of LENGTH. */
static Tensor *next_logits(const int32_t *inputs, int count)
{
    Tensor *x = tape_input_i32(tape, inputs, shape(count, LENGTH));
    x = nn_embedding_forward(tape, &symbols, x); /* [count, LENGTH, WIDTH] */
    x = op_add(tape, x, positions.weight);       /* the same for each line */
    x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    return nn_linear_forward(tape, &head, x); /* [count, LENGTH, SYMBOLS] */
}

/* The mean loss of the letters and ends of BATCH names, which the number determines. */
static Tensor *batch_loss(int64_t number)
{
    int32_t inputs[BATCH][LENGTH] = { { END } }, targets[BATCH][LENGTH] = { { END } };
    Real counts[BATCH][LENGTH] = { { 0 } }; /* 0 behind a name */
    Random random = random_new((uint64_t)number, random_stream("batch"));
    for (int b = 0; b < BATCH; b++) {
        const char *name = names[random_integer(&random, 0, name_count)];
        for (int i = 0; i == 0 || name[i - 1]; i++) {
            inputs[b][i] = i > 0 ? targets[b][i - 1] : END;
            targets[b][i] = name[i] ? name[i] - 'a' + 1 : END;
            counts[b][i] = 1;
        }
    }
    Tensor *next = tape_input_i32(tape, targets[0], shape(BATCH, LENGTH));
    Tensor *weights = tape_input(tape, counts[0], shape(BATCH, LENGTH));
    return op_cross_entropy(tape, next_logits(inputs[0], BATCH), next, weights);
}

static double train_step(void)
{
    Tensor *loss = batch_loss(optim_steps(optimizer)); /* reads the weights, and records */
    tape_backward(tape, loss);                         /* contributes to their gradients */
    params_clip_gradients(params, 1);
    optim_step(optimizer); /* moves the weights, and empties the gradients */
    const double value = tensor_item(loss);
    tape_reset(tape); /* frees what the step recorded */
    return value;
}

static void print_names(double temperature)
{
    const Sampling sampling = { .temperature = temperature };
    int32_t inputs[NAMES][LENGTH] = { { END } }, drawn[NAMES][LENGTH];
    tape_set_recording(tape, false);
    for (int i = 1; i < LENGTH; i++) {
        tensor_read_i32(op_sample(tape, next_logits(inputs[0], NAMES), sampling), drawn[0]);
        for (int n = 0; n < NAMES; n++)
            inputs[n][i] = drawn[n][i - 1];
        tape_reset(tape);
    }
    tape_set_recording(tape, true);
    for (int n = 0; n < NAMES; n++) {
        for (int i = 1; i < LENGTH && inputs[n][i] != END; i++)
            putchar('a' + inputs[n][i] - 1);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    read_names(argc > 1 ? argv[1] : "examples/names.txt");
    make_model(device_best());
    for (int step = 1; step <= STEPS; step++) {
        const double loss = train_step();
        if (step % 100 == 0)
            printf("step %4d  loss %.4f\n", step, loss);
    }
    print_names(/*temperature*/ 0.7);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
