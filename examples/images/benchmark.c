#include "examples/images/data.h"
#include "examples/images/model.h"
#include "examples/shared/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A method of generation. Without state, every pixel is a forward pass over all previous ones. */
typedef struct Method {
    const char *name, *attention;
    bool state;
    int64_t pixels; /* number of measured pixels, unless --pixels is given; 0: all */
    /* Katharopoulos et al. 2020, Tables 4 (images per second, on a GPU) and 5 (seconds for one
     * image, on a CPU), of MNIST and CIFAR-10; 0: not there */
    double paper_rate[2], paper_seconds[2];
} Method;

static const Method methods[] = {
    { "linear", "linear", true, 0, { 142.8, 17.85 }, { 5.5, 45.1 } },
    { "decay", "decay", true, 0, { 0 }, { 0 } },
    { "stateful-softmax", "softmax", true, 0, { 7.56, 0.32 }, { 7.4, 71.9 } },
    { "softmax", "softmax", false, 16, { 0.45, 0.004 }, { 72.6, 8651.4 } },
    { "lsh-1", "lsh-1", false, 16, { 0.68, 0.015 }, { 46.0, 2318.9 } },
    { "lsh-4", "lsh-4", false, 16, { 0.27, 0.005 }, { 112.0, 5263.7 } },
};
enum { METHODS = sizeof methods / sizeof *methods };

/* A method and a batch size. */
typedef struct Trial {
    const ImagesOptions *options;
    const Method *method;
    const Model *model;
    Device *device;
    int64_t images, pixels, measured; /* batch size; pixels per image; measured pixels per image */
    int32_t *drawn;                   /* [images, pixels]: any values */
} Trial;

static GeneratorConfig config_of(const Trial *trial)
{
    GeneratorConfig config = generator_config(trial->options, trial->images);
    config.without_state = !trial->method->state;
    return config;
}

/* The index-th measured pixel: the middle of the index-th of equal parts of the image. */
static int64_t measured_pixel(const Trial *trial, int64_t index)
{
    return (2 * index + 1) * trial->pixels / (2 * trial->measured);
}

/* The time of the first pixels of all images. */
static double seconds_from_start(const Trial *trial, Generator *generator, int64_t pixels)
{
    generator_start(generator, NULL, 0, 0); /* with sines the first pixel is given */
    double start = now();
    for (int64_t p = 0; p < pixels; p++)
        generator_next(generator);
    device_wait(trial->device);
    return now() - start;
}

/* The time of one pixel after the previous ones, which a state is prefilled with. */
static double seconds_at(const Trial *trial, Generator *generator, int64_t pixel)
{
    generator_start(generator, pixel > 0 ? trial->drawn : NULL, pixel, 0);
    device_wait(trial->device);
    double start = now();
    generator_next(generator);
    device_wait(trial->device);
    return now() - start;
}

/* The time of the measured pixels. By linear attention, with a decay or without, every pixel takes
 * the same time, so the first ones are measured. */
static double seconds_of(const Trial *trial)
{
    const bool linear = trial->method->state && strcmp(trial->method->attention, "softmax") != 0;
    Generator *generator = generator_new(trial->model, trial->device, config_of(trial));
    seconds_from_start(trial, generator, min_count(3, trial->pixels)); /* allocates, captures */
    if (!trial->method->state)
        seconds_at(trial, generator, trial->pixels - 1); /* allocates the most */
    double seconds = 0;
    if (trial->measured == trial->pixels || linear)
        seconds = seconds_from_start(trial, generator, trial->measured);
    else
        for (int64_t i = 0; i < trial->measured; i++)
            seconds += seconds_at(trial, generator, measured_pixel(trial, i));
    generator_free(generator);
    return seconds;
}

/* ---------------------------------------------------------------------------------------- table */

static bool is_the_papers(const ImagesOptions *options)
{
    const TrainingOptions *o = &options->common;
    const bool color = images_channels(options) > 1;
    const int64_t side = color ? 32 : 28;
    return o->layers == (color ? 16 : 8) && o->heads == 8 && o->head_dim == 32 &&
           o->feed_forward == 1024 && options->logistics == 10 && options->rows == side &&
           options->columns == side && !images_have_sines(options);
}

/* The paper's images per second, of many at a time or of one; 0: it has none of this model. */
static double paper_rate(const Trial *trial)
{
    const int set = images_channels(trial->options) > 1; /* CIFAR-10 */
    const double seconds = trial->method->paper_seconds[set];
    if (seconds == 0 || !is_the_papers(trial->options))
        return 0;
    return trial->images > 1 ? trial->method->paper_rate[set] : 1 / seconds;
}

static void print_row(const Trial *trial, double seconds, FILE *csv)
{
    const double rate = (double)trial->images / seconds, paper = paper_rate(trial);
    const char mark = trial->measured < trial->pixels ? '~' : ' ';
    char beside[32] = "";
    if (paper > 0)
        snprintf(beside, sizeof beside, "%.4g", paper);
    printf("%-18s %6lld   %c%10.3f  %c%10.4g  %10s   %lld of %lld pixels\n", trial->method->name,
           (long long)trial->images, mark, seconds, mark, rate, beside, (long long)trial->measured,
           (long long)trial->pixels);
    fflush(stdout);
    if (csv)
        fprintf(csv, "%s,%lld,%.6g,%.6g,%lld,%lld\n", trial->method->name, (long long)trial->images,
                seconds, rate, (long long)trial->measured, (long long)trial->pixels);
}

static void measure(Trial trial, FILE *csv)
{
    int64_t pixels = trial.options->pixels ? trial.options->pixels : trial.method->pixels;
    trial.measured = pixels ? min_count(pixels, trial.pixels) : trial.pixels;
    trial.drawn = allocate(trial.images * trial.model->pixels, sizeof(int32_t));
    print_row(&trial, seconds_of(&trial) * (double)trial.pixels / (double)trial.measured, csv);
    free(trial.drawn);
}

/* Measures a batch and a single image. */
static void measure_method(const ImagesOptions *options, Device *device, const Method *method,
                           FILE *csv)
{
    ImagesOptions with_attention = *options;
    with_attention.common.attention = method->attention;
    Params *params = params_new(device, (uint64_t)options->common.seed);
    Model model = model_new(params, &with_attention);
    Trial trial = { .options = options,
                    .method = method,
                    .model = &model,
                    .device = device,
                    .images = options->together,
                    .pixels = images_length(options) };
    measure(trial, csv);
    trial.images = 1;
    if (options->together > 1)
        measure(trial, csv);
    params_free(params);
}

static FILE *open_csv(const char *path)
{
    FILE *csv = path ? fopen(path, "w") : NULL;
    if (path && !csv)
        fail(EXIT_FAILURE, "--csv %s: %s", path, strerror(errno));
    if (csv)
        fprintf(csv, "method,batch,seconds,images_per_second,measured_pixels,pixels\n");
    return csv;
}

int images_benchmark(int argc, char **argv)
{
    ImagesOptions options;
    const Given given = options_parse(&images_benchmark_command, argc, argv, &options);
    if (strcmp(options.method, "all") && strcmp(options.method, "linear") &&
        strcmp(options.method, "decay"))
        options_refuse(&given, "features", "--method %s, which has none", options.method);
    option_check_file("csv", options.csv);
    FILE *csv = open_csv(options.csv);
    Device *device = training_device(&options.common);
    printf("%s: %lld layers, %lld heads of %lld, feed-forward %lld, %lld logistics; images of "
           "%lld bytes; %s\n\n%-18s %6s   %11s  %11s  %10s   %s\n",
           images_title(&options), (long long)options.common.layers,
           (long long)options.common.heads, (long long)options.common.head_dim,
           (long long)options.common.feed_forward, (long long)options.logistics,
           (long long)images_pixels(&options), device_name(device), "method", "batch", "seconds",
           "images/s", is_the_papers(&options) ? "the paper" : "", "measured");
    for (int i = 0; i < METHODS; i++) {
        const bool all = !strcmp(options.method, "all");
        if (!all && strcmp(options.method, methods[i].name) != 0)
            continue;
        if (methods[i].state || !images_steps_option(&options))
            measure_method(&options, device, &methods[i], csv);
        else if (!all)
            fail(BAD_USE, "%s: expected a --method with a state, not %s",
                 images_steps_option(&options), options.method);
    }
    puts("\n~ : extrapolated from the measured pixels: for linear and decay the first ones, for\n"
         "    the other methods pixels spread evenly over the image");
    if (is_the_papers(&options))
        puts("the paper: Table 4, images per second on a GPU, and for a batch of 1 Table 5, on a "
             "CPU");
    if (csv && fclose(csv))
        fail(EXIT_FAILURE, "--csv %s: %s", options.csv, strerror(errno));
    return EXIT_SUCCESS;
}
