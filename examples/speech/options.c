#include "examples/speech/options.h"
#include "examples/shared/program.h"
#include "examples/speech/data.h"

#include <stdio.h>
#include <string.h>

#define EVERYWHERE                                                                                 \
    .rounds = 4, .hidden = 128, .split = "standard", .patience = 2, .beam = 10, .strings = 200,    \
    .min_digits = 5, .max_digits = 10

/* clang-format off */
static const SpeechOptions presets[] = {
    { { TRAINING_DEFAULTS, .preset = "small", .layers = 4, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 8, .learning_rate = 1.5e-3, .clip = 1, .dropout = 0.1 },
      EVERYWHERE, .model = "transformer", .causal = "no", .stride = 3, .context = 6, .lookahead = 6,
      .epochs = 50 },
    { { TRAINING_DEFAULTS, .preset = "paper", .layers = 9, .heads = 6, .head_dim = 32,
        .feed_forward = 768, .batch = 32, .learning_rate = 1e-4, .clip = 1, .dropout = 0.1 },
      EVERYWHERE, .model = "transformer", .causal = "no", .stride = 1, .epochs = 200 },
    { { TRAINING_DEFAULTS, .preset = "lstm", .layers = 3, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 8, .learning_rate = 1e-3, .clip = 1, .dropout = 0.1 },
      EVERYWHERE, .model = "lstm", .causal = "no", .stride = 3, .epochs = 50 },
    { { TRAINING_DEFAULTS, .preset = "streaming", .layers = 4, .heads = 4, .head_dim = 32,
        .feed_forward = 512, .batch = 8, .learning_rate = 1.5e-3, .clip = 1, .dropout = 0.1 },
      EVERYWHERE, .model = "transformer", .causal = "yes", .stride = 3, .context = 12,
      .epochs = 50 },
};
static const char *const preset_names[] = { "small", "paper", "lstm", "streaming", NULL };
static const char *const models[] = { "transformer", "lstm", NULL };
static const char *const attentions[] = { "linear", "softmax", "lsh", NULL };
static const char *const no_yes[] = { "no", "yes", NULL };
static const char *const endings[] = { ".png", ".svg", NULL };
static const char *const splits[] = { "standard", "speaker", NULL };

#define AT(field) offsetof(SpeechOptions, field)
static const Option of_the_model[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), 0, 0, preset_names,
      "defaults of the other options" },
    { "model", CHOICE, OF_MODEL, AT(model), 0, 0, models,
      "with attention, or recurrent" },
    { "causal", CHOICE, OF_MODEL, AT(causal), 0, 0, no_yes,
      "a position depends on no later one, as speech stream needs it" },
    { "attention", CHOICE, OF_MODEL, AT(common.attention), 0, 0, attentions,
      "of the transformer" },
    { "rounds", WHOLE, OF_MODEL, AT(rounds), 1, 64, NULL, "hashing rounds of lsh attention" },
    { "hidden", WHOLE, OF_MODEL, AT(hidden), 1, 65536, NULL, "width of the lstm in a direction" },
    { "stride", WHOLE, OF_MODEL, AT(stride), 1, 16, NULL, "frames of 10 ms per position" },
    { "context", WHOLE, OF_MODEL, AT(context), 0, 32, NULL,
      "frames before these that a position reads" },
    { "lookahead", WHOLE, OF_MODEL, AT(lookahead), 0, 32, NULL, "and after these" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_TRAINING, AT(common.batch), 1, 4096, NULL, "strings per step" },
    { "epochs", NUMBER, OF_GOAL, AT(epochs), 1e-6, 1e6, NULL, "passes over the recordings" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9, NULL,
      "instead of --epochs (0: by --epochs)" },
    { "patience", WHOLE, OF_TRAINING, AT(patience), 0, 1e6, NULL,
      "epochs without progress before the learning rate halves" },
    { "split", CHOICE, OF_TRAINING, AT(split), 0, 0, splits,
      "of test recordings: 0 to 4, or two speakers who are not heard in training" },
    { "seed", WHOLE, OF_TRAINING, AT(common.seed), 0, 4294967295, NULL,
      "weights, strings, dropout" },
    { "log", PATH, OF_RUN, AT(common.log), 0, 0, NULL,
      "CSV rows of step,loss,validation_error,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, plot_endings,
      "an SVG of loss and error, by gnuplot" },
};
static const Option of_strings[] = {
    { "data", FOLDER, OF_RUN, AT(data), 0, 0, NULL,
      "the folder with the recordings of the Free Spoken Digit Dataset" },
    { "min-digits", WHOLE, OF_TRAINING, AT(min_digits), 1, MAX_DIGITS, NULL,
      "the minimum of a string" },
    { "max-digits", WHOLE, OF_TRAINING, AT(max_digits), 1, MAX_DIGITS, NULL,
      "the maximum of a string" },
    { "strings", WHOLE, OF_RUN, AT(strings), 1, 1e6, NULL, "that the error is measured on" },
};
static const Option of_a_model[] = {
    { "load", CHECKPOINT, OF_RUN, AT(common.load), 0, 0, NULL,
      "a checkpoint of speech train" },
};
static const Option of_decoding[] = {
    { "beam", WHOLE, OF_RUN, AT(beam), 1, 1000, NULL, "prefixes of the beam search" },
};
static const Option of_pictures[] = {
    { "plot", PATH, OF_RUN, AT(common.plot), 0, 0, endings, "by gnuplot" },
};
/* clang-format on */

/* Those of run_rows that apply: evaluate is a command here, and steps cannot be replayed. */
#define SAVING                                                                                     \
    {                                                                                              \
        run_rows, RUN_LOAD                                                                         \
    }
#define PRECISION                                                                                  \
    {                                                                                              \
        run_rows + RUN_PRECISION, 1                                                                \
    }
#define QUIET                                                                                      \
    {                                                                                              \
        run_rows + RUN_QUIET, 1                                                                    \
    }

const Command speech_train_command = {
    .program = "speech",
    .about = "usage: speech train --data DIR [OPTION]...\n\n"
             "Trains a model of strings of spoken digits by connectionist temporal\n"
             "classification (Katharopoulos et al. 2020, Transformers are RNNs, section 4.3).",
    .tables = { OPTION_TABLE(of_the_model), OPTION_TABLE(model_rows), OPTION_TABLE(of_training),
                OPTION_TABLE(training_rows), OPTION_TABLE(of_strings), OPTION_TABLE(device_rows),
                SAVING, PRECISION, QUIET },
    .presets = presets,
    .size = sizeof(SpeechOptions),
    .preset_names = preset_names,
};

const Command speech_evaluate_command = {
    .program = "speech",
    .about = "usage: speech evaluate --load FILE --data DIR [OPTION]...\n\n"
             "Measures the error rate of phonemes on strings of the test recordings.",
    .tables = { OPTION_TABLE(of_a_model), OPTION_TABLE(of_strings), OPTION_TABLE(of_decoding),
                OPTION_TABLE(device_rows) },
    .trainer = &speech_train_command,
    .presets = presets,
    .size = sizeof(SpeechOptions),
};

const Command speech_recognize_command = {
    .program = "speech",
    .argument = "a sound file: speech recognize FILE",
    .about = "usage: speech recognize FILE --load FILE [OPTION]...\n\n"
             "Prints the digits and phonemes of a sound file, with their times.",
    .tables = { OPTION_TABLE(of_a_model), OPTION_TABLE(of_decoding), OPTION_TABLE(of_pictures),
                OPTION_TABLE(device_rows) },
    .trainer = &speech_train_command,
    .presets = presets,
    .size = sizeof(SpeechOptions),
};

const Command speech_stream_command = {
    .program = "speech",
    .argument = "a sound file: speech stream FILE",
    .about = "usage: speech stream FILE --load FILE [OPTION]...\n\n"
             "Prints the digits and phonemes of a sound file as a causal model finds them in\n"
             "blocks of 10 ms, and the latency per block.",
    .tables = { OPTION_TABLE(of_a_model), OPTION_TABLE(device_rows) },
    .trainer = &speech_train_command,
    .presets = presets,
    .size = sizeof(SpeechOptions),
};

const Command speech_features_command = {
    .program = "speech",
    .argument = "a sound file: speech features FILE",
    .about = "usage: speech features FILE --plot FILE\n\n"
             "Draws the spectrogram of a sound file: its log-mel filter banks, which models\n"
             "read.",
    .tables = { OPTION_TABLE(of_pictures) },
    .trainer = &speech_train_command,
    .presets = presets,
    .size = sizeof(SpeechOptions),
};

void speech_check_model(const SpeechOptions *options, const Given *given)
{
    static const char *const of_linear[] = { "features", NULL }, *const of_lsh[] = { "rounds",
                                                                                     NULL };
    static const char *const of_lstm[] = { "hidden", NULL };
    static const char *const of_attention[] = { "attention", "features",     "rounds", "heads",
                                                "head-dim",  "feed-forward", NULL };
    const char *attention = options->common.attention;
    char what[64];
    snprintf(what, sizeof what, "--attention %s, which has none", attention);
    if (!strcmp(options->model, "lstm"))
        options_refuse(given, of_attention, "--model lstm, which has none");
    else
        options_refuse(given, of_lstm, "--model transformer, which has none");
    if (strcmp(attention, "linear"))
        options_refuse(given, of_linear, what);
    if (strcmp(attention, "lsh"))
        options_refuse(given, of_lsh, what);
}

void speech_check_data(const SpeechOptions *options)
{
    if (!options->data)
        fail(BAD_USE,
             "expected --data DIR, the folder with the recordings of the Free Spoken Digit "
             "Dataset: DIGIT_SPEAKER_INDEX.wav");
    if (options->min_digits > options->max_digits)
        fail(BAD_USE, "--min-digits %lld: expected at most --max-digits %lld",
             (long long)options->min_digits, (long long)options->max_digits);
}

void speech_check_checkpoint(const SpeechOptions *options)
{
    if (!options->common.load)
        fail(BAD_USE, "expected --load FILE, a checkpoint of speech train");
}
