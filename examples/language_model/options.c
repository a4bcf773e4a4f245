#include "examples/language_model/options.h"
#include "examples/language_model/vocabulary.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMON                                                                                     \
    .attention = "softmax", .features = "elu+1", .seed = 1, .score_every = 1, .device = "auto",    \
    .precision = "float32"
#define EVERYWHERE                                                                                 \
    .positions = "learned", .optimizer = "adamw", .weight_decay = 0.1, .last_rate = 0.1,           \
    .evaluate_tokens = 65536, .vocabulary_size = 1024, .prompt = "", .length = 500, .draw = 1,     \
    .at_once = 16, .temperature = 0.8, .top_p = 1

/* clang-format off */
static const LanguageOptions presets[] = {
    { { COMMON, .preset = "small", .layers = 4, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 16, .steps = 2000, .learning_rate = 2e-3, .clip = 1 },
      EVERYWHERE, .tokens = "bytes", .context = 128, .beta2 = 0.95, .warm_up = 100,
      .evaluate_every = 250 },
    /* nanoGPT's configuration for a CPU: 4 layers of 4 heads, no dropout */
    { { COMMON, .preset = "shakespeare", .layers = 4, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 12, .steps = 2000, .learning_rate = 1e-3, .clip = 1 },
      EVERYWHERE, .tokens = "characters", .context = 64, .beta2 = 0.99, .warm_up = 100,
      .split = 0.1, .evaluate_every = 250 },
};
static const char *const preset_names[] = { "small", "shakespeare", NULL };
static const char *const positions[] = { "learned", "rotary", "none", NULL };
const char *const optimizer_names[] = { "adamw", "radam", "muon", "schedule-free", NULL };

#define AT(field) offsetof(LanguageOptions, field)
static const Option of_the_model[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), 0, 0, preset_names,
      "defaults of the other options" },
    { "tokens", CHOICE, OF_MODEL, AT(tokens), 0, 0, token_kind_names,
      "what the model predicts; pairs need --vocabulary" },
    { "context", WHOLE, OF_MODEL, AT(context), 1, 1048576, NULL, "tokens of a window" },
    { "attention", CHOICE, OF_MODEL, AT(common.attention), 0, 0, attention_names, "causal" },
    { "positions", CHOICE, OF_MODEL, AT(positions), 0, 0, positions,
      "learned embeddings; rotary, in causal softmax and linear attention" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_TRAINING, AT(common.batch), 1, 65536, NULL, "windows at a time" },
    { "tokens-per-update", WHOLE, OF_TRAINING, AT(tokens_per_update), 0, 1e9, NULL,
      "gradients of several batches are accumulated to this number (0: one batch), each of which "
      "CUDA waits for" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9, NULL,
      "updates in total, including those before --resume; the learning rate's cosine ends at the "
      "last one, so a resumed run with more steps goes on at a higher rate" },
    { "optimizer", CHOICE, OF_TRAINING, AT(optimizer), 0, 0, optimizer_names,
      "with weight decay of matrices; muon steps other weights by AdamW" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 10, NULL, "decoupled" },
    { "beta2", NUMBER, OF_TRAINING, AT(beta2), 0, 0.999999, NULL, "of squared gradients" },
    { "warm-up", WHOLE, OF_TRAINING, AT(warm_up), 0, 1e9, NULL,
      "steps in which the learning rate rises; then it falls by a cosine, but stays constant for "
      "schedule-free" },
    { "last-rate", NUMBER, OF_TRAINING, AT(last_rate), 0, 1, NULL,
      "factor of the learning rate at the last step" },
    { "patience", WHOLE, OF_TRAINING, AT(patience), 0, 1e6, NULL,
      "evaluations without a lower held-out loss that end the training (0: never)" },
    { "split", NUMBER, OF_TRAINING, AT(split), 0, 0.9, NULL,
      "hold out the last part of the training text, without --valid" },
    { "seed", WHOLE, OF_TRAINING, AT(common.seed), 0, 4294967295, NULL,
      "weights, windows, dropout" },
    { "log", PATH, OF_RUN, AT(common.log), 0, 0, NULL,
      "CSV rows of step, training_bits, heldout_bits, heldout_nats, learning_rate, seconds" },
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, plot_endings,
      "an SVG of the bits per byte, by gnuplot" },
    { "evaluate-every", WHOLE, OF_RUN, AT(evaluate_every), 0, 1e9, NULL,
      "measure the held-out loss every N steps (0: at the end)" },
    { "evaluate-tokens", WHOLE, OF_RUN, AT(evaluate_tokens), 1, 1e12, NULL,
      "on the first N; at the end on all" },
    { "sample-every", WHOLE, OF_RUN, AT(sample_every), 0, 1e9, NULL,
      "print a sample every N steps (0: never)" },
};
static const Option texts[] = {
    { "data", FOLDER, OF_RUN, AT(data), 0, 0, NULL,
      "with train.txt and valid.txt, or train.txt.gz and valid.txt.gz" },
    { "train", INPUT, OF_RUN, AT(train), 0, 0, NULL, "the text to learn, plain or gzipped" },
    { "valid", INPUT, OF_RUN, AT(valid), 0, 0, NULL, "the held-out text, likewise" },
};
static const Option vocabulary[] = {
    { "vocabulary", INPUT, OF_RUN, AT(vocabulary), 0, 0, NULL,
      "of language_model prepare; a checkpoint has its own" },
};
static const Option of_preparation[] = {
    { "tokens", CHOICE, OF_RUN, AT(tokens), 0, 0, token_kind_names + 1, "of the vocabulary" },
    { "vocabulary-size", WHOLE, OF_RUN, AT(vocabulary_size), BYTES, MAX_VOCABULARY, NULL,
      "tokens, of which 256 are bytes; for pairs" },
    { "vocabulary", PATH, OF_RUN, AT(vocabulary), 0, 0, NULL, "the file to write" },
};
static const Option checkpoint[] = {
    { "load", CHECKPOINT, OF_RUN, AT(common.load), 0, 0, NULL,
      "a checkpoint of language_model train" },
};
static const Option of_sampling[] = {
    { "prompt", STRING, OF_RUN, AT(prompt), 0, 0, NULL, "to continue" },
    { "length", WHOLE, OF_RUN, AT(length), 0, 1e9, NULL, "tokens after the prompt" },
    { "temperature", NUMBER, OF_RUN, AT(temperature), 0, 1e9, NULL,
      "0: always the likeliest token" },
    { "top-k", WHOLE, OF_RUN, AT(top_k), 0, 1e6, NULL, "of the likeliest tokens (0: all)" },
    { "top-p", NUMBER, OF_RUN, AT(top_p), 1e-6, 1, NULL,
      "draw from the likeliest tokens of this probability" },
    { "seed", WHOLE, OF_RUN, AT(draw), 0, 4294967295, NULL, "of the random draws" },
};
static const Option of_evaluation[] = {
    { "batch", WHOLE, OF_RUN, AT(at_once), 1, 65536, NULL, "windows at a time" },
    { "split", NUMBER, OF_RUN, AT(split), 0, 0.9, NULL, "the last part of --train" },
};
static const Option of_steps[] = {
    { "precision", CHOICE, OF_RUN, AT(common.precision), 0, 0, step_precision_names,
      "tf32: of products on CUDA; bf16: of a step's weights and KV cache on the CPU" },
    { "int8", FLAG, OF_RUN, AT(int8), 0, 0, NULL, "on the CPU: a step's weights in 8 bits" },
};
/* clang-format on */

const Command language_prepare_command = {
    .program = "language_model",
    .about = "usage: language_model prepare --data DIR --vocabulary FILE [OPTION]...\n\n"
             "Makes a vocabulary of the training text: byte pairs (Sennrich et al. 2016)\n"
             "or its characters.",
    .tables = { OPTION_TABLE(of_preparation), { texts, 2 /* not --valid */ } },
    .presets = &(const LanguageOptions){ { COMMON }, EVERYWHERE, .tokens = "pairs" },
    .size = sizeof(LanguageOptions),
};

const Command language_train_command = {
    .program = "language_model",
    .about = "usage: language_model train --data DIR [OPTION]...\n"
             "       language_model train --train FILE [--valid FILE | --split X] [OPTION]...\n\n"
             "Trains a transformer to predict every token of a text from the previous ones.",
    .tables = { OPTION_TABLE(of_the_model), OPTION_TABLE(model_rows), OPTION_TABLE(of_training),
                OPTION_TABLE(training_rows), OPTION_TABLE(texts), OPTION_TABLE(vocabulary),
                OPTION_TABLE(device_rows), OPTION_TABLE(run_rows) },
    .presets = presets,
    .size = sizeof(LanguageOptions),
    .preset_names = preset_names,
};

const Command language_evaluate_command = {
    .program = "language_model",
    .about = "usage: language_model evaluate --load FILE --data DIR [OPTION]...\n\n"
             "Prints the bits per byte of the held-out text by decode steps, as it is sampled,\n"
             "which measures the loss by bf16 or 8-bit weights. (language_model train --load\n"
             "FILE --evaluate uses the parallel form.)",
    .tables = { OPTION_TABLE(checkpoint), OPTION_TABLE(of_evaluation), OPTION_TABLE(texts),
                OPTION_TABLE(of_steps), OPTION_TABLE(device_rows) },
    .trainer = &language_train_command,
    .presets = presets,
    .size = sizeof(LanguageOptions),
};

const Command language_sample_command = {
    .program = "language_model",
    .about = "usage: language_model sample --load FILE [--prompt TEXT] [OPTION]...\n\n"
             "Continues the prompt token by token.",
    .tables = { OPTION_TABLE(checkpoint), OPTION_TABLE(of_sampling), OPTION_TABLE(of_steps),
                OPTION_TABLE(device_rows) },
    .trainer = &language_train_command,
    .presets = presets,
    .size = sizeof(LanguageOptions),
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
    const char *name = options->valid ? "valid" : "data";
    const char *text = options->valid ? options->valid : options->data;
    if (option_given(given, "split") && text)
        fail(BAD_USE, "--split %s: expected without --%s %s", option_given(given, "split"), name,
             text);
    return options->split > 0 && !text;
}
