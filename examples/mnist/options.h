/* The options of mnist's commands and their presets. */
#ifndef TAPEGRAD_MNIST_OPTIONS_H
#define TAPEGRAD_MNIST_OPTIONS_H

#include "examples/shared/options.h"

typedef struct MnistOptions {
    /* The model: fixed by a checkpoint. */
    const char *preset, *attention, *features;
    int64_t layers, heads, head_dim, feed_forward, logistics, rows, columns;
    /* The training: fixed by a checkpoint that is resumed. */
    int64_t batch, seed;
    double learning_rate, clip, dropout;
    const char *schedule, *form;
    double epochs;
    int64_t steps; /* 0: what the epochs make */
    /* This run. */
    const char *device, *precision, *data;
    int64_t threads;
    const char *log, *plot, *save, *resume, *evaluate;
    int64_t save_every, score_every, evaluate_every, evaluate_images, test_images;
    bool eager, quiet;
    /* mnist sample */
    const char *model, *output;
    int64_t count, at_once, draw;
    double temperature;
    /* mnist benchmark */
    const char *method, *csv;
    int64_t together, pixels;
} MnistOptions;

extern const char *const form_names[]; /* by AttentionForm */
extern const Command mnist_train_command, mnist_sample_command, mnist_benchmark_command;

/* End the program when a linear attention's option was given for another one; when there is no
 * --data. */
void mnist_check_attention(const MnistOptions *options, const Given *given);
void mnist_check_data(const MnistOptions *options);

/* --device, with --threads set. */
Device *mnist_device(const MnistOptions *options);

/* Each reads the command line of its command, which starts with the command's name, and returns the
 * program's exit status. */
int mnist_train(int argc, char **argv);
int mnist_sample(int argc, char **argv);
int mnist_benchmark(int argc, char **argv);

#endif
