#include "examples/copy_task/options.h"
#include "examples/shared/program.h"

static const char *const preset_names[] = { "quick", "paper", NULL };
static const char *const presets[] = {
    "layers=2 heads=6 head-dim=16 feed-forward=256 batch=16 steps=4000 learning-rate=4e-3 clip=1 "
    "length=64 symbols=10 drop-at=3300",
    "layers=4 heads=8 head-dim=32 feed-forward=1024 batch=64 steps=10000 learning-rate=1e-3 "
    "dropout=0.1 length=128 symbols=10 drop-at=3000 weight-decay=0.01",
};
static const char *const attentions[] = { "linear", "softmax", "lsh", NULL };

#define AT(field) offsetof(Options, field)
/* clang-format off */
static const Option of_the_model[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), .choices = preset_names,
      .help = "defaults of the other options" },
    { "attention", CHOICE, OF_MODEL, AT(common.attention), .choices = attentions,
      .help = "causal" },
    { "rounds", WHOLE, OF_MODEL, AT(rounds), 1, 64, "1",
      .help = "hashing rounds of lsh attention" },
    { "length", WHOLE, OF_MODEL, AT(length), 8, 65536, .help = "positions per sequence" },
    { "symbols", WHOLE, OF_MODEL, AT(symbols), 1, 65535, .help = "size of the alphabet to copy" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_DATA, AT(common.batch), 1, 65536, .help = "sequences per step" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 1, 1e9,
      .help = "in total, including those before --resume" },
    { "drop-at", WHOLE, OF_TRAINING, AT(drop_at), 0, 1e9,
      .help = "divide the learning rate by 10 from this step on (0: never)" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 1, .help = "decoupled" },
    { "seed", WHOLE, OF_DATA, AT(common.seed), 0, 4294967295, "1",
      .help = "weights, data, dropout" },
};
static const Option of_this_run[] = {
    { "log", PATH, OF_PROGRESS, AT(common.log),
      .help = "CSV rows of step,loss,accuracy,learning_rate,seconds" },
    { "plot", PATH, OF_PROGRESS, AT(common.plot), .choices = plot_endings,
      .help = "an SVG of loss and accuracy, by gnuplot" },
};
/* clang-format on */

const Command copy_task = {
    .about = "usage: @ [OPTION]...\n\n"
             "Trains a transformer to copy: it reads random symbols and a separator, and\n"
             "writes the symbols again (Katharopoulos et al. 2020, Transformers are RNNs,\n"
             "section 4.1.1).",
    .tables = { TABLE(of_the_model), TABLE(model_rows), TABLE(of_training), TABLE(training_rows),
                TABLE(device_rows), TABLE(of_this_run), TABLE(run_rows) },
    .trainer = &copy_task,
    .program = "copy_task",
    .size = sizeof(Options),
    .presets = presets,
};

Options copy_task_options(int argc, char **argv)
{
    Options options;
    const Given given = options_parse(&copy_task, argc, argv, &options);
    const long long heads = options.common.heads, head_dim = options.common.head_dim;
    training_check(&options.common, &given);
    if (heads * head_dim % 2)
        fail(BAD_USE,
             "--heads %lld --head-dim %lld: expected an even product, because half of the width "
             "embeds symbols and half positions",
             heads, head_dim);
    return options;
}
