/* The options of language_model's subcommands and their presets. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_OPTIONS_H
#define TAPEGRAD_LANGUAGE_MODEL_OPTIONS_H

#include "examples/shared/options.h"

typedef struct LanguageOptions {
    TrainingOptions common;
    /* The model: a checkpoint fixes it. */
    const char *tokens, *positions;
    int64_t context, window;
    /* The training: a resumed checkpoint fixes it. */
    const char *optimizer;
    double weight_decay, beta2, last_rate, split;
    int64_t tokens_per_update, warm_up, patience, match;
    /* This run. */
    const char *data, *train, *valid, *vocabulary, *from;
    int64_t evaluate_every, evaluate_tokens, sample_every;
    /* language_model prepare */
    int64_t vocabulary_size;
    /* language_model sample, language_model evaluate */
    const char *prompt;
    /* language_model export */
    const char *to;
    int64_t length, top_k, draw, at_once;
    double temperature, top_p;
    bool int8;
} LanguageOptions;

extern const char *const optimizer_names[];
extern const Command language_prepare_command, language_train_command, language_evaluate_command,
    language_sample_command, language_export_command;

/* The file of --train (or --valid: name), or DIR/NAME.txt or DIR/NAME.txt.gz of --data DIR, valid
 * until the next call with this name; ends the program if there is none, or if it would be
 * overwritten. */
const char *language_file(const Given *given, const char *name);

/* Whether the held-out text is the last part of --train, by --split. Ends the program if --split is
 * given beside --valid or --data, which have a held-out text. */
bool language_splits(const LanguageOptions *options, const Given *given);

/* The subcommands. argv[0] is the subcommand's name; each returns the exit status. */
int language_prepare(int argc, char **argv);
int language_train(int argc, char **argv);
int language_evaluate(int argc, char **argv);
int language_sample(int argc, char **argv);
int language_export(int argc, char **argv);

#endif
