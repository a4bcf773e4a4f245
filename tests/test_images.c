/* examples/images, run as a user runs it, on a data set of small images that the test writes. */
#include "tests/programs.h"

#include <png.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 6, COLUMNS = 5, PIXELS = ROWS * COLUMNS, TRAINING = 26, TEST = 10 };

/* A model so small that a step takes a fraction of a millisecond. */
#define SIZES                                                                                      \
    "--rows 6 --columns 5 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --logistics 3 "      \
    "--threads 2 "
#define TINY                                                                                       \
    "images train --data @ " SIZES "--batch 4 --optimizer radam --schedule constant --clip 1 "

/* ----------------------------------------------------------------------------------------- data */

/* Every second image is black, and the others show the same pattern from the first pixel on: a
 * pixel follows from its position and the pixels before it. */
static uint8_t pixel(int image, int place)
{
    return image % 2 && place * 7 % 11 < 5 ? 255 : 0;
}

static void put_number(FILE *file, int number)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        fputc(number >> shift & 255, file);
}

static void write_images(const char *folder, const char *name, int count, int rows, int columns)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    put_number(file, 0x803);
    put_number(file, count);
    put_number(file, rows);
    put_number(file, columns);
    for (int i = 0; i < count; i++) {
        for (int p = 0; p < rows * columns; p++)
            fputc(pixel(i, p), file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void write_data(void)
{
    write_images(directory, "train-images-idx3-ubyte", TRAINING, ROWS, COLUMNS);
    write_images(directory, "t10k-images-idx3-ubyte", TEST, ROWS, COLUMNS);
}

/* ---------------------------------------------------------------------------------------- train */

/* Of the last line of a training run. */
static double final_test_bits(void)
{
    return number_after("final test_bits=");
}

TEST(learns)
{
    static const char *const kinds[] = { "", "--attention softmax", "--features squared-relu",
                                         "--schedule cosine --dropout 0.1",
                                         "--optimizer muon --warm-up 10" };
    for (int i = 0; i < 5; i++) {
        assert_runs(TINY "--steps 150 --learning-rate 0.02 --device cpu --quiet %s", kinds[i]);
        ck_assert_msg(final_test_bits() < 4, "%s: %s", kinds[i], output); /* from 8 */
    }
}

TEST(epochs_make_steps)
{
    assert_runs(TINY "--epochs 1.5 --quiet --test-images 3");
    ck_assert_double_eq(number_after(" steps="), 10); /* 39 images, 4 per step */
    ck_assert_double_eq_tol(number_after(" epochs="), 10 * 4. / TRAINING, 1e-3);
    ck_assert_double_eq(number_after(" test_images="), 3);
}

TEST(resumed_run_continues_to_its_epochs)
{
    assert_runs(TINY "--steps 5 --save @/part.safetensors");
    assert_runs("images train --data @ --resume @/part.safetensors --threads 2 --epochs 1");
    ck_assert_double_eq(number_after(" steps="), 7);
}

/* --------------------------------------------------------------------------------------- errors */

TEST(bad_data_are_reported)
{
    ck_assert_int_eq(run("images train --data @ --rows 5"), 1);
    assert_says("its images have 6 x 5 pixels, expected the model's 5 x 28\n");
    char folder[128];
    snprintf(folder, sizeof folder, "%s/test-alone", directory);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    write_images(folder, "t10k-images-idx3-ubyte", 3, ROWS, COLUMNS);
    ck_assert_int_eq(run("images train --data @/test-alone --rows 6 --columns 5"), 1);
    assert_says("there is no train-images-idx3-ubyte, with or without .gz; ");
}

/* --------------------------------------------------------------------------------------- sample */

/* A picture as images_sample draws it, with its scale, margins and background gray. */
typedef struct Picture {
    png_image png;
    uint8_t *bytes;
} Picture;

enum { SCALE = 3, MARGIN = 6, GRAY = 128 };

static Picture read_picture(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    Picture picture = { .png = { .version = PNG_IMAGE_VERSION } };
    ck_assert_msg(png_image_begin_read_from_file(&picture.png, path), "%s", picture.png.message);
    picture.png.format = PNG_FORMAT_GRAY;
    picture.bytes = malloc(PNG_IMAGE_SIZE(picture.png));
    ck_assert(png_image_finish_read(&picture.png, NULL, picture.bytes, 0, NULL));
    return picture;
}

static int picture_pixel(const Picture *picture, int row, int column, int place)
{
    int y = MARGIN + row * (ROWS * SCALE + MARGIN) + place / COLUMNS * SCALE;
    int x = MARGIN + column * (COLUMNS * SCALE + MARGIN) + place % COLUMNS * SCALE;
    return picture->bytes[y * (int)picture->png.width + x];
}

static void check_completions(const Picture *picture)
{
    int right = 0;
    for (int i = 0; i < 4; i++) {
        for (int p = 0; p < PIXELS; p++) {
            bool given = p < PIXELS / 2;
            ck_assert_int_eq(picture_pixel(picture, 1, i, p), given ? pixel(i, p) : GRAY);
            ck_assert_int_eq(picture_pixel(picture, 3, i, p), pixel(i, p));
            int completed = picture_pixel(picture, 2, i, p);
            if (given)
                ck_assert_int_eq(completed, pixel(i, p));
            right += abs(completed - pixel(i, p)) < 30;
        }
    }
    ck_assert_msg(right > 4 * PIXELS * 95 / 100, "%d of %d pixels right: %s", right, 4 * PIXELS,
                  output);
}

/* The model has memorized the pattern: it must complete the first rows. */
TEST(completes_images)
{
    static const char *const attentions[] = { "linear", "decay", "softmax", "lsh-4" };
    for (int k = 0; k < 4; k++) {
        assert_runs(TINY "--head-dim 16 --steps 500 --learning-rate 0.01 --schedule cosine --quiet "
                         "--device cpu --attention %s --save @/run.safetensors",
                    attentions[k]);
        assert_runs("images sample --load @/run.safetensors --data @ --count 4 --temperature 0.2 "
                    "--threads 2 --plot @/grid.png");
        assert_says("4 images and the same number completed, drawn in ");
        Picture picture = read_picture("grid.png");
        ck_assert_int_eq((int)picture.png.width, MARGIN + 4 * (COLUMNS * SCALE + MARGIN));
        ck_assert_int_eq((int)picture.png.height, MARGIN + 4 * (ROWS * SCALE + MARGIN));
        check_completions(&picture);
        free(picture.bytes);
    }
}

/* Image i is of one color, red 10 i, green 10 i + 1 and blue 10 i + 2: in the file three planes,
 * in the picture three values of each pixel. */
static void write_colors(const char *name, int count)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < count; i++) {
        fputc(i % 10, file);
        for (int k = 0; k < 3 * 1024; k++)
            fputc(10 * i + k / 1024, file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

#define COLORS                                                                                     \
    "images train --preset cifar10-small --data @ --layers 1 --heads 1 --head-dim 8 "              \
    "--feed-forward 8 --logistics 1 --batch 2 --threads 2 --quiet --device cpu "

TEST(completes_color_images)
{
    write_colors("data_batch_1.bin", 5);
    write_colors("test_batch.bin", 4);
    assert_runs(COLORS "--steps 2 --test-images 2 --save @/run.safetensors");
    assert_says("final test_bits=");
    assert_runs("images evaluate --load @/run.safetensors --data @ --test-images 1 --threads 2 "
                "--device cpu");
    assert_runs("images sample --load @/run.safetensors --data @ --count 3 --threads 2 "
                "--device cpu --plot @/grid.png");
    char path[160];
    snprintf(path, sizeof path, "%s/grid.png", directory);
    png_image png = { .version = PNG_IMAGE_VERSION };
    ck_assert_msg(png_image_begin_read_from_file(&png, path), "%s", png.message);
    ck_assert_uint_eq(png.format, PNG_FORMAT_RGB);
    uint8_t *bytes = malloc(PNG_IMAGE_SIZE(png));
    ck_assert(png_image_finish_read(&png, NULL, bytes, 0, NULL));
    for (int row = 1; row < 4; row++) /* the upper halves, the completions, the images */
        for (int i = 0; i < 3; i++)
            for (int y = 0; y < (row == 3 ? 32 : 16); y++) {
                const int line = MARGIN + row * (32 * SCALE + MARGIN) + y * SCALE;
                const int at = line * (int)png.width + MARGIN + i * (32 * SCALE + MARGIN) + y;
                for (int c = 0; c < 3; c++)
                    ck_assert_int_eq(bytes[3 * at + c], 10 * i + c);
            }
    free(bytes);
}

TEST(sizes_of_data_sets_are_named)
{
    write_colors("data_batch_1.bin", 5);
    write_colors("test_batch.bin", 4);
    ck_assert_int_eq(run(COLORS "--rows 30 --steps 2"), 1);
    assert_says("its images have 32 x 32 pixels, expected the model's 30 x 32\n");
    ck_assert_int_eq(run(COLORS "--data /nowhere --steps 2"), 1);
    assert_says("images: --data /nowhere: there is no test*.bin, with or without .gz; expected the "
                "directory of CIFAR-10's binary files");
    ck_assert_int_eq(run("images train --preset cifar10-small"), 2);
    assert_says(
        "images: expected --data DIR, the directory of CIFAR-10's binary files (Krizhevsky");
}

TEST(samples_are_bitwise_repeatable)
{
    assert_runs(TINY "--steps 5 --quiet --save @/run.safetensors");
    static const char *const seeds[] = { "", "--seed 1", "--seed 2" };
    for (int i = 0; i < 3; i++)
        assert_runs("images sample --load @/run.safetensors --count 12 --threads 2 "
                    "--plot @/%d.png %s",
                    i, seeds[i]);
    const double distance = number_after("mean distance of two: ");
    ck_assert(distance > 0 && distance < 255);
    assert_same_files("0.png", "1.png");
    size_t one, two;
    char *first = contents("1.png", &one), *other = contents("2.png", &two);
    ck_assert(one != two || memcmp(first, other, one) != 0);
    free(first);
    free(other);
    Picture picture = read_picture("0.png"); /* rows of ten and of two images */
    ck_assert_int_eq((int)picture.png.width, MARGIN + 10 * (COLUMNS * SCALE + MARGIN));
    ck_assert_int_eq((int)picture.png.height, MARGIN + 2 * (ROWS * SCALE + MARGIN));
    free(picture.bytes);
    ck_assert_int_eq(run("images sample --load @/run.safetensors --data @ --count 11 "
                         "--plot @/no.png"),
                     2);
    assert_says("images: --count 11: expected at most the 10 test images\n");
}

/* Each image has its own random numbers, whether drawn in a batch or alone. */
TEST(images_are_the_same_in_batches)
{
    static const char *const batches[] = { "", "--batch 4", "--batch 1" };
    static const char *const attentions[] = { "linear", "decay", "softmax" };
    for (int k = 0; k < 3; k++) {
        assert_runs(TINY "--steps 5 --quiet --save @/run.safetensors --attention %s",
                    attentions[k]);
        for (int i = 0; i < 3; i++)
            assert_runs("images sample --load @/run.safetensors --data @ --count 10 --threads 2 "
                        "--plot @/%d.png %s",
                        i, batches[i]);
        assert_same_files("0.png", "1.png");
        assert_same_files("0.png", "2.png");
    }
}

/* ------------------------------------------------------------------------------------- evaluate */

/* Test bits of the last program. */
static double bits_found(void)
{
    assert_says(" test_images=10 ");
    return number_after("evaluation test_bits=");
}

/* Decode steps give what the parallel form gives, in any batches; bf16 and 8 bits nearly. */
TEST(decode_steps_score_images)
{
    assert_runs(TINY "--steps 30 --learning-rate 0.01 --quiet --save @/run.safetensors");
    const double expected = final_test_bits();
    assert_runs("images evaluate --load @/run.safetensors --data @ --threads 2 --batch 4");
    ck_assert_double_eq_tol(bits_found(), expected, 1e-3 * expected);
    const double lower = number_after("lower_half_bits="); /* half of all bits or less is upper */
    ck_assert(lower > 0 && lower < 2 * expected && fabs(lower - expected) > 1e-6);
    if (device_is_cuda(test_device()))
        return;
    assert_runs("images evaluate --load @/run.safetensors --data @ --threads 2 --int8");
    ck_assert_double_eq_tol(bits_found(), expected, 0.05 * expected);
    ck_assert(fabs(bits_found() - expected) > 1e-6);
    if (sizeof(Real) == sizeof(float)) {
        assert_runs("images evaluate --load @/run.safetensors --data @ --threads 2 "
                    "--precision bf16");
        ck_assert_double_eq_tol(bits_found(), expected, 0.05 * expected);
        ck_assert(bits_found() != expected);
    }
}

/* The other methods as well; each pass draws new hashes of LSH attention. */
TEST(every_attention_scores_as_it_trains)
{
    static const char *const attentions[] = { "decay", "softmax", "lsh-1", "lsh-4" };
    for (int k = 0; k < 4; k++) {
        assert_runs(TINY "--steps 30 --learning-rate 0.01 --quiet --save @/run.safetensors "
                         "--attention %s",
                    attentions[k]);
        const double expected = final_test_bits();
        assert_runs("images evaluate --load @/run.safetensors --data @ --threads 2");
        ck_assert_double_eq_tol(bits_found(), expected, (k < 2 ? 1e-3 : 0.05) * expected);
    }
    ck_assert_int_eq(run("images evaluate --load @/run.safetensors --data @ --int8"), 2);
    assert_says("images: --int8: expected a model with a state, not of --attention lsh-4\n");
    ck_assert_int_eq(run("images sample --load @/run.safetensors --plot @/no.png --precision bf16"),
                     2);
    assert_says(
        "images: --precision bf16: expected a model with a state, not of --attention lsh-4\n");
    ck_assert_int_eq(run(TINY "--attention lsh-1 --features relu"), 2);
    assert_says("images: --features relu: expected without --attention softmax, lsh-1 and lsh-4");
}

/* --input sines: the first pixel is given, in the parallel form, in steps and in passes. */
TEST(sines_score_images_from_the_second_pixel_on)
{
    static const char *const attentions[] = { "linear", "softmax", "lsh-1" };
    for (int k = 0; k < 3; k++) {
        assert_runs(TINY "--steps 30 --learning-rate 0.01 --quiet --save @/run.safetensors "
                         "--input sines --dropout 0.1 --clip-of each --weight-decay 0.01 "
                         "--attention %s",
                    attentions[k]);
        const double expected = final_test_bits();
        assert_runs("images evaluate --load @/run.safetensors --data @ --threads 2");
        ck_assert_double_eq_tol(bits_found(), expected, (k < 2 ? 1e-3 : 0.05) * expected);
        assert_runs(
            "images sample --load @/run.safetensors --count 2 --threads 2 --plot @/grid.png");
        Picture picture = read_picture("grid.png");
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(picture_pixel(&picture, 0, i, 0), 0);
        free(picture.bytes);
        assert_runs("images sample --load @/run.safetensors --data @ --count 3 --threads 2 "
                    "--plot @/grid.png");
        picture = read_picture("grid.png");
        for (int p = 0; p < PIXELS / 2; p++)
            ck_assert_int_eq(picture_pixel(&picture, 2, 1, p), pixel(1, p));
        free(picture.bytes);
    }
    assert_runs("images benchmark " SIZES "--batch 2 --input sines --method linear");
    assert_says("29 of 29 pixels");
}

/* ------------------------------------------------------------------------------------ benchmark */

TEST(benchmark_measures_every_method)
{
    assert_runs("images benchmark " SIZES "--batch 3 --csv @/table.csv");
    assert_says("30 of 30 pixels");
    assert_says("16 of 30 pixels");
    size_t length;
    char *text = contents("table.csv", &length), *line = text;
    ck_assert_msg(
        !strncmp(text, "method,batch,seconds,images_per_second,measured_pixels,pixels\n", 62), "%s",
        text);
    static const char *const names[] = { "linear",  "decay", "stateful-softmax",
                                         "softmax", "lsh-1", "lsh-4" };
    for (int i = 0; i < 12; i++) {
        char name[32];
        int batch, measured, pixels;
        double seconds, rate;
        line = strchr(line, '\n') + 1;
        ck_assert_int_eq(sscanf(line, "%31[^,],%d,%lf,%lf,%d,%d", name, &batch, &seconds, &rate,
                                &measured, &pixels),
                         6);
        ck_assert_str_eq(name, names[i / 2]);
        ck_assert_int_eq(batch, i % 2 ? 1 : 3);
        ck_assert_double_eq_tol(seconds * rate / batch, 1, 1e-4);
        ck_assert_int_eq(measured, i < 6 ? PIXELS : 16);
        ck_assert_int_eq(pixels, PIXELS);
    }
    ck_assert_str_eq(strchr(line, '\n'), "\n");
    free(text);
}

TEST(benchmark_measures_some_pixels)
{
    assert_runs("images benchmark " SIZES "--batch 1 --pixels 4 --method stateful-softmax");
    assert_says("4 of 30 pixels");
    assert_says("~ ");
    ck_assert_ptr_null(strstr(output, "\nlinear "));
    assert_runs("images benchmark " SIZES "--batch 2 --pixels 4 --method linear");
    ck_assert_ptr_null(strstr(output, "the paper"));
    if (!device_is_cuda(test_device()))
        assert_runs("images benchmark " SIZES "--batch 2 --pixels 4 --method linear --int8");
    if (!device_is_cuda(test_device()) && sizeof(Real) == sizeof(float))
        assert_runs("images benchmark " SIZES
                    "--batch 2 --pixels 4 --method linear --precision bf16");
    assert_says("4 of 30 pixels");
    ck_assert_int_eq(run("images benchmark " SIZES "--batch 2 --method lsh-1 --int8"), 2);
    assert_says("images: --int8: expected a --method with a state, not lsh-1\n");
    assert_runs("images benchmark --batch 1 --pixels 2 --method linear --threads 2");
    assert_says("   0.1818   2 of 784 pixels"); /* 1 / 5.5 s: Table 5 of the paper */
}

int main(void)
{
    return run_program_tests("images", write_data);
}
