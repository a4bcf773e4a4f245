/* Learns the text of a file and continues it: a language model of bytes, a causal linear
 * transformer.
 *
 * The input of a position concatenates the embeddings of the last SEEN bytes. So it represents the
 * order of nearby bytes, which linear attention, a sum over the past, does not. (400 steps on
 * examples/sonnets.txt reach a loss of 0.8; with SEEN = 1 they reach 2.2, the entropy of pairs of
 * letters, and 2.1 with sinusoidal positions.) */
#include "examples/shared/program.h"
#include "examples/shared/training.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BYTES = 256, SEEN = 4, LENGTH = 128, BATCH = 16, LAYERS = 2, HEADS = 4, WIDTH = 128 };

/* -------------------------------------------------------------------------------------- options */

typedef struct Options {
    TrainingOptions common;
    const char *load, *prompt;
    int64_t generate;
    double temperature, top_p;
    bool int8, evaluate;
} Options;

static const Options defaults = { { .seed = 1,
                                    .learning_rate = 6e-3,
                                    .clip = 1,
                                    .steps = 1500,
                                    .score_every = 100,
                                    .device = "auto",
                                    .precision = "float32" },
                                  .prompt = "",
                                  .generate = 500,
                                  .temperature = 0.7,
                                  .top_p = 0.95 };
static const char *const preset_names[] = { "default", NULL };

#define AT(field) offsetof(Options, field)
/* clang-format off */
static const Option of_training[] = {
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9, NULL,
      "in total, including those before --resume" },
    { "seed", WHOLE, OF_TRAINING, AT(common.seed), 0, 4294967295, NULL, "weights, windows, draws" },
    { "load", INPUT, OF_RUN, AT(load), 0, 0, NULL, "weights to start from, as of --save" },
    { "log", PATH, OF_RUN, AT(common.log), 0, 0, NULL,
      "CSV rows of step,loss,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, plot_endings, "an SVG of the loss, by gnuplot" },
};
static const Option of_generation[] = {
    { "generate", WHOLE, OF_RUN, AT(generate), 0, 1e9, NULL, "bytes after FILE and the prompt" },
    { "prompt", STRING, OF_RUN, AT(prompt), 0, 0, NULL, "to continue" },
    { "temperature", NUMBER, OF_RUN, AT(temperature), 0, 1e9, NULL,
      "0: always the likeliest byte" },
    { "top-p", NUMBER, OF_RUN, AT(top_p), 1e-6, 1, NULL,
      "draw from the likeliest bytes of this probability" },
    { "int8", FLAG, OF_RUN, AT(int8), 0, 0, NULL, "on the CPU: generate with weights in 8 bits" },
    { "evaluate", FLAG, OF_RUN, AT(evaluate), 0, 0, NULL,
      "print the bits per byte of FILE, by decode steps, instead" },
};
/* clang-format on */

/* Those of run_rows that apply: --load and --evaluate have other meanings here. */
#define SAVING                                                                                     \
    {                                                                                              \
        run_rows, 4                                                                                \
    }
#define RUNNING                                                                                    \
    {                                                                                              \
        run_rows + 6, 3                                                                            \
    }

static const Command command = {
    .program = "text",
    .about = "usage: text FILE [OPTION]...\n\n"
             "Trains on FILE for --steps, then generates more of it.",
    .argument = "a file to learn: text FILE",
    .tables = { OPTION_TABLE(of_training), OPTION_TABLE(of_generation), OPTION_TABLE(device_rows),
                SAVING, RUNNING },
    .presets = &defaults,
    .size = sizeof(Options),
    .preset_names = preset_names,
};

/* ----------------------------------------------------------------------------- text and model */

static Options options;
static Training training;
static uint8_t *text; /* a ring buffer, so the file may be shorter than a window */
static int64_t size;
static Embedding embedding; /* [BYTES, WIDTH / SEEN] */
static Transformer transformer;
static Linear head;                    /* WIDTH to BYTES */
static Tensor *bytes, *targets, *loss; /* of a step: [BATCH, LENGTH, SEEN], [BATCH, LENGTH] */

static void read_text(const char *path)
{
    const size_t block = 1 << 16, more = strlen(options.prompt) + (size_t)options.generate + 1;
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) /* opening a FIFO would block */
        fail(EXIT_FAILURE, "%s is not a regular file", path);
    FILE *file = fopen(path, "rb");
    for (size_t got = 1; file && got > 0; size += (int64_t)got) {
        text = realloc(text, (size_t)size + block + more);
        got = text ? fread(text + size, 1, block, file) : 0;
    }
    if (!file || !text || ferror(file))
        fail(EXIT_FAILURE, "%s: %s", path, strerror(errno));
    if (size == 0)
        fail(EXIT_FAILURE, "%s is empty; expected a text of one byte or more", path);
    fclose(file);
}

static int32_t byte_at(int64_t at)
{
    return text[(at % size + size) % size];
}

/* The last SEEN bytes at each of `positions` positions from each start on. */
static void set_bytes(int32_t *out, const int64_t *starts, int64_t batch, int64_t positions)
{
    for (int64_t i = 0; i < batch * positions * SEEN; i++)
        out[i] = byte_at(starts[i / SEEN / positions] + i / SEEN % positions + i % SEEN);
}

/* x int32 [batch, positions, SEEN]; returns [batch, positions, WIDTH] */
static Tensor *embed(Tape *tape, Tensor *x)
{
    const Shape all = shape(x->shape.size[0], x->shape.size[1], WIDTH);
    return op_reshape(tape, nn_embedding_forward(tape, &embedding, x), all);
}

static Tensor *embed_text(Tape *tape, const int64_t *starts, int64_t batch, int64_t positions)
{
    int32_t read[batch * positions * SEEN];
    set_bytes(read, starts, batch, positions);
    return embed(tape, tape_input_i32(tape, read, shape(batch, positions, SEEN)));
}

/* ------------------------------------------------------------------------------------- training */

/* The step determines its windows, BATCH random numbers: a resumed run draws the same ones. */
static void next_batch(void *context, int64_t step)
{
    (void)context;
    static int32_t seen[BATCH * LENGTH * SEEN], next[BATCH * LENGTH];
    int64_t starts[BATCH];
    Random random = random_new((uint64_t)options.common.seed, random_stream("windows"));
    random.counter = (uint64_t)(step - 1) * BATCH;
    for (int b = 0; b < BATCH; b++)
        starts[b] = random_integer(&random, 0, size);
    for (int i = 0; i < BATCH * LENGTH; i++)
        next[i] = byte_at(starts[i / LENGTH] + i % LENGTH + SEEN);
    set_bytes(seen, starts, BATCH, LENGTH);
    tensor_write_i32(bytes, seen);
    tensor_write_i32(targets, next);
}

static Tensor *loss_of(void *context)
{
    (void)context;
    Tensor *x = embed(training.tape, bytes);
    x = nn_transformer_forward(training.tape, &transformer, x, (AttentionOptions){ 0 });
    x = nn_linear_forward(training.tape, &head, x); /* [BATCH, LENGTH, BYTES] */
    return loss = op_cross_entropy(training.tape, x, targets, NULL);
}

/* The standard output is the text's: progress goes to standard error. */
static bool score(void *context, bool due, double *values)
{
    (void)context;
    if (due)
        values[0] = tensor_item(loss);
    if (due && !options.common.quiet)
        fprintf(stderr, "step %lld  loss %.4f\n", (long long)training.done, values[0]);
    return due;
}

static void train(void)
{
    Report *report = training_run(
        &training,
        (ReportConfig){
            .quiet = true,
            .values = 2,
            .digits = { 9, 6 },
            .header = "step,loss,learning_rate,seconds",
            .panels = 1,
            .panel = {
                { .label = "nats per byte",
                  .settings = "set yrange [0:]",
                  .curves = {
                      { .value = 0, .factor = 1, .line = "#2166ac", .range = "#c6dbef" } } } } });
    ReportTitle title = { .drop_at = 0 };
    snprintf(title.title, sizeof title.title,
             "Learning a text: causal linear attention, %d layers, %d heads of %d", LAYERS, HEADS,
             WIDTH / HEADS);
    snprintf(title.subtitle, sizeof title.subtitle, "seed %lld, step %lld",
             (long long)options.common.seed, (long long)training.done);
    report_finish(report, &title);
    report_free(report);
}

/* ----------------------------------------------------------------------------------- decoding */

/* On the CPU the state stores weights in the tape's precision; decode steps take float32. */
static TransformerState *new_state(Tape *tape, int64_t sequences)
{
    GenerationConfig config = { .sequences = sequences, .int8_weights = options.int8 };
    if (!device_is_cuda(tape_device(tape)))
        config.precision = tape_precision(tape);
    tape_set_precision(tape, PRECISION_FLOAT32);
    return nn_transformer_state(&transformer, config);
}

/* The nats of byte n of each window; those beyond the text do not count. */
static double nats_of(Tape *tape, TransformerState *state, int64_t first, int64_t n)
{
    int64_t starts[BATCH];
    int32_t next[BATCH];
    Real mask[BATCH];
    int count = 0;
    for (int b = 0; b < BATCH; b++) {
        starts[b] = first + b * LENGTH + n;
        next[b] = byte_at(starts[b] + SEEN);
        mask[b] = starts[b] < size;
        count += starts[b] < size;
    }
    Tensor *x = op_reshape(tape, embed_text(tape, starts, BATCH, 1), shape(BATCH, WIDTH));
    x = nn_linear_forward(tape, &head, nn_transformer_step(state, x));
    Tensor *mean = op_cross_entropy(tape, x, tape_input_i32(tape, next, shape(BATCH)),
                                    tape_input(tape, mask, shape(BATCH)));
    return count * (double)tensor_item(mean);
}

/* Prints the bits per byte of the text, each byte once, in batches of windows as in training. */
static void evaluate(Tape *tape)
{
    TransformerState *state = new_state(tape, BATCH);
    double nats = 0;
    for (int64_t first = 0; first < size && !stopped_by; first += BATCH * LENGTH) {
        nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
        for (int64_t n = 0; n < LENGTH && first + n < size; n++) {
            nats += nats_of(tape, state, first, n);
            tape_reset(tape);
        }
    }
    if (!stopped_by)
        printf("%.4f bits per byte, all %lld bytes\n", nats / (double)size / log(2),
               (long long)size);
    nn_transformer_state_free(state);
}

/* Appends bytes to the text. The model was trained on windows of LENGTH positions and does not
 * extrapolate (1000 positions later the loss is 0.7 instead of 0.1). So every LENGTH / 2 bytes the
 * state is reset and prefilled with the last LENGTH / 2 positions. */
static void generate(Tape *tape)
{
    size = (uint8_t *)stpcpy((char *)text + size, options.prompt) - text;
    fputs(options.prompt, stdout);
    Sampling sampling = { .temperature = options.temperature, .top_p = options.top_p };
    TransformerState *state = new_state(tape, 1);
    for (int64_t i = 0; i < options.generate && !stopped_by; i++) {
        const int64_t n = i % (LENGTH / 2) == 0 ? LENGTH / 2 : 1;
        Tensor *x = embed_text(tape, &(int64_t){ size - SEEN + 1 - n }, 1, n);
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

/* ---------------------------------------------------------------------------------- the program */

static void check_options(const Given *given)
{
    static const char *const none[] = { NULL };
    training_check(&options.common, given, none);
    if (options.load && options.common.resume)
        fail(BAD_USE, "--load %s: expected without --resume %s", options.load,
             options.common.resume);
}

static void start(void)
{
    training = training_new(&command, &options.common, options.common.steps);
    training.next_batch = next_batch;
    training.loss = loss_of;
    training.score = score;
    bytes = tape_persistent_i32(training.tape, shape(BATCH, LENGTH, SEEN));
    targets = tape_persistent_i32(training.tape, shape(BATCH, LENGTH));
    Params *params = training.params;
    TransformerConfig config = { .layers = LAYERS, .heads = HEADS, .head_dim = WIDTH / HEADS };
    embedding = nn_embedding(params, "embedding", BYTES, WIDTH / SEEN);
    transformer = nn_transformer(params, "transformer", config);
    head = nn_linear(params, "head", WIDTH, BYTES);
    AdamConfig adam = optim_adam_config(options.common.learning_rate);
    adam.schedule = optim_cosine(0, training.steps + 1, 0);
    training.optimizer = optim_radam(params, adam);
    training_load(&training);
    if (options.load && !params_load(params, options.load))
        fail(EXIT_FAILURE, "%s", tapegrad_error());
}

int main(int argc, char **argv)
{
    program_start("text");
    const Given given = options_parse(&command, argc, argv, &options);
    check_options(&given);
    read_text(given.argument);
    start();
    Tape *tape = training.scoring;
    if (options.evaluate && tape_precision(tape) == PRECISION_BF16 &&
        device_is_cuda(tape_device(tape)))
        fail(EXIT_FAILURE, "--evaluate: on CUDA decode steps have no bf16, expected float32");
    train();
    if (!stopped_by && options.evaluate)
        evaluate(tape);
    else if (!stopped_by)
        generate(tape);
    const int status = training_status(&training);
    training_free(&training);
    free(text);
    return status;
}
