#include "examples/mnist/data.h"
#include "examples/shared/program.h"

#include <stdlib.h>

int64_t at_most(int64_t count, int64_t most)
{
    return count < most ? count : most;
}

Idx mnist_images(const MnistOptions *options, MnistPart part)
{
    Idx images;
    Sentence sentence;
    if (!idx_read_mnist(options->data, part, IDX_IMAGES, &images, &sentence))
        fail(EXIT_FAILURE, "--data %s", sentence.text);
    if (images.rows != options->rows || images.columns != options->columns)
        fail(EXIT_FAILURE,
             "--data %s: its images have %lld x %lld pixels, expected the model's %lld x %lld",
             options->data, (long long)images.rows, (long long)images.columns,
             (long long)options->rows, (long long)options->columns);
    return images;
}

Batch batch_new(int64_t size, int64_t pixels)
{
    return (Batch){ .size = size,
                    .pixels = pixels,
                    .tokens = allocate(size * pixels, sizeof(int32_t)),
                    .targets = allocate(size * pixels, sizeof(int32_t)) };
}

void batch_free(Batch *batch)
{
    free(batch->tokens);
    free(batch->targets);
}

void batch_set(Batch *batch, int64_t row, const Idx *images, int64_t image)
{
    const uint8_t *pixels = images->bytes + image * batch->pixels;
    int32_t *tokens = batch->tokens + row * batch->pixels;
    int32_t *targets = batch->targets + row * batch->pixels;
    for (int64_t i = 0; i < batch->pixels; i++) {
        tokens[i] = i == 0 ? START : pixels[i - 1];
        targets[i] = pixels[i];
    }
}

Order order_new(uint64_t seed, int64_t count)
{
    return (Order){
        .seed = seed, .count = count, .epoch = -1, .images = allocate(count, sizeof(int32_t))
    };
}

void order_free(Order *order)
{
    free(order->images);
}

/* Fisher-Yates shuffle. The epoch determines the Philox counter. */
static void shuffle(Order *order, int64_t epoch)
{
    Random random = random_new(order->seed, random_stream("mnist order"));
    random.counter = (uint64_t)epoch << 32;
    for (int64_t i = 0; i < order->count; i++)
        order->images[i] = (int32_t)i;
    for (int64_t i = order->count - 1; i > 0; i--) {
        int64_t j = random_integer(&random, 0, i + 1);
        int32_t image = order->images[i];
        order->images[i] = order->images[j];
        order->images[j] = image;
    }
    order->epoch = epoch;
}

int64_t order_at(Order *order, int64_t position)
{
    int64_t epoch = position / order->count;
    if (epoch != order->epoch)
        shuffle(order, epoch);
    return order->images[position % order->count];
}
