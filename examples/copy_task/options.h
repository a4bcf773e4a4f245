/* The options of copy_task and their presets. */
#ifndef TAPEGRAD_COPY_TASK_OPTIONS_H
#define TAPEGRAD_COPY_TASK_OPTIONS_H

#include "examples/shared/options.h"

typedef struct Options {
    /* The task and the model: a checkpoint fixes them. */
    const char *preset, *attention, *features;
    int64_t rounds, length, symbols, layers, heads, head_dim, feed_forward;
    /* The training: a resumed checkpoint fixes it. */
    int64_t batch, drop_at, seed;
    double learning_rate, dropout, weight_decay, clip;
    /* This run. */
    int64_t steps, save_every, score_every, threads;
    const char *device, *precision, *log, *plot, *save, *resume, *evaluate;
    bool eager, quiet;
} Options;

extern const Command copy_task;

/* Parses the command line; ends the program on an error. */
Options copy_task_options(int argc, char **argv);

#endif
