#include "examples/images/options.h"
#include "examples/images/cifar10.h"
#include "examples/shared/program.h"

#include <string.h>

static const char *const preset_names[] = {
    "small", "paper", "cifar10-small", "cifar10-paper", "authors", "cifar10-authors", NULL
};
static const char *const presets[] = {
    "layers=3 heads=4 head-dim=32 feed-forward=512 batch=4 learning-rate=1e-2 clip=1 "
    "optimizer=muon schedule=cosine epochs=1.2 evaluate-every=500 evaluate-images=200",
    "layers=8 heads=8 head-dim=32 feed-forward=1024 batch=10 learning-rate=1e-4 epochs=250 "
    "evaluate-every=6000 evaluate-images=10000",
    "data-set=cifar10 rows=32 columns=32 layers=3 heads=4 head-dim=32 feed-forward=512 batch=4 "
    "learning-rate=1e-2 clip=1 optimizer=muon schedule=cosine epochs=1 evaluate-every=250 "
    "evaluate-images=50",
    "data-set=cifar10 rows=32 columns=32 layers=16 heads=8 head-dim=32 feed-forward=1024 batch=4 "
    "learning-rate=1e-4 epochs=50 evaluate-every=5000 evaluate-images=1000",
    "layers=8 heads=8 head-dim=32 feed-forward=1024 input=sines batch=16 learning-rate=1e-4 "
    "clip=1 clip-of=each dropout=0.1 weight-decay=0.01 steps=937500 epochs=250 "
    "evaluate-every=6000 evaluate-images=10000",
    "data-set=cifar10 rows=32 columns=32 layers=16 heads=8 head-dim=32 feed-forward=1024 "
    "input=sines batch=10 learning-rate=2e-4 clip=1 clip-of=each dropout=0.1 weight-decay=0.01 "
    "steps=500000 epochs=100 evaluate-every=5000 evaluate-images=1000",
};
static const char *const inputs[] = { "learned", "sines", NULL };
static const char *const clips[] = { "all", "each", NULL };
static const char *const data_sets[] = { "mnist", "cifar10", NULL };

static const char *const attentions[] = { "linear", "decay", "softmax", "lsh-1", "lsh-4", NULL };
static const char *const optimizers[] = { "radam", "muon", NULL };
static const char *const schedules[] = { "constant", "cosine", NULL };
static const char *const endings[] = { ".png", NULL };
static const char *const methods[] = { "all",     "linear", "decay", "stateful-softmax",
                                       "softmax", "lsh-1",  "lsh-4", NULL };
const char *const form_names[] = {
    [FORM_BEST] = "best",           [FORM_RECURRENT] = "recurrent",
    [FORM_CHUNKED] = "chunked",     [FORM_CHUNK_PARALLEL] = "chunk-parallel",
    [FORM_QUADRATIC] = "quadratic", NULL,
};

#define AT(field) offsetof(ImagesOptions, field)
/* clang-format off */
static const Option preset[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), .choices = preset_names,
      .help = "defaults of the other options" },
};
static const Option attention[] = {
    { "attention", CHOICE, OF_MODEL, AT(common.attention), .choices = attentions,
      .help = "causal; decay: linear with a learned decay; lsh: rounds of hashing" },
};
static const Option of_the_model[] = {
    { "data-set", CHOICE, OF_MODEL, AT(data_set), .choices = data_sets,
      .help = "the format of --data" },
    { "input", CHOICE, OF_MODEL, AT(input), .choices = inputs,
      .help = "learned: the value's and the position's vectors are added; sines: half the width "
              "each, from the first pixel on, as the authors' programs" },
    { "logistics", WHOLE, OF_MODEL, AT(logistics), 1, 64, "10",
      .help = "distributions in the mixture of a pixel" },
    { "rows", WHOLE, OF_MODEL, AT(rows), 1, 256, "28", .help = "of an image" },
    { "columns", WHOLE, OF_MODEL, AT(columns), 1, 256, "28", .help = "of an image" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_DATA, AT(common.batch), 1, 65536, .help = "images per step" },
    { "epochs", NUMBER, OF_GOAL, AT(epochs), 1e-6, 1e6, .help = "passes over the training images" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9,
      .help = "instead of --epochs (0: by --epochs)" },
    { "optimizer", CHOICE, OF_DATA, AT(optimizer), .choices = optimizers,
      .help = "muon: of matrices, with AdamW of the other weights" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 10,
      .help = "added to the gradient; by muon of the weights" },
    { "clip-of", CHOICE, OF_TRAINING, AT(clip_of), .choices = clips,
      .help = "--clip: of the gradient of all weights, or of each by itself" },
    { "warm-up", WHOLE, OF_TRAINING, AT(warm_up), 0, 1e9,
      .help = "first steps, in which the learning rate rises" },
    { "schedule", CHOICE, OF_TRAINING, AT(schedule), .choices = schedules,
      .help = "of the learning rate (cosine: to 0 at the last step, so a resumed run with more "
              "steps goes on at a higher rate)" },
    { "form", CHOICE, OF_DATA, AT(form), .choices = form_names, .help = "of linear attention" },
    { "seed", WHOLE, OF_DATA, AT(common.seed), 0, 4294967295, "1",
      .help = "weights, order, dropout" },
    { "log", PATH, OF_PROGRESS, AT(common.log),
      .help = "CSV rows of step,training_bits,test_bits,learning_rate,seconds" },
    { "plot", PATH, OF_PROGRESS, AT(common.plot), .choices = plot_endings,
      .help = "an SVG of the bits per dimension, by gnuplot" },
    { "evaluate-every", WHOLE, OF_PROGRESS, AT(evaluate_every), 0, 1e9,
      .help = "evaluate the first test images every N steps (0: never)" },
    { "evaluate-images", WHOLE, OF_PROGRESS, AT(evaluate_images), 1, 1e9,
      .help = "how many of them" },
    { "test-images", WHOLE, OF_RUN, AT(test_images), 1, 1e9, "10000",
      .help = "evaluated at the end" },
};
static const Option data[] = {
    { "data", FOLDER, OF_RUN, AT(data),
      .help = "the directory of the MNIST database, or of CIFAR-10's binary files" },
};
static const Option of_drawing[] = {
    { "precision", CHOICE, OF_RUN, AT(common.precision), .choices = step_precision_names,
      .help = "tf32: of products on CUDA; bf16: of a step's weights and KV cache on the CPU, "
              "where the method has a state" },
    { "int8", FLAG, OF_RUN, AT(int8), .help = "on the CPU: a step's weights in 8 bits" },
};
static const Option checkpoint[] = {
    { "load", CHECKPOINT, OF_RUN, AT(common.load), .help = "a checkpoint of images train" },
};
static const Option of_sampling[] = {
    { "plot", PATH, OF_RUN, AT(common.plot), .choices = endings, .help = "the picture" },
    { "count", WHOLE, OF_RUN, AT(count), 1, 10000, "10", .help = "images of each kind" },
    { "batch", WHOLE, OF_RUN, AT(at_once), 1, 10000, "100",
      .help = "maximum of images drawn at a time, to bound memory (LSH: another gives other "
              "images)" },
    { "temperature", NUMBER, OF_RUN, AT(temperature), 0.01, 100, "1",
      .help = "below 1: likelier pixels more often" },
    { "seed", WHOLE, OF_RUN, AT(draw), 0, 4294967295, "1", .help = "of the random draws" },
};
static const Option of_evaluation[] = {
    { "test-images", WHOLE, OF_RUN, AT(test_images), 1, 1e9, "10000", .help = "the first N" },
    { "batch", WHOLE, OF_RUN, AT(at_once), 1, 10000, "100", .help = "images at a time" },
};
static const Option benchmark_preset[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), .standard = "paper", .choices = preset_names,
      .help = "defaults of the other options" },
};
static const Option of_the_benchmark[] = {
    { "method", CHOICE, OF_RUN, AT(method), .choices = methods, .help = "of generation" },
    { "batch", WHOLE, OF_RUN, AT(together), 1, 65536, "32", .help = "images drawn at a time" },
    { "pixels", WHOLE, OF_RUN, AT(pixels), 1, 65536,
      .help = "measured per image (all; without state: 16)" },
    { "csv", PATH, OF_RUN, AT(csv), .help = "also write the table as CSV" },
};
/* clang-format on */

const Command images_train_command = {
    .about = "usage: @ train --data DIR [OPTION]...\n\n"
             "Trains a transformer to predict every pixel of an image from the previous pixels\n"
             "(Katharopoulos et al. 2020, Transformers are RNNs, section 4.2.1).",
    .tables = { TABLE(preset), TABLE(attention), TABLE(model_rows), TABLE(of_the_model),
                TABLE(of_training), TABLE(training_rows), TABLE(data), TABLE(device_rows),
                TABLE(run_rows) },
    .trainer = &images_train_command,
    .program = "images",
    .size = sizeof(ImagesOptions),
    .presets = presets,
};

const Command images_sample_command = {
    .about = "usage: @ sample --load FILE --plot FILE [--data DIR] [OPTION]...\n\n"
             "Draws images pixel by pixel: unconditionally and, with --data, completing the\n"
             "upper halves of test images.",
    .tables = { TABLE(checkpoint), TABLE(of_sampling), TABLE(data), TABLE(of_drawing),
                TABLE(device_rows) },
    .trainer = &images_train_command,
};

const Command images_evaluate_command = {
    .about = "usage: @ evaluate --load FILE --data DIR [OPTION]...\n\n"
             "Prints the bits per dimension of test images, and of their lower halves given\n"
             "the upper ones, by decode steps, as they are drawn, which measures the loss by\n"
             "bf16 or 8-bit weights. (train --load FILE --evaluate uses the parallel form.)",
    .tables = { TABLE(checkpoint), TABLE(of_evaluation), TABLE(data), TABLE(of_drawing),
                TABLE(device_rows) },
    .trainer = &images_train_command,
};

const Command images_benchmark_command = {
    .about = "usage: @ benchmark [OPTION]...\n\n"
             "Measures the speed of image generation with random weights: by linear attention\n"
             "as a recurrent network, by softmax attention with a KV cache (stateful), and by\n"
             "softmax and LSH attention that recompute all previous pixels for each, as Tables\n"
             "4 and 5 of the paper, beside whose numbers --preset paper and cifar10-paper\n"
             "print them.",
    .tables = { TABLE(benchmark_preset), TABLE(model_rows), TABLE(of_the_model),
                TABLE(of_the_benchmark), TABLE(of_drawing), TABLE(device_rows) },
    .trainer = &images_train_command,
};

bool images_have_state(const ImagesOptions *options)
{
    return strncmp(options->common.attention, "lsh", 3) != 0;
}

const char *images_steps_option(const ImagesOptions *options)
{
    return options->int8                                ? "--int8"
           : !strcmp(options->common.precision, "bf16") ? "--precision bf16"
                                                        : NULL;
}

void images_check_steps(const ImagesOptions *options)
{
    const char *given = images_steps_option(options);
    if (given && !images_have_state(options))
        fail(BAD_USE, "%s: expected a model with a state, not of --attention %s", given,
             options->common.attention);
}

bool images_have_sines(const ImagesOptions *options)
{
    return !strcmp(options->input, "sines");
}

int64_t images_length(const ImagesOptions *options)
{
    return images_pixels(options) - images_have_sines(options);
}

int64_t images_upper_half(const ImagesOptions *options)
{
    return options->rows / 2 * options->columns * images_channels(options);
}

int64_t images_channels(const ImagesOptions *options)
{
    return strcmp(options->data_set, "cifar10") ? 1 : CIFAR10_CHANNELS;
}

int64_t images_pixels(const ImagesOptions *options)
{
    return options->rows * options->columns * images_channels(options);
}

const char *images_title(const ImagesOptions *options)
{
    return images_channels(options) > 1 ? "CIFAR-10" : "MNIST";
}

void images_check_data(const ImagesOptions *options)
{
    if (!options->data)
        fail(BAD_USE, "expected --data DIR, %s, with or without .gz",
             images_channels(options) > 1
                 ? "the directory of CIFAR-10's binary files (Krizhevsky 2009): "
                   "data_batch_1.bin to data_batch_5.bin and test_batch.bin"
                 : "the directory of the MNIST database of handwritten digits (LeCun, Cortes and "
                   "Burges): train-images-idx3-ubyte and t10k-images-idx3-ubyte");
}
