#include "examples/images/image.h"
#include "examples/images/data.h"
#include "examples/images/model.h"
#include "examples/shared/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACROSS = 10, GRAY = 128, WHITE = 255 };
enum { MEASURED = 200 }; /* images whose distances are measured */

/* The output, filled in rows of at most ACROSS images. */
typedef struct Picture {
    ImageGrid grid;
    uint8_t *pixels; /* of the grid */
    int64_t row;     /* the next free one */
    double distance; /* mean of two images drawn unconditionally */
} Picture;

/* The number of rows for count images of each kind. */
static int64_t rows_of(int64_t count, int64_t kinds)
{
    return kinds * ((count + ACROSS - 1) / ACROSS);
}

static Picture picture_new(const ImagesOptions *options, int64_t kinds)
{
    int64_t rows = rows_of(options->count, kinds);
    int64_t columns = options->count < ACROSS ? options->count : ACROSS;
    int64_t size = rows * columns * images_pixels(options);
    Picture picture = { .pixels = allocate(size, 1) };
    memset(picture.pixels, WHITE, (size_t)size);
    picture.grid = (ImageGrid){ .rows = rows,
                                .columns = columns,
                                .height = options->rows,
                                .width = options->columns,
                                .channels = images_channels(options),
                                .pixels = picture.pixels,
                                .scale = 3,
                                .margin = 6,
                                .background = WHITE };
    return picture;
}

/* Copies images [count, pixels] into every step-th row, starting down rows below the next free one.
 * The pixels after the first shown ones are gray. */
static void picture_add(Picture *picture, const int32_t *images, int64_t count, int64_t step,
                        int64_t down, int64_t shown)
{
    const ImageGrid *grid = &picture->grid;
    int64_t pixels = grid->height * grid->width * grid->channels;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = picture->row + down + i / ACROSS * step;
        uint8_t *image = picture->pixels + (row * grid->columns + i % ACROSS) * pixels;
        for (int64_t p = 0; p < pixels; p++)
            image[p] = p < shown ? (uint8_t)images[i * pixels + p] : GRAY;
    }
}

/* Batches of equal size bound the memory. */
typedef struct Batches {
    int64_t number, size;
} Batches;

static Batches batches_of(const ImagesOptions *options)
{
    const int64_t number = (options->count + options->at_once - 1) / options->at_once;
    return (Batches){ number, (options->count + number - 1) / number };
}

/* Completes images [number * size, pixels], whose first count pixels are given. */
static void draw_images(Generator *generator, int32_t *images, Batches batches, int64_t pixels,
                        int64_t count)
{
    int32_t *given = allocate(batches.size * pixels, sizeof *given);
    for (int64_t i = 0; i < batches.number; i++) {
        int32_t *batch = images + i * batches.size * pixels;
        for (int64_t b = 0; b < batches.size; b++)
            memcpy(given + b * count, batch + b * pixels, (size_t)count * sizeof *given);
        int64_t p = generator_start(generator, given, count, i * batches.size);
        for (; p < pixels; p++)
            generator_next(generator);
        generator_read(generator, batch);
    }
    free(given);
}

/* Copies the first test images to images [count, pixels]. */
static void read_test_images(int32_t *images, const Given *given, const ImagesOptions *options)
{
    Images test = images_read(given, options, false);
    int64_t size = options->count * images_pixels(options);
    if (options->count > test.count)
        fail(BAD_USE, "--count %lld: expected at most the %lld test images",
             (long long)options->count, (long long)test.count);
    for (int64_t i = 0; i < size; i++)
        images[i] = test.bytes[i];
    images_free(&test);
}

/* The diversity of images: the mean over all pairs of the root of the mean square difference of
 * their pixels, of 255 */
static double mean_distance(const int32_t *images, int64_t count, int64_t pixels)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < i; j++) {
            double square = 0;
            for (int64_t p = 0; p < pixels; p++) {
                const double d = images[i * pixels + p] - images[j * pixels + p];
                square += d * d;
            }
            sum += sqrt(square / (double)pixels);
        }
    return count > 1 ? sum / (double)(count * (count - 1) / 2) : 0;
}

/* As Figure 3 of the paper: unconditional images; below, in groups of three rows, the upper halves
 * of test images, their completions by the model, and the originals. */
static Picture draw_picture(const Given *given, const ImagesOptions *options, Generator *generator)
{
    int64_t count = options->count, pixels = images_pixels(options);
    int64_t upper = images_upper_half(options);
    Picture picture = picture_new(options, options->data ? 4 : 1);
    const Batches batches = batches_of(options);
    int32_t *images = allocate(batches.number * batches.size * pixels, sizeof *images);
    draw_images(generator, images, batches, pixels, 0);
    picture_add(&picture, images, count, 1, 0, pixels);
    picture.distance = mean_distance(images, min_count(count, MEASURED), pixels);
    picture.row = rows_of(count, 1);
    if (options->data) {
        read_test_images(images, given, options);
        picture_add(&picture, images, count, 3, 0, upper);
        picture_add(&picture, images, count, 3, 2, pixels);
        draw_images(generator, images, batches, pixels, upper);
        picture_add(&picture, images, count, 3, 1, pixels);
    }
    free(images);
    return picture;
}

int images_sample(int argc, char **argv)
{
    ImagesOptions options;
    const Given given = options_parse(&images_sample_command, argc, argv, &options);
    if (!options.common.load || !options.common.plot)
        fail(BAD_USE, "sample: expected --load FILE, a checkpoint of images train, and --plot "
                      "FILE, the picture");
    option_check_file("plot", options.common.plot);
    images_check_steps(&options);
    Device *device = training_device(&options.common);
    Params *params = params_new(device, (uint64_t)options.common.seed);
    Model model = model_load(params, &options);
    GeneratorConfig config = generator_config(&options, batches_of(&options).size);
    config.all = options.count;
    config.temperature = options.temperature;
    config.seed = (uint64_t)options.draw;
    Generator *generator = generator_new(&model, device, config);
    double start = now();
    Picture picture = draw_picture(&given, &options, generator);
    double seconds = now() - start;
    Sentence sentence;
    if (!image_write_png(options.common.plot, picture.grid, &sentence))
        fail(EXIT_FAILURE, "--plot %s", sentence.text);
    printf("%s: %lld images%s, drawn in %.2f s; mean distance of two: %.1f of 255\n",
           options.common.plot, (long long)options.count,
           options.data ? " and the same number completed" : "", seconds, picture.distance);
    free(picture.pixels);
    generator_free(generator);
    params_free(params);
    return EXIT_SUCCESS;
}
