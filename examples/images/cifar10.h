/* Reader of CIFAR-10's binary files (Krizhevsky 2009), gzipped or not. */
#ifndef TAPEGRAD_IMAGES_CIFAR10_H
#define TAPEGRAD_IMAGES_CIFAR10_H

#include "examples/shared/sentence.h"

#include <glob.h>
#include <stdint.h>

enum { CIFAR10_SIDE = 32, CIFAR10_CHANNELS = 3, CIFAR10_CLASSES = 10 };
enum { CIFAR10_BYTES = CIFAR10_SIDE * CIFAR10_SIDE * CIFAR10_CHANNELS }; /* of an image */

typedef struct Cifar10 {
    int64_t count;
    uint8_t *bytes; /* [count, row, column, channel]: red, green, blue */
} Cifar10;

/* Finds the files of the training images, data_batch_*.bin or train*.bin, or of the test images,
 * test*.bin, in a directory, each with or without .gz, in the order of their names; globfree frees
 * them. Returns false, with these names in the sentence, if there are none. */
bool cifar10_find(const char *directory, bool training, glob_t *files, Sentence *sentence);

/* Reads their images. On error: returns false and leaves *images unchanged; the sentence names the
 * file, the value found and the expectation. */
bool cifar10_read(const glob_t *files, Cifar10 *images, Sentence *sentence);
void cifar10_free(Cifar10 *images);

#endif
