/* A custom operation: its forward pass, its gradients, their check, and a use.
 *
 * snake(x, a) = x + sin^2(a x) / a, one frequency a, not 0, per column (Ziyin, Hartwig, Ueda 2020,
 * Neural Networks Fail to Learn Periodic Functions and How to Fix It, equation 3). With
 * sin^2(u)' = 2 sin u cos u = sin 2u and the upstream gradient g = dL/dout:
 *
 *     dx <- g (1 + sin 2ax)
 *     da <- sum over rows of g (x sin 2ax - sin^2(ax) / a) / a
 *
 * Nothing is saved by the forward pass: the backward pass reads the inputs, x and a. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad.h>

static void snake_backward(Node *node)
{
    Tensor *x = node->inputs[0], *a = node->inputs[1]; /* [..., C], [C] */
    int64_t rows = shape_rows(x->shape), columns = shape_columns(x->shape);
    const Real *g = tape_upstream(node, 0); /* [..., C] */
    Gradient dx = tape_contribution(node, x), da = tape_contribution(node, a);
    if (dx.data) { /* NULL if x requires no gradient */
        for (int64_t i = 0; i < rows * columns; i++) {
            double ax = (double)a->data[i % columns] * (double)x->data[i];
            gradient_add(dx, i, g[i] * (Real)(1 + sin(2 * ax)));
        }
    }
    if (da.data) {
        for (int64_t c = 0; c < columns; c++) {
            double sum = 0, frequency = (double)a->data[c];
            for (int64_t i = c; i < rows * columns; i += columns) {
                double u = (double)x->data[i], s = sin(frequency * u);
                sum += (double)g[i] * (u * sin(2 * frequency * u) - s * s / frequency) / frequency;
            }
            gradient_add(da, c, (Real)sum);
        }
    }
}

static Tensor *snake(Tape *tape, Tensor *x, Tensor *a)
{
    tape_use_cpu(tape, "snake: x", x);
    tape_use_cpu(tape, "snake: a", a);
    int64_t columns = shape_columns(x->shape);
    if (a->shape.rank != 1 || a->shape.size[0] != columns)
        tape_error(tape, "snake: x %s and a %s, expected one frequency per column of x",
                   tensor_text(x).text, tensor_text(a).text);
    Tensor *out = tape_tensor(tape, x->shape);
    for (int64_t i = 0; i < tensor_count(x); i++) {
        double frequency = (double)a->data[i % columns], s = sin(frequency * (double)x->data[i]);
        out->data[i] = x->data[i] + (Real)(s * s / frequency);
    }
    tape_record(tape, (Node){ .name = "snake",
                              .backward = snake_backward,
                              .inputs = { x, a },
                              .outputs = { out } });
    return out;
}

/* ---------------------------------------------------------------------------------- its check */

static Tensor *checked_snake(Tape *tape, Tensor *const *inputs, void *context)
{
    (void)context;
    return snake(tape, inputs[0], inputs[1]);
}

static double check(Device *device)
{
    enum { ROWS = 5, COLUMNS = 3 };
    Real x[ROWS * COLUMNS], a[COLUMNS] = { (Real)0.5, 1, 2 };
    Random random = random_new(1, 0);
    random_normal(&random, x, ROWS * COLUMNS);
    CheckInput inputs[] = { { shape(ROWS, COLUMNS), x }, { shape(COLUMNS), a } };
    GradientCheck worst = gradient_check(device, checked_snake, NULL, inputs, 2);
    printf("gradient check: largest error %.1e, input %d, element %lld: %.6f on the tape, %.6f by "
           "finite differences\n",
           worst.error, worst.input, (long long)worst.element, worst.analytic, worst.numeric);
    if (worst.pattern[0])
        printf("the gradient of input %d is %s\n", worst.input, worst.pattern);
    return worst.error;
}

/* ------------------------------------------------------------------------------------ its use
 * A network of one hidden layer learns a wave. */
int main(void)
{
    enum { POINTS = 128, HIDDEN = 32, STEPS = 1000 };
    Device *device = device_open("cpu"); /* snake's loops access host memory */
    double error = check(device);

    Params *params = params_new(device, /*seed*/ 1);
    Linear first = nn_linear(params, "first", 1, HIDDEN);
    Tensor *frequency =
        params_add(params, "frequency", shape(HIDDEN), (Initializer){ INITIAL_ONE, 1 });
    Linear second = nn_linear(params, "second", HIDDEN, 1);
    Optimizer *optimizer = optim_adam(params, optim_adam_config(3e-3));
    Tape *tape = tape_new(device);

    Real x[POINTS], y[POINTS];
    for (int i = 0; i < POINTS; i++) {
        x[i] = (Real)(-3 + 6.0 * i / POINTS);
        y[i] = (Real)(sin(2 * (double)x[i]) + (double)x[i] / 2);
    }
    double last_loss = 0;
    for (int step = 1; step <= STEPS; step++) {
        Tensor *hidden = nn_linear_forward(tape, &first, tape_input(tape, x, shape(POINTS, 1)));
        Tensor *out = nn_linear_forward(tape, &second, snake(tape, hidden, frequency));
        Tensor *loss = op_mean_squared_error(tape, out, tape_input(tape, y, shape(POINTS, 1)));
        tape_backward(tape, loss);
        optim_step(optimizer);
        last_loss = tensor_item(loss);
        if (step == 1 || step % 200 == 0)
            printf("step %4d  mean squared error %.6f\n", step, last_loss);
        tape_reset(tape);
    }
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    const bool written = !fflush(stdout) && !ferror(stdout);
    return written && error <= 2e-3 && last_loss < 1e-2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
