#include "examples/shared/options.h"
#include "examples/shared/program.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const feature_names[] = {
    [FEATURE_MAP_ELU_PLUS_ONE] = "elu+1",
    [FEATURE_MAP_RELU] = "relu",
    [FEATURE_MAP_SOFTPLUS] = "softplus",
    [FEATURE_MAP_IDENTITY] = "identity",
    [FEATURES_SQUARED_RELU] = "squared-relu",
    [FEATURES_POLYNOMIAL] = "polynomial",
    [FEATURES_RANDOM] = "random",
    NULL,
};
/* auto: device_best() */
static const char *const device_names[] = { "auto", "plain", "cpu", "cuda", NULL };
const char *const precision_names[] = {
    [PRECISION_FLOAT32] = "float32",
    [PRECISION_TF32] = "tf32",
    [PRECISION_BF16] = "bf16",
    [PRECISION_BF16 + 1] = "auto", /* training_precision */
    NULL,
};

const char *const step_precision_names[] = {
    [PRECISION_FLOAT32] = "float32",
    [PRECISION_TF32] = "tf32",
    [PRECISION_BF16] = "bf16",
    NULL,
};
const char *const plot_endings[] = { ".svg", NULL };

#define AT(field) offsetof(TrainingOptions, field)
/* clang-format off */
const Option model_rows[5] = {
    { "features", CHOICE, OF_MODEL, AT(features), 0, 0, feature_names,
      "feature map of linear attention" },
    { "layers", WHOLE, OF_MODEL, AT(layers), 1, NN_MAX_LAYERS, NULL, "of the transformer" },
    { "heads", WHOLE, OF_MODEL, AT(heads), 1, 1024, NULL, "attention heads per layer" },
    { "head-dim", WHOLE, OF_MODEL, AT(head_dim), 1, 1024, NULL, "size of a head" },
    { "feed-forward", WHOLE, OF_MODEL, AT(feed_forward), 1, 65536, NULL, "hidden size" },
};
const Option training_rows[3] = {
    { "learning-rate", NUMBER, OF_TRAINING, AT(learning_rate), 1e-6, 1, NULL, "at its highest" },
    { "clip", NUMBER, OF_TRAINING, AT(clip), 0, 1e6, NULL,
      "maximum norm of the gradient (0: no clipping)" },
    { "dropout", NUMBER, OF_TRAINING, AT(dropout), 0, 0.9, NULL, "probability" },
};
const Option run_rows[RUN_ROWS] = {
    { "save", PATH, OF_RUN, AT(save), 0, 0, NULL,
      "a checkpoint, written at the end and on Ctrl-C" },
    { "save-every", WHOLE, OF_RUN, AT(save_every), 1, 1e9, NULL, "also save every N steps" },
    { "score-every", WHOLE, OF_RUN, AT(score_every), 1, 1e9, NULL,
      "log and show every N steps; CUDA does not synchronize in between" },
    { "resume", RESUMED, OF_RUN, AT(resume), 0, 0, NULL,
      "continue from a checkpoint; --log appends" },
    [RUN_LOAD] = { "load", CHECKPOINT, OF_RUN, AT(load), 0, 0, NULL,
      "start from the weights and options of a checkpoint" },
    { "evaluate", FLAG, OF_RUN, AT(evaluate), 0, 0, NULL,
      "no training: evaluate the checkpoint of --load on fresh data" },
    [RUN_PRECISION] = { "precision", CHOICE, OF_RUN, AT(precision), 0, 0, precision_names,
      "of storage and products; tf32 on CUDA only; auto: bf16 where that is fast (docs/gpu.md)" },
    { "eager", FLAG, OF_RUN, AT(eager), 0, 0, NULL, "on CUDA: without graph capture and replay" },
    [RUN_QUIET] = { "quiet", FLAG, OF_RUN, AT(quiet), 0, 0, NULL, "print only the final line" },
};
const Option device_rows[2] = {
    { "device", CHOICE, OF_RUN, AT(device), 0, 0, device_names, "of the computation" },
    { "threads", WHOLE, OF_RUN, AT(threads), 1, 1024, NULL, "of the CPU (default: all cores)" },
};
/* clang-format on */

Device *training_device(const TrainingOptions *options)
{
    if (options->threads)
        device_set_threads((int)options->threads);
    return strcmp(options->device, "auto") ? device_open(options->device) : device_best();
}

Precision training_precision(const TrainingOptions *options, const Device *device)
{
    const bool fast = device_has_bf16(device), is_auto = !strcmp(options->precision, "auto");
    if (is_auto)
        fprintf(stderr, "precision: %s\n", fast ? "bf16" : "float32");
    else if (!fast && !strcmp(options->precision, "bf16"))
        fprintf(stderr,
                "precision: bf16 by conversion, slower than float32: %s lacks "
                "instructions for it\n",
                device_name(device));
    if (is_auto)
        return fast ? PRECISION_BF16 : PRECISION_FLOAT32;
    return (Precision)choice_index(precision_names, options->precision);
}

int choice_index(const char *const *choices, const char *value)
{
    int index = 0;
    while (strcmp(choices[index], value))
        index++;
    return index;
}

/* -------------------------------------------------------------------------------- values, texts */

typedef struct Text {
    char text[96];
} Text;

/* The shortest decimal text that parses to the same number. */
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

static Text option_text(const Option *option, const void *options)
{
    const void *value = (const char *)options + option->offset;
    Text text = { "" };
    if (option->kind == WHOLE)
        text = number_text((double)*(const int64_t *)value);
    else if (option->kind == NUMBER)
        text = number_text(*(const double *)value);
    else if (option->kind == CHOICE && *(const char *const *)value)
        snprintf(text.text, sizeof text.text, "%s", *(const char *const *)value);
    return text;
}

/* "a whole number from 1 to 64", "auto, plain, cpu or cuda", or "a file name without control
 * characters that ends in .svg" */
static Text expected(const Option *option)
{
    Text text = { "" };
    if (option->kind == PATH)
        snprintf(text.text, sizeof text.text, "a file name without control characters%s",
                 option->choices ? " that ends in " : "");
    if (option->kind == WHOLE || option->kind == NUMBER)
        snprintf(text.text, sizeof text.text, "a %s from %.32s to %.32s",
                 option->kind == WHOLE ? "whole number" : "number", number_text(option->low).text,
                 number_text(option->high).text);
    for (int i = 0; option->choices && option->choices[i]; i++) {
        bool last = !option->choices[i + 1];
        size_t used = strlen(text.text);
        snprintf(text.text + used, sizeof text.text - used, "%s%s",
                 i == 0 ? ""
                 : last ? " or "
                        : ", ",
                 option->choices[i]);
    }
    return text;
}

static bool read_choice(const Option *option, const char *text, const char **value)
{
    for (int i = 0; option->choices[i]; i++) {
        if (!strcmp(text, option->choices[i])) {
            *value = option->choices[i];
            return true;
        }
    }
    return false;
}

static bool read_number(const Option *option, const char *text, void *value)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= option->low && number <= option->high))
        return false;
    if (option->kind == WHOLE && number != floor(number))
        return false;
    if (option->kind == WHOLE)
        *(int64_t *)value = (int64_t)number;
    else
        *(double *)value = number;
    return true;
}

/* Lines that name the file stay whole. */
static bool name_ok(const Option *option, const char *name)
{
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    const size_t length = strlen(name);
    bool ok = !option->choices;
    for (int i = 0; !ok && option->choices[i]; i++) {
        const size_t end = strlen(option->choices[i]);
        ok = length > end && !strcmp(name + length - end, option->choices[i]);
    }
    return ok;
}

/* Parses a value into its field; returns false for a text that the option does not allow. */
static bool value_read(const Option *option, const char *text, void *value)
{
    switch (option->kind) {
    case WHOLE:
    case NUMBER:
        return read_number(option, text, value);
    case CHOICE:
        return read_choice(option, text, value);
    case FLAG:
        *(bool *)value = true;
        return true;
    default:
        *(const char **)value = text;
        return option->kind != PATH || name_ok(option, text);
    }
}

static bool option_read(const Option *option, const char *text, void *options)
{
    return value_read(option, text, (char *)options + option->offset);
}

/* --------------------------------------------------------------------------------- command line */

/* The index-th option of a command, or NULL after the last one. */
static const Option *option_at(const Command *command, int index)
{
    for (int t = 0; t < OPTIONS_TABLES; t++) {
        if (index < command->tables[t].count)
            return &command->tables[t].rows[index];
        index -= command->tables[t].count;
    }
    return NULL;
}

/* Prints words in lines of at most 80 characters; those after the first begin in this column. */
static void print_words(const char *text, int indent)
{
    int column = indent - 1;
    for (const char *separator = ""; *text; separator = " ") {
        const int length = (int)strcspn(text, " ");
        if (column + 1 + length > 80) {
            printf("\n%*s", indent, "");
            separator = "";
            column = indent - 1;
        }
        printf("%s%.*s", separator, length, text);
        column += 1 + length;
        text += length + (text[length] == ' ');
    }
    printf("\n");
}

/* Appends " (VALUE; PRESET VALUE)": the default, and those of presets that have another one. */
static void add_defaults(char text[], size_t size, const Command *command, const Option *option)
{
    Text standard = { "" };
    size_t used = strlen(text);
    for (int p = 0; p == 0 || (command->preset_names && command->preset_names[p]); p++) {
        const int preset = p == 0 ? command->standard : p <= command->standard ? p - 1 : p;
        const Text value =
            option_text(option, (const char *)command->presets + (size_t)preset * command->size);
        if (p == 0) {
            if (!*value.text || (option->scope == OF_RUN && !strcmp(value.text, "0")))
                return;
            standard = value;
            used += (size_t)snprintf(text + used, size - used, " (%s", value.text);
        } else if (strcmp(option->name, "preset") && strcmp(value.text, standard.text)) {
            used += (size_t)snprintf(text + used, size - used, "; %s %s",
                                     command->preset_names[preset], value.text);
        }
    }
    snprintf(text + used, size - used, ")");
}

static void print_option(const Command *command, const Option *option)
{
    static const char *const values[] = { " N",   " X",    " NAME", " FILE", " FILE",
                                          " DIR", " TEXT", "",      " FILE", " FILE" };
    char text[512];
    snprintf(text, sizeof text, "--%s%s", option->name, values[option->kind]);
    printf("  %-20s ", text);
    snprintf(text, sizeof text, "%s%s%s", option->help, option->kind == CHOICE ? ": " : "",
             option->kind == CHOICE ? expected(option).text : "");
    add_defaults(text, sizeof text, command, option);
    print_words(text, 23);
}

static void print_help(const Command *command)
{
    printf("%s\n\n", command->about);
    const Option *option;
    for (int i = 0; (option = option_at(command, i)); i++)
        print_option(command, option);
    printf("  %-20s print this\n", "--help");
}

/* Ends the program: no option, or several, have this name, which may be abbreviated. */
static _Noreturn void reject_name(const struct option *known, const char *argument)
{
    const size_t length = strcspn(argument + 2, "=");
    char fitting[32 * OPTIONS_MAX] = "";
    size_t used = 0;
    int count = 0;
    bool whole = false; /* a flag with a value */
    for (; known->name; known++) {
        if (strncmp(known->name, argument + 2, length))
            continue;
        used += (size_t)snprintf(fitting + used, sizeof fitting - used, "%s--%s",
                                 count++ ? ", " : "", known->name);
        whole |= !known->name[length];
    }
    if (count > 1 && !whole)
        fail(BAD_USE, "option '%s' is ambiguous: %s", argument, fitting);
    fail(BAD_USE, "unrecognized option '%s'; --help lists all", argument);
}

/* getopt's codes of long options, beyond characters. Each has its own: getopt takes an abbreviation
 * of options with equal codes for the first of them. */
enum { FIRST_CODE = 256 };

/* Ends the program if getopt or the option's row rejects an argument. */
static void read_arguments(Given *given, int argc, char **argv)
{
    struct option long_options[OPTIONS_MAX + 2] = { 0 };
    int count = 0;
    for (const Option *option; (option = option_at(given->command, count)); count++)
        long_options[count] =
            (struct option){ option->name, option->kind == FLAG ? no_argument : required_argument,
                             NULL, FIRST_CODE + count };
    long_options[count] = (struct option){ "help", no_argument, NULL, FIRST_CODE + count };
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        if (code == ':')
            fail(BAD_USE, "option '%s' requires an argument", argv[optind - 1]);
        if (code == '?' && optopt && optopt < FIRST_CODE)
            fail(BAD_USE, "unrecognized option '-%c'; --help lists all", optopt);
        if (code == '?')
            reject_name(long_options, argv[optind - 1]);
        const int index = code - FIRST_CODE;
        if (index == count) {
            print_help(given->command);
            exit(EXIT_SUCCESS);
        }
        const Option *option = option_at(given->command, index);
        given->texts[index] = optarg ? optarg : "";
        union {
            int64_t whole;
            double number;
            const char *text;
            bool flag;
        } unused;
        if (!value_read(option, given->texts[index], &unused))
            fail(BAD_USE, "--%s %s: expected %s", option->name, given->texts[index],
                 expected(option).text);
    }
    if (given->command->argument && optind < argc)
        given->argument = argv[optind++];
    if (given->command->argument && !given->argument)
        fail(BAD_USE, "expected %s; --help lists the options", given->command->argument);
    if (optind < argc)
        fail(BAD_USE, "%s: expected an option; --help lists them", argv[optind]);
}

const char *option_given(const Given *given, const char *name)
{
    const Option *option;
    for (int i = 0; (option = option_at(given->command, i)); i++) {
        if (!strcmp(option->name, name))
            return given->texts[i];
    }
    return NULL;
}

void options_refuse(const Given *given, const char *const *names, const char *what)
{
    for (; *names; names++) {
        if (option_given(given, *names))
            fail(BAD_USE, "--%s %s: expected without %s", *names, option_given(given, *names),
                 what);
    }
}

void option_check_file(const char *name, const char *path)
{
    if (path && !tensor_file_can_save(path))
        fail(BAD_USE, "--%s %s: expected a file that can be written: %s", name, path,
             tapegrad_error());
}

void training_check(const TrainingOptions *options, const Given *given, const char *const *refused)
{
    static const char *const of_training[] = { "steps", "learning-rate", "clip",   "dropout",
                                               "log",   "plot",          "save",   "save-every",
                                               "eager", "score-every",   "resume", NULL };
    static const char what[] = "--evaluate, which trains nothing";
    if (options->evaluate) {
        options_refuse(given, of_training, what);
        options_refuse(given, refused, what);
    }
    if (options->evaluate && !options->load)
        fail(BAD_USE, "--evaluate: expected together with --load FILE");
    if (options->save_every && !options->save)
        fail(BAD_USE, "--save-every %lld: expected together with --save FILE",
             (long long)options->save_every);
    option_check_file("log", options->log);
    option_check_file("plot", options->plot);
    option_check_file("save", options->save);
}

void training_check_epochs(TrainingOptions *options, const Given *given)
{
    const char *steps = option_given(given, "steps"), *epochs = option_given(given, "epochs");
    if (steps && epochs)
        fail(BAD_USE, "--steps %s: expected without --epochs %s", steps, epochs);
    if (epochs)
        options->steps = 0;
}

/* ------------------------------------------------------------------------- presets, checkpoints */

static const Command *trainer_of(const Command *command)
{
    return command->trainer ? command->trainer : command;
}

/* name: one of the preset names, or NULL for the default preset. */
static void from_preset(const Command *command, const char *name, void *options)
{
    const Command *trainer = trainer_of(command);
    int preset = command->standard;
    for (int i = 0; name && trainer->preset_names[i]; i++)
        preset = strcmp(trainer->preset_names[i], name) ? preset : i;
    memcpy(options, (const char *)command->presets + (size_t)preset * command->size, command->size);
}

/* The key of an option in a checkpoint. */
static Text key_of(const Command *command, const char *name)
{
    Text key;
    snprintf(key.text, sizeof key.text, "%s.%s", command->program, name);
    return key;
}

static void from_checkpoint(const Command *command, const char *path, void *options)
{
    TensorFile *file = tensor_file_open(path);
    if (!file)
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    const char *program = tensor_file_metadata(file, "program");
    if (program && strcmp(program, command->program))
        fail(EXIT_FAILURE, "%s: expected a checkpoint of %s, but it is one of %s", path,
             command->program, program);
    from_preset(command, tensor_file_metadata(file, key_of(command, "preset").text), options);
    const Option *option;
    for (int i = 0; (option = option_at(trainer_of(command), i)); i++) {
        if (option->scope == OF_RUN)
            continue;
        const char *text = tensor_file_metadata(file, key_of(command, option->name).text);
        if (!text)
            fail(EXIT_FAILURE, "%s: expected a checkpoint of %s, but it has no --%s", path,
                 command->program, option->name);
        if (!option_read(option, text, options))
            fail(EXIT_FAILURE, "%s: --%s is %s there, expected %s", path, option->name, text,
                 expected(option).text);
    }
    tensor_file_close(file);
}

static bool is_checkpoint(const Option *option)
{
    return option->kind == CHECKPOINT || option->kind == RESUMED;
}

/* The option that names a checkpoint, or NULL; at most one is allowed. */
static const Option *checkpoint_given(const Given *given)
{
    const Option *found = NULL, *option;
    for (int i = 0; (option = option_at(given->command, i)); i++) {
        if (!given->texts[i] || !is_checkpoint(option))
            continue;
        if (found)
            fail(BAD_USE, "--%s %s: expected without --%s %s", option->name, given->texts[i],
                 found->name, option_given(given, found->name));
        found = option;
    }
    return found;
}

/* Parses the options on the command line; those that the checkpoint fixes must equal its values. */
static void from_arguments(const Given *given, const Option *checkpoint, void *options)
{
    const Option *option;
    for (int i = 0; (option = option_at(given->command, i)); i++) {
        if (!given->texts[i])
            continue;
        Text before = option_text(option, options);
        option_read(option, given->texts[i], options);
        bool fixed = checkpoint && (option->scope == OF_MODEL ||
                                    (option->scope == OF_TRAINING && checkpoint->kind == RESUMED));
        if (fixed && strcmp(before.text, option_text(option, options).text))
            fail(BAD_USE, "--%s %s: the checkpoint %s has --%s %s, which cannot change",
                 option->name, given->texts[i], option_given(given, checkpoint->name), option->name,
                 before.text);
    }
}

/* Whether both paths name one file, which need not exist. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat status[2];
    const char *const paths[] = { a, b }, *names[2];
    const bool exists = stat(a, &status[0]) == 0;
    if (exists != (stat(b, &status[1]) == 0))
        return false;
    for (int i = 0; i < 2 && !exists; i++) {
        char folder[4096];
        const char *slash = strrchr(paths[i], '/');
        names[i] = slash ? slash + 1 : paths[i];
        snprintf(folder, sizeof folder, "%.*s.", (int)(names[i] - paths[i]), paths[i]);
        if (stat(folder, &status[i]) != 0)
            return false;
    }
    return status[0].st_dev == status[1].st_dev && status[0].st_ino == status[1].st_ino &&
           (exists || !strcmp(names[0], names[1]));
}

static bool is_input(const Option *option)
{
    return option->kind == INPUT || is_checkpoint(option);
}

/* Ends the program if it would write a file twice, or one that it reads. */
static void check_files(const Given *given)
{
    static const Option argument = { .name = "", .kind = INPUT };
    const Option *options[OPTIONS_MAX + 1] = { &argument }, *option;
    const char *paths[OPTIONS_MAX + 1] = { given->argument };
    int count = given->argument != NULL;
    for (int i = 0; (option = option_at(given->command, i)); i++) {
        if (!given->texts[i] || (option->kind != PATH && !is_input(option)))
            continue;
        for (int j = 0; j < count; j++) {
            const Option *other = options[j];
            const bool written = option->kind == PATH || other->kind == PATH;
            const bool saved = (is_checkpoint(option) && !strcmp(other->name, "save")) ||
                               (is_checkpoint(other) && !strcmp(option->name, "save"));
            if (written && !saved && is_same_file(given->texts[i], paths[j]))
                fail(BAD_USE, "--%s %s: expected another file than %s%s %s", option->name,
                     given->texts[i], *other->name ? "--" : "the argument", other->name, paths[j]);
        }
        options[count] = option;
        paths[count++] = given->texts[i];
    }
}

void options_check_input(const Given *given, const char *path)
{
    const Option *option;
    for (int i = 0; (option = option_at(given->command, i)); i++)
        if (given->texts[i] && option->kind == PATH && is_same_file(given->texts[i], path))
            fail(BAD_USE, "--%s %s: expected another file than %s, which is read", option->name,
                 given->texts[i], path);
}

/* Ranks with other options would wait for each other for ever. */
static void check_ranks(int argc, char **argv)
{
    char line[8192] = "";
    size_t end = 0;
    for (int i = 0; i < argc && end < sizeof line; i++)
        end += (size_t)snprintf(line + end, sizeof line - end, "%s ", argv[i]);
    dist_need_equal("command lines", line, end < sizeof line ? end : sizeof line);
}

Given options_parse(const Command *command, int argc, char **argv, void *options)
{
    Given given = { .command = command };
    check_ranks(argc - 1, argv + 1);
    read_arguments(&given, argc, argv);
    check_files(&given);
    const Option *checkpoint = checkpoint_given(&given);
    if (checkpoint)
        from_checkpoint(command, option_given(&given, checkpoint->name), options);
    else
        from_preset(command, option_given(&given, "preset"), options);
    from_arguments(&given, checkpoint, options);
    return given;
}

int options_texts(const Command *command, const void *options, FileMetadata texts[OPTIONS_MAX])
{
    static Text keys[OPTIONS_MAX], values[OPTIONS_MAX];
    int count = 0;
    const Option *option;
    texts[count++] = (FileMetadata){ "program", command->program };
    for (int i = 0; (option = option_at(trainer_of(command), i)); i++) {
        if (option->scope == OF_RUN)
            continue;
        keys[count] = key_of(command, option->name);
        values[count] = option_text(option, options);
        texts[count] = (FileMetadata){ keys[count].text, values[count].text };
        count++;
    }
    return count;
}
