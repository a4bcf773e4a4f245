/* Two moons: a network with one hidden layer separates two interleaved half circles. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

int main(void)
{
    enum { POINTS = 200, HIDDEN = 16, STEPS = 300 };
    Real points[POINTS][2]; /* Gaussian noise, then moved onto the moons */
    int32_t moons[POINTS];
    Random random = random_new(/*seed*/ 1, random_stream("noise"));
    random_normal(&random, points[0], 2 * POINTS);
    for (int i = 0; i < POINTS; i++) {
        double angle = 3.1416 * i / POINTS, sign = i % 2 ? -1 : 1;
        points[i][0] = points[i][0] / 10 + (Real)(sign * cos(angle) + i % 2);
        points[i][1] = points[i][1] / 10 + (Real)(sign * sin(angle) + 0.5 * (i % 2));
        moons[i] = i % 2;
    }
    Device *device = device_best();
    Params *params = params_new(device, /*seed*/ 1);
    Linear hidden = nn_linear(params, "hidden", 2, HIDDEN);
    Linear output = nn_linear(params, "output", HIDDEN, 2);
    Optimizer *optimizer = optim_adam(params, optim_adam_config(0.02));
    Tape *tape = tape_new(device);

    for (int step = 1; step <= STEPS; step++) {
        Tensor *x = tape_input(tape, points[0], shape(POINTS, 2));
        x = op_tanh(tape, nn_linear_forward(tape, &hidden, x)); /* [POINTS, HIDDEN] */
        x = nn_linear_forward(tape, &output, x);                /* [POINTS, 2]: the logits */
        Tensor *targets = tape_input_i32(tape, moons, shape(POINTS));
        Tensor *loss = op_cross_entropy(tape, x, targets, NULL);
        tape_backward(tape, loss); /* computes the gradients by the chain rule */
        optim_step(optimizer);     /* updates the weights and clears their gradients */
        if (step % 50 == 0)
            printf("step %3d  loss %.4f\n", step, tensor_item(loss));
        tape_reset(tape); /* frees every tensor that this step allocated */
    }
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    return fflush(stdout) || ferror(stdout); /* 1: the output could not be written */
}
