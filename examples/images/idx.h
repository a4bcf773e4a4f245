/* Reader of IDX files, gzipped or not, as of the MNIST database of handwritten digits. */
#ifndef TAPEGRAD_IMAGES_IDX_H
#define TAPEGRAD_IMAGES_IDX_H

#include "examples/shared/sentence.h"

#include <stdint.h>

typedef enum { IDX_LABELS = 1, IDX_IMAGES = 3 } IdxKind; /* the number of axes in the file */

typedef struct Idx {
    int64_t count, rows, columns; /* labels: 1 row and 1 column each */
    uint8_t *bytes;               /* [count, rows, columns] */
} Idx;

/* Reads and validates a file. On error: returns false and leaves *idx unchanged; the sentence names
 * the file, the value found and the expectation. */
bool idx_read(const char *path, IdxKind kind, Idx *idx, Sentence *sentence);
void idx_free(Idx *idx);

typedef enum { MNIST_TRAINING, MNIST_TEST } MnistPart;

/* Reads one of MNIST's four files from a directory, by its usual name, with or without .gz. If it
 * is missing, the sentence lists these names. */
bool idx_read_mnist(const char *directory, MnistPart part, IdxKind kind, Idx *idx,
                    Sentence *sentence);

#endif
