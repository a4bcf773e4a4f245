/* The options of copy_task and their presets. */
#ifndef TAPEGRAD_COPY_TASK_OPTIONS_H
#define TAPEGRAD_COPY_TASK_OPTIONS_H

#include "examples/shared/options.h"

typedef struct Options {
    TrainingOptions common;
    int64_t rounds, length, symbols; /* of the task and the model: a checkpoint fixes them */
    int64_t drop_at;                 /* of the training: a resumed checkpoint fixes it */
    double weight_decay;
} Options;

extern const Command copy_task;

/* Parses the command line; ends the program on an error. */
Options copy_task_options(int argc, char **argv);

#endif
