/* Images as sequences of pixels, row by row: the inputs and targets of the model. */
#ifndef TAPEGRAD_MNIST_DATA_H
#define TAPEGRAD_MNIST_DATA_H

#include "examples/mnist/idx.h"
#include "examples/mnist/options.h"

/* A token is a pixel's value, 0 to 255, or START, the input of the first position. */
enum { START = 256, SYMBOLS = 257 };

int64_t at_most(int64_t count, int64_t most);

/* The images of --data; fails if they are missing, damaged or of another size than --rows x
 * --columns. */
Idx mnist_images(const MnistOptions *options, MnistPart part);

/* Host memory, [size, pixels] each: a position's token is the previous pixel, its target its
 * own. */
typedef struct Batch {
    int64_t size, pixels;
    int32_t *tokens, *targets;
} Batch;

Batch batch_new(int64_t size, int64_t pixels);
void batch_free(Batch *batch);
void batch_set(Batch *batch, int64_t row, const Idx *images, int64_t image);

#endif
