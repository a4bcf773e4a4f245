#include "examples/mnist_model.h"
#include "examples/mnist_data.h"
#include "examples/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Model model_new(Params *params, const MnistOptions *options)
{
    int64_t width = options->heads * options->head_dim, pixels = options->rows * options->columns;
    bool softmax = !strcmp(options->attention, "softmax");
    TransformerConfig config = {
        .layers = options->layers,
        .heads = options->heads,
        .head_dim = options->head_dim,
        .feed_forward = options->feed_forward,
        .attention = softmax ? ATTENTION_CAUSAL_SOFTMAX : ATTENTION_CAUSAL_LINEAR,
        .features = (FeatureMap)choice_index(feature_names, options->features),
        .form = (AttentionForm)choice_index(form_names, options->form),
        .dropout = (Real)options->dropout,
    };
    return (Model){
        .pixels = pixels,
        .embedding = nn_embedding(params, "embedding", SYMBOLS, width),
        .positions = nn_embedding(params, "positions", pixels, width),
        .transformer = nn_transformer(params, "transformer", config),
        .head = nn_linear(params, "head", width, 3 * options->logistics),
    };
}

/* tokens [B, n]: [B, n, width] */
static Tensor *embed(Tape *tape, const Model *model, Tensor *tokens)
{
    int64_t n = shape_size(tokens->shape, -1);
    Tensor *positions = model->positions.weight;
    if (n < model->pixels)
        positions = op_slice(tape, positions, 0, 0, n);
    return op_add(tape, nn_embedding_forward(tape, &model->embedding, tokens), positions);
}

Tensor *model_features(Tape *tape, const Model *model, Tensor *tokens)
{
    return nn_transformer_forward(tape, &model->transformer, embed(tape, model, tokens), NULL);
}

Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens)
{
    return nn_linear_forward(tape, &model->head, model_features(tape, model, tokens));
}

/* ------------------------------------------------------------------------------------- generation */

struct Generator {
    const Model *model;
    GeneratorConfig config;
    TransformerState *state;
    Tape *tape, *prefill;
    Tensor *token;          /* [images]: what the next step reads */
    Tensor *factor, *shift; /* [3 logistics]: what the temperature makes of the parameters */
    Tensor *pixel;          /* [images]: what the last step drew */
    int32_t *prompt;        /* [images, pixels] */
};

/* A mixture's temperature divides its logits, and multiplies the scales. */
static void set_temperature(Generator *generator)
{
    int64_t n = tensor_count(generator->model->head.bias);
    Real *factor = allocate(n, sizeof(Real)), *shift = allocate(n, sizeof(Real));
    for (int64_t i = 0; i < n; i++) {
        factor[i] = i < n / 3 ? 1 / generator->config.temperature : 1;
        shift[i] = i < 2 * n / 3 ? 0 : (Real)log((double)generator->config.temperature);
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
    tape_set_precision(tape, config.precision);
    tape_recording(tape, false);
    tape_seed(tape, config.seed);
    return tape;
}

Generator *generator_new(const Model *model, Device *device, GeneratorConfig config)
{
    Generator *generator = allocate(1, sizeof *generator);
    *generator = (Generator){ .model = model,
                              .config = config,
                              .tape = tape_of(device, config),
                              .prefill = tape_of(device, config),
                              .prompt = allocate(config.images * model->pixels, sizeof(int32_t)) };
    generator->state = nn_transformer_state(&model->transformer,
                                            (GenerationConfig){ .sequences = config.images,
                                                                .longest = model->pixels,
                                                                .precision = config.precision });
    generator->token = tape_persistent_i32(generator->tape, shape(config.images));
    set_temperature(generator);
    return generator;
}

void generator_free(Generator *generator)
{
    nn_transformer_state_free(generator->state);
    tape_free(generator->tape);
    tape_free(generator->prefill);
    free(generator->prompt);
    free(generator);
}

/* One pixel of every image: token [images] in, pixel [images] out. */
static void draw_pixel(void *context)
{
    Generator *generator = context;
    const Model *model = generator->model;
    Tape *tape = generator->tape;
    Tensor *position = nn_transformer_state_positions(generator->state);
    Tensor *x = op_add(tape, nn_embedding_forward(tape, &model->embedding, generator->token),
                       nn_embedding_forward(tape, &model->positions, position));
    x = nn_transformer_step(generator->state, x);
    x = nn_linear_forward(tape, &model->head, x);
    if (generator->config.temperature != 1)
        x = op_add(tape, op_multiply(tape, x, generator->factor), generator->shift);
    generator->pixel = op_sample_logistic_mixture(tape, x);
}

void generator_start(Generator *generator, const int32_t *pixels, int64_t count)
{
    int64_t images = generator->config.images;
    int32_t *prompt = generator->prompt;
    nn_transformer_state_reset(generator->state, NN_ALL_SEQUENCES);
    /* The last of the given pixels is the first step's token: the ones before go to the state. */
    for (int64_t b = 0; b < images && count > 0; b++) {
        prompt[b * count] = START;
        memcpy(prompt + b * count + 1, pixels + b * count, (size_t)(count - 1) * sizeof *pixels);
    }
    if (count > 0) {
        Tape *tape = generator->prefill;
        Tensor *tokens = tape_input_i32(tape, prompt, shape(images, count));
        nn_transformer_prefill(tape, generator->state, embed(tape, generator->model, tokens), NULL);
        tape_reset(tape);
    }
    for (int64_t b = 0; b < images; b++)
        prompt[b] = count > 0 ? pixels[(b + 1) * count - 1] : START;
    tensor_write_i32(generator->token, prompt);
}

void generator_next(Generator *generator, int32_t *pixels)
{
    tape_replay(generator->tape, draw_pixel, generator);
    tensor_read_i32(generator->pixel, pixels);
    tensor_write_i32(generator->token, pixels);
}
