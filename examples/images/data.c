#include "examples/images/data.h"
#include "examples/images/cifar10.h"
#include "examples/images/idx.h"
#include "examples/shared/program.h"

#include <stdlib.h>

int64_t min_count(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool read_mnist(const Given *given, const char *directory, bool training, Images *images,
                       Sentence *sentence)
{
    Idx idx;
    char *path = idx_find_mnist(directory, training, sentence);
    if (!path)
        return false;
    options_check_input(given, path);
    const bool ok = idx_read(path, &idx, sentence);
    free(path);
    if (ok)
        *images = (Images){ idx.count, idx.rows, idx.columns, 1, idx.bytes };
    return ok;
}

static bool read_cifar10(const Given *given, const char *directory, bool training, Images *images,
                         Sentence *sentence)
{
    Cifar10 all;
    glob_t files;
    if (!cifar10_find(directory, training, &files, sentence))
        return false;
    for (size_t i = 0; i < files.gl_pathc; i++)
        options_check_input(given, files.gl_pathv[i]);
    const bool ok = cifar10_read(&files, &all, sentence);
    globfree(&files);
    if (ok)
        *images = (Images){ all.count, CIFAR10_SIDE, CIFAR10_SIDE, CIFAR10_CHANNELS, all.bytes };
    return ok;
}

Images images_read(const Given *given, const ImagesOptions *options, bool training)
{
    Images images;
    Sentence sentence;
    const bool color = images_channels(options) == CIFAR10_CHANNELS;
    if (!(color ? read_cifar10 : read_mnist)(given, options->data, training, &images, &sentence))
        fail(EXIT_FAILURE, "--data %s", sentence.text);
    if (images.rows != options->rows || images.columns != options->columns)
        fail(EXIT_FAILURE,
             "--data %s: its images have %lld x %lld pixels, expected the model's %lld x %lld",
             options->data, (long long)images.rows, (long long)images.columns,
             (long long)options->rows, (long long)options->columns);
    return images;
}

void images_free(Images *images)
{
    free(images->bytes);
    *images = (Images){ 0 };
}

Batch batch_new(int64_t size, const ImagesOptions *options)
{
    const int64_t length = images_length(options);
    return (Batch){ .size = size,
                    .length = length,
                    .pixels = images_pixels(options),
                    .tokens = allocate(size * length, sizeof(int32_t)),
                    .targets = allocate(size * length, sizeof(int32_t)) };
}

void batch_free(Batch *batch)
{
    free(batch->tokens);
    free(batch->targets);
}

void batch_set(Batch *batch, int64_t row, const Images *images, int64_t image)
{
    const uint8_t *pixels = images->bytes + image * batch->pixels;
    const int64_t first = batch->pixels - batch->length; /* of the targets */
    int32_t *tokens = batch->tokens + row * batch->length;
    int32_t *targets = batch->targets + row * batch->length;
    for (int64_t i = 0; i < batch->length; i++) {
        tokens[i] = first + i == 0 ? START : pixels[first + i - 1];
        targets[i] = pixels[first + i];
    }
}
