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

/* The path of MNIST's training or test images in a directory, to be freed: by their usual names,
 * also with a dot before idx3, with or without .gz. NULL if there is none: the sentence lists these
 * names. */
char *idx_find_mnist(const char *directory, bool training, Sentence *sentence);

#endif
