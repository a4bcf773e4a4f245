/* Images as sequences of bytes, row by row: the inputs and targets of the model. A pixel of a gray
 * image is one byte, of a color image three, red, green and blue: `pixels` are bytes of an
 * image. */
#ifndef TAPEGRAD_IMAGES_DATA_H
#define TAPEGRAD_IMAGES_DATA_H

#include "examples/images/options.h"

/* A token is a byte's value, 0 to 255, or START, the input of the first position. */
enum { START = 256, SYMBOLS = 257 };

int64_t min_count(int64_t a, int64_t b);

typedef struct Images {
    int64_t count, rows, columns, channels;
    uint8_t *bytes; /* [count, rows, columns, channels] */
} Images;

/* The images of --data; fails if they are missing, damaged or of another size than the model's, or
 * if an option names one of their files to be written. */
Images images_read(const Given *given, const ImagesOptions *options, bool training);
void images_free(Images *images);

/* Host memory, [size, length] each: a position's token is the previous pixel, its target its own.
 * START is before the first pixel, if the positions are all pixels. */
typedef struct Batch {
    int64_t size, length, pixels;
    int32_t *tokens, *targets;
} Batch;

Batch batch_new(int64_t size, const ImagesOptions *options);
void batch_free(Batch *batch);
void batch_set(Batch *batch, int64_t row, const Images *images, int64_t image);

#endif
