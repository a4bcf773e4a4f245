#include "examples/copy_task/options.h"
#include "examples/shared/program.h"

#include <string.h>

static const Options presets[] = {
    { .preset = "quick",
      .attention = "linear",
      .features = "elu+1",
      .rounds = 1,
      .length = 64,
      .symbols = 10,
      .layers = 2,
      .heads = 6,
      .head_dim = 16,
      .feed_forward = 256,
      .batch = 16,
      .steps = 4000,
      .learning_rate = 4e-3,
      .drop_at = 3300,
      .clip = 1,
      .seed = 1,
      .score_every = 1,
      .device = "auto",
      .precision = "float32" },
    { .preset = "paper",
      .attention = "linear",
      .features = "elu+1",
      .rounds = 1,
      .length = 128,
      .symbols = 10,
      .layers = 4,
      .heads = 8,
      .head_dim = 32,
      .feed_forward = 1024,
      .batch = 64,
      .steps = 10000,
      .learning_rate = 1e-3,
      .drop_at = 3000,
      .dropout = 0.1,
      .weight_decay = 0.01,
      .seed = 1,
      .score_every = 1,
      .device = "auto",
      .precision = "float32" },
};

static const char *const preset_names[] = { "quick", "paper", NULL };
static const char *const attentions[] = { "linear", "softmax", "lsh", NULL };

#define AT(field) offsetof(Options, field)
/* clang-format off */
static const Option table[] = {
    { "preset", CHOICE, OF_MODEL, AT(preset), 0, 0, preset_names,
      "defaults of the other options" },
    { "attention", CHOICE, OF_MODEL, AT(attention), 0, 0, attentions, "causal" },
    { "features", CHOICE, OF_MODEL, AT(features), 0, 0, feature_names,
      "feature map of linear attention" },
    { "rounds", WHOLE, OF_MODEL, AT(rounds), 1, 64, NULL, "hashing rounds of lsh attention" },
    { "length", WHOLE, OF_MODEL, AT(length), 8, 65536, NULL, "positions per sequence" },
    { "symbols", WHOLE, OF_MODEL, AT(symbols), 1, 65535, NULL, "size of the alphabet to copy" },
    { "layers", WHOLE, OF_MODEL, AT(layers), 1, NN_MAX_LAYERS, NULL, "of the transformer" },
    { "heads", WHOLE, OF_MODEL, AT(heads), 1, 1024, NULL, "attention heads per layer" },
    { "head-dim", WHOLE, OF_MODEL, AT(head_dim), 1, 1024, NULL, "size of a head" },
    { "feed-forward", WHOLE, OF_MODEL, AT(feed_forward), 1, 65536, NULL, "hidden size" },
    { "batch", WHOLE, OF_TRAINING, AT(batch), 1, 65536, NULL, "sequences per step" },
    { "steps", WHOLE, OF_GOAL, AT(steps), 1, 1e9, NULL,
      "in total, including those before --resume" },
    { "learning-rate", NUMBER, OF_TRAINING, AT(learning_rate), 1e-6, 1, NULL, "of RAdam" },
    { "drop-at", WHOLE, OF_TRAINING, AT(drop_at), 0, 1e9, NULL,
      "divide the learning rate by 10 from this step on (0: never)" },
    { "clip", NUMBER, OF_TRAINING, AT(clip), 0, 1e6, NULL,
      "maximum norm of the gradient (0: no clipping)" },
    { "dropout", NUMBER, OF_TRAINING, AT(dropout), 0, 0.9, NULL, "probability" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 1, NULL, "decoupled" },
    { "seed", WHOLE, OF_TRAINING, AT(seed), 0, 4294967295, NULL, "weights, data, dropout" },
    { "device", CHOICE, OF_RUN, AT(device), 0, 0, device_names, "of the computation" },
    { "precision", CHOICE, OF_RUN, AT(precision), 0, 0, precision_names,
      "on CUDA (see docs/gpu.md)" },
    { "eager", FLAG, OF_RUN, AT(eager), 0, 0, NULL, "on CUDA: without graph capture and replay" },
    { "threads", WHOLE, OF_RUN, AT(threads), 1, 1024, NULL, "of the CPU (default: all cores)" },
    { "log", PATH, OF_RUN, AT(log), 0, 0, NULL,
      "CSV rows of step,loss,accuracy,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(plot), 0, 0, NULL, "an SVG of loss and accuracy, by gnuplot" },
    { "save", PATH, OF_RUN, AT(save), 0, 0, NULL,
      "a checkpoint, written at the end and on Ctrl-C" },
    { "save-every", WHOLE, OF_RUN, AT(save_every), 1, 1e9, NULL, "also save every N steps" },
    { "score-every", WHOLE, OF_RUN, AT(score_every), 1, 1e9, NULL,
      "log and show every N steps; CUDA does not synchronize in between" },
    { "resume", RESUMED, OF_RUN, AT(resume), 0, 0, NULL,
      "continue from a checkpoint; --log appends" },
    { "evaluate", CHECKPOINT, OF_RUN, AT(evaluate), 0, 0, NULL,
      "no training: evaluate a checkpoint on fresh sequences" },
    { "quiet", FLAG, OF_RUN, AT(quiet), 0, 0, NULL, "print only the final line" },
};
/* clang-format on */

const Command copy_task = {
    .program = "copy_task",
    .about =
        "usage: copy_task [OPTION]...\n\n"
        "Trains a transformer to copy: it reads random symbols and a separator, and writes the\n"
        "symbols again (Katharopoulos et al. 2020, Transformers are RNNs, section 4.1.1).",
    .tables = { OPTION_TABLE(table) },
    .presets = presets,
    .size = sizeof(Options),
    .preset_names = preset_names,
};

/* Checks combinations of options. */
static void check_together(const Options *options, const Given *given)
{
    static const char *const of_training[] = { "steps",   "learning-rate", "drop-at",     "clip",
                                               "dropout", "weight-decay",  "log",         "plot",
                                               "save",    "save-every",    "score-every", "eager",
                                               NULL };
    if (options->evaluate)
        options_refuse(given, of_training, "--evaluate, which trains nothing");
    if (options->save_every && !options->save)
        fail(BAD_USE, "--save-every %lld: expected together with --save FILE",
             (long long)options->save_every);
    if (option_given(given, "features") && strcmp(options->attention, "linear"))
        fail(BAD_USE, "--features %s: expected without --attention %s, which has none",
             options->features, options->attention);
    if (option_given(given, "rounds") && strcmp(options->attention, "lsh"))
        fail(BAD_USE, "--rounds %lld: expected without --attention %s, which has none",
             (long long)options->rounds, options->attention);
    if (options->heads * options->head_dim % 2)
        fail(BAD_USE,
             "--heads %lld --head-dim %lld: expected an even product, because half of the width "
             "embeds symbols and half positions",
             (long long)options->heads, (long long)options->head_dim);
    option_check_file("log", options->log);
    option_check_file("plot", options->plot);
    option_check_file("save", options->save);
}

Options copy_task_options(int argc, char **argv)
{
    Options options;
    Given given = options_parse(&copy_task, argc, argv, &options);
    check_together(&options, &given);
    return options;
}
