/* A convolutional network reads handwritten digits: 98.5 % of MNIST's test images after
 *
 *     build/examples/convolution 1200 DIR     DIR has MNIST's four gzipped IDX files
 *
 * or, without DIR, digits that it draws at random places of noisy images. */
#include "shared/argument.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad.h>
#include <zlib.h>

enum { BATCH = 100, SIZE = 28, PIXELS = SIZE * SIZE, DIGITS = 10, ROWS = 5, COLUMNS = 3, ZOOM = 4 };

typedef struct Images {
    int64_t count;
    uint8_t *pixels, *digits; /* [count, PIXELS], [count] */
} Images;

/* The elements of an IDX file, behind `head` bytes of sizes */
static uint8_t *read_idx(const char *directory, const char *part, const char *kind, int head,
                         int64_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s-%s-ubyte.gz", directory, part, kind);
    gzFile file = gzopen(path, "rb");
    uint8_t *data = malloc((size_t)bytes);
    if (!file || gzseek(file, head, SEEK_SET) != head ||
        gzread(file, data, (unsigned)bytes) != bytes)
        errx(EXIT_FAILURE, "%s is missing or damaged", path);
    gzclose(file);
    return data;
}

static Images read_images(const char *directory, const char *part, int64_t count)
{
    return (Images){ count, read_idx(directory, part, "images-idx3", 16, count * PIXELS),
                     read_idx(directory, part, "labels-idx1", 8, count) };
}

static Images draw(Random *random, int64_t count)
{
    static const char *const font[] = { "####.##.##.####", ".#.##..#..#.###", "##...#.#.#..###",
                                        "##...#.#...###.", "#.##.####..#..#", "####..##...###.",
                                        ".###..####.####", "###..#.#..#..#.", "####.#####.####",
                                        "####.####..###." };
    Images drawn = { count, malloc((size_t)count * PIXELS), malloc((size_t)count) };
    for (int64_t i = 0; i < count; i++) {
        const int64_t digit = random_integer(random, 0, DIGITS);
        const int64_t top = random_integer(random, 0, SIZE - ZOOM * ROWS + 1);
        const int64_t left = random_integer(random, 0, SIZE - ZOOM * COLUMNS + 1);
        drawn.digits[i] = (uint8_t)digit;
        for (int64_t p = 0; p < PIXELS; p++) {
            const int64_t y = p / SIZE - top, x = p % SIZE - left;
            const bool inside = y >= 0 && y < ZOOM * ROWS && x >= 0 && x < ZOOM * COLUMNS;
            const bool ink = inside && font[digit][y / ZOOM * COLUMNS + x / ZOOM] == '#';
            drawn.pixels[i * PIXELS + p] = (uint8_t)(random_integer(random, 0, 140) + 110 * ink);
        }
    }
    return drawn;
}

/* relu of a 3 x 3 convolution, then the maximum of each 2 x 2 pixels: [B, H / 2, W / 2, out] */
static Tensor *convolve(Tape *tape, const Conv2d *conv, Tensor *x)
{
    x = op_relu(tape, nn_conv2d_forward(tape, conv, x));
    return op_max_pool(tape, x, (Window){ .height = 2, .width = 2 });
}

int main(int argc, char **argv)
{
    const int steps = argument_number(argc, argv, 1, "steps", 1, 300);
    Random random = random_new(/*seed*/ 1, random_stream("images"));
    const Images training = argc > 2 ? read_images(argv[2], "train", 60000) : draw(&random, 5000);
    const Images test = argc > 2 ? read_images(argv[2], "t10k", 10000) : draw(&random, 1000);
    Params *params = params_new(device_best(), /*seed*/ 1);
    const Window window = { .height = 3, .width = 3, .padding = 1 };
    Conv2d first = nn_conv2d(params, "first", 1, 16, window);
    Conv2d second = nn_conv2d(params, "second", 16, 32, window);
    Linear output = nn_linear(params, "output", SIZE / 4 * SIZE / 4 * 32, DIGITS);
    AdamConfig adam = optim_adam_config(3e-3);
    adam.schedule = optim_cosine(/*warm_up*/ 0, steps + 1, /*last*/ 0);
    Optimizer *optimizer = optim_adam(params, adam);
    Tape *tape = tape_new(params_device(params));
    const int64_t tests = test.count / BATCH;
    double right = 0; /* the sum of the test batches' accuracies */
    for (int step = 1; step <= steps + tests; step++) { /* the last ones only count */
        static Real pixels[BATCH][PIXELS];
        static int32_t digits[BATCH];
        const bool learn = step <= steps;
        const Images *from = learn ? &training : &test;
        for (int64_t b = 0, i = (step - steps - 1) * BATCH; b < BATCH; b++, i++) {
            if (learn)
                i = random_integer(&random, 0, training.count);
            for (int p = 0; p < PIXELS; p++)
                pixels[b][p] = (Real)from->pixels[i * PIXELS + p] / 255;
            digits[b] = from->digits[i];
        }
        tape_set_recording(tape, learn);
        Tensor *x = tape_input(tape, pixels[0], shape(BATCH, SIZE, SIZE, 1));
        x = convolve(tape, &second, convolve(tape, &first, x)); /* [BATCH, SIZE/4, SIZE/4, 32] */
        x = op_reshape(tape, x, shape(BATCH, tensor_count(x) / BATCH));
        Tensor *logits = nn_linear_forward(tape, &output, x); /* [BATCH, DIGITS] */
        Tensor *targets = tape_input_i32(tape, digits, shape(BATCH));
        right += learn ? 0 : tensor_item(op_accuracy(tape, logits, targets, NULL));
        if (learn) {
            Tensor *loss = op_cross_entropy(tape, logits, targets, NULL);
            tape_backward(tape, loss);
            optim_step(optimizer);
            if (step % 100 == 0)
                printf("step %4d  loss %.4f\n", step, tensor_item(loss));
        }
        tape_reset(tape);
    }
    printf("accuracy %.4f on %d test images\n", right / (double)tests, (int)tests * BATCH);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    free(training.pixels);
    free(training.digits);
    free(test.pixels);
    free(test.digits);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
