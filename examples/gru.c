/* A recurrent layer from operations, which nn_gru is as one: a GRU (Cho et al. 2014) learns the
 * parity of all bits so far, on sequences of 16 bits, and is tested on 200. An argument sets the
 * number of steps. */
#include "shared/argument.h"

#include <stdio.h>
#include <tapegrad.h>

enum { BATCH = 32, WIDTH = 16, LENGTH = 16, LONG = 200 };

typedef struct Layer {
    Linear input, state; /* to 3 WIDTH: reset gate, update gate, candidate */
} Layer;

/* As in PyTorch, with biases b and c: r = sigmoid(W_r x_t + b_r + U_r h + c_r), z likewise,
 * n = tanh(W_n x_t + b_n + r (U_n h + c_n)), h <- (1 - z) n + z h = n + z (h - n).
 * x [B, N, in] with B <= BATCH, N <= LONG; returns all h [B, N, WIDTH] */
static Tensor *gru_forward(Tape *tape, const Layer *gru, Tensor *x)
{
    const int64_t B = x->shape.size[0], N = x->shape.size[1];
    static const Real zeros[BATCH * WIDTH];
    Tensor *h = tape_input(tape, zeros, shape(B, WIDTH)), *wx_t[LONG], *all[LONG];
    Tensor *wx = nn_linear_forward(tape, &gru->input, x); /* of every position at once */
    op_split(tape, wx, 1, (int)N, wx_t);                  /* [B, 1, 3 WIDTH] each */
    for (int64_t t = 0; t < N; t++) {
        Tensor *w[3], *u[3]; /* [B, WIDTH]: W_r x_t, W_z x_t, W_n x_t; U_r h, U_z h, U_n h */
        op_split(tape, op_reshape(tape, wx_t[t], shape(B, 3 * WIDTH)), 1, 3, w);
        op_split(tape, nn_linear_forward(tape, &gru->state, h), 1, 3, u);
        Tensor *r = op_sigmoid(tape, op_add(tape, w[0], u[0]));
        Tensor *z = op_sigmoid(tape, op_add(tape, w[1], u[1]));
        Tensor *n = op_tanh(tape, op_add(tape, w[2], op_multiply(tape, r, u[2])));
        h = op_add(tape, n, op_multiply(tape, z, op_subtract(tape, h, n)));
        all[t] = h;
    }
    return op_stack(tape, all, (int)N, 1);
}

int main(int argc, char **argv)
{
    const int steps = argument_number(argc, argv, 1, "steps", 1, 300);
    Device *device = device_best();
    Params *params = params_new(device, /*seed*/ 1);
    Layer gru = { nn_linear(params, "input", 1, 3 * WIDTH),
                  nn_linear(params, "state", WIDTH, 3 * WIDTH) };
    Linear output = nn_linear(params, "output", WIDTH, 2);
    Optimizer *optimizer = optim_adam(params, optim_adam_config(1e-2));
    Tape *tape = tape_new(device);
    Random random = random_new(/*seed*/ 1, random_stream("bits"));

    for (int step = 1; step <= steps + 1; step++) { /* the last one is the test */
        const bool test = step > steps;
        const int N = test ? LONG : LENGTH;
        static Real bits[BATCH * LONG];
        static int32_t parities[BATCH * LONG];
        for (int i = 0; i < BATCH * N; i++) {
            const int32_t bit = (int32_t)random_integer(&random, 0, 2);
            bits[i] = (Real)bit;
            parities[i] = i % N ? parities[i - 1] ^ bit : bit;
        }
        tape_set_recording(tape, !test);
        Tensor *h = gru_forward(tape, &gru, tape_input(tape, bits, shape(BATCH, N, 1)));
        Tensor *logits = nn_linear_forward(tape, &output, h); /* [BATCH, N, 2] */
        Tensor *targets = tape_input_i32(tape, parities, shape(BATCH, N));
        Tensor *loss = op_cross_entropy(tape, logits, targets, NULL);
        if (test) {
            Tensor *accuracy = op_accuracy(tape, logits, targets, NULL);
            printf("accuracy on %d bits %.3f\n", N, tensor_item(accuracy));
            break;
        }
        tape_backward(tape, loss);
        params_clip_gradients(params, 1);
        optim_step(optimizer);
        if (step % 100 == 0)
            printf("step %3d  loss %.4f\n", step, tensor_item(loss));
        tape_reset(tape);
    }
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
