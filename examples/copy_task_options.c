#include "examples/copy_task_options.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BAD_USE = 2 };

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
enum { PRESETS = sizeof presets / sizeof *presets };

typedef enum { WHOLE, NUMBER, CHOICE, PATH, FLAG } Kind;
typedef enum { OF_MODEL, OF_TRAINING, OF_RUN } Scope;

/* One option a row: everything else in this file is read off this table. */
typedef struct Row {
    const char *name;
    Kind kind;
    Scope scope;
    size_t offset;              /* of the field in Options */
    double low, high;           /* of WHOLE and NUMBER, both allowed */
    const char *const *choices; /* of CHOICE, ended by NULL */
    const char *help;
} Row;

static const char *const preset_names[] = { "quick", "paper", NULL };
static const char *const attentions[] = { "linear", "softmax", "lsh", NULL };
const char *const feature_names[] = {
    [FEATURES_ELU_PLUS_ONE] = "elu+1",
    [FEATURES_RELU] = "relu",
    [FEATURES_SOFTPLUS] = "softplus",
    [FEATURES_IDENTITY] = "identity",
    [FEATURES_SQUARED_RELU] = "squared-relu",
    [FEATURES_POLYNOMIAL] = "polynomial",
    [FEATURES_RANDOM] = "random",
    NULL,
};
static const char *const devices[] = { "auto", "cpu", "cuda", NULL };
static const char *const precisions[] = { "float32", "tf32", "bf16", NULL };

#define AT(field) offsetof(Options, field)
/* clang-format off */
static const Row rows[] = {
    { "preset", CHOICE, OF_MODEL, AT(preset), 0, 0, preset_names, "where the others start" },
    { "attention", CHOICE, OF_MODEL, AT(attention), 0, 0, attentions, "causal, each" },
    { "features", CHOICE, OF_MODEL, AT(features), 0, 0, feature_names, "of linear attention" },
    { "rounds", WHOLE, OF_MODEL, AT(rounds), 1, 64, NULL, "of hashing, of lsh attention" },
    { "length", WHOLE, OF_MODEL, AT(length), 8, 65536, NULL, "positions of a sequence" },
    { "symbols", WHOLE, OF_MODEL, AT(symbols), 1, 65535, NULL, "how many there are to copy" },
    { "layers", WHOLE, OF_MODEL, AT(layers), 1, NN_MAX_LAYERS, NULL, "of the transformer" },
    { "heads", WHOLE, OF_MODEL, AT(heads), 1, 1024, NULL, "of attention, in a layer" },
    { "head-dim", WHOLE, OF_MODEL, AT(head_dim), 1, 1024, NULL, "numbers a head" },
    { "feed-forward", WHOLE, OF_MODEL, AT(feed_forward), 1, 65536, NULL, "hidden numbers" },
    { "batch", WHOLE, OF_TRAINING, AT(batch), 1, 65536, NULL, "sequences a step" },
    { "steps", WHOLE, OF_RUN, AT(steps), 1, 1e9, NULL, "in all, with those before a resume" },
    { "learning-rate", NUMBER, OF_TRAINING, AT(learning_rate), 1e-6, 1, NULL, "of RAdam" },
    { "drop-at", WHOLE, OF_TRAINING, AT(drop_at), 0, 1e9, NULL,
      "a tenth of the learning rate from this step on (0: never)" },
    { "clip", NUMBER, OF_TRAINING, AT(clip), 0, 1e6, NULL, "the gradient's norm (0: never)" },
    { "dropout", NUMBER, OF_TRAINING, AT(dropout), 0, 0.9, NULL, "probability" },
    { "weight-decay", NUMBER, OF_TRAINING, AT(weight_decay), 0, 1, NULL, "decoupled" },
    { "seed", WHOLE, OF_TRAINING, AT(seed), 0, 4294967295, NULL, "weights, data, dropout" },
    { "device", CHOICE, OF_RUN, AT(device), 0, 0, devices, "where to compute" },
    { "precision", CHOICE, OF_RUN, AT(precision), 0, 0, precisions, "on CUDA; see the README" },
    { "eager", FLAG, OF_RUN, AT(eager), 0, 0, NULL, "on CUDA: no step is recorded and replayed" },
    { "threads", WHOLE, OF_RUN, AT(threads), 1, 1024, NULL, "of the CPU (default: all cores)" },
    { "log", PATH, OF_RUN, AT(log), 0, 0, NULL,
      "rows of step,loss,accuracy,learning_rate,seconds" },
    { "plot", PATH, OF_RUN, AT(plot), 0, 0, NULL, "an SVG of loss and accuracy, by gnuplot" },
    { "save", PATH, OF_RUN, AT(save), 0, 0, NULL, "a checkpoint, at the end and on Ctrl-C" },
    { "save-every", WHOLE, OF_RUN, AT(save_every), 1, 1e9, NULL, "and every so many steps" },
    { "score-every", WHOLE, OF_RUN, AT(score_every), 1, 1e9, NULL,
      "log and show every so many steps; between them CUDA need not wait" },
    { "resume", PATH, OF_RUN, AT(resume), 0, 0, NULL, "go on from a checkpoint; --log appends" },
    { "evaluate", PATH, OF_RUN, AT(evaluate), 0, 0, NULL,
      "train nothing: measure a checkpoint on fresh sequences" },
    { "quiet", FLAG, OF_RUN, AT(quiet), 0, 0, NULL, "print the final line alone" },
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };
static_assert((int)ROWS <= (int)OPTIONS_MAX_TEXTS, "a checkpoint has room for every option");

typedef struct Text {
    char text[96];
} Text;

void fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fputs("copy_task: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

/* The shortest decimal text that reads back as the same number. */
static Text number_text(double value)
{
    Text text;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text.text, sizeof text.text, "%.*g", digits, value);
        if (strtod(text.text, NULL) == value)
            break;
    }
    if (value == floor(value) && fabs(value) < 1e15)
        snprintf(text.text, sizeof text.text, "%.0f", value);
    return text;
}

static Text row_text(const Row *row, const Options *options)
{
    const void *value = (const char *)options + row->offset;
    Text text = { "" };
    if (row->kind == WHOLE)
        text = number_text((double)*(const int64_t *)value);
    else if (row->kind == NUMBER)
        text = number_text(*(const double *)value);
    else if (row->kind == CHOICE)
        snprintf(text.text, sizeof text.text, "%s", *(const char *const *)value);
    return text;
}

/* "a whole number from 1 to 64", or "auto, cpu or cuda" */
static Text expected(const Row *row)
{
    Text text = { "" };
    if (row->kind != CHOICE) {
        snprintf(text.text, sizeof text.text, "a %s from %.32s to %.32s",
                 row->kind == WHOLE ? "whole number" : "number", number_text(row->low).text,
                 number_text(row->high).text);
        return text;
    }
    for (int i = 0; row->choices[i]; i++) {
        bool last = !row->choices[i + 1];
        size_t used = strlen(text.text);
        snprintf(text.text + used, sizeof text.text - used, "%s%s",
                 i == 0 ? ""
                 : last ? " or "
                        : ", ",
                 row->choices[i]);
    }
    return text;
}

/* Reads a value into its field; false when the text is not what the row expects. */
static bool row_read(const Row *row, const char *text, Options *options)
{
    void *value = (char *)options + row->offset;
    if (row->kind == PATH || row->kind == FLAG) {
        if (row->kind == FLAG)
            *(bool *)value = true;
        else
            *(const char **)value = text;
        return true;
    }
    if (row->kind == CHOICE) {
        for (int i = 0; row->choices[i]; i++) {
            if (!strcmp(text, row->choices[i])) {
                *(const char **)value = row->choices[i];
                return true;
            }
        }
        return false;
    }
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= row->low && number <= row->high))
        return false;
    if (row->kind == WHOLE && number != floor(number))
        return false;
    if (row->kind == WHOLE)
        *(int64_t *)value = (int64_t)number;
    else
        *(double *)value = number;
    return true;
}

/* Whether presets and checkpoints tell this option. */
static bool in_checkpoint(const Row *row)
{
    return row->scope != OF_RUN || !strcmp(row->name, "steps");
}

static void print_help(void)
{
    puts("usage: copy_task [OPTION]...\n\n"
         "Trains a transformer to copy: it reads random symbols and a separator, and writes the\n"
         "symbols again (Katharopoulos et al. 2020, Transformers are RNNs, section 4.1.1).\n\n"
         "  option               quick    paper");
    for (const Row *row = rows; row < rows + ROWS; row++) {
        static const char *const values[] = { " N", " X", " NAME", " FILE", "" };
        char name[64];
        snprintf(name, sizeof name, "--%s%s", row->name, values[row->kind]);
        bool preset = in_checkpoint(row);
        printf("  %-20s %-8s %-8s %s", name, preset ? row_text(row, &presets[0]).text : "",
               preset ? row_text(row, &presets[1]).text : "", row->help);
        printf("%s%s\n", row->kind == CHOICE ? ": " : "",
               row->kind == CHOICE ? expected(row).text : "");
    }
    puts("  --help                                 print this");
}

/* The rows that the command line gives, each with its text; "" for a flag, NULL where not given. */
static void read_arguments(int argc, char **argv, const char *given[ROWS])
{
    struct option long_options[ROWS + 2] = { 0 };
    for (int i = 0; i < ROWS; i++) {
        long_options[i].name = rows[i].name;
        long_options[i].has_arg = rows[i].kind == FLAG ? no_argument : required_argument;
    }
    long_options[ROWS].name = "help";
    for (int index, code; (code = getopt_long(argc, argv, "", long_options, &index)) != -1;) {
        if (code == '?') /* getopt has said what is wrong */
            exit(BAD_USE);
        if (index == ROWS) {
            print_help();
            exit(EXIT_SUCCESS);
        }
        given[index] = optarg ? optarg : "";
        Options unused;
        if (!row_read(&rows[index], given[index], &unused))
            fail(BAD_USE, "--%s %s: expected %s", rows[index].name, given[index],
                 expected(&rows[index]).text);
    }
    if (optind < argc)
        fail(BAD_USE, "%s: expected an option; --help lists them", argv[optind]);
}

static const char *given_text(const char *const given[ROWS], const char *name)
{
    for (int i = 0; i < ROWS; i++) {
        if (!strcmp(rows[i].name, name))
            return given[i];
    }
    return NULL;
}

static Options from_preset(const char *name)
{
    int chosen = 0;
    for (int i = 0; i < PRESETS; i++) {
        if (name && !strcmp(presets[i].preset, name))
            chosen = i;
    }
    return presets[chosen];
}

/* The key of an option in a checkpoint. */
static Text row_key(const Row *row)
{
    Text key;
    snprintf(key.text, sizeof key.text, "copy_task.%s", row->name);
    return key;
}

static Options from_checkpoint(const char *path)
{
    Options options = presets[0];
    TensorFile *file = tensor_file_open(path);
    if (!file)
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    for (const Row *row = rows; row < rows + ROWS; row++) {
        if (!in_checkpoint(row))
            continue;
        const char *text = tensor_file_metadata(file, row_key(row).text);
        if (!text)
            fail(EXIT_FAILURE, "%s: expected a checkpoint of copy_task, but it does not tell --%s",
                 path, row->name);
        if (!row_read(row, text, &options))
            fail(EXIT_FAILURE, "%s: --%s is %s there, expected %s", path, row->name, text,
                 expected(row).text);
    }
    tensor_file_close(file);
    return options;
}

/* Ends the program now, rather than after the training, unless a file of this path can be written:
 * it names no directory, and the one that it lies in can be written. */
static void check_file(const char *name, const char *path)
{
    if (!path)
        return;
    struct stat status;
    bool directory_itself = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (!*path || directory_itself)
        fail(BAD_USE, "--%s %s: expected a file that can be written, but %s", name, path,
             directory_itself ? "it is a directory" : "the name is empty");
    char *copy = strdup(path);
    const char *directory = copy ? dirname(copy) : ".";
    if (access(directory, W_OK) != 0)
        fail(BAD_USE, "--%s %s: expected a file that can be written, but %s: %s", name, path,
             directory, strerror(errno));
    free(copy);
}

/* What no option alone can see. */
static void check_together(const Options *options, const char *const given[ROWS])
{
    static const char *const of_training[] = { "steps",   "learning-rate", "drop-at",     "clip",
                                               "dropout", "weight-decay",  "log",         "plot",
                                               "save",    "save-every",    "score-every", "eager" };
    int count = sizeof of_training / sizeof *of_training;
    for (int i = 0; options->evaluate && i < count; i++) {
        if (given_text(given, of_training[i]))
            fail(BAD_USE, "--%s %s: expected without --evaluate, which trains nothing",
                 of_training[i], given_text(given, of_training[i]));
    }
    if (options->save_every && !options->save)
        fail(BAD_USE, "--save-every %lld: expected together with --save FILE",
             (long long)options->save_every);
    if (given_text(given, "features") && strcmp(options->attention, "linear"))
        fail(BAD_USE, "--features %s: expected without --attention %s, which has none",
             options->features, options->attention);
    if (given_text(given, "rounds") && strcmp(options->attention, "lsh"))
        fail(BAD_USE, "--rounds %lld: expected without --attention %s, which has none",
             (long long)options->rounds, options->attention);
    if (options->heads * options->head_dim % 2)
        fail(BAD_USE,
             "--heads %lld --head-dim %lld: expected an even product, for half of the width "
             "embeds symbols and half positions",
             (long long)options->heads, (long long)options->head_dim);
    check_file("log", options->log);
    check_file("plot", options->plot);
    check_file("save", options->save);
}

Options options_parse(int argc, char **argv)
{
    const char *given[ROWS] = { NULL };
    read_arguments(argc, argv, given);
    const char *resume = given_text(given, "resume"), *evaluate = given_text(given, "evaluate");
    if (resume && evaluate)
        fail(BAD_USE, "--evaluate %s: expected without --resume %s", evaluate, resume);
    const char *checkpoint = resume ? resume : evaluate;
    Options options =
        checkpoint ? from_checkpoint(checkpoint) : from_preset(given_text(given, "preset"));
    for (int i = 0; i < ROWS; i++) {
        if (!given[i])
            continue;
        Text before = row_text(&rows[i], &options);
        row_read(&rows[i], given[i], &options);
        bool fixed = rows[i].scope == OF_MODEL || (rows[i].scope == OF_TRAINING && resume);
        if (checkpoint && fixed && strcmp(before.text, row_text(&rows[i], &options).text))
            fail(BAD_USE, "--%s %s: the checkpoint %s has --%s %s, which cannot change",
                 rows[i].name, given[i], checkpoint, rows[i].name, before.text);
    }
    check_together(&options, given);
    return options;
}

int options_texts(const Options *options, FileMetadata texts[OPTIONS_MAX_TEXTS])
{
    static Text keys[ROWS], values[ROWS];
    int count = 0;
    for (const Row *row = rows; row < rows + ROWS; row++) {
        if (!in_checkpoint(row))
            continue;
        keys[count] = row_key(row);
        values[count] = row_text(row, options);
        texts[count] = (FileMetadata){ keys[count].text, values[count].text };
        count++;
    }
    return count;
}
