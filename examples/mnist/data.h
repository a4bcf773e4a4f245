/* Images as sequences of pixels, row by row: what a model reads and what it should tell. */
#ifndef TAPEGRAD_MNIST_DATA_H
#define TAPEGRAD_MNIST_DATA_H

#include "examples/mnist/idx.h"
#include "examples/mnist/options.h"

/* A pixel's value, 0 to 255, or the start, which stands before the first one. */
enum { START = 256, SYMBOLS = 257 };

int64_t at_most(int64_t count, int64_t most);

/* The images of --data; fails, saying what is missing or wrong, unless they are there and have the
 * options' rows and columns. */
Idx mnist_images(const MnistOptions *options, MnistPart part);

/* Host memory, [size, pixels] each: the token of a position is the pixel before, its target its own. */
typedef struct Batch {
    int64_t size, pixels;
    int32_t *tokens, *targets;
} Batch;

Batch batch_new(int64_t size, int64_t pixels);
void batch_free(Batch *batch);
void batch_set(Batch *batch, int64_t row, const Idx *images, int64_t image);

/* The order in which training sees the images: another permutation every epoch, which follows from
 * the seed alone. */
typedef struct Order {
    uint64_t seed;
    int64_t count, epoch; /* which one the permutation is of; -1: none */
    int32_t *images;
} Order;

Order order_new(uint64_t seed, int64_t count);
void order_free(Order *order);
/* The image that stands at a position counted from the first epoch's start. */
int64_t order_at(Order *order, int64_t position);

#endif
