/* The tasks of KANN's examples mlp, mnist-cnn and rnn-bit, for bench/peers/kann.py: prints each
 * epoch's loss, error and milliseconds. Layers, losses and batches are those of the examples
 * without dropout. Their RMSprop, p = p - lr g / sqrt(v + 1e-6), is almost Adam with beta1 = 0,
 * beta2 = 0.9 and a learning rate that undoes the bias correction. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { BATCH = 64, SIZE = 28, PIXELS = SIZE * SIZE, DIGITS = 10, MAX_BITS = 64, NUMBERS = 2 };
static const double BETA2 = 0.9;

typedef enum { MLP, CNN, RNN_BIT } Task;
static const char *const tasks[] = { "mlp", "cnn", "rnn-bit" };

typedef struct Samples {
    int64_t count, width, outputs; /* width inputs and `outputs` classes per sample */
    int64_t bits;                  /* rnn-bit: positions per sample */
    Real *inputs;                  /* [count, width] */
    int32_t *classes;              /* [count, outputs] */
} Samples;

typedef struct Model {
    Linear hidden, output;
    Conv2d conv[2];
    Gru gru;
} Model;

static _Noreturn void fail(const char *option, const char *value, const char *expectation)
{
    fprintf(stderr, "--%s is %s, expected %s\n", option, value, expectation);
    exit(2);
}

static Samples new_samples(int64_t count, int64_t width, int64_t outputs)
{
    Samples s = { .count = count, .width = width, .outputs = outputs };
    s.inputs = malloc((size_t)(count * width) * sizeof *s.inputs);
    s.classes = malloc((size_t)(count * outputs) * sizeof *s.classes);
    if (!s.inputs || !s.classes)
        fail("samples", "too large", "a number whose samples fit into memory");
    return s;
}

/* Reads the file's next bytes. */
static void read_idx(const char *directory, gzFile file, uint8_t *bytes, unsigned count)
{
    if (!file || gzread(file, bytes, count) != (int)count)
        fail("data", directory,
             "a directory whose MNIST files train-images-idx3-ubyte.gz and "
             "train-labels-idx1-ubyte.gz have --samples images");
}

static Samples read_images(const char *directory, int64_t count)
{
    if (!directory)
        fail("data", "missing", "the directory of MNIST's gzipped IDX files");
    char images[512], labels[512];
    snprintf(images, sizeof images, "%s/train-images-idx3-ubyte.gz", directory);
    snprintf(labels, sizeof labels, "%s/train-labels-idx1-ubyte.gz", directory);
    gzFile pixels = gzopen(images, "rb"), digits = gzopen(labels, "rb");
    Samples s = new_samples(count, PIXELS, 1);
    uint8_t bytes[PIXELS];
    read_idx(directory, pixels, bytes, 16); /* magic number, count, height, width */
    read_idx(directory, digits, bytes, 8);
    for (int64_t i = 0; i < count; i++) {
        read_idx(directory, pixels, bytes, PIXELS);
        for (int p = 0; p < PIXELS; p++)
            s.inputs[i * PIXELS + p] = (Real)bytes[p] / 255;
        read_idx(directory, digits, bytes, 1);
        s.classes[i] = bytes[0];
    }
    gzclose(pixels);
    gzclose(digits);
    return s;
}

/* Lines "a b ab": each position has a bit of a and of b, from the lowest on; its class is the bit
 * of the product. */
static Samples read_products(const char *path, int64_t count)
{
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        fail("data", path ? path : "missing", "a file of lines of two numbers and their product");
    Samples s = new_samples(count, NUMBERS * MAX_BITS, MAX_BITS);
    uint64_t all = 0;
    for (int64_t i = 0; i < count; i++) {
        unsigned long long a, b, product;
        if (fscanf(file, "%llu %llu %llu", &a, &b, &product) != 3)
            fail("data", path, "--samples lines of two numbers and their product");
        all |= a | b | product;
        for (int k = 0; k < MAX_BITS; k++) {
            s.inputs[(i * MAX_BITS + k) * NUMBERS] = (Real)(a >> k & 1);
            s.inputs[(i * MAX_BITS + k) * NUMBERS + 1] = (Real)(b >> k & 1);
            s.classes[i * MAX_BITS + k] = (int32_t)(product >> k & 1);
        }
    }
    fclose(file);
    while (s.bits < MAX_BITS && all >> s.bits)
        s.bits++;
    return s;
}

/* As KANN starts: weights normal with variance 1 / inputs, biases 0. */
static LinearConfig initial(int64_t inputs)
{
    return (LinearConfig){ .weight = { INITIAL_NORMAL, 1 / sqrt((double)inputs) },
                           .bias = { INITIAL_ZERO, 0 } };
}

/* A hidden layer of 64; two convolutions of 32 channels without biases, max pooling and a hidden
 * layer of 128; or two GRUs of 160 */
static Model new_model(Params *params, Task task)
{
    const Window window = { .height = 3, .width = 3 };
    const int64_t pooled = (SIZE - 4) / 2, inputs = task == MLP ? PIXELS : pooled * pooled * 32;
    const int64_t hidden = task == MLP ? 64 : task == CNN ? 128 : 160;
    Model m = { 0 };
    for (int i = 0; task == CNN && i < 2; i++) {
        const int64_t channels = i ? 32 : 1;
        LinearConfig config = initial(channels * window.height * window.width);
        config.no_bias = true;
        m.conv[i] = nn_conv2d_with(params, i ? "second" : "first", channels, 32, window, config);
    }
    if (task == RNN_BIT)
        m.gru = nn_gru(params, "gru",
                       (RecurrentConfig){ .input = NUMBERS, .hidden = hidden, .layers = 2 });
    else
        m.hidden = nn_linear_with(params, "hidden", inputs, hidden, initial(inputs));
    m.output =
        nn_linear_with(params, "output", hidden, task == RNN_BIT ? 2 : DIGITS, initial(hidden));
    return m;
}

static Tensor *forward(Tape *tape, Task task, const Model *m, Tensor *x)
{
    if (task == RNN_BIT)
        return nn_linear_forward(tape, &m->output, nn_gru_forward(tape, &m->gru, x, NULL, NULL));
    if (task == CNN) {
        x = op_reshape(tape, x, shape(tensor_count(x) / PIXELS, SIZE, SIZE, 1));
        for (int i = 0; i < 2; i++)
            x = op_relu(tape, nn_conv2d_forward(tape, &m->conv[i], x));
        x = op_max_pool(tape, x, (Window){ .height = 2, .width = 2 });
        x = op_reshape(tape, x, shape(x->shape.size[0], tensor_count(x) / x->shape.size[0]));
    }
    x = op_relu(tape, nn_linear_forward(tape, &m->hidden, x));
    return nn_linear_forward(tape, &m->output, x);
}

/* The mean of -ln of the class's probability; for images as KANN has it, of 10 sigmoids of which
 * each says yes or no: ln(1 + e^x) - x y */
static Tensor *loss_of(Tape *tape, Task task, Tensor *logits, Tensor *classes)
{
    if (task == RNN_BIT)
        return op_cross_entropy(tape, logits, classes, NULL);
    Tensor *y = op_one_hot(tape, classes, DIGITS);
    Tensor *terms = op_subtract(tape, op_softplus(tape, logits), op_multiply(tape, logits, y));
    return op_mean(tape, terms, ALL_AXES);
}

typedef struct Training {
    Task task;
    Samples samples;
    Model model;
    Params *params;
    Optimizer *optimizer;
    Tape *tape;
    Random random;
    double learning_rate;
    int32_t *order;           /* [samples.count] */
    int64_t positions;        /* per sample: of rnn-bit its bits, else 1 */
    int64_t width;            /* inputs per sample */
    Real *inputs;             /* of a batch, [BATCH, width] */
    int32_t *classes;         /* likewise, [BATCH, positions] */
    double loss, right, seen; /* sums of the epoch */
} Training;

static Training training_new(const BenchOptions *options, Task task, Samples samples)
{
    const bool is_rnn = task == RNN_BIT;
    Training t = { .task = task,
                   .samples = samples,
                   .params = params_new(options->device, /*seed*/ 1),
                   .tape = bench_tape(options),
                   .random = random_new(/*seed*/ 1, random_stream("order")),
                   .learning_rate = is_rnn ? 0.01 : 0.001,
                   .positions = is_rnn ? samples.bits : 1,
                   .width = is_rnn ? NUMBERS * samples.bits : samples.width };
    t.model = new_model(t.params, task);
    AdamConfig adam = optim_adam_config(t.learning_rate);
    adam.beta1 = 0;
    adam.beta2 = BETA2;
    adam.eps = 1e-3;
    t.optimizer = optim_adam(t.params, adam);
    t.order = malloc((size_t)samples.count * sizeof *t.order);
    t.inputs = malloc((size_t)(BATCH * t.width) * sizeof *t.inputs);
    t.classes = malloc((size_t)(BATCH * t.positions) * sizeof *t.classes);
    if (!t.order || !t.inputs || !t.classes)
        fail("samples", "too large", "a number whose samples fit into memory");
    for (int32_t i = 0; i < samples.count; i++)
        t.order[i] = i;
    return t;
}

static void training_free(Training *t)
{
    free(t->samples.inputs);
    free(t->samples.classes);
    free(t->order);
    free(t->inputs);
    free(t->classes);
    tape_free(t->tape);
    optim_free(t->optimizer);
    params_free(t->params);
}

static void shuffle(Training *t)
{
    for (int64_t i = t->samples.count - 1; i > 0; i--) {
        const int64_t j = random_integer(&t->random, 0, i + 1);
        const int32_t swapped = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = swapped;
    }
}

/* A step on `count` samples from the place `first` of the order. */
static void train_batch(Training *t, int64_t first, int64_t count)
{
    const Samples *s = &t->samples;
    for (int64_t b = 0; b < count; b++) {
        const int64_t i = t->order[first + b];
        memcpy(t->inputs + b * t->width, s->inputs + i * s->width,
               (size_t)t->width * sizeof *t->inputs);
        memcpy(t->classes + b * t->positions, s->classes + i * s->outputs,
               (size_t)t->positions * sizeof *t->classes);
    }
    const bool is_rnn = t->task == RNN_BIT;
    Tensor *x = tape_input(t->tape, t->inputs,
                           is_rnn ? shape(count, t->positions, NUMBERS) : shape(count, t->width));
    Tensor *y =
        tape_input_i32(t->tape, t->classes, is_rnn ? shape(count, t->positions) : shape(count));
    Tensor *logits = forward(t->tape, t->task, &t->model, x);
    Tensor *accuracy = op_accuracy(t->tape, logits, y, NULL);
    Tensor *loss = loss_of(t->tape, t->task, logits, y);
    tape_backward(t->tape, loss);
    const double steps = (double)optim_steps(t->optimizer) + 1;
    optim_set_learning_rate(t->optimizer, t->learning_rate / sqrt(1 - pow(BETA2, steps)));
    optim_step(t->optimizer);
    t->loss += tensor_item(loss) * (double)count;
    t->right += tensor_item(accuracy) * (double)count;
    t->seen += (double)count;
    tape_reset(t->tape);
}

/* As in KANN rnn-bit is shuffled only once, and leaves out the last batch. */
static void train_epoch(Training *t, int64_t epoch)
{
    const double start = bench_seconds();
    const bool is_rnn = t->task == RNN_BIT;
    const int64_t samples = t->samples.count;
    t->loss = t->right = t->seen = 0;
    if (!is_rnn || epoch == 1)
        shuffle(t);
    for (int64_t first = 0; first < samples - (is_rnn ? BATCH : 0); first += BATCH)
        train_batch(t, first, samples - first < BATCH ? samples - first : BATCH);
    printf("epoch: %lld; training cost: %g (class error: %.2f%%) %.2f ms\n", (long long)epoch,
           t->loss / t->seen, 100 * (1 - t->right / t->seen), 1e3 * (bench_seconds() - start));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int64_t samples = 3000, epochs = 3;
    const char *name = "rnn-bit", *data = NULL;
    const BenchOption more[] = {
        { "task", "mlp, cnn or rnn-bit", NULL, 0, &name },
        { "data", "directory of MNIST's gzipped IDX files, or a file of products", NULL, 0, &data },
        { "samples", "number of images or products, at least 65", &samples, BATCH + 1, NULL },
        { "epochs", "number of epochs", &epochs, 1, NULL },
        { 0 },
    };
    BenchOptions options = bench_begin_with(argc, argv, "the tasks of KANN's examples", more);
    Task task = MLP;
    while (task < RNN_BIT && strcmp(name, tasks[task]))
        task++;
    if (strcmp(name, tasks[task]))
        fail("task", name, "mlp, cnn or rnn-bit");
    Training training =
        training_new(&options, task,
                     task == RNN_BIT ? read_products(data, samples) : read_images(data, samples));
    for (int64_t epoch = 1; epoch <= epochs; epoch++)
        train_epoch(&training, epoch);
    const DeviceMemory memory = device_memory(options.device);
    printf("device memory %.1f MiB (%.1f reserved)\n", (double)memory.peak / (1 << 20),
           (double)memory.reserved / (1 << 20));
    training_free(&training);
    bench_end(&options);
    return EXIT_SUCCESS;
}
