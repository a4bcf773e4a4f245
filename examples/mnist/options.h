/* The options of mnist's subcommands and their presets. */
#ifndef TAPEGRAD_MNIST_OPTIONS_H
#define TAPEGRAD_MNIST_OPTIONS_H

#include "examples/shared/options.h"

typedef struct MnistOptions {
    /* The model: a checkpoint fixes it. */
    const char *preset, *attention, *features;
    int64_t layers, heads, head_dim, feed_forward, logistics, rows, columns;
    /* The training: a resumed checkpoint fixes it. */
    int64_t batch, seed;
    double learning_rate, clip, dropout;
    const char *schedule, *form;
    double epochs;
    int64_t steps; /* 0: by epochs */
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

/* End the program if an option of linear attention is given with another one; without --data. */
void mnist_check_attention(const MnistOptions *options, const Given *given);
void mnist_check_data(const MnistOptions *options);

/* The device of --device, after --threads is applied. */
Device *mnist_device(const MnistOptions *options);

/* The subcommands. argv[0] is the subcommand's name; each returns the exit status. */
int mnist_train(int argc, char **argv);
int mnist_sample(int argc, char **argv);
int mnist_benchmark(int argc, char **argv);

#endif
