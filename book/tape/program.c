/* The numbers of chapter 1: the library's tape beside differences, what it frees, an operation of
 * one's own. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

static const Real point = 1;
static const double H = 1e-2; /* in float; chapter 2 derives it */

/* out = x^2. Backward: dx <- 2 x g, g = dL/dout */
static void square_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    const Real *g = tape_upstream(node, 0);
    for (int64_t i = 0; dx.data && i < tensor_count(x); i++)
        gradient_add(dx, i, 2 * x->data[i] * g[i]);
}

static Tensor *square(Tape *tape, Tensor *x)
{
    tape_use_cpu(tape, "square: x", x);
    Tensor *out = tape_tensor(tape, x->shape);
    for (int64_t i = 0; i < tensor_count(x); i++)
        out->data[i] = x->data[i] * x->data[i];
    tape_record(tape, (Node){ .name = "square",
                              .backward = square_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}

static Tensor *x_exp_x(Tape *tape, Tensor *x)
{
    return op_multiply(tape, x, op_exp(tape, x));
}

static Tensor *square_plus_x(Tape *tape, Tensor *x)
{
    return op_add(tape, square(tape, x), x);
}

static double value_at(Tape *tape, Tensor *(*f)(Tape *, Tensor *), double x)
{
    const Real moved = (Real)x;
    const double value = (double)tensor_item(f(tape, tape_input(tape, &moved, shape_scalar())));
    tape_reset(tape);
    return value;
}

/* Prints the tape's derivative and that by differences; returns whether they agree. */
static bool compare(Tape *tape, const char *name, Tensor *(*f)(Tape *, Tensor *))
{
    Tensor *x = tape_variable(tape, &point, shape_scalar());
    tape_backward(tape, f(tape, x));
    const double mine = (double)tensor_item(tensor_gradient(x));
    tape_reset(tape);
    const double at = (double)point;
    const double rise = value_at(tape, f, at + H) - value_at(tape, f, at - H);
    printf("%-8s  tape %.4f  differences %.4f\n", name, mine, rise / (2 * H));
    return fabs(mine - rise / (2 * H)) < 1e-3;
}

int main(void)
{
    Tape *tape = tape_new(device_open("plain"));
    printf("[library]\n");
    bool right = compare(tape, "x e^x", x_exp_x);
    printf("[own]\n");
    right &= compare(tape, "x^2 + x", square_plus_x);

    printf("[freed]\n");
    Tensor *x = tape_variable(tape, &point, shape_scalar());
    Tensor *y = op_exp(tape, x);
    Tensor *loss = op_multiply(tape, x, y);
    tape_backward(tape, loss);
    printf("x        %s, and its gradient\n", x->data ? "kept" : "freed");
    printf("y = e^x  %s\n", y->data ? "kept" : "freed");
    printf("L = x y  %s\n", loss->data ? "kept" : "freed");
    tape_free(tape);
    return !right;
}
