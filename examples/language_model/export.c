#include "examples/language_model/export.h"
#include "examples/shared/program.h"

#include <stdlib.h>
#include <string.h>

static const char *const engine[] = {
#include "examples/language_model/engine.inc"
};

/* Floats as bit patterns, eight to a line, in the order of the calls. */
typedef struct Writer {
    FILE *file;
    int64_t count;
} Writer;

static void write_float(Writer *writer, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    fprintf(writer->file, "%s0x%08x,", writer->count++ % 8 ? " " : "\n    ", bits);
}

static void write_tensor(Writer *writer, const Tensor *tensor)
{
    const int64_t n = tensor_count(tensor);
    Real *values = allocate(n, sizeof *values);
    tensor_read(tensor, values);
    for (int64_t i = 0; i < n; i++)
        write_float(writer, (float)values[i]);
    free(values);
}

static void write_linear(Writer *writer, const Linear *linear)
{
    write_tensor(writer, linear->weight);
    write_tensor(writer, linear->bias);
}

static void write_norm(Writer *writer, const LayerNorm *norm)
{
    write_tensor(writer, norm->weight);
    write_tensor(writer, norm->bias);
}

/* -l = log(1 + e^(w.x + b + c)) with the head's constant c: ext/gates. It is added to b. */
static void write_decay(Writer *writer, const Gates *gates)
{
    const int64_t heads = tensor_count(gates->decay.bias);
    Real *bias = allocate(2 * heads, sizeof *bias), *constant = bias + heads;
    write_tensor(writer, gates->decay.weight);
    tensor_read(gates->decay.bias, bias);
    tensor_read(gates->decay_constant, constant);
    for (int64_t h = 0; h < heads; h++)
        write_float(writer, (float)(bias[h] + constant[h]));
    free(bias);
}

static void write_weights(FILE *file, const Model *model)
{
    Writer writer = { .file = file };
    fputs("/* The bits of the floats of a Weights */\nstatic const union {\n    uint32_t "
          "bits[sizeof(Weights) / sizeof(float)];\n    Weights model;\n} weights = { {",
          file);
    write_tensor(&writer, model->embedding.weight);
    if (model->positions)
        write_tensor(&writer, model->positions);
    for (int i = 0; i < model->transformer.layers; i++) {
        const TransformerLayer *layer = &model->transformer.layer[i];
        const Gates *gates = nn_attention_gates(&layer->attention);
        write_norm(&writer, &layer->norm1);
        if (gates)
            write_decay(&writer, gates);
        write_linear(&writer, &layer->attention.input);
        write_linear(&writer, &layer->attention.output);
        write_norm(&writer, &layer->norm2);
        write_linear(&writer, &layer->ff1);
        write_linear(&writer, &layer->ff2);
    }
    write_norm(&writer, &model->transformer.norm);
    fputs("\n} };\n", file);
}

static void write_vocabulary(FILE *file, const Vocabulary *vocabulary)
{
    fputs("/* The bytes of each token */\nstatic const unsigned char token_length[VOCABULARY] = {",
          file);
    for (int64_t token = 0; token < vocabulary->count; token++)
        fprintf(file, "%s%d,", token % 16 ? " " : "\n    ", vocabulary->lengths[token]);
    fputs("\n};\nstatic const unsigned char token_bytes[VOCABULARY][4] = {", file);
    for (int64_t token = 0; token < vocabulary->count; token++) {
        uint8_t bytes[MAX_WORD] = { 0 };
        vocabulary_decode(vocabulary, (int32_t)token, bytes);
        fprintf(file, "%s{ %d, %d, %d, %d },", token % 4 ? " " : "\n    ", bytes[0], bytes[1],
                bytes[2], bytes[3]);
    }
    fputs("\n};\n\n", file);
}

static void write_sizes(FILE *file, const Model *model, const Vocabulary *vocabulary)
{
    const Transformer *transformer = &model->transformer;
    const Attention *attention = &transformer->layer[0].attention;
    fprintf(file,
            "enum {\n    VOCABULARY = %lld,\n    CONTEXT = %lld, /* tokens of a window */\n"
            "    LAYERS = %lld,\n    HEADS = %lld,\n    HEAD_DIM = %lld,\n"
            "    FEED_FORWARD = %lld,\n};\n",
            (long long)vocabulary->count, (long long)model->context, (long long)transformer->layers,
            (long long)attention->heads, (long long)attention->head_dim,
            (long long)tensor_count(transformer->layer[0].ff1.bias));
    fprintf(file, "#define HAS_POSITIONS %d\n#define HAS_ROTARY %d\n#define HAS_DECAY %d\n",
            model->positions != NULL, model->rotary, nn_attention_gates(attention) != NULL);
}

/* engine.c.in, with what differs between models in place of its lines @sizes@ and @weights@ */
void export_model(FILE *file, const Model *model, const Vocabulary *vocabulary)
{
    for (size_t line = 0; line < sizeof engine / sizeof *engine; line++) {
        if (!strcmp(engine[line], "@sizes@\n")) {
            write_sizes(file, model, vocabulary);
        } else if (!strcmp(engine[line], "@weights@\n")) {
            write_vocabulary(file, vocabulary);
            write_weights(file, model);
        } else {
            fputs(engine[line], file);
        }
    }
}
