/* A small convolutional network learns to read digits, drawn at random places in noisy images. A
 * convolution is op_unfold and a linear layer, max pooling op_unfold and op_max. An argument sets
 * the number of steps. */
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad.h>

enum { BATCH = 32, SIZE = 16, DIGITS = 10, ROWS = 5, COLUMNS = 3, ZOOM = 2, TESTS = 20 };

static const char *const font[DIGITS] = { "####.##.##.####", ".#.##..#..#.###", "##...#.#.#..###",
                                          "##...#.#...###.", "#.##.####..#..#", "####..##...###.",
                                          ".###..####.####", "###..#.#..#..#.", "####.#####.####",
                                          "####.####..###." };
static Real images[BATCH][SIZE][SIZE];
static int32_t digits[BATCH];

static void draw(Random *random)
{
    random_normal(random, &images[0][0][0], BATCH * SIZE * SIZE);
    for (int b = 0; b < BATCH; b++) {
        digits[b] = (int32_t)random_integer(random, 0, DIGITS);
        const int64_t top = random_integer(random, 0, SIZE - ZOOM * ROWS + 1);
        const int64_t left = random_integer(random, 0, SIZE - ZOOM * COLUMNS + 1);
        for (int y = 0; y < ZOOM * ROWS; y++)
            for (int x = 0; x < ZOOM * COLUMNS; x++)
                images[b][top + y][left + x] +=
                    font[digits[b]][y / ZOOM * COLUMNS + x / ZOOM] == '#' ? 5 : 0;
    }
}

/* relu of a 3 x 3 convolution, and the maximum of each 2 x 2 pixels: x [B, H, W, C] to
 * [B, H / 2, W / 2, channels] */
static Tensor *convolve(Tape *tape, const Linear *kernel, Tensor *x)
{
    x = op_unfold(tape, x, (Window){ .height = 3, .width = 3, .padding = 1 }); /* [B, H, W, 9 C] */
    x = op_relu(tape, nn_linear_forward(tape, kernel, x));
    const int64_t *size = x->shape.size, channels = size[3];
    const Shape pooled = shape(size[0], size[1] / 2, size[2] / 2, channels);
    x = op_unfold(tape, x, (Window){ .height = 2, .width = 2, .stride = 2 });
    x = op_reshape(tape, x, shape(pooled.size[0], pooled.size[1] * pooled.size[2], 4, channels));
    return op_reshape(tape, op_max(tape, x, 2), pooled);
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 ? atoi(argv[1]) : 600;
    Params *params = params_new(device_best(), /*seed*/ 1);
    Linear first = nn_linear(params, "first", 9, 8), second = nn_linear(params, "second", 72, 16);
    Linear output = nn_linear(params, "output", SIZE / 4 * SIZE / 4 * 16, DIGITS);
    AdamConfig adam = optim_adam_config(5e-3);
    adam.schedule = optim_cosine(/*warm_up*/ 0, steps + 1, /*last*/ 0);
    Optimizer *optimizer = optim_adam(params, adam);
    Tape *tape = tape_new(params_device(params));
    Random random = random_new(/*seed*/ 1, random_stream("digits"));
    int right = 0;

    for (int step = 1; step <= steps + TESTS; step++) { /* the last ones only count */
        draw(&random);
        tape_set_recording(tape, step <= steps);
        Tensor *x = tape_input(tape, images[0][0], shape(BATCH, SIZE, SIZE, 1));
        x = convolve(tape, &second, convolve(tape, &first, x)); /* [BATCH, SIZE/4, SIZE/4, 16] */
        x = op_reshape(tape, x, shape(BATCH, tensor_count(x) / BATCH));
        Tensor *logits = nn_linear_forward(tape, &output, x); /* [BATCH, DIGITS] */
        Tensor *loss =
            op_cross_entropy(tape, logits, tape_input_i32(tape, digits, shape(BATCH)), NULL);
        int32_t found[BATCH];
        tensor_read_i32(op_argmax(tape, logits, -1), found);
        for (int b = 0; b < BATCH; b++)
            right += step > steps && found[b] == digits[b];
        if (step <= steps) {
            tape_backward(tape, loss);
            optim_step(optimizer);
        }
        if (step % 100 == 0 && step <= steps)
            printf("step %3d  loss %.4f\n", step, tensor_item(loss));
        tape_reset(tape);
    }
    printf("accuracy %.3f on %d new images\n", (double)right / (TESTS * BATCH), TESTS * BATCH);
    tape_free(tape), optim_free(optimizer), params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
