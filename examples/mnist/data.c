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
