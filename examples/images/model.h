/* The image model: predicts each pixel, row by row, from the previous ones. */
#ifndef TAPEGRAD_IMAGES_MODEL_H
#define TAPEGRAD_IMAGES_MODEL_H

#include "examples/images/options.h"

typedef struct Model {
    int64_t pixels;                 /* bytes of an image */
    Embedding embedding, positions; /* [SYMBOLS, width], [pixels, width] */
    Tensor *sines;  /* [pixels, width / 2], and embedding [SYMBOLS, width / 2]; NULL: positions */
    double dropout; /* of the input, with sines */
    Transformer transformer;
    Linear head; /* [width] to [3 logistics]: parameters of op_discretized_logistic_mixture */
} Model;

Model model_new(Params *params, const ImagesOptions *options);
/* With the weights of --load; fails if they cannot be read. */
Model model_load(Params *params, const ImagesOptions *options);

/* Of the first n positions, tokens [B, n]: the parameters of each pixel's mixture,
 * [B, n, 3 logistics]. */
Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens);

/* Draws a batch of images pixel by pixel; the model runs as a recurrent network, or without a
 * state. */
typedef struct Generator Generator;

typedef struct GeneratorConfig {
    int64_t images;      /* in the batch */
    int64_t all;         /* in all batches; 0: there is one batch */
    Precision precision; /* of decode steps */
    bool int8;           /* their weights in 8 bits */
    bool without_state; /* a pass over all previous pixels for each: the one way of LSH attention */
    double temperature;
    uint64_t seed;
} GeneratorConfig;

/* Of the options' decode steps, at temperature 1 */
GeneratorConfig generator_config(const ImagesOptions *options, int64_t images);

Generator *generator_new(const Model *model, Device *device, GeneratorConfig config);
void generator_free(Generator *generator);

/* Starts a batch with the first count pixels of every image, count < pixels: given is int32
 * [images, count], or NULL for count 0, when the first pixel is black for a model with sines, which
 * does not predict it. Returns the number of pixels that images then have. The batch holds the
 * images from index first on, and each image draws the same random numbers as if all images were in
 * one batch, but for the hashes of LSH attention. first = 0 starts a new round, with new random
 * numbers for its batches. */
int64_t generator_start(Generator *generator, const int32_t *given, int64_t count, int64_t first);

/* Draws the next pixel of every image; with a state asynchronously: the pixels stay on the
 * device. */
void generator_next(Generator *generator);

/* The mean over the batch's images [images, pixels] of -ln P(image), in nats, by a decode step, or
 * a pass, per pixel that the model predicts; *rest: of the pixels from index given on, given those
 * before. Starts a batch. */
double generator_score(Generator *generator, const uint8_t *images, int64_t given, double *rest);

/* Copies all pixels to images [images, pixels]; those not drawn yet are undefined. */
void generator_read(const Generator *generator, int32_t *images);

#endif
