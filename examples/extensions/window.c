/* A kind of attention, for an installed library: position i attends to the WINDOW positions up to i
 * (Beltagy, Peters, Cohan 2020, Longformer, section 3.1: sliding window attention), by softmax
 * attention with a mask,
 *     out_i = sum_{i - WINDOW < j <= i} softmax_j(q_i.k_j / sqrt D) v_j
 * A kind says which projections a layer has and how it combines positions; the library has the
 * projections, their names in files, and layers. */
#include <extend.h>
#include <tapegrad.h>

#include "run.h"

enum { WINDOW = 8 };

static Tensor *filled(Tape *tape, Shape shape, double value)
{
    Tensor *tensor = tape_tensor(tape, shape);
    tensor_fill(tensor, (Real)value);
    return tensor;
}

/* [N, N]: 0 where i - j < WINDOW, else so low that e^mask is 0; the operation masks j > i. */
static Tensor *window_mask(Tape *tape, int64_t N)
{
    Tensor *position = op_cumulative_sum(tape, filled(tape, shape(N), 1), 0);
    Tensor *distance = op_subtract(tape, op_reshape(tape, position, shape(N, 1)), position);
    Tensor *outside = op_less_equal(tape, filled(tape, shape(1), WINDOW), distance);
    return op_scale(tape, outside, -1e9);
}

/* packed [B, N, 3 H, D]: the heads of queries, keys and values */
static Tensor *attend_window(Tape *tape, const AttentionKind *kind, Tensor *packed, Tensor *none,
                             Tensor *nothing, const AttentionContext *context)
{
    (void)kind, (void)none, (void)nothing;
    return op_causal_softmax_attention(
        tape, packed, NULL, NULL,
        (SoftmaxAttentionOptions){ .key_lengths = context->options.key_lengths,
                                   .mask = window_mask(tape, packed->shape.size[1]) });
}

/* It has no options and no weights, so one constant serves all. A decode step would need a window
 * of the KV cache: has_cache is false, and generation raises. */
static const AttentionKind window = {
    .name = "window",
    .projections = { "query", "key", "value" },
    .attend = attend_window,
};

/* ------------------------------------------------------------------------------------- its use
 * A layer learns to repeat the symbol that stands LAG positions before. */
enum { SYMBOLS = 4, LAG = 3, LENGTH = 24, BATCH = 8, WIDTH = 32 };

typedef struct Model {
    Embedding symbols;
    Tensor *positions;
    Transformer transformer;
    Linear head;
} Model;

static TransformerConfig config(int64_t heads, int64_t head_dim)
{
    return (TransformerConfig){
        .layers = 1, .heads = heads, .head_dim = head_dim, .attention = &window
    };
}

static Optimizer *build(Params *params, void *model)
{
    *(Model *)model = (Model){ nn_embedding(params, "symbols", SYMBOLS, WIDTH),
                               nn_sinusoidal_positions(params, LENGTH, WIDTH),
                               nn_transformer(params, "transformer", config(2, WIDTH / 2)),
                               nn_linear(params, "head", WIDTH, SYMBOLS) };
    return optim_adam(params, optim_adam_config(3e-3));
}

static Tensor *loss(Tape *tape, const void *model, int step)
{
    const Model *of = model;
    Random random = random_new((uint64_t)step, random_stream("symbols"));
    int32_t symbols[BATCH][LENGTH], targets[BATCH][LENGTH - LAG];
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < LENGTH; i++) {
            symbols[b][i] = (int32_t)random_integer(&random, 0, SYMBOLS);
            if (i < LENGTH - LAG)
                targets[b][i] = symbols[b][i];
        }
    Tensor *x = tape_input_i32(tape, symbols[0], shape(BATCH, LENGTH));
    x = op_add(tape, nn_embedding_forward(tape, &of->symbols, x), of->positions);
    x = nn_transformer_forward(tape, &of->transformer, x, (AttentionOptions){ 0 });
    Tensor *logits = nn_linear_forward(tape, &of->head, op_slice(tape, x, 1, LAG, LENGTH - LAG));
    return op_cross_entropy(tape, logits,
                            tape_input_i32(tape, targets[0], shape(BATCH, LENGTH - LAG)), NULL);
}

static Tensor *checked(Tape *tape, Tensor *const *inputs, void *context)
{
    return nn_attention_forward(tape, context, inputs[0], (AttentionOptions){ 0 });
}

/* By the gradient of the last position's result: the number of positions that it depends on. */
static int positions_behind_the_last(const Attention *attention)
{
    enum { N = 3 * WINDOW, C = 4 };
    int count = 0;
    Tape *tape = tape_new(device_open("cpu"));
    Real values[N * C];
    Random random = random_new(/*seed*/ 1, random_stream("positions"));
    random_normal(&random, values, N * C);
    Tensor *x = tape_variable(tape, values, shape(1, N, C));
    Tensor *out = nn_attention_forward(tape, attention, x, (AttentionOptions){ 0 });
    tape_backward(tape, op_sum(tape, op_square(tape, op_slice(tape, out, 1, N - 1, 1)), ALL_AXES));
    const Real *dx = tensor_gradient(x)->data;
    for (int i = 0; i < N; i++)
        count += dx[i * C] != 0;
    tape_free(tape);
    return count;
}

int main(void)
{
    Params *params = params_new(device_open("cpu"), /*seed*/ 1);
    Attention attention = nn_attention(params, "attention", config(1, 4));
    bool right = checks("cpu", checked, &attention, shape(1, 12, 4));
    const int behind = positions_behind_the_last(&attention);
    printf("the last of %d positions depends on %d\n", 3 * WINDOW, behind);
    params_free(params);
    Model model;
    const Task task = { "window.safetensors", build, loss, &model, .max_loss = 0.1 };
    return !(trains_and_resumes(task) && right && behind == WINDOW);
}
