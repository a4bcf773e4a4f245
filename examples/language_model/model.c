#include "examples/language_model/model.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ the model */

static void keep_vocabulary(Params *params, const Vocabulary *vocabulary)
{
    const int64_t n = vocabulary_items(vocabulary->kind, vocabulary->count);
    if (n == 0)
        return;
    Tensor *items = params_add(params, "vocabulary", shape(n), (Initializer){ INITIAL_ZERO, 0 });
    Real *values = allocate(n, sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (Real)vocabulary->items[i]; /* below 2^24: exact */
    params_set_requires_grad(params, "vocabulary", false);
    tensor_write(items, values);
    free(values);
}

Model model_new(Params *params, const LanguageOptions *options, const Vocabulary *vocabulary)
{
    const TrainingOptions *common = &options->common;
    const int64_t width = common->heads * common->head_dim;
    const Initializer normal = { INITIAL_NORMAL, 0.02 };
    TransformerConfig config = {
        .layers = common->layers,
        .heads = common->heads,
        .head_dim = common->head_dim,
        .feed_forward = common->feed_forward,
        .activation = ACTIVATION_GELU,
        .dropout = common->dropout,
        .initial_std = 0.02,
        .pre_norm = true,
    };
    const bool rotary = !strcmp(options->positions, "rotary");
    attention_set(&config, params, common->attention,
                  (KindOptions){ .features = common->features,
                                 .rotary_dims = rotary ? common->head_dim : 0,
                                 .window = options->window });
    Model model = { .context = options->context,
                    .rotary = rotary,
                    .dropout = nn_dropout(common->dropout) };
    model.embedding = nn_embedding_with(params, "embedding", vocabulary->count, width, normal);
    if (!strcmp(options->positions, "learned"))
        model.positions = params_add(params, "positions", shape(model.context, width), normal);
    model.transformer = nn_transformer(params, "transformer", config);
    keep_vocabulary(params, vocabulary);
    return model;
}

bool model_vocabulary(Vocabulary *vocabulary, TokenKind kind, const char *path, Sentence *sentence)
{
    TensorFile *file = tensor_file_open(path);
    if (!file)
        return sentence_write(sentence, "%s", tapegrad_error());
    const FileEntry *entry = tensor_file_find(file, "vocabulary");
    const int64_t n = entry ? shape_count(entry->shape) : 0;
    Real *values = allocate(n + 1, sizeof *values);
    int32_t *items = allocate(n + 1, sizeof *items);
    bool ok = n == 0 || tensor_file_read(file, "vocabulary", entry->shape, values);
    for (int64_t i = 0; ok && i < n; i++)
        items[i] = (int32_t)values[i];
    const int64_t count = kind == TOKENS_CHARACTERS ? n : BYTES + n / 2;
    Sentence reason = { "" };
    ok = ok && vocabulary_of_items(vocabulary, kind, count, items, &reason);
    if (!ok)
        sentence_write(sentence, "%s: its vocabulary: %.200s", path,
                       *reason.text ? reason.text : tapegrad_error());
    free(values);
    free(items);
    tensor_file_close(file);
    return ok;
}

Tensor *model_embed(Tape *tape, const Model *model, Tensor *tokens)
{
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tokens);
    if (model->positions) {
        const int64_t n = shape_size(tokens->shape, -1);
        x = op_add(tape, x,
                   n < model->context ? op_slice(tape, model->positions, 0, 0, n)
                                      : model->positions);
    }
    return nn_dropout_forward(tape, &model->dropout, x);
}

Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens)
{
    Tensor *x = model_embed(tape, model, tokens);
    x = nn_transformer_forward(tape, &model->transformer, x, (AttentionOptions){ 0 });
    return op_linear(tape, x, model->embedding.weight, NULL);
}

/* -------------------------------------------------------------------------------------- windows */

Batch batch_new(int64_t size, int64_t length)
{
    return (Batch){ .size = size,
                    .length = length,
                    .tokens = allocate(size * length, sizeof(int32_t)),
                    .targets = allocate(size * length, sizeof(int32_t)),
                    .weights = allocate(size * length, sizeof(Real)) };
}

void batch_free(Batch *batch)
{
    free(batch->tokens);
    free(batch->targets);
    free(batch->weights);
}

void batch_set(Batch *batch, int64_t row, const Tokens *tokens, int64_t start)
{
    for (int64_t i = 0; i < batch->length; i++) {
        const int64_t at = row * batch->length + i;
        const bool counts = start + i + 1 < tokens->count;
        batch->tokens[at] = counts ? tokens->data[start + i] : 0;
        batch->targets[at] = counts ? tokens->data[start + i + 1] : 0;
        batch->weights[at] = counts;
    }
}

int64_t batch_targets(const Batch *batch)
{
    int64_t count = 0;
    for (int64_t i = 0; i < batch->size * batch->length; i++)
        count += batch->weights[i] != 0;
    return count;
}

int64_t batch_bytes(const Batch *batch, const Vocabulary *vocabulary)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < batch->size * batch->length; i++)
        bytes += batch->weights[i] != 0 ? vocabulary->lengths[batch->targets[i]] : 0;
    return bytes;
}

double loss_nats(Loss loss)
{
    return loss.nats / (double)loss.targets;
}

double loss_bits(Loss loss)
{
    return loss.nats / log(2) / (double)loss.bytes;
}

/* --------------------------------------------------------------------------------- decode steps */

struct Generator {
    const Model *model;
    Tape *tape;
    TransformerState *state;
    int64_t position; /* of the next decode step */
};

Generator *generator_new(const Model *model, Tape *tape, GenerationConfig config)
{
    Generator *generator = allocate(1, sizeof *generator);
    config.max_length = model->context;
    *generator = (Generator){ .model = model, .tape = tape };
    generator->state = nn_transformer_state(&model->transformer, config);
    return generator;
}

void generator_free(Generator *generator)
{
    nn_transformer_state_free(generator->state);
    free(generator);
}

/* tokens int32 [sequences]: the logits of the next ones, [sequences, vocabulary] */
static Tensor *step(Generator *generator, Tensor *tokens)
{
    const Model *model = generator->model;
    Tape *tape = generator->tape;
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tokens);
    if (model->positions)
        x = op_add(
            tape, x,
            op_embedding(tape, model->positions, nn_transformer_state_positions(generator->state)));
    x = nn_transformer_step(generator->state, x);
    generator->position++;
    return op_linear(tape, x, model->embedding.weight, NULL);
}

/* The tokens [1, n] become all that the state holds. */
static void prefill(Generator *generator, const int32_t *tokens, int64_t n)
{
    const Model *model = generator->model;
    Tape *tape = generator->tape;
    nn_transformer_state_reset(generator->state, NN_ALL_SEQUENCES);
    generator->position = n;
    if (n == 0)
        return;
    Tensor *x = tape_input_i32(tape, tokens, shape(1, n));
    x = nn_embedding_forward(tape, &model->embedding, x);
    if (model->positions)
        x = op_add(tape, x, op_slice(tape, model->positions, 0, 0, n));
    nn_transformer_prefill(tape, generator->state, x, NULL);
}

Tensor *generator_next(Generator *generator, const int32_t *history, int64_t count)
{
    const int64_t half = generator->model->context / 2;
    if (generator->position == 0 || generator->position == generator->model->context) {
        const int64_t n = count - 1 < half ? count - 1 : half;
        prefill(generator, history + count - 1 - n, n);
    }
    return step(generator, tape_input_i32(generator->tape, history + count - 1, shape(1)));
}

static int32_t *encode(const Vocabulary *vocabulary, const char *prompt, int64_t more,
                       int64_t *count, Sentence *sentence)
{
    int32_t *tokens = allocate((int64_t)strlen(prompt) + more + MAX_WORD, sizeof *tokens);
    Source *source = source_of_string(prompt);
    int got;
    for (*count = 0; (got = vocabulary_encode(vocabulary, source, tokens + *count, sentence)) > 0;)
        *count += got;
    Sentence none;
    (void)source_close(source, &none); /* of a string: never false */
    if (got == 0)
        return tokens;
    free(tokens);
    return NULL;
}

bool generate(Generator *generator, const Vocabulary *vocabulary, const char *prompt,
              int64_t length, Sampling sampling, Sentence *sentence)
{
    int64_t count;
    int32_t *history = encode(vocabulary, prompt, length + 1, &count, sentence);
    if (!history)
        return false;
    fputs(prompt, stdout);
    if (count == 0)
        history[count++] = 0; /* begins a text */
    for (int64_t i = 0; i < length && !stopped_by; i++) {
        Tensor *logits = generator_next(generator, history, count);
        uint8_t bytes[MAX_WORD];
        tensor_read_i32(op_sample(generator->tape, logits, sampling), &history[count]);
        vocabulary_decode(vocabulary, history[count], bytes);
        fwrite(bytes, 1, (size_t)vocabulary->lengths[history[count++]], stdout);
        tape_reset(generator->tape);
    }
    putchar('\n');
    free(history);
    return true;
}

/* The nats of position n of all windows; those after the end of the text do not count. */
static double nats_of(Generator *generator, const Batch *batch, int64_t n)
{
    Tape *tape = generator->tape;
    Batch column = batch_new(batch->size, 1);
    for (int64_t b = 0; b < batch->size; b++) {
        const int64_t at = b * batch->length + n;
        column.tokens[b] = batch->tokens[at];
        column.targets[b] = batch->targets[at];
        column.weights[b] = batch->weights[at];
    }
    const int64_t count = batch_targets(&column);
    double nats = 0;
    if (count > 0) {
        const Shape all = shape(batch->size);
        Tensor *logits = step(generator, tape_input_i32(tape, column.tokens, all));
        Tensor *mean = op_cross_entropy(tape, logits, tape_input_i32(tape, column.targets, all),
                                        tape_input(tape, column.weights, all));
        nats = (double)count * tensor_item(mean);
        tape_reset(tape);
    }
    batch_free(&column);
    return nats;
}

Loss loss_by_steps(const Model *model, Tape *tape, GenerationConfig config, const Tokens *tokens,
                   const Vocabulary *vocabulary)
{
    Generator *generator = generator_new(model, tape, config);
    Batch batch = batch_new(config.sequences, model->context);
    Loss loss = { 0 };
    for (int64_t first = 0; first + 1 < tokens->count; first += batch.size * batch.length) {
        for (int64_t b = 0; b < batch.size; b++)
            batch_set(&batch, b, tokens, first + b * batch.length);
        nn_transformer_state_reset(generator->state, NN_ALL_SEQUENCES);
        for (int64_t n = 0; n < batch.length; n++)
            loss.nats += nats_of(generator, &batch, n);
        loss.targets += batch_targets(&batch);
        loss.bytes += batch_bytes(&batch, vocabulary);
    }
    batch_free(&batch);
    generator_free(generator);
    return loss;
}
