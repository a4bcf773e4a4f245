/* A small transformer learns to reverse digits: 3 1 4 1 5, then 5 1 4 1 3. */
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

enum { BATCH = 32, DIGITS = 5, LENGTH = 2 * DIGITS, SEPARATOR = 10, SYMBOLS = 11, STEPS = 1000 };

/* A line is the digits, a separator and the reversed digits, which are the targets. */
static void draw(Random *random, int32_t tokens[LENGTH], int32_t targets[DIGITS])
{
    int32_t line[LENGTH + 1] = { [DIGITS] = SEPARATOR };
    for (int i = 0; i < DIGITS; i++)
        line[i] = line[LENGTH - i] = (int32_t)random_integer(random, 0, 10);
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = line[i];
    for (int i = 0; i < DIGITS; i++)
        targets[i] = line[DIGITS + 1 + i];
}

/* Prints the first line's digits and the model's, whose logits are the largest. */
static void print_line(Tape *tape, const int32_t *tokens, Tensor *logits)
{
    int32_t found[BATCH][DIGITS];
    tensor_read_i32(op_argmax(tape, logits, -1), found[0]);
    for (int i = 0; i < DIGITS; i++)
        printf("%d ", tokens[i]);
    printf(" reversed:");
    for (int i = 0; i < DIGITS; i++)
        printf(" %d", found[0][i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    Device *device = device_best();
    Params *params = params_new(device, /*seed*/ 1);
    Embedding embedding = nn_embedding(params, "embedding", SYMBOLS, 16);
    Tensor *positions = nn_sinusoidal_positions(params, LENGTH, 16);
    TransformerConfig config = { .layers = 1, .heads = 2, .head_dim = 16 };
    Transformer transformer = nn_transformer(params, "transformer", config);
    Linear head = nn_linear(params, "head", 32, SYMBOLS);
    Optimizer *optimizer = optim_radam(params, optim_adam_config(3e-3));
    Tape *tape = tape_new(device);
    Random random = random_new(/*seed*/ 1, random_stream("digits"));

    for (int step = 1; step <= STEPS; step++) {
        int32_t tokens[BATCH][LENGTH], targets[BATCH][DIGITS];
        for (int i = 0; i < BATCH; i++)
            draw(&random, tokens[i], targets[i]);

        Tensor *x = tape_input_i32(tape, tokens[0], shape(BATCH, LENGTH));
        x = nn_embedding_forward(tape, &embedding, x); /* [BATCH, LENGTH, 16] */
        Tensor *parts[] = { x, op_broadcast_to(tape, positions, x->shape) };
        x = op_concat(tape, parts, 2, -1); /* [BATCH, LENGTH, 32] */
        x = nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 });
        x = op_slice(tape, x, 1, DIGITS, DIGITS);           /* from the separator on */
        Tensor *logits = nn_linear_forward(tape, &head, x); /* [BATCH, DIGITS, SYMBOLS] */
        tensor_keep(logits); /* readable after the backward pass, which frees what it has used */
        Tensor *classes = tape_input_i32(tape, targets[0], shape(BATCH, DIGITS));
        Tensor *loss = op_cross_entropy(tape, logits, classes, NULL);

        if (argc > 1 && !strcmp(argv[1], "tape")) { /* only print the graph: dot -Tsvg draws it */
            tape_print_dot(tape, stdout);
            break;
        }
        tape_backward(tape, loss);
        optim_step(optimizer); /* also zeroes the gradients */
        if (step % 100 == 0)
            printf("step %4d  loss %.4f\n", step, tensor_item(loss));
        if (step == STEPS)
            print_line(tape, tokens[0], logits);
        tape_reset(tape); /* frees every tensor of this step */
    }

    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
