/* Reader of IDX files of images, gzipped or not, as of the MNIST database of handwritten digits. */
#ifndef TAPEGRAD_IMAGES_IDX_H
#define TAPEGRAD_IMAGES_IDX_H

#include "examples/shared/sentence.h"

#include <stdint.h>

typedef struct Idx {
    int64_t count, rows, columns;
    uint8_t *bytes; /* [count, rows, columns] */
} Idx;

/* Reads and validates a file of images. On error: returns false and leaves *idx unchanged; the
 * sentence names the file, the value found and the expectation. */
bool idx_read(const char *path, Idx *idx, Sentence *sentence);
void idx_free(Idx *idx);

/* Reads MNIST's training or test images from a directory, by their usual names, with or without
 * .gz. If the file is missing, the sentence lists these names. */
bool idx_read_mnist(const char *directory, bool training, Idx *idx, Sentence *sentence);

#endif
