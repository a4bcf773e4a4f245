/* Pictures: many small grey images in one PNG. */
#ifndef TAPEGRAD_MNIST_IMAGE_H
#define TAPEGRAD_MNIST_IMAGE_H

#include "examples/mnist/sentence.h"

#include <stdint.h>

typedef struct ImageGrid {
    int64_t rows, columns; /* how many images there are below and beside each other */
    int64_t height, width; /* of an image */
    const uint8_t *pixels; /* [rows, columns, height, width], 0 black to 255 white */
    int64_t scale;         /* a pixel becomes a square of scale x scale; 1 or more */
    int64_t margin;        /* around the images and between them, of the picture; 0 or more */
    uint8_t background;    /* its grey */
} ImageGrid;

/* Writes the picture, 8 bits of grey a pixel, to a temporary name beside path, flushed to the disk,
 * then renamed: path holds what was there before or the whole picture. When that fails: returns
 * false, and the sentence says why. */
bool image_write_png(const char *path, ImageGrid grid, Sentence *sentence);

#endif
