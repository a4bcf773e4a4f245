#include "examples/images/model.h"
#include "examples/images/data.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Position embeddings are learned, but initialized with sines and cosines of the row, the column
 * and, in color images, the channel, in equal parts, with wavelengths from 2 pi pixels up.
 * Neighboring pixels then start with similar embeddings, so the model need not learn the grid's
 * geometry. */
static void set_positions(Embedding *positions, int64_t columns, int64_t channels)
{
    int64_t pixels = positions->weight->shape.size[0], width = positions->weight->shape.size[1];
    int64_t parts = channels > 1 ? 3 : 2, part = (width + parts - 1) / parts;
    Real *start = allocate(pixels * width, sizeof(Real));
    for (int64_t p = 0; p < pixels; p++) {
        const int64_t place = p / channels;
        const int64_t coordinates[] = { place / columns, place % columns, p % channels };
        for (int64_t c = 0; c < width; c++) {
            int64_t i = c % part;
            double angle =
                (double)coordinates[c / part] * pow(30, -(double)(i / 2 * 2) / (double)part);
            start[p * width + c] = (Real)(i % 2 ? cos(angle) : sin(angle));
        }
    }
    tensor_write(positions->weight, start);
    free(start);
}

/* LSH as in the paper: 64 buckets, chunks of 29 positions for MNIST and 37 for CIFAR-10. */
static const AttentionKind *attention_of(Params *params, const ImagesOptions *options)
{
    const char *name = options->common.attention;
    if (!strcmp(name, "softmax"))
        return nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    if (!strncmp(name, "lsh-", 4))
        return nn_causal_lsh_attention(params,
                                       (LshConfig){ .rounds = name[4] - '0',
                                                    .chunk = images_channels(options) > 1 ? 37 : 29,
                                                    .buckets = 64 });
    const AttentionKind *linear =
        attention_linear(params, options->common.features, true,
                         (AttentionForm)choice_index(form_names, options->form));
    if (!strcmp(name, "decay"))
        return nn_gated_attention(params, (GatedConfig){ .inner = linear, .decay = DECAY_LEARNED });
    return linear;
}

Model model_new(Params *params, const ImagesOptions *options)
{
    int64_t width = options->common.heads * options->common.head_dim,
            pixels = images_pixels(options);
    TransformerConfig config = {
        .layers = options->common.layers,
        .heads = options->common.heads,
        .head_dim = options->common.head_dim,
        .feed_forward = options->common.feed_forward,
        .attention = attention_of(params, options),
        .dropout = options->common.dropout,
    };
    const bool sines = images_have_sines(options);
    Model model = { .pixels = pixels };
    model.embedding = nn_embedding(params, "embedding", SYMBOLS, sines ? width / 2 : width);
    if (sines) {
        model.sines = nn_sinusoidal_positions(params, pixels, width / 2);
        model.dropout = options->common.dropout;
    } else {
        model.positions = nn_embedding(params, "positions", pixels, width);
    }
    model.transformer = nn_transformer(params, "transformer", config);
    model.head = nn_linear(params, "head", width, 3 * options->logistics);
    if (!sines)
        set_positions(&model.positions, options->columns, images_channels(options));
    return model;
}

Model model_load(Params *params, const ImagesOptions *options)
{
    const Model model = model_new(params, options);
    load_weights(params, options->common.load);
    return model;
}

/* tokens [B, n] of the first positions, or [B] of the positions [B]: [.., width] */
static Tensor *embed(Tape *tape, const Model *model, Tensor *tokens, Tensor *positions)
{
    const Embedding table = { model->sines ? model->sines : model->positions.weight };
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tokens);
    Tensor *p = positions ? nn_embedding_forward(tape, &table, positions)
                          : op_slice(tape, table.weight, 0, 0, shape_size(tokens->shape, -1));
    if (!model->sines)
        return op_add(tape, x, p);
    x = op_concat(tape, (Tensor *[]){ x, op_broadcast_to(tape, p, x->shape) }, 2, -1);
    return op_dropout(tape, x, model->dropout);
}

/* tokens [B, n] of the first positions: [B, n, width] */
static Tensor *model_features(Tape *tape, const Model *model, Tensor *tokens)
{
    return nn_transformer_forward(tape, &model->transformer, embed(tape, model, tokens, NULL),
                                  (AttentionOptions){ 0 });
}

Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens)
{
    return nn_linear_forward(tape, &model->head, model_features(tape, model, tokens));
}

/* ----------------------------------------------------------------------------------- generation */

struct Generator {
    const Model *model;
    GeneratorConfig config;
    TransformerState *state; /* NULL: without_state */
    Tape *tape, *prefill;
    Tensor *token, *index;  /* [images]: the next step's input, and the index of its pixel */
    Tensor *images;         /* [images, pixels]: drawn so far */
    Tensor *factor, *shift; /* [3 logistics]: the temperature maps parameters to factor p + shift */
    int32_t *host;          /* [images, pixels]; without state: drawn so far */
    int64_t first;          /* index of the batch's first image among all */
    int64_t pixel, round;   /* Philox counter: pixels drawn per image; those before the round */
    int64_t count;          /* without state: the pixels of an image that are drawn */
    Random draws, hashes;   /* of pixels; without state, of LSH attention */
};

/* The temperature divides the mixture's logits and multiplies its scales. */
static void set_temperature(Generator *generator)
{
    int64_t n = tensor_count(generator->model->head.bias);
    Real *factor = allocate(n, sizeof(Real)), *shift = allocate(n, sizeof(Real));
    for (int64_t i = 0; i < n; i++) {
        factor[i] = i < n / 3 ? (Real)(1 / generator->config.temperature) : 1;
        shift[i] = i < 2 * n / 3 ? 0 : (Real)log(generator->config.temperature);
    }
    generator->factor = tape_persistent(generator->tape, shape(n));
    generator->shift = tape_persistent(generator->tape, shape(n));
    tensor_write(generator->factor, factor);
    tensor_write(generator->shift, shift);
    free(factor);
    free(shift);
}

static Tape *tape_of(Device *device, GeneratorConfig config)
{
    Tape *tape = tape_new(device);
    if (config.precision == PRECISION_TF32)
        tape_set_precision(tape, PRECISION_TF32);
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    tape_seed(tape, config.seed);
    return tape;
}

GeneratorConfig generator_config(const ImagesOptions *options, int64_t images)
{
    return (GeneratorConfig){
        .images = images,
        .precision = (Precision)choice_index(step_precision_names, options->common.precision),
        .int8 = options->int8,
        .without_state = !images_have_state(options),
        .temperature = 1,
        .seed = 1,
    };
}

Generator *generator_new(const Model *model, Device *device, GeneratorConfig config)
{
    if (config.all == 0)
        config.all = config.images;
    Generator *generator = allocate(1, sizeof *generator);
    *generator = (Generator){ .model = model,
                              .config = config,
                              .tape = tape_of(device, config),
                              .prefill = tape_of(device, config),
                              .host = allocate(config.images * model->pixels, sizeof(int32_t)) };
    if (!config.without_state)
        generator->state = nn_transformer_state(&model->transformer,
                                                (GenerationConfig){ .sequences = config.images,
                                                                    .max_length = model->pixels,
                                                                    .precision = config.precision,
                                                                    .int8_weights = config.int8 });
    generator->draws = tape_random(generator->tape);
    generator->hashes = random_new(config.seed, random_stream("images hashes"));
    generator->token = tape_persistent_i32(generator->tape, shape(config.images));
    generator->index = tape_persistent_i32(generator->tape, shape(config.images));
    generator->images = tape_persistent_i32(generator->tape, shape(config.images, model->pixels));
    set_temperature(generator);
    return generator;
}

void generator_free(Generator *generator)
{
    if (generator->state)
        nn_transformer_state_free(generator->state);
    tape_free(generator->tape);
    tape_free(generator->prefill);
    free(generator->host);
    free(generator);
}

/* The parameters of the next pixel, [images, 1, 3 logistics], by a pass over all before it */
static Tensor *parameters_without_state(Generator *generator)
{
    const int64_t images = generator->config.images, pixels = generator->model->pixels;
    const int64_t start = !generator->model->sines; /* whether START is before the pixels */
    const int64_t n = start + generator->count;
    int32_t *tokens = allocate(images * n, sizeof *tokens);
    for (int64_t i = 0; i < images * n; i++)
        tokens[i] = i % n < start ? START : generator->host[i / n * pixels + i % n - start];
    Tape *tape = generator->tape;
    tape_set_random(tape, generator->hashes);
    Tensor *x =
        model_features(tape, generator->model, tape_input_i32(tape, tokens, shape(images, n)));
    free(tokens);
    generator->hashes = tape_random(tape);
    x = op_slice(tape, x, 1, n - 1, 1);
    return nn_linear_forward(tape, &generator->model->head, x);
}

/* The parameters of the next pixel of every image, [images, 3 logistics], from the token. */
static Tensor *next_parameters(Generator *generator)
{
    if (!generator->state)
        return parameters_without_state(generator);
    const Model *model = generator->model;
    Tape *tape = generator->tape;
    Tensor *position = nn_transformer_state_positions(generator->state);
    if (!model->sines)
        op_store_i32(tape, generator->index, NULL, position); /* before the step advances it */
    Tensor *x = embed(tape, model, generator->token, position);
    x = nn_transformer_step(generator->state, x);
    if (model->sines)
        op_store_i32(tape, generator->index, NULL, position); /* of the pixel after the token's */
    return nn_linear_forward(tape, &model->head, x);
}

/* A pixel of every image, from the parameters of its mixture */
static Tensor *sample_pixel(Generator *generator, Tensor *x)
{
    Tape *tape = generator->tape;
    if (generator->config.temperature != 1)
        x = op_add(tape, op_multiply(tape, x, generator->factor), generator->shift);
    return op_sample_logistic_mixture(tape, x);
}

/* Draws one pixel of every image from the token, stores it in images and as the next token. */
static void draw_pixel(void *context)
{
    Generator *generator = context;
    Tape *tape = generator->tape;
    Tensor *pixel = sample_pixel(generator, next_parameters(generator));
    op_store_i32(tape, generator->images, generator->index, pixel);
    op_store_i32(tape, generator->token, NULL, pixel);
}

static void draw_without_state(Generator *generator, Random random)
{
    const int64_t images = generator->config.images, pixels = generator->model->pixels;
    Tensor *x = parameters_without_state(generator);
    tape_set_random(generator->tape, random);
    int32_t *drawn = allocate(images, sizeof *drawn);
    tensor_read_i32(sample_pixel(generator, x), drawn);
    for (int64_t b = 0; b < images; b++)
        generator->host[b * pixels + generator->count] = drawn[b];
    free(drawn);
    generator->count++;
    tape_reset(generator->tape);
}

/* Prefills the state with START, unless the model has sines, and the given pixels but the last,
 * [images, count]. */
static void prefill(Generator *generator, const int32_t *given, int64_t count)
{
    const int64_t start = !generator->model->sines, n = start + count - 1;
    if (n == 0)
        return;
    for (int64_t b = 0; b < generator->config.images; b++) {
        int32_t *tokens = generator->host + b * n;
        tokens[0] = START;
        memcpy(tokens + start, given + b * count, (size_t)(count - 1) * sizeof *given);
    }
    Tape *tape = generator->prefill;
    Tensor *tokens = tape_input_i32(tape, generator->host, shape(generator->config.images, n));
    nn_transformer_prefill(tape, generator->state, embed(tape, generator->model, tokens, NULL),
                           NULL);
    tape_reset(tape);
}

int64_t generator_start(Generator *generator, const int32_t *given, int64_t count, int64_t first)
{
    int64_t images = generator->config.images, pixels = generator->model->pixels;
    int32_t *host = generator->host, *black = NULL;
    if (count == 0 && generator->model->sines) {
        given = black = allocate(images, sizeof *black);
        memset(black, 0, (size_t)images * sizeof *black);
        count = 1;
    }
    if (first == 0)
        generator->round = generator->pixel;
    generator->pixel = generator->round;
    generator->first = first;
    generator->count = count;
    if (generator->state) {
        nn_transformer_state_reset(generator->state, NN_ALL_SEQUENCES);
        if (count > 0)
            prefill(generator, given, count);
        for (int64_t b = 0; b < images; b++)
            host[b] = count > 0 ? given[(b + 1) * count - 1] : START;
        tensor_write_i32(generator->token, host);
    }
    memset(host, 0, (size_t)(images * pixels) * sizeof *host);
    for (int64_t b = 0; b < images && count > 0; b++)
        memcpy(host + b * pixels, given + b * count, (size_t)count * sizeof *given);
    tensor_write_i32(generator->images, host);
    free(black);
    return count;
}

void generator_next(Generator *generator)
{
    Random random = generator->draws;
    random.counter = (uint64_t)(generator->pixel++ * generator->config.all + generator->first);
    if (!generator->state) {
        draw_without_state(generator, random);
        return;
    }
    tape_set_random(generator->tape, random);
    if (nn_attention_gates(&generator->model->transformer.layer[0].attention)) {
        draw_pixel(generator); /* a step with gates is not captured */
        tape_reset(generator->tape);
    } else {
        tape_replay(generator->tape, draw_pixel, generator);
    }
}

double generator_score(Generator *generator, const uint8_t *images, int64_t given, double *rest)
{
    const int64_t count = generator->config.images, pixels = generator->model->pixels;
    const int64_t first = generator->model->sines ? 1 : 0; /* pixel that is predicted */
    int32_t *next = allocate(count, sizeof *next);
    double sum = 0;
    *rest = 0;
    for (int64_t b = 0; b < count; b++)
        next[b] = images[b * pixels];
    generator_start(generator, next, first, 0);
    for (int64_t p = first; p < pixels; p++) {
        for (int64_t b = 0; b < count; b++)
            next[b] = images[b * pixels + p];
        Tensor *x = next_parameters(generator);
        const Shape all = generator->state ? shape(count) : shape(count, 1);
        Tensor *targets = tape_input_i32(generator->tape, next, all);
        const double nats =
            tensor_item(op_discretized_logistic_mixture(generator->tape, x, targets));
        sum += nats;
        *rest += p >= given ? nats : 0;
        if (generator->state)
            tensor_write_i32(generator->token, next);
        for (int64_t b = 0; b < count; b++)
            generator->host[b * pixels + p] = next[b];
        generator->count++;
        tape_reset(generator->tape);
    }
    free(next);
    return sum;
}

void generator_read(const Generator *generator, int32_t *images)
{
    if (generator->state)
        tensor_read_i32(generator->images, images);
    else
        memcpy(images, generator->host,
               (size_t)(generator->config.images * generator->model->pixels) * sizeof *images);
}
