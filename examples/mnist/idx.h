/* IDX files, gzipped or not, and those of the MNIST database of handwritten digits. */
#ifndef TAPEGRAD_MNIST_IDX_H
#define TAPEGRAD_MNIST_IDX_H

#include "examples/mnist/sentence.h"

#include <stdint.h>

typedef enum { IDX_LABELS = 1, IDX_IMAGES = 3 } IdxKind; /* the number of axes in the file */

typedef struct Idx {
    int64_t count, rows, columns; /* of labels: 1 row of 1 column each */
    uint8_t *bytes;               /* [count, rows, columns] */
} Idx;

/* Reads a file after checking all of it. When it is not as it should be: returns false, leaves *idx
 * as it was, and the sentence names the file, what was found and what was expected. */
bool idx_read(const char *path, IdxKind kind, Idx *idx, Sentence *sentence);
void idx_free(Idx *idx);

typedef enum { MNIST_TRAINING, MNIST_TEST } MnistPart;

/* The same of one of MNIST's four files, found in a directory by its usual name, with or without
 * .gz; the sentence tells what these names are when it is not there. */
bool idx_read_mnist(const char *directory, MnistPart part, IdxKind kind, Idx *idx,
                    Sentence *sentence);

#endif
