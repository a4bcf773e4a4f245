/* The options of images's subcommands and their presets. */
#ifndef TAPEGRAD_IMAGES_OPTIONS_H
#define TAPEGRAD_IMAGES_OPTIONS_H

#include "examples/shared/options.h"

typedef struct ImagesOptions {
    TrainingOptions common; /* steps 0: by epochs */
    /* The model: a checkpoint fixes it. */
    const char *data_set, *input;
    int64_t logistics, rows, columns;
    /* The training: a resumed checkpoint fixes it. */
    const char *optimizer, *schedule, *form, *clip_of;
    int64_t warm_up;
    double epochs, weight_decay;
    /* This run. */
    const char *data;
    int64_t evaluate_every, evaluate_images, test_images;
    /* images sample, images evaluate */
    int64_t count, at_once, draw;
    double temperature;
    bool int8; /* and images benchmark */
    /* images benchmark */
    const char *method, *csv;
    int64_t together, pixels;
} ImagesOptions;

extern const char *const form_names[]; /* by AttentionForm */
extern const Command images_train_command, images_sample_command, images_evaluate_command,
    images_benchmark_command;

/* Of the data set: the bytes of a pixel, those of an image, and its title. */
int64_t images_channels(const ImagesOptions *options);
int64_t images_pixels(const ImagesOptions *options);
const char *images_title(const ImagesOptions *options);

/* Whether the input is of the value and a sine position, from the first pixel on: see --input. */
bool images_have_sines(const ImagesOptions *options);
/* The positions of a sequence: all pixels, or all but the first. */
int64_t images_length(const ImagesOptions *options);

/* The bytes of an image's upper half, which are given where images are completed. */
int64_t images_upper_half(const ImagesOptions *options);

/* LSH attention has none to generate with. */
bool images_have_state(const ImagesOptions *options);

/* End the program if an option of decode steps is given without a state; without --data. */
void images_check_steps(const ImagesOptions *options);
/* The option given that decode steps alone read, with its value; or NULL */
const char *images_steps_option(const ImagesOptions *options);
void images_check_data(const ImagesOptions *options);

/* The subcommands. argv[0] is the subcommand's name; each returns the exit status. */
int images_train(int argc, char **argv);
int images_sample(int argc, char **argv);
int images_evaluate(int argc, char **argv);
int images_benchmark(int argc, char **argv);

#endif
