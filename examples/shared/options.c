#include "examples/shared/options.h"
#include "examples/shared/program.h"

#include <ctype.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
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
    [FEATURES_FOURIER] = "fourier",
    NULL,
};
/* auto: device_best() */
static const char *const device_names[] = {
    "auto", "plain", "cpu", "cpu:repeatable", "cuda", NULL
};
/* By Precision, then auto: training_precision */
static const char *const precision_names[] = { "float32", "tf32", "bf16", "auto", NULL };
const char *const step_precision_names[] = { "float32", "tf32", "bf16", NULL };
const char *const plot_endings[] = { ".svg", NULL };

#define AT(field) offsetof(TrainingOptions, field)
/* clang-format off */
const Option model_rows[5] = {
    { "features", CHOICE, OF_KIND, AT(features), .choices = feature_names,
      .help = "feature map of linear attention" },
    { "layers", WHOLE, OF_MODEL, AT(layers), 1, NN_MAX_LAYERS, .help = "of the transformer" },
    { "heads", WHOLE, OF_MODEL, AT(heads), 1, 1024, .help = "attention heads per layer" },
    { "head-dim", WHOLE, OF_MODEL, AT(head_dim), 1, 1024, .help = "size of a head" },
    { "feed-forward", WHOLE, OF_MODEL, AT(feed_forward), 1, 65536, .help = "hidden size" },
};
const Option training_rows[3] = {
    { "learning-rate", NUMBER, OF_TRAINING, AT(learning_rate), 1e-6, 1, .help = "at its highest" },
    { "clip", NUMBER, OF_TRAINING, AT(clip), 0, 1e6,
      .help = "maximum norm of the gradient (0: no clipping)" },
    { "dropout", NUMBER, OF_TRAINING, AT(dropout), 0, 0.9, .help = "probability" },
};
const Option run_rows[RUN_ROWS] = {
    { "save", PATH, OF_PROGRESS, AT(save),
      .help = "a checkpoint, written at the end and on Ctrl-C" },
    { "save-every", WHOLE, OF_PROGRESS, AT(save_every), 1, 1e9, .help = "also save every N steps" },
    { "score-every", WHOLE, OF_PROGRESS, AT(score_every), 1, 1e9, "1",
      .help = "log and show every N steps; CUDA does not synchronize in between" },
    { "resume", CHECKPOINT, OF_PROGRESS, AT(resume),
      .help = "continue from a checkpoint; --log appends" },
    [RUN_LOAD] = { "load", CHECKPOINT, OF_RUN, AT(load),
      .help = "start from the weights and options of a checkpoint" },
    { "evaluate", FLAG, OF_RUN, AT(evaluate),
      .help = "no training: evaluate the checkpoint of --load on fresh data" },
    [RUN_PRECISION] = { "precision", CHOICE, OF_RUN, AT(precision), .choices = precision_names,
      .help = "of storage and products; tf32 on CUDA only; auto: bf16 where that is fast "
              "(docs/gpu.md)" },
    { "eager", FLAG, OF_PROGRESS, AT(eager), .help = "on CUDA: without graph capture and replay" },
    [RUN_PROFILE] = { "profile", WHOLE, OF_PROGRESS, AT(profile), 1, 1e6,
      .help = "print time and memory of N steps, the second and later ones, by operation" },
    [RUN_QUIET] = { "quiet", FLAG, OF_RUN, AT(quiet), .help = "print only the final line" },
};
const Option device_rows[2] = {
    { "device", CHOICE, OF_RUN, AT(device), .choices = device_names, .help = "of the computation" },
    { "threads", WHOLE, OF_RUN, AT(threads), 1, 1024, .help = "of the CPU (default: all cores)" },
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
    const bool fast = device_has_bf16(device);
    if (!strcmp(options->precision, "auto")) {
        fprintf(stderr, "precision: %s\n", fast ? "bf16" : "float32");
        return fast ? PRECISION_BF16 : PRECISION_FLOAT32;
    }
    const Precision precision = (Precision)choice_index(precision_names, options->precision);
    if (precision == PRECISION_BF16 && !fast)
        fprintf(stderr,
                "precision: bf16 by conversion, slower than float32: %s lacks instructions for "
                "it\n",
                device_name(device));
    return precision;
}

/* -------------------------------------------------------------------------------- values, texts */

typedef struct Text {
    char text[1024];
} Text;

/* Appends. */
__attribute__((format(printf, 2, 3))) static void add(Text *text, const char *format, ...)
{
    const size_t used = strlen(text->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text->text + used, sizeof text->text - used, format, arguments);
    va_end(arguments);
}

/* The shortest decimal text that parses to the same number. */
static Text number_text(double value)
{
    Text text;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text.text, sizeof text.text, "%.*g", digits, value);
        if (strtod(text.text, NULL) == value)
            break;
    }
    return text;
}

/* A value as checkpoints and --help have it; empty if they do not. */
static Text option_text(const Option *option, const void *options)
{
    const void *field = (const char *)options + option->offset;
    Text text = { "" };
    if (option->kind == WHOLE)
        text = number_text((double)*(const int64_t *)field);
    else if (option->kind == NUMBER)
        text = number_text(*(const double *)field);
    else if (option->kind == CHOICE)
        add(&text, "%s", *(const char *const *)field);
    return text;
}

/* "a whole number from 1 to 64", "auto, plain, cpu or cuda", or "a file name without control
 * characters that ends in .svg" */
static Text expected(const Option *option)
{
    const char *const *choices = option->choices;
    Text text = { "" };
    if (option->kind == PATH)
        add(&text, "a file name without control characters%s", choices ? " that ends in " : "");
    if (option->kind == WHOLE || option->kind == NUMBER)
        add(&text, "a %s from %s to %s", option->kind == WHOLE ? "whole number" : "number",
            number_text(option->low).text, number_text(option->high).text);
    for (int i = 0; choices && choices[i]; i++)
        add(&text, "%s%s", i == 0 ? "" : choices[i + 1] ? ", " : " or ", choices[i]);
    return text;
}

int choice_index(const char *const *choices, const char *value)
{
    int index = 0;
    while (choices[index] && strcmp(choices[index], value))
        index++;
    return index;
}

/* Lines that name the file stay whole. */
static bool name_ok(const Option *option, const char *name)
{
    for (const char *c = name; *c; c++)
        if (iscntrl((unsigned char)*c))
            return false;
    bool ok = !option->choices;
    for (int i = 0; !ok && option->choices[i]; i++) {
        const size_t length = strlen(name), end = strlen(option->choices[i]);
        ok = length > end && !strcmp(name + length - end, option->choices[i]);
    }
    return ok;
}

/* Parses a value into its field; returns false for a text that the option does not allow. */
static bool option_read(const Option *option, const char *text, void *options)
{
    void *field = (char *)options + option->offset;
    if (option->kind == WHOLE || option->kind == NUMBER) {
        char *end;
        const double number = strtod(text, &end);
        if (end == text || *end || !(number >= option->low && number <= option->high) ||
            (option->kind == WHOLE && number != floor(number)))
            return false;
        if (option->kind == WHOLE)
            *(int64_t *)field = (int64_t)number;
        else
            *(double *)field = number;
    } else if (option->kind == CHOICE) {
        const char *choice = option->choices[choice_index(option->choices, text)];
        if (!choice)
            return false;
        *(const char **)field = choice;
    } else if (option->kind == FLAG) {
        *(bool *)field = true;
    } else {
        *(const char **)field = text;
        return option->kind != PATH || name_ok(option, text);
    }
    return true;
}

/* ------------------------------------------------------------------- options of a command, help */

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

/* The index of an option, or of the NULL after the last one. */
static int index_of(const Command *command, const char *name)
{
    int index = 0;
    for (const Option *option; (option = option_at(command, index)); index++)
        if (!strcmp(option->name, name))
            break;
    return index;
}

/* A value that no row sets is zero. */
static void set_defaults(const Command *command, void *options)
{
    const Option *option;
    for (int i = 0; (option = option_at(command, i)); i++)
        if (option->standard || option->kind == CHOICE)
            option_read(option, option->standard ? option->standard : option->choices[0], options);
}

/* The values of a preset, or of the default one if there is none of this name. */
static void from_preset(const Command *command, const char *name, void *options)
{
    const Command *trainer = command->trainer;
    const Option *preset = option_at(trainer, index_of(trainer, "preset"));
    memset(options, 0, trainer->size);
    set_defaults(trainer, options);
    set_defaults(command, options);
    if (name)
        option_read(preset, name, options);
    const Text chosen = option_text(preset, options);
    Text values = { "" };
    add(&values, "%s", trainer->presets[choice_index(preset->choices, chosen.text)]);
    char *rest = values.text;
    for (char *word; (word = strtok_r(NULL, "= ", &rest));) {
        const Option *option = option_at(trainer, index_of(trainer, word));
        if (!option || !option_read(option, strtok_r(NULL, "= ", &rest), options))
            fail(EXIT_FAILURE, "preset %s: %s: not a value of an option", chosen.text, word);
    }
}

/* Prints words in lines of at most 80 characters, behind a column of names. */
static void print_words(char *text)
{
    int column = 22;
    for (const char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        if (column + 1 + (int)strlen(word) > 80)
            column = printf("\n%22s", "") - 1;
        column += printf(" %s", word);
    }
    printf("\n");
}

/* Appends " (VALUE; PRESET VALUE)": the default, and those of presets that have another one. */
static void add_defaults(Text *text, const Command *command, const Option *option)
{
    const Option *preset = option_at(command, index_of(command, "preset"));
    void *options = allocate(1, command->trainer->size);
    from_preset(command, NULL, options);
    const Text standard = option_text(option, options);
    if (*standard.text && (option->scope <= OF_GOAL || strcmp(standard.text, "0"))) {
        add(text, " (%s", standard.text);
        for (int i = 0; preset && preset != option && preset->choices[i]; i++) {
            from_preset(command, preset->choices[i], options);
            const Text value = option_text(option, options);
            if (strcmp(value.text, standard.text))
                add(text, "; %s %s", preset->choices[i], value.text);
        }
        add(text, ")");
    }
    free(options);
}

static void print_help(const Command *command)
{
    static const char *const values[] = {
        [WHOLE] = " N",     [NUMBER] = " X",   [CHOICE] = " NAME",
        [STRING] = " TEXT", [FLAG] = "",       [PATH] = " FILE",
        [FOLDER] = " DIR",  [INPUT] = " FILE", [CHECKPOINT] = " FILE",
    };
    for (const char *c = command->about; *c; c++)
        if (*c == '@')
            fputs(program_name(), stdout);
        else
            putchar(*c);
    printf("\n\n");
    const Option *option;
    for (int i = 0; (option = option_at(command, i)); i++) {
        Text name = { "" }, text = { "" };
        add(&name, "--%s%s", option->name, values[option->kind]);
        printf("  %-20s", name.text);
        add(&text, "%s", option->help);
        if (option->kind == CHOICE)
            add(&text, ": %s", expected(option).text);
        add_defaults(&text, command, option);
        print_words(text.text);
    }
    printf("  %-20s print this\n", "--help");
}

/* --------------------------------------------------------------------------------- command line */

/* Ends the program: no option, or several, have this name, which may be abbreviated; or it is that
 * of a flag, given a value, which getopt leaves in optopt. */
static _Noreturn void reject_name(const struct option *known, const char *argument)
{
    Text fitting = { "" };
    int count = 0;
    for (; known->name; known++)
        if (!strncmp(known->name, argument + 2, strcspn(argument + 2, "=")))
            add(&fitting, "%s--%s", count++ ? ", " : "", known->name);
    if (count > 1 && !optopt)
        fail(BAD_USE, "option '%s' is ambiguous: %s", argument, fitting.text);
    fail(BAD_USE, "unrecognized option '%s'; --help lists all", argument);
}

/* getopt's codes of long options, beyond characters. Each has its own: getopt takes an abbreviation
 * of options with equal codes for the first of them. */
enum { FIRST_CODE = 256 };

/* Ends the program if getopt or the option's row rejects an argument; overwrites the options. */
static void read_arguments(Given *given, int argc, char **argv, void *options)
{
    const Command *command = given->command;
    struct option long_options[OPTIONS_MAX + 2] = { 0 };
    int count = 0;
    for (const Option *option; (option = option_at(command, count)); count++) {
        if (count + 1 == OPTIONS_MAX)
            fail(EXIT_FAILURE, "--%s: expected fewer than %d options of the program", option->name,
                 OPTIONS_MAX);
        long_options[count] =
            (struct option){ option->name, option->kind == FLAG ? no_argument : required_argument,
                             NULL, FIRST_CODE + count };
    }
    long_options[count] = (struct option){ "help", no_argument, NULL, FIRST_CODE + count };
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        if (code == ':')
            fail(BAD_USE, "option '%s' requires an argument", argv[optind - 1]);
        if (code == '?' && optopt && optopt < FIRST_CODE)
            fail(BAD_USE, "unrecognized option '-%c'; --help lists all", optopt);
        if (code == '?')
            reject_name(long_options, argv[optind - 1]);
        const Option *option = option_at(command, code - FIRST_CODE);
        if (!option) {
            print_help(command);
            exit(EXIT_SUCCESS);
        }
        const char *text = given->texts[code - FIRST_CODE] = optarg ? optarg : "";
        if (!option_read(option, text, options))
            fail(BAD_USE, "--%s %s: expected %s", option->name, text, expected(option).text);
    }
    if (command->argument && optind < argc)
        given->argument = argv[optind++];
    if (command->argument && !given->argument)
        fail(BAD_USE, "expected %s: %s %s FILE; --help lists the options", command->argument,
             program_name(), argv[0]);
    if (optind < argc)
        fail(BAD_USE, "%s: expected an option; --help lists them", argv[optind]);
}

const char *option_given(const Given *given, const char *name)
{
    return given->texts[index_of(given->command, name)];
}

void options_refuse(const Given *given, const char *names, const char *format, ...)
{
    Text words = { "" }, what;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what.text, sizeof what.text, format, arguments);
    va_end(arguments);
    add(&words, "%s", names);
    char *rest = words.text;
    for (char *name; (name = strtok_r(NULL, " ", &rest));)
        if (option_given(given, name))
            fail(BAD_USE, "--%s %s: expected without %s", name, option_given(given, name),
                 what.text);
}

void option_check_file(const char *name, const char *path)
{
    if (path && !tensor_file_can_save(path))
        fail(BAD_USE, "--%s %s: expected a file that can be written: %s", name, path,
             tapegrad_error());
}

void training_check(const TrainingOptions *options, const Given *given)
{
    const Option *option;
    for (int i = 0; options->evaluate && (option = option_at(given->command, i)); i++)
        if (option->scope >= OF_TRAINING && option->scope <= OF_PROGRESS)
            options_refuse(given, option->name, "--evaluate, which trains nothing");
    if (strcmp(options->attention, "linear") && strcmp(options->attention, "decay"))
        options_refuse(given, "features", "--attention %s, which has none", options->attention);
    if (strcmp(options->attention, "lsh"))
        options_refuse(given, "rounds", "--attention %s, which has none", options->attention);
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
    const char *epochs = option_given(given, "epochs");
    if (epochs) {
        options_refuse(given, "steps", "--epochs %s", epochs);
        options->steps = 0;
    }
}

/* ---------------------------------------------------------------------------------- checkpoints */

/* The key of an option in a checkpoint. */
static Text key_of(const Command *command, const char *name)
{
    Text key = { "" };
    add(&key, "%s.%s", command->program, name);
    return key;
}

void options_of_checkpoint(const Command *command, const char *path, void *options)
{
    const Command *trainer = command->trainer;
    TensorFile *file = tensor_file_open(path);
    if (!file)
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    const char *program = tensor_file_metadata(file, "program");
    if (program && strcmp(program, trainer->program))
        fail(EXIT_FAILURE, "%s: expected a checkpoint of %s, but it is one of %s", path,
             trainer->program, program);
    from_preset(command, tensor_file_metadata(file, key_of(trainer, "preset").text), options);
    const Option *option;
    for (int i = 0; (option = option_at(trainer, i)); i++) {
        const char *text = tensor_file_metadata(file, key_of(trainer, option->name).text);
        if (option->scope > OF_GOAL || (!text && option->later))
            continue;
        if (!text)
            fail(EXIT_FAILURE, "%s: expected a checkpoint of %s, but it has no --%s", path,
                 trainer->program, option->name);
        if (!option_read(option, text, options))
            fail(EXIT_FAILURE, "%s: --%s is %s there, expected %s", path, option->name, text,
                 expected(option).text);
    }
    tensor_file_close(file);
}

/* Parses the options on the command line; those that the checkpoint fixes must equal its values. */
static void from_arguments(const Given *given, OptionScope last_fixed, const char *checkpoint,
                           void *options)
{
    const Option *option;
    for (int i = 0; (option = option_at(given->command, i)); i++) {
        if (!given->texts[i])
            continue;
        const Text before = option_text(option, options);
        option_read(option, given->texts[i], options);
        if (checkpoint && option->scope <= last_fixed &&
            strcmp(before.text, option_text(option, options).text))
            fail(BAD_USE, "--%s %s: the checkpoint %s has --%s %s, which cannot change",
                 option->name, given->texts[i], checkpoint, option->name, before.text);
    }
}

int options_texts(const Command *command, const void *options, FileMetadata texts[OPTIONS_MAX])
{
    static Text keys[OPTIONS_MAX], values[OPTIONS_MAX];
    int count = 0;
    const Option *option;
    texts[count++] = (FileMetadata){ "program", command->program };
    for (int i = 0; (option = option_at(command, i)); i++) {
        if (option->scope > OF_GOAL)
            continue;
        keys[count] = key_of(command, option->name);
        values[count] = option_text(option, options);
        texts[count] = (FileMetadata){ keys[count].text, values[count].text };
        count++;
    }
    return count;
}

/* ---------------------------------------------------------------------------------------- files */

/* Whether both paths name one file, which need not exist: then its folder identifies it. */
static bool is_same_file(const char *a, const char *b)
{
    const char *const paths[] = { a, b }, *names[] = { "", "" };
    struct stat status[2];
    for (int i = 0; i < 2; i++) {
        char folder[4096];
        if (stat(paths[i], &status[i]) == 0)
            continue;
        const char *slash = strrchr(paths[i], '/');
        names[i] = slash ? slash + 1 : paths[i];
        snprintf(folder, sizeof folder, "%.*s.", (int)(names[i] - paths[i]), paths[i]);
        if (stat(folder, &status[i]) != 0)
            return false;
    }
    return status[0].st_dev == status[1].st_dev && status[0].st_ino == status[1].st_ino &&
           !strcmp(names[0], names[1]);
}

void options_check_input(const Given *given, const char *path)
{
    const Option *option;
    for (int i = 0; (option = option_at(given->command, i)); i++)
        if (given->texts[i] && option->kind == PATH && is_same_file(given->texts[i], path))
            fail(BAD_USE, "--%s %s: expected another file than %s, which is read", option->name,
                 given->texts[i], path);
}

/* Ends the program if it would write the i-th option's file, and it is an earlier one's, or if it
 * would write that one; the argument is the first. --save may write a checkpoint that is read. */
static void check_file(const Given *given, int i)
{
    static const Option argument = { .name = "", .kind = INPUT };
    const Option *option = option_at(given->command, i);
    for (int j = -1; j < i && given->texts[i] && option->kind >= PATH; j++) {
        const Option *other = j < 0 ? &argument : option_at(given->command, j);
        const char *path = j < 0 ? given->argument : given->texts[j];
        const bool written = option->kind == PATH || other->kind == PATH;
        const bool saved = (option->kind == CHECKPOINT && !strcmp(other->name, "save")) ||
                           (other->kind == CHECKPOINT && !strcmp(option->name, "save"));
        if (path && other->kind >= PATH && written && !saved && is_same_file(given->texts[i], path))
            fail(BAD_USE, "--%s %s: expected another file than %s%s %s", option->name,
                 given->texts[i], j < 0 ? "the argument" : "--", other->name, path);
    }
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
    read_arguments(&given, argc, argv, options);
    for (int i = 0; option_at(command, i); i++)
        check_file(&given, i);
    const char *load = option_given(&given, "load"), *resume = option_given(&given, "resume");
    const char *from = option_given(&given, "from");
    if (resume)
        options_refuse(&given, "load", "--resume %s", resume);
    if (from)
        options_refuse(&given, "load", "--from %s", from);
    const char *checkpoint = load ? load : resume ? resume : from;
    if (checkpoint)
        options_of_checkpoint(command, checkpoint, options);
    else
        from_preset(command, option_given(&given, "preset"), options);
    from_arguments(&given, resume ? OF_TRAINING : load ? OF_KIND : OF_MODEL, checkpoint, options);
    return given;
}
