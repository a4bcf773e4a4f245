/* Attention transfer: from softmax attention to a kind without its quadratic cost. Katharopoulos et
 * al. 2020, Transformers are RNNs, section 5, leaves it to the future; Zhang et al. 2024, LoLCATs,
 * match the outputs of each layer, as here, and then train by the loss.
 *
 * Weights outside attention serve unchanged. A layer's attention learns on the input that it has
 * in the teacher, not in the student: no layer sees the errors of those before it, all learn at
 * once, and one forward pass of the teacher computes all inputs and targets. The error is relative,
 * |b - a|^2 / |a|^2, so that every layer counts alike, whatever the size of its outputs. */
#include "examples/language_model/convert.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- weights */

/* Names that the loading reports. */
typedef struct Names {
    int count;
    Sentence first;
} Names;

typedef struct Differences {
    const Params *params;
    Names drawn, unused; /* weights that the file lacks; entries that the model lacks */
} Differences;

static void add_name(const char *name, const char *sentence, void *context)
{
    Differences *differences = context;
    Names *names =
        params_find(differences->params, name) ? &differences->drawn : &differences->unused;
    (void)sentence;
    if (names->count++ == 0)
        sentence_write(&names->first, "%.200s", name);
}

static void print_names(const char *what, const Names *names)
{
    if (names->count > 0)
        printf("; %s: %s", what, names->first.text);
    if (names->count > 1)
        printf(" and %d more", names->count - 1);
}

void convert_load(Params *params, const char *path, bool quiet)
{
    Differences differences = { .params = params };
    const int loaded = params_load_some(params, path, add_name, &differences);
    if (loaded < 0)
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    check_weights(params, path);
    if (quiet)
        return;
    printf("from %s: %d weights", path, loaded);
    print_names("drawn", &differences.drawn);
    print_names("not used", &differences.unused);
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
