/* From one kind of attention to another. Transformers are RNNs (Katharopoulos et al. 2020, section
 * 5) leaves it to the future: a model that was trained with softmax attention becomes a linear one.
 * All weights but those of attention serve as they are; those of attention first learn to give the
 * same outputs as before (Zhang et al. 2024, The Hedgehog and the Porcupine, match the matrices of
 * attention; Zhang et al. 2024, LoLCATs, the outputs). Every layer gets the input that it has in
 * the teacher, so the layers learn at once, none from the errors of those before it, and one
 * forward pass of the teacher serves all. */
#include "examples/language_model/convert.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- weights */

/* Names that a report counts, of which the line has the first. */
typedef struct Left {
    int count;
    Sentence first;
} Left;

typedef struct Lefts {
    const Params *params;
    Left drawn, unused;
} Lefts;

static void note(const char *name, const char *sentence, void *context)
{
    Lefts *lefts = context;
    Left *left = params_find(lefts->params, name) ? &lefts->drawn : &lefts->unused;
    (void)sentence;
    if (left->count++ == 0)
        sentence_write(&left->first, "%.200s", name);
}

static void print_left(const char *what, const Left *left)
{
    if (left->count > 0)
        printf("; %s: %s", what, left->first.text);
    if (left->count > 1)
        printf(" and %d more", left->count - 1);
}

void convert_load(Params *params, const char *path, bool quiet)
{
    Lefts lefts = { .params = params };
    const int taken = params_load_some(params, path, note, &lefts);
    if (taken < 0)
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    check_weights(params, path);
    if (quiet)
        return;
    printf("from %s: %d weights", path, taken);
    print_left("drawn", &lefts.drawn);
    print_left("not used", &lefts.unused);
    printf("\n");
}

void convert_train_attention(Params *params, bool alone)
{
    params_set_requires_grad(params, "*", !alone);
    params_set_requires_grad(params, "*.attention.*", true);
    if (params_find(params, "vocabulary"))
        params_set_requires_grad(params, "vocabulary", false);
}

/* -------------------------------------------------------------------------------------- teacher */

struct Teacher {
    Params *params;
    Model model;
};

static void check_sizes(const char *path, const LanguageOptions *found,
                        const LanguageOptions *expected)
{
    const TrainingOptions *a = &found->common, *b = &expected->common;
    const struct {
        const char *what;
        int64_t found, expected;
        bool more; /* also serves */
    } rows[] = { { "layers", a->layers, b->layers, false },
                 { "elements of width", a->heads * a->head_dim, b->heads * b->head_dim, false },
                 { "tokens of context", found->context, expected->context, true } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].found < rows[i].expected || (rows[i].found > rows[i].expected && !rows[i].more))
            fail(BAD_USE, "--from %s: it has %lld %s, expected %lld%s", path,
                 (long long)rows[i].found, rows[i].what, (long long)rows[i].expected,
                 rows[i].more ? " or more" : "");
}

Teacher *teacher_new(Device *device, const char *path, const LanguageOptions *options,
                     const Vocabulary *vocabulary)
{
    LanguageOptions own;
    options_of_checkpoint(&language_train_command, path, &own);
    check_sizes(path, &own, options);
    own.common.dropout = 0;
    Teacher *teacher = allocate(1, sizeof *teacher);
    teacher->params = params_new(device, (uint64_t)own.common.seed);
    teacher->model = model_new(teacher->params, &own, vocabulary);
    load_weights(teacher->params, path);
    params_set_requires_grad(teacher->params, "*", false);
    return teacher;
}

void teacher_free(Teacher *teacher)
{
    if (teacher)
        params_free(teacher->params);
    free(teacher);
}

/* |b - a|^2 / |a|^2 */
static Tensor *relative_error(Tape *tape, Tensor *b, Tensor *a)
{
    Tensor *squares = op_square(tape, op_reshape(tape, a, shape(tensor_count(a))));
    return op_divide(tape, op_mean_squared_error(tape, b, a), op_mean(tape, squares, 0));
}

Tensor *teacher_error(Tape *tape, const Teacher *teacher, const Model *student, Tensor *tokens)
{
    const Transformer *stack = &teacher->model.transformer;
    const AttentionOptions all = { 0 };
    Tensor *x = model_embed(tape, &teacher->model, tokens), *error = NULL;
    for (int64_t i = 0; i < stack->layers; i++) {
        const TransformerLayer *layer = &stack->layer[i]; /* pre-norm, without dropout */
        Tensor *normed = nn_layernorm_forward(tape, &layer->norm1, x);
        Tensor *a = nn_attention_forward(tape, &layer->attention, normed, all);
        Tensor *b =
            nn_attention_forward(tape, &student->transformer.layer[i].attention, normed, all);
        Tensor *own = relative_error(tape, b, a);
        error = error ? op_add(tape, error, own) : own;
        x = op_add(tape, x, a);
        normed = nn_layernorm_forward(tape, &layer->norm2, x);
        Tensor *inner = op_linear_activation(tape, normed, layer->ff1.weight, layer->ff1.bias,
                                             layer->activation);
        x = op_add(tape, x, nn_linear_forward(tape, &layer->ff2, inner));
    }
    return op_scale(tape, error, 1.0 / (double)stack->layers);
}
