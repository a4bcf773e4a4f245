/* The copy task of Katharopoulos et al. 2020, Transformers are RNNs, section 4.1.1, with causal
 * linear attention. A sequence holds n symbols, a separator, the same symbols again, and padding:
 *
 *     position   0    ...  n-1   n   n+1  ...  2n   2n+1 ... LENGTH-1
 *     token      w_1  ...  w_n   0   w_1  ...  w_n   0   ...  0          16 <= n < 31
 *
 * The transformer predicts the next token; the loss counts positions n ... 2n-1, whose targets are
 * the copied symbols. examples/copy_task/ has options, checkpoints and curves.
 * copy_task [STEPS [DEVICE]] */
#include "shared/argument.h"

#include <stdio.h>
#include <tapegrad.h>

enum { LENGTH = 64, SYMBOLS = 10, CLASSES = SYMBOLS + 1, BATCH = 16 };
enum { LAYERS = 2, HEADS = 6, HEAD_DIM = 16, WIDTH = HEADS * HEAD_DIM, DROP_AT = 3300 };

typedef struct Batch {
    int32_t tokens[BATCH][LENGTH], targets[BATCH][LENGTH];
    Real mask[BATCH][LENGTH]; /* 1: the position counts */
} Batch;

typedef struct Model {
    Embedding embedding; /* [CLASSES, WIDTH / 2] */
    Tensor *positions;   /* [LENGTH, WIDTH / 2]: sine and cosine */
    Transformer transformer;
    Linear head; /* WIDTH to CLASSES */
} Model;

static void draw(Batch *batch, Random *random)
{
    *batch = (Batch){ 0 };
    for (int b = 0; b < BATCH; b++) {
        const int n = (int)random_integer(random, LENGTH / 4, (LENGTH - 1) / 2);
        int32_t *tokens = batch->tokens[b];
        for (int i = 0; i < n; i++)
            tokens[i] = tokens[n + 1 + i] = (int32_t)random_integer(random, 1, CLASSES);
        for (int i = 0; i + 1 < LENGTH; i++) {
            batch->targets[b][i] = tokens[i + 1];
            batch->mask[b][i] = n <= i && i < 2 * n;
        }
    }
}

static Model model_new(Params *params)
{
    TransformerConfig config = { .layers = LAYERS, .heads = HEADS, .head_dim = HEAD_DIM };
    config.attention = nn_causal_linear_attention(params, (CausalLinearConfig){ 0 });
    config.feed_forward = 256;
    return (Model){ nn_embedding(params, "embedding", CLASSES, WIDTH / 2),
                    nn_sinusoidal_positions(params, LENGTH, WIDTH / 2),
                    nn_transformer(params, "transformer", config),
                    nn_linear(params, "head", WIDTH, CLASSES) };
}

/* tokens [BATCH, LENGTH]; returns logits [BATCH, LENGTH, CLASSES] */
static Tensor *forward(Tape *tape, const Model *model, Tensor *tokens)
{
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tokens);
    Tensor *positions = op_broadcast_to(tape, model->positions, x->shape);
    x = op_concat(tape, (Tensor *[]){ x, positions }, 2, -1); /* [BATCH, LENGTH, WIDTH] */
    x = nn_transformer_forward(tape, &model->transformer, x, (AttentionOptions){ 0 });
    return nn_linear_forward(tape, &model->head, x);
}

int main(int argc, char **argv)
{
    const int steps = argument_number(argc, argv, 1, "steps", 1, 4000);
    Params *params = params_new(argc > 2 ? device_open(argv[2]) : device_best(), /*seed*/ 1);
    const Model model = model_new(params);
    AdamConfig config = optim_adam_config(4e-3);
    config.schedule = optim_drops(0.1, 1, (int64_t[]){ DROP_AT });
    Optimizer *optimizer = optim_radam(params, config);
    Tape *tape = tape_new(params_device(params));
    Random random = random_new(/*seed*/ 1, random_stream("copy task"));

    for (int step = 1; step <= steps; step++) {
        static Batch batch;
        draw(&batch, &random);
        Tensor *tokens = tape_input_i32(tape, batch.tokens[0], shape(BATCH, LENGTH));
        Tensor *targets = tape_input_i32(tape, batch.targets[0], shape(BATCH, LENGTH));
        Tensor *mask = tape_input(tape, batch.mask[0], shape(BATCH, LENGTH));
        Tensor *logits = tensor_keep(forward(tape, &model, tokens));
        Tensor *loss = op_cross_entropy(tape, logits, targets, mask);
        tape_backward(tape, loss);
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        if (step % 100 == 0 || step == steps) {
            Tensor *accuracy = op_accuracy(tape, logits, targets, mask); /* of copied symbols */
            printf("step %4d  loss %.4f  accuracy %6.2f %%\n", step, tensor_item(loss),
                   100 * tensor_item(accuracy));
        }
        tape_reset(tape);
    }
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
