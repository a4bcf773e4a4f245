#include "examples/speech/options.h"
#include "examples/shared/program.h"
#include "examples/speech/data.h"

#include <stdio.h>
#include <string.h>

static const char *const preset_names[] = { "small", "paper", "lstm", "streaming", NULL };
static const char *const presets[] = {
    "layers=4 heads=4 head-dim=32 feed-forward=512 batch=8 learning-rate=1.5e-3 clip=1 "
    "dropout=0.1 stride=3 context=6 lookahead=6 epochs=50",
    "layers=9 heads=6 head-dim=32 feed-forward=768 batch=32 learning-rate=1e-4 clip=1 "
    "dropout=0.1 stride=1 epochs=200",
    "model=lstm layers=3 heads=4 head-dim=32 feed-forward=512 batch=8 learning-rate=1e-3 clip=1 "
    "dropout=0.1 stride=3 epochs=50",
    "causal=yes layers=4 heads=4 head-dim=32 feed-forward=512 batch=8 learning-rate=1.5e-3 clip=1 "
    "dropout=0.1 stride=3 context=12 epochs=50",
};
static const char *const models[] = { "transformer", "lstm", NULL };
static const char *const attentions[] = { "linear", "softmax", "lsh", NULL };
static const char *const no_yes[] = { "no", "yes", NULL };
static const char *const endings[] = { ".png", ".svg", NULL };
static const char *const splits[] = { "standard", "speaker", NULL };

#define AT(field) offsetof(SpeechOptions, field)
/* clang-format off */
static const Option of_the_model[] = {
    { "preset", CHOICE, OF_MODEL, AT(common.preset), .choices = preset_names,
      .help = "defaults of the other options" },
    { "model", CHOICE, OF_MODEL, AT(model), .choices = models,
      .help = "with attention, or recurrent" },
    { "causal", CHOICE, OF_MODEL, AT(causal), .choices = no_yes,
      .help = "a position depends on no later one, as speech stream needs it" },
    { "attention", CHOICE, OF_MODEL, AT(common.attention), .choices = attentions,
      .help = "of the transformer" },
    { "rounds", WHOLE, OF_MODEL, AT(rounds), 1, 64, "4",
      .help = "hashing rounds of lsh attention" },
    { "hidden", WHOLE, OF_MODEL, AT(hidden), 1, 65536, "128",
      .help = "width of the lstm in a direction" },
    { "stride", WHOLE, OF_MODEL, AT(stride), 1, 16, .help = "frames of 10 ms per position" },
    { "context", WHOLE, OF_MODEL, AT(context), 0, 32,
      .help = "frames before these that a position reads" },
    { "lookahead", WHOLE, OF_MODEL, AT(lookahead), 0, 32, .help = "and after these" },
};
static const Option of_training[] = {
    { "batch", WHOLE, OF_DATA, AT(common.batch), 1, 4096, .help = "strings per step" },
    { "epochs", NUMBER, OF_GOAL, AT(epochs), 1e-6, 1e6, .help = "passes over the recordings" },
    { "steps", WHOLE, OF_GOAL, AT(common.steps), 0, 1e9,
      .help = "instead of --epochs (0: by --epochs)" },
    { "patience", WHOLE, OF_TRAINING, AT(patience), 0, 1e6, "2",
      .help = "epochs without progress before the learning rate halves" },
    { "split", CHOICE, OF_TRAINING, AT(split), .choices = splits,
      .help = "of test recordings: 0 to 4, or two speakers who are not heard in training" },
    { "seed", WHOLE, OF_DATA, AT(common.seed), 0, 4294967295, "1",
      .help = "weights, strings, dropout" },
    { "log", PATH, OF_RUN, AT(common.log),
      .help = "CSV rows of step,loss,validation_error,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(common.plot), .choices = plot_endings,
      .help = "an SVG of loss and error, by gnuplot" },
};
static const Option of_strings[] = {
    { "data", FOLDER, OF_RUN, AT(data),
      .help = "the folder with the recordings of the Free Spoken Digit Dataset" },
    { "min-digits", WHOLE, OF_TRAINING, AT(min_digits), 1, MAX_DIGITS, "5",
      .help = "the minimum of a string" },
    { "max-digits", WHOLE, OF_TRAINING, AT(max_digits), 1, MAX_DIGITS, "10",
      .help = "the maximum of a string" },
    { "strings", WHOLE, OF_RUN, AT(strings), 1, 1e6, "200",
      .help = "that the error is measured on" },
};
static const Option of_a_model[] = {
    { "load", CHECKPOINT, OF_RUN, AT(common.load), .help = "a checkpoint of speech train" },
};
static const Option of_decoding[] = {
    { "beam", WHOLE, OF_RUN, AT(beam), 1, 1000, "10", .help = "prefixes of the beam search" },
};
static const Option of_pictures[] = {
    { "plot", PATH, OF_RUN, AT(common.plot), .choices = endings, .help = "by gnuplot" },
};
/* clang-format on */

const Command speech_train_command = {
    .about = "usage: @ train --data DIR [OPTION]...\n\n"
             "Trains a model of strings of spoken digits by connectionist temporal\n"
             "classification (Katharopoulos et al. 2020, Transformers are RNNs, section 4.3).",
    /* Those of run_rows that apply: evaluate is a command here, and steps cannot be replayed. */
    .tables = { TABLE(of_the_model),
                TABLE(model_rows),
                TABLE(of_training),
                TABLE(training_rows),
                TABLE(of_strings),
                TABLE(device_rows),
                { run_rows, RUN_LOAD },
                { run_rows + RUN_PRECISION, 1 },
                { run_rows + RUN_PROFILE, RUN_ROWS - RUN_PROFILE } },
    .trainer = &speech_train_command,
    .program = "speech",
    .size = sizeof(SpeechOptions),
    .presets = presets,
};

const Command speech_evaluate_command = {
    .about = "usage: @ evaluate --load FILE --data DIR [OPTION]...\n\n"
             "Measures the error rate of phonemes on strings of the test recordings.",
    .tables = { TABLE(of_a_model), TABLE(of_strings), TABLE(of_decoding), TABLE(device_rows) },
    .trainer = &speech_train_command,
};

const Command speech_recognize_command = {
    .argument = "a sound file",
    .about = "usage: @ recognize FILE --load FILE [OPTION]...\n\n"
             "Prints the digits and phonemes of a sound file, with their times.",
    .tables = { TABLE(of_a_model), TABLE(of_decoding), TABLE(of_pictures), TABLE(device_rows) },
    .trainer = &speech_train_command,
};

const Command speech_stream_command = {
    .argument = "a sound file",
    .about = "usage: @ stream FILE --load FILE [OPTION]...\n\n"
             "Prints the digits and phonemes of a sound file as a causal model finds them in\n"
             "blocks of 10 ms, and the latency per block.",
    .tables = { TABLE(of_a_model), TABLE(device_rows) },
    .trainer = &speech_train_command,
};

const Command speech_features_command = {
    .argument = "a sound file",
    .about = "usage: @ features FILE --plot FILE\n\n"
             "Draws the spectrogram of a sound file: its log-mel filter banks, which models\n"
             "read.",
    .tables = { TABLE(of_pictures) },
    .trainer = &speech_train_command,
};

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
