/* Writer of PNG pictures: a grid of small images, gray or in color. */
#ifndef TAPEGRAD_IMAGES_IMAGE_H
#define TAPEGRAD_IMAGES_IMAGE_H

#include "examples/shared/sentence.h"

#include <stdint.h>

typedef struct ImageGrid {
    int64_t rows, columns; /* of the grid, in images */
    int64_t height, width; /* of an image */
    int64_t channels;      /* 1: gray, 0 black to 255 white; 3: red, green, blue */
    const uint8_t *pixels; /* [rows, columns, height, width, channels] */
    int64_t scale;         /* a pixel becomes a square of scale x scale; 1 or more */
    int64_t margin;        /* around and between the images, in pixels of the picture; 0 or more */
    uint8_t background;    /* gray of the margins */
} ImageGrid;

/* Writes the picture, 8 bits per channel, by tensor_file_write. On error: returns false, and the
 * sentence has the reason. */
bool image_write_png(const char *path, ImageGrid grid, Sentence *sentence);

#endif
