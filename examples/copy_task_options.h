/* The options of copy_task: presets, the command line, and their texts in a checkpoint. */
#ifndef TAPEGRAD_COPY_TASK_OPTIONS_H
#define TAPEGRAD_COPY_TASK_OPTIONS_H

#include <tapegrad.h>

typedef struct Options {
    /* The task and the model: fixed by a checkpoint. */
    const char *preset, *attention, *features;
    int64_t rounds, length, symbols, layers, heads, head_dim, feed_forward;
    /* The training: fixed by a checkpoint that is resumed. */
    int64_t batch, drop_at, seed;
    double learning_rate, dropout, weight_decay, clip;
    /* This run. */
    int64_t steps, save_every, score_every, threads;
    const char *device, *precision, *log, *plot, *save, *resume, *evaluate;
    bool eager, quiet;
} Options;

/* The names of --features, by FeatureMap; NULL ends them. */
extern const char *const feature_names[];

/* Reads the command line. With --resume or --evaluate the checkpoint's options take the preset's
 * place, and an option that contradicts them is an error. A bad value is told in one sentence and
 * ends the program with status 2; --help ends it with status 0. */
Options options_parse(int argc, char **argv);

/* The options as texts for a checkpoint; returns their number. They live until the next call. */
enum { OPTIONS_MAX_TEXTS = 32 };
int options_texts(const Options *options, FileMetadata texts[OPTIONS_MAX_TEXTS]);

/* Prints "copy_task: " and the sentence to the standard error and ends the program. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
