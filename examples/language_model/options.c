#include "examples/language_model/options.h"
#include "examples/language_model/vocabulary.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const preset_names[] = { "small", "shakespeare", NULL };
static const char *const presets[] = {
    "layers=4 heads=4 head-dim=32 feed-forward=512 batch=16 steps=2000 learning-rate=2e-3 clip=1 "
    "context=128 beta2=0.95 warm-up=100 evaluate-every=250",
    /* nanoGPT's configuration for a CPU: 4 layers of 4 heads, no dropout */
    "layers=4 heads=4 head-dim=32 feed-forward=512 batch=12 steps=2000 learning-rate=1e-3 clip=1 "
    "tokens=characters context=64 beta2=0.99 warm-up=100 split=0.1 evaluate-every=250",
};
static const char *const positions[] = { "learned", "rotary", "none", NULL };
const char *const optimizer_names[] = { "adamw", "radam", "muon", "schedule-free", NULL };

#define AT(field) offsetof(LanguageOptions, field)
/* clang-format off */
static const Option of_the_model[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), .choices = preset_names,
      .help = "defaults of the other options" },
    { "tokens", CHOICE, OF_MODEL, AT(tokens), .choices = token_kind_names,
      .help = "what the model predicts; pairs need --vocabulary" },
    { "context", WHOLE, OF_MODEL, AT(context), 1, 1048576, .help = "tokens of a window" },
    { "attention", CHOICE, OF_KIND, AT(common.attention), .choices = attention_names,
      .help = "causal" },
    { "window", WHOLE, OF_KIND, AT(window), 1, 1048576, "64",
      .help = "tokens, of --attention window and based" },
    { "positions", CHOICE, OF_KIND, AT(positions), .choices = positions,
      .help = "learned embeddings; rotary, in causal softmax and linear attention" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_DATA, AT(common.batch), 1, 65536, .help = "windows at a time" },
    { "tokens-per-update", WHOLE, OF_TRAINING, AT(tokens_per_update), 0, 1e9,
      .help = "gradients of several batches are accumulated to this number (0: one batch), each "
              "of which CUDA waits for" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9,
      .help = "updates in total, including those before --resume; the learning rate's cosine "
              "ends at the last one, so a resumed run with more steps goes on at a higher rate" },
    { "optimizer", CHOICE, OF_DATA, AT(optimizer), .choices = optimizer_names,
      .help = "with weight decay of matrices; muon steps other weights by AdamW" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 10, "0.1", .help = "decoupled" },
    { "beta2", NUMBER, OF_TRAINING, AT(beta2), 0, 0.999999, .help = "of squared gradients" },
    { "warm-up", WHOLE, OF_TRAINING, AT(warm_up), 0, 1e9,
      .help = "steps in which the learning rate rises; then it falls by a cosine, but stays "
              "constant for schedule-free" },
    { "last-rate", NUMBER, OF_TRAINING, AT(last_rate), 0, 1, "0.1",
      .help = "factor of the learning rate at the last step" },
    { "patience", WHOLE, OF_TRAINING, AT(patience), 0, 1e6,
      .help = "evaluations without a lower held-out loss that end the training (0: never)" },
    { "from", INPUT, OF_PROGRESS, AT(from),
      .help = "start from the weights and options of a checkpoint, but for those that are given, "
              "as --attention; weights that it lacks are drawn" },
    { "match", WHOLE, OF_TRAINING, AT(match), 0, 1e9, .later = true,
      .help = "in the first N steps the attention of each layer alone is trained, to give what "
              "the layer of --from gives for the same input" },
    { "split", NUMBER, OF_DATA, AT(split), 0, 0.9,
      .help = "hold out the last part of the training text, without --valid" },
    { "seed", WHOLE, OF_DATA, AT(common.seed), 0, 4294967295, "1",
      .help = "weights, windows, dropout" },
    { "log", PATH, OF_PROGRESS, AT(common.log),
      .help = "CSV rows of step, training_bits, heldout_bits, heldout_nats, with --match "
              "attention_error, learning_rate, seconds" },
    { "plot", PATH, OF_PROGRESS, AT(common.plot), .choices = plot_endings,
      .help = "an SVG of the bits per byte, by gnuplot" },
    { "evaluate-every", WHOLE, OF_PROGRESS, AT(evaluate_every), 0, 1e9,
      .help = "measure the held-out loss every N steps (0: at the end)" },
    { "evaluate-tokens", WHOLE, OF_PROGRESS, AT(evaluate_tokens), 1, 1e12, "65536",
      .help = "on the first N; at the end on all" },
    { "sample-every", WHOLE, OF_PROGRESS, AT(sample_every), 0, 1e9,
      .help = "print a sample every N steps (0: never)" },
};
static const Option texts[] = { /* two for prepare, three for evaluate */
    { "data", FOLDER, OF_RUN, AT(data),
      .help = "with train.txt and valid.txt, or train.txt.gz and valid.txt.gz" },
    { "train", INPUT, OF_RUN, AT(train), .help = "the text to learn, plain or gzipped" },
    { "valid", INPUT, OF_RUN, AT(valid), .help = "the held-out text, likewise" },
    { "vocabulary", INPUT, OF_RUN, AT(vocabulary),
      .help = "of language_model prepare; a checkpoint has its own" },
};
static const Option of_preparation[] = {
    { "tokens", CHOICE, OF_RUN, AT(tokens), .standard = "pairs", .choices = token_kind_names + 1,
      .help = "of the vocabulary" },
    { "vocabulary-size", WHOLE, OF_RUN, AT(vocabulary_size), BYTES, MAX_VOCABULARY, "1024",
      .help = "tokens, of which 256 are bytes; for pairs" },
    { "vocabulary", PATH, OF_RUN, AT(vocabulary), .help = "the file to write" },
};
static const Option checkpoint[] = {
    { "load", CHECKPOINT, OF_RUN, AT(common.load), .help = "a checkpoint of language_model train" },
};
static const Option of_sampling[] = {
    { "prompt", STRING, OF_RUN, AT(prompt), .standard = "", .help = "to continue" },
    { "length", WHOLE, OF_RUN, AT(length), 0, 1e9, "500", .help = "tokens after the prompt" },
    { "temperature", NUMBER, OF_RUN, AT(temperature), 0, 1e9, "0.8",
      .help = "0: always the likeliest token" },
    { "top-k", WHOLE, OF_RUN, AT(top_k), 0, 1e6, .help = "of the likeliest tokens (0: all)" },
    { "top-p", NUMBER, OF_RUN, AT(top_p), 1e-6, 1, "1",
      .help = "draw from the likeliest tokens of this probability" },
    { "seed", WHOLE, OF_RUN, AT(draw), 0, 4294967295, "1", .help = "of the random draws" },
};
static const Option of_evaluation[] = {
    { "batch", WHOLE, OF_RUN, AT(at_once), 1, 65536, "16", .help = "windows at a time" },
    { "split", NUMBER, OF_RUN, AT(split), 0, 0.9, .help = "the last part of --train" },
};
static const Option of_export[] = {
    { "to", PATH, OF_RUN, AT(to), .help = "the C file to write" },
};
static const Option of_steps[] = {
    { "precision", CHOICE, OF_RUN, AT(common.precision), .choices = step_precision_names,
      .help = "tf32: of products on CUDA; bf16: of a step's weights and KV cache on the CPU" },
    { "int8", FLAG, OF_RUN, AT(int8), .help = "on the CPU: a step's weights in 8 bits" },
};
/* clang-format on */

const Command language_prepare_command = {
    .about = "usage: @ prepare --data DIR --vocabulary FILE [OPTION]...\n\n"
             "Makes a vocabulary of the training text: byte pairs (Sennrich et al. 2016)\n"
             "or its characters.",
    .tables = { TABLE(of_preparation), { texts, 2 } },
    .trainer = &language_train_command,
};

const Command language_train_command = {
    .about = "usage: @ train --data DIR [OPTION]...\n"
             "       @ train --train FILE [--valid FILE | --split X] [OPTION]...\n\n"
             "Trains a transformer to predict every token of a text from the previous ones.",
    .tables = { TABLE(of_the_model), TABLE(model_rows), TABLE(of_training), TABLE(training_rows),
                TABLE(texts), TABLE(device_rows), TABLE(run_rows) },
    .trainer = &language_train_command,
    .program = "language_model",
    .size = sizeof(LanguageOptions),
    .presets = presets,
};

const Command language_evaluate_command = {
    .about = "usage: @ evaluate --load FILE --data DIR [OPTION]...\n\n"
             "Prints the bits per byte of the held-out text by decode steps, as it is sampled,\n"
             "which measures the loss by bf16 or 8-bit weights. (train --load FILE --evaluate\n"
             "uses the parallel form.)",
    .tables = { TABLE(checkpoint),
                TABLE(of_evaluation),
                { texts, 3 },
                TABLE(of_steps),
                TABLE(device_rows) },
    .trainer = &language_train_command,
};

const Command language_sample_command = {
    .about = "usage: @ sample --load FILE [--prompt TEXT] [OPTION]...\n\n"
             "Continues the prompt token by token.",
    .tables = { TABLE(checkpoint), TABLE(of_sampling), TABLE(of_steps), TABLE(device_rows) },
    .trainer = &language_train_command,
};

const Command language_export_command = {
    .about = "usage: @ export --load FILE --to FILE.c\n\n"
             "Writes a model of linear attention, with or without a decay, and its vocabulary\n"
             "as one C file, which compiles without this library: cc -O2 FILE.c -lm",
    .tables = { TABLE(checkpoint), TABLE(of_export) },
    .trainer = &language_train_command,
};

const char *language_file(const Given *given, const char *name)
{
    static char paths[2][4096];
    char *path = paths[!strcmp(name, "valid")];
    const char *folder = option_given(given, "data");
    if (option_given(given, name))
        return option_given(given, name);
    if (!folder)
        fail(BAD_USE, "expected --data DIR, with %s.txt or %s.txt.gz, or --%s FILE%s", name, name,
             name, path == paths[1] ? ", or --split X" : "");
    for (int gzipped = 0; gzipped < 2; gzipped++) {
        snprintf(path, sizeof *paths, "%s/%s.txt%s", folder, name, gzipped ? ".gz" : "");
        if (access(path, F_OK) == 0) {
            options_check_input(given, path);
            return path;
        }
    }
    fail(EXIT_FAILURE, "--data %s: there is no %s.txt, with or without .gz", folder, name);
}

bool language_splits(const LanguageOptions *options, const Given *given)
{
    if (options->valid)
        options_refuse(given, "split", "--valid %s", options->valid);
    if (options->data)
        options_refuse(given, "split", "--data %s", options->data);
    return options->split > 0 && !options->valid && !options->data;
}
