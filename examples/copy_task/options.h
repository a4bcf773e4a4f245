/* The options of copy_task and their presets. */
#ifndef TAPEGRAD_COPY_TASK_OPTIONS_H
#define TAPEGRAD_COPY_TASK_OPTIONS_H

#include "examples/shared/options.h"

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

extern const Command copy_task;

/* Reads the command line; ends the program where it makes no sense. */
Options copy_task_options(int argc, char **argv);

#endif
