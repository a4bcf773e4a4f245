#include "examples/copy_task/options.h"
#include "examples/shared/program.h"

#include <string.h>

/* clang-format off */
static const Options presets[] = {
    { { TRAINING_DEFAULTS, .preset = "quick", .layers = 2, .heads = 6, .head_dim = 16,
        .feed_forward = 256, .batch = 16, .steps = 4000, .learning_rate = 4e-3, .clip = 1 },
      .rounds = 1, .length = 64, .symbols = 10, .drop_at = 3300 },
    { { TRAINING_DEFAULTS, .preset = "paper", .layers = 4, .heads = 8, .head_dim = 32,
        .feed_forward = 1024, .batch = 64, .steps = 10000, .learning_rate = 1e-3, .dropout = 0.1 },
      .rounds = 1, .length = 128, .symbols = 10, .drop_at = 3000, .weight_decay = 0.01 },
};
static const char *const preset_names[] = { "quick", "paper", NULL };
static const char *const attentions[] = { "linear", "softmax", "lsh", NULL };

#define AT(field) offsetof(Options, field)
static const Option of_the_model[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), 0, 0, preset_names,
      "defaults of the other options" },
    { "attention", CHOICE, OF_MODEL, AT(common.attention), 0, 0, attentions, "causal" },
    { "rounds", WHOLE, OF_MODEL, AT(rounds), 1, 64, NULL, "hashing rounds of lsh attention" },
    { "length", WHOLE, OF_MODEL, AT(length), 8, 65536, NULL, "positions per sequence" },
    { "symbols", WHOLE, OF_MODEL, AT(symbols), 1, 65535, NULL, "size of the alphabet to copy" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_TRAINING, AT(common.batch), 1, 65536, NULL, "sequences per step" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 1, 1e9, NULL,
      "in total, including those before --resume" },
    { "drop-at", WHOLE, OF_TRAINING, AT(drop_at), 0, 1e9, NULL,
      "divide the learning rate by 10 from this step on (0: never)" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 1, NULL, "decoupled" },
    { "seed", WHOLE, OF_TRAINING, AT(common.seed), 0, 4294967295, NULL, "weights, data, dropout" },
};
static const Option of_this_run[] = {
    { "log", PATH, OF_RUN, AT(common.log), 0, 0, NULL,
      "CSV rows of step,loss,accuracy,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, plot_endings,
      "an SVG of loss and accuracy, by gnuplot" },
};
/* clang-format on */

const Command copy_task = {
    .program = "copy_task",
    .about = "usage: copy_task [OPTION]...\n\n"
             "Trains a transformer to copy: it reads random symbols and a separator, and\n"
             "writes the symbols again (Katharopoulos et al. 2020, Transformers are RNNs,\n"
             "section 4.1.1).",
    .tables = { OPTION_TABLE(of_the_model), OPTION_TABLE(model_rows), OPTION_TABLE(of_training),
                OPTION_TABLE(training_rows), OPTION_TABLE(device_rows), OPTION_TABLE(of_this_run),
                OPTION_TABLE(run_rows) },
    .presets = presets,
    .size = sizeof(Options),
    .preset_names = preset_names,
};

/* Checks combinations of options. */
static void check_together(const Options *options, const Given *given)
{
    static const char *const of_training_alone[] = { "drop-at", "weight-decay", NULL };
    training_check(&options->common, given, of_training_alone);
    if (option_given(given, "features") && strcmp(options->common.attention, "linear"))
        fail(BAD_USE, "--features %s: expected without --attention %s, which has none",
             options->common.features, options->common.attention);
    if (option_given(given, "rounds") && strcmp(options->common.attention, "lsh"))
        fail(BAD_USE, "--rounds %lld: expected without --attention %s, which has none",
             (long long)options->rounds, options->common.attention);
    if (options->common.heads * options->common.head_dim % 2)
        fail(BAD_USE,
             "--heads %lld --head-dim %lld: expected an even product, because half of the width "
             "embeds symbols and half positions",
             (long long)options->common.heads, (long long)options->common.head_dim);
}

Options copy_task_options(int argc, char **argv)
{
    Options options;
    Given given = options_parse(&copy_task, argc, argv, &options);
    check_together(&options, &given);
    return options;
}
