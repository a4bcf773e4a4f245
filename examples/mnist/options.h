/* The options of mnist's subcommands and their presets. */
#ifndef TAPEGRAD_MNIST_OPTIONS_H
#define TAPEGRAD_MNIST_OPTIONS_H

#include "examples/shared/options.h"

typedef struct MnistOptions {
    TrainingOptions common; /* steps 0: by epochs */
    /* The model: a checkpoint fixes it. */
    int64_t logistics, rows, columns;
    /* The training: a resumed checkpoint fixes it. */
    const char *schedule, *form;
    double epochs;
    /* This run. */
    const char *data;
    int64_t evaluate_every, evaluate_images, test_images;
    /* mnist sample, mnist evaluate */
    int64_t count, at_once, draw;
    double temperature;
    bool int8; /* and mnist benchmark */
    /* mnist benchmark */
    const char *method, *csv;
    int64_t together, pixels;
} MnistOptions;

extern const char *const form_names[]; /* by AttentionForm */
extern const Command mnist_train_command, mnist_sample_command, mnist_evaluate_command,
    mnist_benchmark_command;

/* End the program if an option of linear attention is given with another one; without --data. */
void mnist_check_attention(const MnistOptions *options, const Given *given);
void mnist_check_data(const MnistOptions *options);

/* The subcommands. argv[0] is the subcommand's name; each returns the exit status. */
int mnist_train(int argc, char **argv);
int mnist_sample(int argc, char **argv);
int mnist_evaluate(int argc, char **argv);
int mnist_benchmark(int argc, char **argv);

#endif
