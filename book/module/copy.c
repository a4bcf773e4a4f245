/* The copy task as a WebAssembly module, which book/page/live.js trains in a page; natively, a
 * program with the same losses: copy SEED RATE LENGTH STEPS
 *
 * A sequence holds n symbols, a separator, the same symbols again, and padding:
 *
 *     position   0    ...  n-1   n   n+1  ...  2n   2n+1 ... length-1
 *     token      w_1  ...  w_n   0   w_1  ...  w_n   0   ...  0
 *
 * The transformer predicts the next token; the loss counts positions n ... 2n-1, whose targets are
 * the copied symbols. The model is that of examples/copy_task.c, but smaller: a step takes
 * milliseconds, and all of S~ fits into a picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad.h>

enum { MIN_LENGTH = 5, MAX_LENGTH = 64, SYMBOLS = 10, CLASSES = SYMBOLS + 1, BATCH = 16 };
enum { LAYERS = 2, HEADS = 4, HEAD_DIM = 16, WIDTH = HEADS * HEAD_DIM, FEED_FORWARD = 128 };
enum { STATE_COLUMNS = HEAD_DIM + 1 }; /* S~ = [S, z]: the values and the normalizer */

/* The calls of the page. A raised error prints its sentence and aborts: then the page drops the
 * instance. A pointer is valid until the next call, and the memory behind it may move. */
#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(name)))
#else
#define EXPORT(name)
#endif

/* A new model and new random numbers; frees those of an earlier start. */
EXPORT("start") void start(uint32_t seed, double rate, int length);
EXPORT("set_rate") void set_rate(double rate);
/* Trains for count steps; returns the loss of the last one, whose accuracy is get_accuracy(). */
EXPORT("steps") double steps(int count);
EXPORT("get_accuracy") double get_accuracy(void);
/* Evaluates the model on a sequence of its own, another one or the last one again, without training
 * on it. Returns n. The four functions below read the result. */
EXPORT("show") int show(int another);
EXPORT("get_tokens") int32_t *get_tokens(void);       /* [length] */
EXPORT("get_predicted") int32_t *get_predicted(void); /* [length]: of the next position's token */
/* Of the last layer's head: S~ [HEAD_DIM][STATE_COLUMNS] after position i, those of later positions
 * follow; the weights a_i.b_j / den_i of positions j <= i. */
EXPORT("get_state") Real *get_state(int head, int i);
EXPORT("get_weights") Real *get_weights(int head, int i);
/* For measurements: one forward pass of causal attention, of one head and n positions, by a form of
 * linear attention, or by softmax attention if form is 0. Needs no start. Returns the outputs' mean
 * square. */
EXPORT("run_form") double run_form(AttentionForm form, int n);

static int length;
static Params *params;
static Embedding embedding; /* [CLASSES, WIDTH / 2] */
static Tensor *positions;   /* [length, WIDTH / 2]: sine and cosine */
static Transformer transformer;
static Linear output; /* WIDTH to CLASSES */
static Optimizer *optimizer;
static Tape *tape;
static Random training_random, shown_random;
static double accuracy;

static int shown_symbols; /* n of the sequence that show() evaluates; 0: there is none yet */
static int32_t tokens[MAX_LENGTH], predicted[MAX_LENGTH];
static Real states[HEADS][MAX_LENGTH][HEAD_DIM][STATE_COLUMNS];
static Real weights[HEADS][MAX_LENGTH][MAX_LENGTH];

void start(uint32_t seed, double rate, int new_length)
{
    if (new_length > MAX_LENGTH) {
        fprintf(stderr, "start: length is %d, expected at most %d\n", new_length, MAX_LENGTH);
        abort();
    }
    if (params) {
        tape_free(tape);
        optim_free(optimizer);
        params_free(params);
    }
    length = new_length;
    params = params_new(device_open("cpu"), seed);
    embedding = nn_embedding(params, "embedding", CLASSES, WIDTH / 2);
    positions = nn_sinusoidal_positions(params, length, WIDTH / 2);
    TransformerConfig config = { .layers = LAYERS, .heads = HEADS, .head_dim = HEAD_DIM };
    config.feed_forward = FEED_FORWARD;
    transformer = nn_transformer(params, "transformer", config);
    output = nn_linear(params, "output", WIDTH, CLASSES);
    optimizer = optim_adam(params, optim_adam_config(rate));
    tape = tape_new(params_device(params));
    training_random = random_new(seed, random_stream("copy task"));
    shown_random = random_new(seed, random_stream("shown"));
    accuracy = 0;
    shown_symbols = 0;
}

void set_rate(double rate)
{
    optim_set_learning_rate(optimizer, rate);
}

/* Draws a sequence of 2n + 1 tokens and padding; returns n. */
static int draw(Random *random, int32_t *sequence)
{
    const int n = (int)random_integer(random, length / 4, (length - 1) / 2);
    memset(sequence, 0, (size_t)length * sizeof *sequence);
    for (int i = 0; i < n; i++)
        sequence[i] = sequence[n + 1 + i] = (int32_t)random_integer(random, 1, CLASSES);
    return n;
}

/* tokens [B, length]; returns [B, length, WIDTH] */
static Tensor *embed(Tensor *input)
{
    Tensor *x = nn_embedding_forward(tape, &embedding, input);
    Tensor *halves[] = { x, op_broadcast_to(tape, positions, x->shape) };
    return op_concat(tape, halves, 2, -1);
}

/* x [B, length, WIDTH]; returns logits [B, length, CLASSES] */
static Tensor *forward(Tensor *x)
{
    x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
    return nn_linear_forward(tape, &output, x);
}

static double train(void)
{
    static int32_t batch[BATCH * MAX_LENGTH], next[BATCH * MAX_LENGTH];
    static Real counted[BATCH * MAX_LENGTH];
    for (int b = 0; b < BATCH; b++) {
        int32_t *sequence = batch + b * length;
        const int n = draw(&training_random, sequence);
        for (int i = 0; i < length; i++) {
            next[b * length + i] = i + 1 < length ? sequence[i + 1] : 0;
            counted[b * length + i] = n <= i && i < 2 * n;
        }
    }
    Tensor *input = tape_input_i32(tape, batch, shape(BATCH, length));
    Tensor *targets = tape_input_i32(tape, next, shape(BATCH, length));
    Tensor *mask = tape_input(tape, counted, shape(BATCH, length));
    Tensor *logits = tensor_keep(forward(embed(input)));
    Tensor *loss = op_cross_entropy(tape, logits, targets, mask);
    tape_backward(tape, loss);
    params_clip_gradients(params, 1);
    optim_step(optimizer);
    accuracy = tensor_item(op_accuracy(tape, logits, targets, mask));
    const double value = tensor_item(loss);
    tape_reset(tape);
    return value;
}

double steps(int count)
{
    double loss = 0;
    for (int step = 0; step < count; step++)
        loss = train();
    return loss;
}

double get_accuracy(void)
{
    return accuracy;
}

/* S~ after each position, by the recurrent form: the state of one call is the next call's. */
static void compute_states(Tensor *qkv)
{
    CausalLinearAttentionOptions options = { .eps = 1e-6 };
    for (int i = 0; i < length; i++) {
        Tensor *state, *position = op_slice(tape, qkv, 1, i, 1);
        op_causal_linear_attention(tape, position, NULL, NULL, options, &state);
        for (int h = 0; h < HEADS; h++)
            memcpy(states[h][i], state->data + h * HEAD_DIM * STATE_COLUMNS, sizeof states[h][i]);
        options.state = state;
    }
}

static Real phi(Real x) /* elu(x) + 1 */
{
    return x > 0 ? x + 1 : (Real)exp((double)x);
}

/* a_i.b_j / den_i with a = phi(q), b = phi(k). qkv [length][3 HEADS][HEAD_DIM] */
static void compute_weights(const Real *qkv)
{
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < length; i++) {
            const Real *q = qkv + (i * 3 * HEADS + h) * HEAD_DIM;
            Real den = (Real)1e-6;
            for (int j = 0; j <= i; j++) {
                const Real *k = qkv + (j * 3 * HEADS + HEADS + h) * HEAD_DIM;
                Real product = 0;
                for (int d = 0; d < HEAD_DIM; d++)
                    product += phi(q[d]) * phi(k[d]);
                weights[h][i][j] = product;
                den += product;
            }
            for (int j = 0; j <= i; j++)
                weights[h][i][j] /= den;
        }
}

int show(int another)
{
    if (another || !shown_symbols)
        shown_symbols = draw(&shown_random, tokens);
    tape_set_recording(tape, false);
    tape_set_training(tape, false);
    Tensor *x = embed(tape_input_i32(tape, tokens, shape(1, length)));
    tensor_read_i32(op_argmax(tape, forward(x), -1), predicted);
    const TransformerLayer *layer = transformer.layer;
    for (int l = 0; l < LAYERS - 1; l++)
        x = nn_transformer_layer_forward(tape, layer++, x, (AttentionOptions){ 0 });
    Tensor *qkv = nn_linear_forward(tape, &layer->attention.input, x);
    compute_states(op_reshape(tape, qkv, shape(1, length, 3 * HEADS, HEAD_DIM)));
    compute_weights(qkv->data);
    tape_reset(tape);
    tape_set_recording(tape, true);
    tape_set_training(tape, true);
    return shown_symbols;
}

int32_t *get_tokens(void)
{
    return tokens;
}

int32_t *get_predicted(void)
{
    return predicted;
}

Real *get_state(int head, int i)
{
    return states[head][i][0];
}

Real *get_weights(int head, int i)
{
    return weights[head][i];
}

double run_form(AttentionForm form, int n)
{
    enum { MAX_N = 4096, SIZE = 32 };
    static Real values[3 * MAX_N * SIZE];
    static Tape *forms;
    if (n > MAX_N) {
        fprintf(stderr, "run_form: n is %d, expected at most %d\n", n, MAX_N);
        abort();
    }
    if (!forms) {
        Random random = random_new(/*seed*/ 1, random_stream("forms"));
        random_normal(&random, values, 3 * MAX_N * SIZE);
        forms = tape_new(device_open("cpu"));
        tape_set_recording(forms, false);
    }
    Tensor *x[3];
    for (int input = 0; input < 3; input++)
        x[input] = tape_input(forms, values + input * MAX_N * SIZE, shape(1, n, 1, SIZE));
    const CausalLinearAttentionOptions options = { .form = form, .eps = 1e-6 };
    const Tensor *out =
        form ? op_causal_linear_attention(forms, x[0], x[1], x[2], options, NULL)
             : op_causal_softmax_attention(forms, x[0], x[1], x[2], (SoftmaxAttentionOptions){ 0 });
    double squares = 0;
    for (int i = 0; i < n * SIZE; i++)
        squares += (double)(out->data[i] * out->data[i]);
    tape_reset(forms);
    return squares / (n * SIZE);
}

#ifndef __wasm__
/* "ABC.ABC..." of count tokens */
static void print_tokens(const char *label, const int32_t *first, int count)
{
    printf("%-10s", label);
    for (int i = 0; i < count; i++)
        putchar(first[i] ? 'A' + first[i] - 1 : '.');
    putchar('\n');
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: copy SEED RATE LENGTH STEPS\n");
        return 2;
    }
    start((uint32_t)atoi(argv[1]), atof(argv[2]), atoi(argv[3]));
    for (int step = 20; step <= atoi(argv[4]); step += 20) {
        const double loss = steps(20);
        if (step <= 200 || step % 100 == 0)
            printf("step %4d  loss %.6f  right %5.1f %%\n", step, loss, 100 * accuracy);
    }
    const int n = show(1);
    print_tokens("reads", tokens, 2 * n + 1);
    print_tokens("predicts", predicted + n, n);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
#endif
