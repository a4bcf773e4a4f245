/* Learns the text of a file and continues it: a language model of bytes, a causal linear
 * transformer.
 *
 * The input of a position concatenates the embeddings of the last SEEN bytes. So it represents the
 * order of nearby bytes, which linear attention, a sum over the past, does not. (400 steps on
 * examples/sonnets.txt reach a loss of 0.8; with SEEN = 1 they reach 2.2, the entropy of pairs of
 * letters, and 2.1 with sinusoidal positions.) */
#include <err.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tapegrad.h>

enum { BYTES = 256, SEEN = 4, LENGTH = 128, BATCH = 16, LAYERS = 2, HEADS = 4, WIDTH = 128 };

static double steps = 1500, count = 500, temperature = 0.7, top_p = 0.95, seed = 1;
static const char *prompt = "", *save, *load, *device, *precision = "float32";
static bool int8, evaluation;
static const char help[] =
    "usage: text FILE [--steps 1500] [--generate 500] [--prompt TEXT] [--temperature 0.7]\n"
    "            [--top-p 0.95] [--seed 1] [--save WEIGHTS] [--load WEIGHTS]\n"
    "            [--device plain|cpu|cuda]\n"
    "            [--precision float32|bf16|auto] [--int8] [--evaluate]\n"
    "Trains on FILE for --steps, then generates --generate bytes after FILE and the prompt: at\n"
    "temperature 0 always the likeliest one. --precision auto is bf16 where the device has\n"
    "instructions for it; --int8 generates, on the CPU, with weights in 8 bits. --evaluate prints\n"
    "FILE's bits per byte, by decode steps in batches of 2048 bytes, instead of generating.";
static uint8_t *text; /* a ring buffer, so the file may be shorter than a window */
static int64_t size;
static Embedding embedding; /* [BYTES, WIDTH / SEEN] */
static Transformer transformer;
static Linear head; /* WIDTH to BYTES */

static void fail(const char *sentence, void *context)
{
    (void)context;
    errx(EXIT_FAILURE, "%s", sentence);
}

/* --precision on this device. */
static Precision precision_on(const Device *on)
{
    const bool fast = device_has_bf16(on), automatic = !strcmp(precision, "auto");
    const bool bf16 = automatic ? fast : !strcmp(precision, "bf16");
    if (automatic)
        fprintf(stderr, "precision: %s\n", bf16 ? "bf16" : "float32");
    else if (bf16 && !fast)
        fprintf(stderr, "precision: bf16 by conversion, slower than float32\n");
    return bf16 ? PRECISION_BF16 : PRECISION_FLOAT32;
}

static void read_text(const char *path)
{
    const size_t block = 1 << 16, more = strlen(prompt) + (size_t)count + 1; /* for generate */
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) /* opening a FIFO would block */
        errx(EXIT_FAILURE, "%s is not a regular file", path);
    FILE *file = fopen(path, "rb");
    for (size_t got = 1; file && got > 0; size += (int64_t)got) {
        text = realloc(text, (size_t)size + block + more);
        got = text ? fread(text + size, 1, block, file) : 0;
    }
    if (!file || !text || ferror(file))
        err(EXIT_FAILURE, "%s", path);
    if (size == 0)
        errx(EXIT_FAILURE, "%s is empty; expected a text of one byte or more", path);
    fclose(file);
}

/* The inputs of `batch` windows of positions, one per start: [batch, positions, WIDTH]. */
static Tensor *embed(Tape *tape, const int64_t *starts, int64_t batch, int64_t positions)
{
    int32_t bytes[batch * positions * SEEN];
    for (int64_t i = 0; i < batch * positions * SEEN; i++) {
        int64_t at = starts[i / SEEN / positions] + i / SEEN % positions + i % SEEN;
        bytes[i] = text[(at % size + size) % size];
    }
    Tensor *x = tape_input_i32(tape, bytes, shape(batch, positions, SEEN));
    x = nn_embedding_forward(tape, &embedding, x);
    return op_reshape(tape, x, shape(batch, positions, WIDTH));
}

static void train(Tape *tape, Params *params)
{
    AdamConfig config = optim_adam_config(6e-3);
    config.schedule = optim_cosine(0, (int64_t)steps + 1, 0);
    Optimizer *optimizer = optim_radam(params, config);
    Random random = random_new((uint64_t)seed, random_stream("windows"));
    for (int64_t step = 1; step <= (int64_t)steps; step++) {
        int64_t starts[BATCH];
        int32_t next[BATCH * LENGTH];
        for (int b = 0; b < BATCH; b++)
            starts[b] = random_integer(&random, 0, size);
        for (int i = 0; i < BATCH * LENGTH; i++)
            next[i] = text[(starts[i / LENGTH] + i % LENGTH + SEEN) % size];
        Tensor *x = embed(tape, starts, BATCH, LENGTH);
        x = nn_transformer_forward(tape, &transformer, x, NULL);
        x = nn_linear_forward(tape, &head, x); /* [BATCH, LENGTH, BYTES] */
        Tensor *targets = tape_input_i32(tape, next, shape(BATCH, LENGTH));
        Tensor *loss = op_cross_entropy(tape, x, targets, NULL);
        tape_backward(tape, loss);
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        if (step % 100 == 0 || step == (int64_t)steps)
            fprintf(stderr, "step %lld  loss %.4f\n", (long long)step, tensor_item(loss));
        tape_reset(tape);
    }
    optim_free(optimizer);
}

/* On the CPU the state stores weights in the tape's precision; decode steps take float32. */
static TransformerState *new_state(Tape *tape, int64_t sequences)
{
    GenerationConfig config = { .sequences = sequences, .int8_weights = int8 };
    if (!device_is_cuda(tape_device(tape)))
        config.precision = tape_precision(tape);
    tape_set_precision(tape, PRECISION_FLOAT32);
    return nn_transformer_state(&transformer, config);
}

/* Prints the bits per byte of the text, in whole batches of windows as in training. */
static void evaluate(Tape *tape)
{
    TransformerState *state = new_state(tape, BATCH);
    double nats = 0;
    int64_t first = 0;
    for (; first == 0 || first + BATCH * LENGTH <= size; first += BATCH * LENGTH) {
        nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
        for (int64_t n = 0; n < LENGTH; n++) {
            int64_t starts[BATCH];
            int32_t next[BATCH];
            for (int b = 0; b < BATCH; b++) {
                starts[b] = first + b * LENGTH + n;
                next[b] = text[(starts[b] + SEEN) % size];
            }
            Tensor *x = op_reshape(tape, embed(tape, starts, BATCH, 1), shape(BATCH, WIDTH));
            x = nn_linear_forward(tape, &head, nn_transformer_step(state, x));
            Tensor *targets = tape_input_i32(tape, next, shape(BATCH));
            nats += BATCH * (double)tensor_item(op_cross_entropy(tape, x, targets, NULL));
            tape_reset(tape);
        }
    }
    printf("%.4f bits per byte, %lld bytes\n", nats / (double)first / log(2), (long long)first);
    nn_transformer_state_free(state);
}

/* Appends bytes to the text. The model was trained on windows of LENGTH positions and does not
 * extrapolate (1000 positions later the loss is 0.7 instead of 0.1). So every LENGTH / 2 bytes the
 * state is reset and prefilled with the last LENGTH / 2 positions. */
static void generate(Tape *tape)
{
    Sampling sampling = { .temperature = temperature, .top_p = top_p };
    TransformerState *state = new_state(tape, 1);
    for (int64_t i = 0; i < (int64_t)count; i++) {
        const int64_t n = i % (LENGTH / 2) == 0 ? LENGTH / 2 : 1;
        Tensor *x = embed(tape, &(int64_t){ size - SEEN + 1 - n }, 1, n);
        if (n == 1) {
            x = nn_transformer_step(state, op_reshape(tape, x, shape(1, WIDTH)));
        } else {
            nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
            x = op_slice(tape, nn_transformer_prefill(tape, state, x, NULL), 1, n - 1, 1);
        }
        int32_t byte;
        tensor_read_i32(op_sample(tape, nn_linear_forward(tape, &head, x), sampling), &byte);
        text[size++] = (uint8_t)putchar(byte);
        tape_reset(tape);
    }
    putchar('\n');
    nn_transformer_state_free(state);
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "steps",  "generate", "temperature", "top-p",  "seed",
                                         "prompt", "save",     "load",        "device", "precision",
                                         "int8",   "evaluate", "help" };
    double *const numbers[] = { &steps, &count, &temperature, &top_p, &seed };
    static const double least[] = { 0, 0, 0, 1e-6, 0 }, most[] = { 1e9, 1e9, 1e9, 1, 1e9 };
    const char **const texts[] = { &prompt, &save, &load, &device, &precision };
    struct option options[14] = { { 0 } };
    for (int i = 0; i < 13; i++)
        options[i] = (struct option){ names[i], i < 10, NULL, i < 12 ? 0 : 'h' };
    int code, i;
    for (char rest; (code = getopt_long(argc, argv, "", options, &i)) == 0;)
        if (i >= 10)
            *(i == 10 ? &int8 : &evaluation) = true;
        else if (i >= 5)
            *texts[i - 5] = optarg;
        else if (sscanf(optarg, "%lf%c", numbers[i], &rest) != 1 ||
                 !(*numbers[i] >= least[i] && *numbers[i] <= most[i]))
            errx(2, "--%s %s: expected a number from %g to %g", names[i], optarg, least[i],
                 most[i]);
    if (code != -1 || optind + 1 != argc)
        return puts(help) < 0 || fflush(stdout) || code != 'h' ? 2 : 0;
    if (strcmp(precision, "float32") && strcmp(precision, "bf16") && strcmp(precision, "auto"))
        errx(2, "--precision %s: expected float32, bf16 or auto", precision);
    tapegrad_on_error(fail, NULL);
    if (save && !tensor_file_can_save(save)) /* before the training */
        errx(2, "--save %s: expected a file that can be written: %s", save, tapegrad_error());
    read_text(argv[optind]);
    Params *params = params_new(device ? device_open(device) : device_best(), (uint64_t)seed);
    TransformerConfig config = { .layers = LAYERS, .heads = HEADS, .head_dim = WIDTH / HEADS };
    embedding = nn_embedding(params, "embedding", BYTES, WIDTH / SEEN);
    transformer = nn_transformer(params, "transformer", config);
    head = nn_linear(params, "head", WIDTH, BYTES);
    Tape *tape = tape_new(params_device(params));
    tape_set_precision(tape, precision_on(params_device(params)));
    if (evaluation && tape_precision(tape) == PRECISION_BF16 && device_is_cuda(tape_device(tape)))
        errx(EXIT_FAILURE, "--evaluate: on CUDA decode steps have no bf16, expected float32");
    if (load && !params_load(params, load))
        fail(tapegrad_error(), NULL);
    train(tape, params);
    if (save && !params_save(params, save))
        fail(tapegrad_error(), NULL);
    if (!evaluation) {
        size = (uint8_t *)stpcpy((char *)text + size, prompt) - text;
        fputs(prompt, stdout);
    }
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    tape_seed(tape, (uint64_t)seed);
    if (evaluation)
        evaluate(tape);
    else
        generate(tape);
    tape_free(tape);
    params_free(params);
    return fflush(stdout) || ferror(stdout) ? (warn("standard output"), EXIT_FAILURE)
                                            : EXIT_SUCCESS;
}
