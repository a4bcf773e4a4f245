/* Seconds per training step against context length, as in Linear Transformers Are Faster (Buckman
 * and Gelada 2024), of a decoder like GPT-2 (Radford et al. 2019): pre-norm, gelu, learned
 * positions, a tied head; AdamW; one sequence per step. The methods are softmax attention and each
 * form of linear attention; polynomial: with features of degree 2, of which there are D (D + 3) / 2
 * + 1 per head; and the attention of all layers alone.
 *
 * From these it estimates the times of GPT-2's sizes, see print_gpt2. */
#include "bench/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The small decoder and GPT-2's sizes. */
typedef struct Size {
    const char *name;
    int64_t layers, heads, head_dim, vocabulary;
} Size;

enum { SMALL, FIRST_GPT2, SIZES = 5 };
static const Size sizes[SIZES] = {
    { "small", 4, 4, 32, 256 },    { "124M", 12, 12, 64, 50257 }, { "355M", 24, 16, 64, 50257 },
    { "774M", 36, 20, 64, 50257 }, { "1.5B", 48, 25, 64, 50257 },
};

static const char *model = NULL;
static int64_t vocabulary, layers, heads, head_dim; /* 0: of the model */

static const Size *size_named(const char *name)
{
    for (int i = 0; i < SIZES; i++)
        if (strcmp(sizes[i].name, name) == 0)
            return &sizes[i];
    fprintf(stderr, "--model is %s, expected small, 124M, 355M, 774M or 1.5B\n", name);
    exit(2);
}

static void choose_sizes(const BenchOptions *options)
{
    const bool cuda = device_is_cuda(options->device);
    const Size *size = model ? size_named(model) : &sizes[cuda ? FIRST_GPT2 : SMALL];
    vocabulary = vocabulary ? vocabulary : size->vocabulary;
    layers = layers ? layers : size->layers;
    heads = heads ? heads : size->heads;
    head_dim = head_dim ? head_dim : size->head_dim;
}

/* -------------------------------------------------------------------------- one point's process */
/* The first MODELS methods are steps of the decoder. */
enum { SOFTMAX, CHUNKED, POLYNOMIAL, RECURRENT, QUADRATIC, MODELS };
enum { SOFTMAX_ALONE = MODELS, CHUNKED_ALONE, METHODS };
static const Line lines[METHODS] = {
    [SOFTMAX] = { .name = "softmax", .title = "softmax", .color = "#b2182b" },
    [CHUNKED] = { .name = "chunked", .title = "linear, chunked form", .color = "#2166ac" },
    [POLYNOMIAL] = { .name = "polynomial",
                     .title = "linear, polynomial features",
                     .color = "#67a9cf" },
    [RECURRENT] = { .name = "recurrent", .title = "linear, recurrent form", .color = "#1b7837" },
    [QUADRATIC] = { .name = "quadratic", .title = "linear, quadratic form", .color = "#e08214" },
    [SOFTMAX_ALONE] = { .name = "softmax-attention",
                        .title = "softmax attention alone",
                        .color = "#b2182b",
                        .dashed = true },
    [CHUNKED_ALONE] = { .name = "chunked-attention",
                        .title = "chunked attention alone",
                        .color = "#2166ac",
                        .dashed = true },
};
static const AttentionForm forms[METHODS] = {
    [CHUNKED] = FORM_CHUNKED,
    [POLYNOMIAL] = FORM_CHUNKED,
    [RECURRENT] = FORM_RECURRENT,
    [QUADRATIC] = FORM_QUADRATIC,
};

typedef struct Model {
    Params *params;
    Embedding embedding; /* [vocabulary, width] */
    Tensor *positions;   /* [N, width] */
    Transformer transformer;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *tokens, *targets; /* [1, N] */
} Model;

static void step(void *context)
{
    const Model *m = context;
    Tensor *x = nn_embedding_forward(m->tape, &m->embedding, m->tokens);
    x = op_add(m->tape, x, m->positions);
    x = nn_transformer_forward(m->tape, &m->transformer, x, (AttentionOptions){ 0 });
    Tensor *logits = op_matmul_nt(m->tape, x, m->embedding.weight);
    tape_backward(m->tape, op_cross_entropy(m->tape, logits, m->targets, NULL));
    params_clip_gradients(m->params, 1);
    optim_step(m->optimizer);
}

/* Random tokens; each is the target of the previous position. */
static void write_tokens(const Model *m, int64_t length)
{
    int32_t *text = malloc((size_t)(length + 1) * sizeof *text);
    if (!text)
        exit(EXIT_FAILURE);
    Random random = random_new(1, 1);
    for (int64_t i = 0; i <= length; i++)
        text[i] = (int32_t)random_integer(&random, 0, vocabulary);
    tensor_write_i32(m->tokens, text);
    tensor_write_i32(m->targets, text + 1);
    free(text);
}

static const AttentionKind *attention_of(Params *params, int method)
{
    CausalLinearConfig config = { .form = forms[method] };
    if (method == SOFTMAX)
        return nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    if (method != POLYNOMIAL)
        return nn_causal_linear_attention(params, config);
    config.features = FEATURE_MAP_IDENTITY;
    return nn_feature_attention(
        params, (FeatureConfig){ .inner = nn_causal_linear_attention(params, config),
                                 .features = FEATURES_POLYNOMIAL });
}

static Model model_new(const BenchOptions *options, int method, const Figure *figure)
{
    const Initializer normal = { INITIAL_NORMAL, 0.02 };
    const int64_t width = heads * head_dim;
    const Shape tokens = shape(figure->batch, figure->length);
    Model m = { .params = params_new(options->device, 1), .tape = bench_tape(options) };
    m.embedding.weight = params_add(m.params, "embedding", shape(vocabulary, width), normal);
    m.positions = params_add(m.params, "positions", shape(figure->length, width), normal);
    m.transformer = nn_transformer(m.params, "transformer",
                                   (TransformerConfig){ .layers = layers,
                                                        .heads = heads,
                                                        .head_dim = head_dim,
                                                        .attention = attention_of(m.params, method),
                                                        .pre_norm = true,
                                                        .activation = ACTIVATION_GELU });
    AdamConfig config = optim_adam_config(1e-3);
    config.weight_decay = 0.1;
    m.optimizer = optim_adamw(m.params, config);
    m.tokens = tape_persistent_i32(m.tape, tokens);
    m.targets = tape_persistent_i32(m.tape, tokens);
    return m;
}

static void measure_model(const BenchOptions *options, const Figure *figure, int method)
{
    Model m = model_new(options, method, figure);
    write_tokens(&m, figure->length);
    const double ms = figure_time(options, m.tape, step, &m);
    figure_print(ms, (double)device_memory(options->device).peak);
    tape_free(m.tape);
    optim_free(m.optimizer);
    params_free(m.params);
}

typedef struct Alone {
    Params *params;
    Tensor *query, *key, *value, *upstream; /* [1, N, H, D] */
    Tape *tape;
    int method, repeats;
} Alone;

/* In bf16 the inputs are cast, which attention in a model does not need: four operations per cast
 * reduce its share. */
static void attend(void *context)
{
    const Alone *a = context;
    const bool bf16 = tape_precision(a->tape) == PRECISION_BF16;
    const TensorType type = bf16 ? TENSOR_BF16 : TENSOR_REAL;
    Tensor *out = op_cast(a->tape, a->query, type), *key = op_cast(a->tape, a->key, type),
           *value = op_cast(a->tape, a->value, type);
    for (int i = 0; i < a->repeats; i++)
        out = a->method == SOFTMAX_ALONE
                  ? op_causal_softmax_attention(a->tape, out, key, value,
                                                (SoftmaxAttentionOptions){ 0 })
                  : op_causal_linear_attention(
                        a->tape, out, key, value,
                        (CausalLinearAttentionOptions){ .eps = 1e-6, .form = FORM_CHUNKED }, NULL);
    tape_backward_from(a->tape, op_cast(a->tape, out, TENSOR_REAL), a->upstream);
    params_zero_gradients(a->params);
}

/* The time of all layers' attention, forward and backward. */
static void measure_alone(const BenchOptions *options, const Figure *figure, int method)
{
    const Initializer normal = { INITIAL_NORMAL, 1 };
    const Shape x = shape(figure->batch, figure->length, heads, head_dim);
    Alone a = { .params = params_new(options->device, 1),
                .tape = bench_tape(options),
                .method = method,
                .repeats = options->precision == PRECISION_BF16 ? 4 : 1 };
    a.query = params_add(a.params, "query", x, normal);
    a.key = params_add(a.params, "key", x, normal);
    a.value = params_add(a.params, "value", x, normal);
    a.upstream = tape_persistent(a.tape, x);
    bench_fill(a.upstream, 1);
    const double ms = figure_time(options, a.tape, attend, &a) / a.repeats;
    figure_print(ms * (double)layers, (double)device_memory(options->device).peak);
    tape_free(a.tape);
    params_free(a.params);
}

static void measure_point(const BenchOptions *options, const Figure *figure)
{
    const int method = figure_method(figure, lines, METHODS);
    (method < MODELS ? measure_model : measure_alone)(options, figure, method);
}

/* -------------------------------------------------------------------------------- GPT-2's sizes */
/* Both the matrix products and linear attention take time proportional to N, so the times of steps
 * alone do not separate them: the attention of all layers, A(N), is measured too. The rest of a
 * step,
 *     T(N) - A(N) = W (p N + c),
 * is proportional to the W weights of matrix products: p for each position, c for each step, mainly
 * the optimizer. Least squares of the relative errors over all lengths of both methods give p and
 * c. A step of another size is estimated as
 *     T'(N) = W' (p N + c) + L' H' / (L H) (D' / D)^e A(N),
 * L layers of H heads of D. e = 1 for softmax and 2 for linear attention, since the number of
 * operations per position is proportional to D^e. Beyond the measured lengths A is proportional to
 * N^2 for softmax and to N for linear attention, below them to N. The rest is equal for both
 * methods: where one overtakes the other depends on D, but not on layers and heads.
 *
 * Operations per element of the residual stream count as part of p: a small measured model, where
 * their share is larger, overestimates p. */
typedef struct Fit {
    Size size; /* measured */
    double p, c;
    Curve steps[2], alone[2]; /* of softmax and chunked */
} Fit;

static double product_weights(const Size *s)
{
    const double width = (double)(s->heads * s->head_dim);
    return (12 * (double)s->layers * width + (double)s->vocabulary) * width;
}

static double attention_at(const Fit *fit, int m, double N)
{
    const Curve *alone = &fit->alone[m];
    const int last = alone->count - 1;
    if (N > alone->x[last])
        return alone->y[last] * pow(N / alone->x[last], m == SOFTMAX ? 2 : 1);
    return N < alone->x[0] ? alone->y[0] * N / alone->x[0] : curve_at(alone, N).value;
}

static void fit_rest(Fit *fit)
{
    double uu = 0, uv = 0, vv = 0, uy = 0, vy = 0;
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < fit->steps[m].count; i++) {
            const double N = fit->steps[m].x[i], T = fit->steps[m].y[i];
            const double y = 1 - attention_at(fit, m, N) / T; /* the rest, relative to T */
            const double v = product_weights(&fit->size) / T, u = v * N;
            uu += u * u;
            uv += u * v;
            vv += v * v;
            uy += u * y;
            vy += v * y;
        }
    const double determinant = uu * vv - uv * uv;
    fit->p = (uy * vv - vy * uv) / determinant;
    fit->c = (vy * uu - uy * uv) / determinant;
    if (!(fit->p >= 0 && fit->c >= 0)) {
        fit->p = fmax(uy / uu, 0);
        fit->c = 0;
    }
}

/* Milliseconds per step of GPT-2's size at length N. */
static Estimate time_of(const Fit *fit, const Size *size, int m, double N)
{
    const Size *s = &fit->size;
    const bool same = size->layers == s->layers && size->heads == s->heads &&
                      size->head_dim == s->head_dim && size->vocabulary == s->vocabulary;
    const Estimate measured = curve_at(&fit->steps[m], N);
    if (same && measured.measured)
        return measured;
    const double layer_heads =
        (double)(size->layers * size->heads) / (double)(s->layers * s->heads);
    const double dims = (double)size->head_dim / (double)s->head_dim;
    const double attention = layer_heads * (m == SOFTMAX ? dims : dims * dims);
    return (Estimate){
        product_weights(size) * (fit->p * N + fit->c) + attention * attention_at(fit, m, N), false
    };
}

/* The context from which on the chunked form takes at most 1 / factor of softmax's time. */
static BenchText overtaking(const Fit *fit, const Size *size, double factor)
{
    Curve slow = { .count = 24 }, fast = { .count = 24 };
    for (int i = 0; i < 24; i++) {
        slow.x[i] = fast.x[i] = ldexp(16, i);
        slow.y[i] = time_of(fit, size, 0, slow.x[i]).value / factor;
        fast.y[i] = time_of(fit, size, 1, slow.x[i]).value;
    }
    const double N = curve_crossing(&slow, &fast);
    if (N == 0)
        return (BenchText){ "all N" };
    const bool measured = time_of(fit, size, 0, N).measured && time_of(fit, size, 1, N).measured;
    return estimate_text((Estimate){ N, measured });
}

static void print_gpt2(const Fit *fit)
{
    enum { SHORTEST = 1024, LONGEST = 262144, STEP = 4 };
    printf("GPT-2, seconds per step of one sequence of N positions (~: estimated), and the N at "
           "which the\nchunked form overtakes softmax, and from which on it takes at most half its "
           "time\n"
           "%-23s",
           "");
    for (int N = SHORTEST; N <= LONGEST; N *= STEP)
        printf(" %9d", N);
    printf(" %10s %10s\n", "overtakes", "half");
    for (int i = FIRST_GPT2; i < SIZES; i++)
        for (int m = 0; m < 2; m++) {
            printf("%-5s %-17s", m ? "" : sizes[i].name, lines[m].name);
            for (int N = SHORTEST; N <= LONGEST; N *= STEP) {
                Estimate time = time_of(fit, &sizes[i], m, N);
                time.value /= 1e3;
                printf(" %9s", estimate_text(time).text);
            }
            if (m)
                printf(" %10s %10s", overtaking(fit, &sizes[i], 1).text,
                       overtaking(fit, &sizes[i], 2).text);
            printf("\n");
        }
}

static void report(const Figure *figure)
{
    Fit fit = { 0 };
    Size *s = &fit.size;
    long long L, H, D, V;
    print_crossings(figure, MODELS);
    if (sscanf(figure->sizes, "%lld layers of %lld heads of %lld, %lld symbols", &L, &H, &D, &V) !=
        4) {
        printf("no estimate of GPT-2's sizes: the records lack the measured sizes\n");
        return;
    }
    printf("polynomial features: %lld per head; by number of operations they overtake softmax at "
           "N = D^2 = %lld\n",
           D * (D + 3) / 2 + 1, D * D);
    *s = (Size){ NULL, L, H, D, V };
    for (int m = 0; m < 2; m++) {
        fit.steps[m] = curve_of_times(&figure->lines[m]);
        fit.alone[m] = curve_of_times(&figure->lines[SOFTMAX_ALONE + m]);
        if (fit.steps[m].count < 2 || fit.alone[m].count < 2) {
            printf("no estimate of GPT-2's sizes: it needs two lengths of %s and of %s\n",
                   lines[m].name, lines[SOFTMAX_ALONE + m].name);
            return;
        }
    }
    fit_rest(&fit);
    print_gpt2(&fit);
}

/* ----------------------------------------------------------------------------------- the figure */
int main(int argc, char **argv)
{
    static Figure figure = { .shortest = 256,
                             .longest = 65536,
                             .limit = 120,
                             .output = "training_speed",
                             .length = 256,
                             .batch = 1 };
    const BenchOption more[] = {
        FIGURE_OPTIONS(figure),
        { "model", "small, 124M, 355M, 774M or 1.5B; by default small, on a GPU 124M", NULL, 0,
          &model },
        { "vocabulary", "number of tokens; 0: of the model", &vocabulary, 0, NULL },
        { "layers", "number of layers; 0: of the model", &layers, 0, NULL },
        { "heads", "number of heads; 0: of the model", &heads, 0, NULL },
        { "head-dim", "size of a head; 0: of the model", &head_dim, 0, NULL },
        { 0 },
    };
    const Command again = command_again(argc, argv);
    BenchOptions options =
        bench_begin_with(argc, argv, "seconds per training step against context length", more);
    choose_sizes(&options);
    if (figure.method) {
        measure_point(&options, &figure);
        return EXIT_SUCCESS;
    }
    snprintf(figure.sizes, sizeof figure.sizes,
             "%lld layers of %lld heads of %lld, %lld symbols, one sequence", (long long)layers,
             (long long)heads, (long long)head_dim, (long long)vocabulary);
    figure_run(&figure, &options, lines, METHODS, again, argv[0],
               (Panel){ "A training step of a decoder", "time per step, s", "($2/1000)", report });
    return EXIT_SUCCESS;
}
