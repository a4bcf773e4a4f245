/* The options of speech's subcommands and their presets. */
#ifndef TAPEGRAD_SPEECH_OPTIONS_H
#define TAPEGRAD_SPEECH_OPTIONS_H

#include "examples/shared/options.h"

typedef struct SpeechOptions {
    TrainingOptions common; /* steps 0: by epochs */
    /* The model: a checkpoint fixes it. */
    const char *model;
    const char *causal; /* "no" or "yes" */
    int64_t rounds, hidden, stride, context, lookahead;
    /* The training: a resumed checkpoint fixes it. */
    const char *split;
    int64_t patience, min_digits, max_digits;
    double epochs;
    /* This run. */
    const char *data;
    /* speech evaluate, recognize */
    int64_t beam, strings;
} SpeechOptions;

extern const Command speech_features_command, speech_train_command, speech_evaluate_command,
    speech_recognize_command, speech_stream_command;

/* End the program without --data, or if the numbers of digits contradict each other; without
 * --load. */
void speech_check_data(const SpeechOptions *options);
void speech_check_checkpoint(const SpeechOptions *options);

/* The subcommands. argv[0] is the subcommand's name; each returns the exit status. */
int speech_features(int argc, char **argv);
int speech_train(int argc, char **argv);
int speech_evaluate(int argc, char **argv);
int speech_recognize(int argc, char **argv);
int speech_stream(int argc, char **argv);

#endif
