/* The image model: pixels row by row, each predicted from those before. */
#ifndef TAPEGRAD_MNIST_MODEL_H
#define TAPEGRAD_MNIST_MODEL_H

#include "examples/mnist/options.h"

typedef struct Model {
    int64_t pixels;                 /* of an image */
    Embedding embedding, positions; /* [SYMBOLS, width], [pixels, width] */
    Transformer transformer;
    Linear head; /* [width] to [3 logistics]: op_discretized_logistic_mixture's parameters */
} Model;

Model model_new(Params *params, const MnistOptions *options);

/* tokens [B, n], the first n positions: what the transformer makes of them, [B, n, width]; and, by
 * the head, the parameters of each pixel's mixture, [B, n, 3 logistics]. */
Tensor *model_features(Tape *tape, const Model *model, Tensor *tokens);
Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens);

/* As many images at once, drawn pixel by pixel, by the model as a recurrent network. */
typedef struct Generator Generator;

typedef struct GeneratorConfig {
    int64_t images; /* at once, */
    int64_t all;    /* of so many; 0: of no others */
    Precision precision;
    Real temperature;
    uint64_t seed;
} GeneratorConfig;

Generator *generator_new(const Model *model, Device *device, GeneratorConfig config);
void generator_free(Generator *generator);

/* Begins anew with the first count pixels of every image, fewer than there are: given int32
 * [images, count]; NULL with 0. They are those from first on, of all: each takes the random numbers
 * that it would if all were drawn at once. A start with 0 takes new ones, as do those that follow. */
void generator_start(Generator *generator, const int32_t *given, int64_t count, int64_t first);

/* Draws the next pixel of every image. It stays on the device: nothing waits for it. */
void generator_next(Generator *generator);

/* All pixels of the images, [images, pixels]; those that were not drawn yet mean nothing. */
void generator_read(const Generator *generator, int32_t *images);

#endif
