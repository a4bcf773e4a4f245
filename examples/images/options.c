#include "examples/images/options.h"
#include "examples/images/cifar10.h"
#include "examples/shared/program.h"

#include <string.h>

#define EVERYWHERE                                                                                 \
    .form = "best", .logistics = 10, .test_images = 10000, .count = 10, .at_once = 100, .draw = 1, \
    .temperature = 1, .method = "all", .together = 32

#define MNIST EVERYWHERE, .data_set = "mnist", .rows = 28, .columns = 28
#define CIFAR10 EVERYWHERE, .data_set = "cifar10", .rows = 32, .columns = 32
#define LEARNED .input = "learned", .clip_of = "all"
#define SINES .input = "sines", .clip_of = "each", .optimizer = "radam"

/* clang-format off */
static const ImagesOptions presets[] = {
    { { TRAINING_DEFAULTS, .preset = "small", .layers = 3, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 4, .learning_rate = 1e-2, .clip = 1 },
      MNIST, LEARNED, .optimizer = "muon", .schedule = "cosine", .epochs = 1.2,
      .evaluate_every = 500, .evaluate_images = 200 },
    { { TRAINING_DEFAULTS, .preset = "paper", .layers = 8, .heads = 8, .head_dim = 32,
        .feed_forward = 1024, .batch = 10, .learning_rate = 1e-4 },
      MNIST, LEARNED, .optimizer = "radam", .schedule = "constant", .epochs = 250,
      .evaluate_every = 6000, .evaluate_images = 10000 },
    { { TRAINING_DEFAULTS, .preset = "cifar10-small", .layers = 3, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 4, .learning_rate = 1e-2, .clip = 1 },
      CIFAR10, LEARNED, .optimizer = "muon", .schedule = "cosine", .epochs = 1,
      .evaluate_every = 250, .evaluate_images = 50 },
    { { TRAINING_DEFAULTS, .preset = "cifar10-paper", .layers = 16, .heads = 8, .head_dim = 32,
        .feed_forward = 1024, .batch = 4, .learning_rate = 1e-4 },
      CIFAR10, LEARNED, .optimizer = "radam", .schedule = "constant", .epochs = 50,
      .evaluate_every = 5000, .evaluate_images = 1000 },
    { { TRAINING_DEFAULTS, .preset = "authors", .layers = 8, .heads = 8, .head_dim = 32,
        .feed_forward = 1024, .batch = 16, .learning_rate = 1e-4, .clip = 1, .dropout = 0.1,
        .steps = 937500 },
      MNIST, SINES, .weight_decay = 0.01, .schedule = "constant", .epochs = 250,
      .evaluate_every = 6000, .evaluate_images = 10000 },
    { { TRAINING_DEFAULTS, .preset = "cifar10-authors", .layers = 16, .heads = 8, .head_dim = 32,
        .feed_forward = 1024, .batch = 10, .learning_rate = 2e-4, .clip = 1, .dropout = 0.1,
        .steps = 500000 },
      CIFAR10, SINES, .weight_decay = 0.01, .schedule = "constant", .epochs = 100,
      .evaluate_every = 5000, .evaluate_images = 1000 },
};
/* clang-format on */
static const char *const preset_names[] = {
    "small", "paper", "cifar10-small", "cifar10-paper", "authors", "cifar10-authors", NULL
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
    { "preset", CHOICE, OF_MODEL, AT(common.preset), 0, 0, preset_names,
      "defaults of the other options" },
};
static const Option attention[] = {
    { "attention", CHOICE, OF_MODEL, AT(common.attention), 0, 0, attentions,
      "causal; decay: linear with a learned decay; lsh: rounds of hashing" },
};
static const Option of_the_model[] = {
    { "data-set", CHOICE, OF_MODEL, AT(data_set), 0, 0, data_sets, "the format of --data" },
    { "input", CHOICE, OF_MODEL, AT(input), 0, 0, inputs,
      "learned: the value's and the position's vectors are added; sines: half the width each, from "
      "the first pixel on, as the authors' programs" },
    { "logistics", WHOLE, OF_MODEL, AT(logistics), 1, 64, NULL,
      "distributions in the mixture of a pixel" },
    { "rows", WHOLE, OF_MODEL, AT(rows), 1, 256, NULL, "of an image" },
    { "columns", WHOLE, OF_MODEL, AT(columns), 1, 256, NULL, "of an image" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_TRAINING, AT(common.batch), 1, 65536, NULL, "images per step" },
    { "epochs", NUMBER, OF_GOAL, AT(epochs), 1e-6, 1e6, NULL, "passes over the training images" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9, NULL,
      "instead of --epochs (0: by --epochs)" },
    { "optimizer", CHOICE, OF_TRAINING, AT(optimizer), 0, 0, optimizers,
      "muon: of matrices, with AdamW of the other weights" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 10, NULL,
      "added to the gradient; by muon of the weights" },
    { "clip-of", CHOICE, OF_TRAINING, AT(clip_of), 0, 0, clips,
      "--clip: of the gradient of all weights, or of each by itself" },
    { "warm-up", WHOLE, OF_TRAINING, AT(warm_up), 0, 1e9, NULL,
      "first steps, in which the learning rate rises" },
    { "schedule", CHOICE, OF_TRAINING, AT(schedule), 0, 0, schedules,
      "of the learning rate (cosine: to 0 at the last step, so a resumed run with more steps goes "
      "on at a higher rate)" },
    { "form", CHOICE, OF_TRAINING, AT(form), 0, 0, form_names, "of linear attention" },
    { "seed", WHOLE, OF_TRAINING, AT(common.seed), 0, 4294967295, NULL, "weights, order, dropout" },
    { "log", PATH, OF_RUN, AT(common.log), 0, 0, NULL,
      "CSV rows of step,training_bits,test_bits,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, plot_endings,
      "an SVG of the bits per dimension, by gnuplot" },
    { "evaluate-every", WHOLE, OF_RUN, AT(evaluate_every), 0, 1e9, NULL,
      "evaluate the first test images every N steps (0: never)" },
    { "evaluate-images", WHOLE, OF_RUN, AT(evaluate_images), 1, 1e9, NULL, "how many of them" },
    { "test-images", WHOLE, OF_RUN, AT(test_images), 1, 1e9, NULL, "evaluated at the end" },
};
static const Option data[] = {
    { "data", FOLDER, OF_RUN, AT(data), 0, 0, NULL,
      "the directory of the MNIST database, or of CIFAR-10's binary files" },
};
static const Option of_drawing[] = {
    { "precision", CHOICE, OF_RUN, AT(common.precision), 0, 0, step_precision_names,
      "tf32: of products on CUDA; bf16: of a step's weights and KV cache on the CPU, where the "
      "method has a state" },
    { "int8", FLAG, OF_RUN, AT(int8), 0, 0, NULL, "on the CPU: a step's weights in 8 bits" },
};
static const Option checkpoint[] = {
    { "load", CHECKPOINT, OF_RUN, AT(common.load), 0, 0, NULL, "a checkpoint of images train" },
};
static const Option of_sampling[] = {
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, endings, "the picture" },
    { "count", WHOLE, OF_RUN, AT(count), 1, 10000, NULL, "images of each kind" },
    { "batch", WHOLE, OF_RUN, AT(at_once), 1, 10000, NULL,
      "maximum of images drawn at a time, to bound memory (LSH: another gives other images)" },
    { "temperature", NUMBER, OF_RUN, AT(temperature), 0.01, 100, NULL,
      "below 1: likelier pixels more often" },
    { "seed", WHOLE, OF_RUN, AT(draw), 0, 4294967295, NULL, "of the random draws" },
};
static const Option of_evaluation[] = {
    { "test-images", WHOLE, OF_RUN, AT(test_images), 1, 1e9, NULL, "the first N" },
    { "batch", WHOLE, OF_RUN, AT(at_once), 1, 10000, NULL, "images at a time" },
};
static const Option of_the_benchmark[] = {
    { "method", CHOICE, OF_RUN, AT(method), 0, 0, methods, "of generation" },
    { "batch", WHOLE, OF_RUN, AT(together), 1, 65536, NULL, "images drawn at a time" },
    { "pixels", WHOLE, OF_RUN, AT(pixels), 1, 65536, NULL,
      "measured per image (all; without state: 16)" },
    { "csv", PATH, OF_RUN, AT(csv), 0, 0, NULL, "also write the table as CSV" },
};
/* clang-format on */

const Command images_train_command = {
    .program = "images",
    .about = "usage: images train --data DIR [OPTION]...\n\n"
             "Trains a transformer to predict every pixel of an image from the previous pixels\n"
             "(Katharopoulos et al. 2020, Transformers are RNNs, section 4.2.1).",
    .tables = { OPTION_TABLE(preset), OPTION_TABLE(attention), OPTION_TABLE(model_rows),
                OPTION_TABLE(of_the_model), OPTION_TABLE(of_training), OPTION_TABLE(training_rows),
                OPTION_TABLE(data), OPTION_TABLE(device_rows), OPTION_TABLE(run_rows) },
    .presets = presets,
    .size = sizeof(ImagesOptions),
    .preset_names = preset_names,
};

const Command images_sample_command = {
    .program = "images",
    .about = "usage: images sample --load FILE --plot FILE [--data DIR] [OPTION]...\n\n"
             "Draws images pixel by pixel: unconditionally and, with --data, completing the\n"
             "upper halves of test images.",
    .tables = { OPTION_TABLE(checkpoint), OPTION_TABLE(of_sampling), OPTION_TABLE(data),
                OPTION_TABLE(of_drawing), OPTION_TABLE(device_rows) },
    .trainer = &images_train_command,
    .presets = presets,
    .size = sizeof(ImagesOptions),
};

const Command images_evaluate_command = {
    .program = "images",
    .about = "usage: images evaluate --load FILE --data DIR [OPTION]...\n\n"
             "Prints the bits per dimension of test images, and of their lower halves given\n"
             "the upper ones, by decode steps, as they are drawn, which measures the loss by\n"
             "bf16 or 8-bit weights. (images train --load FILE --evaluate uses the parallel\n"
             "form.)",
    .tables = { OPTION_TABLE(checkpoint), OPTION_TABLE(of_evaluation), OPTION_TABLE(data),
                OPTION_TABLE(of_drawing), OPTION_TABLE(device_rows) },
    .trainer = &images_train_command,
    .presets = presets,
    .size = sizeof(ImagesOptions),
};

const Command images_benchmark_command = {
    .program = "images",
    .about = "usage: images benchmark [OPTION]...\n\n"
             "Measures the speed of image generation with random weights: by linear attention\n"
             "as a recurrent network, by softmax attention with a KV cache (stateful), and by\n"
             "softmax and LSH attention that recompute all previous pixels for each, as Tables\n"
             "4 and 5 of the paper, beside whose numbers --preset paper and cifar10-paper\n"
             "print them.",
    .tables = { OPTION_TABLE(preset), OPTION_TABLE(model_rows), OPTION_TABLE(of_the_model),
                OPTION_TABLE(of_the_benchmark), OPTION_TABLE(of_drawing),
                OPTION_TABLE(device_rows) },
    .trainer = &images_train_command,
    .presets = presets,
    .size = sizeof(ImagesOptions),
    .standard = 1,
    .preset_names = preset_names,
};

void images_check_attention(const ImagesOptions *options, const Given *given)
{
    static const char *const of_linear[] = { "features", "form", NULL };
    const char *name = options->common.attention;
    if (!strcmp(name, "softmax") || !images_have_state(options))
        options_refuse(given, of_linear, "--attention softmax, lsh-1 and lsh-4, which have none");
}

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
    if (options->data)
        return;
    if (images_channels(options) > 1)
        fail(BAD_USE, "expected --data DIR, the directory of CIFAR-10's binary files (Krizhevsky "
                      "2009): data_batch_1.bin to data_batch_5.bin and test_batch.bin, with or "
                      "without .gz");
    fail(BAD_USE, "expected --data DIR, the directory of the MNIST database of handwritten digits "
                  "(LeCun, Cortes and Burges): train-images-idx3-ubyte and "
                  "t10k-images-idx3-ubyte, with or without .gz");
}
