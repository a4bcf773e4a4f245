/* The numbers of chapter 3: derivatives of functions of one number, beside differences and the
 * library's. copies.c has those of copies and sums. */
#include "functions.h"

#include <stdio.h>
#include <tapegrad.h>

static Tensor *(*const operations[])(Tape *, Tensor *) = { op_exp,  op_tanh, op_sigmoid,
                                                           op_relu, op_silu, op_elu_plus_one };

static double by_the_library(int f, double x)
{
    Tape *tape = tape_new(device_open("plain"));
    Tensor *input = tape_variable(tape, (Real[]){ (Real)x }, shape_scalar());
    tape_backward(tape, operations[f](tape, input));
    const double result = (double)tensor_item(tensor_gradient(input));
    tape_free(tape);
    return result;
}

static void print_functions(double x)
{
    printf("x = %-4g%8s%8s%12s%8s\n", x, "f", "f'", "differences", "library");
    for (int f = 0; f < FUNCTIONS; f++) {
        const double mine = derivative(f, x), expected = difference(f, x - H, x + H);
        const double library = by_the_library(f, x);
        printf("%-8s%8.4f%8.4f%12.4f%8.4f\n", names[f], value(f, x), mine, expected, library);
        must_be_near(mine, expected, 1e-7);
        must_be_near(library, expected, 1e-5);
    }
}

static void print_kink(int f, double expected)
{
    const double library = by_the_library(f, 0);
    printf("%-8s%9.4f%9.4f%9.4f%9.4f\n", names[f], difference(f, -H, 0), difference(f, 0, H),
           difference(f, -H, H), library);
    must_be_near(library, expected, 1e-6);
}

/* b after some steps on L = mean of (f(x + b) - 1)^2, x = 1, 2, 3 */
static double train(int f, int steps)
{
    double b = -5;
    for (int step = 0; step < steps; step++) {
        double db = 0, rise = 0;
        for (int x = 1; x <= 3; x++) {
            db += 2 * (value(f, x + b) - 1) / 3 * derivative(f, x + b);
            rise += (pow(value(f, x + b + H) - 1, 2) - pow(value(f, x + b - H) - 1, 2)) / 3;
        }
        must_be_near(db, rise / (2 * H), 1e-5);
        b -= 0.1 * db;
    }
    return b;
}

static void print_row(const char *label, const double *v)
{
    printf("%-12s%9.4f%9.4f%9.4f\n", label, v[0], v[1], v[2]);
}

/* tanh of three numbers, g = dL/dout */
static void print_jacobian(void)
{
    const double x[] = { -1, 0.5, 2 }, g[] = { 1, -1, 2 };
    double dx[3], expected[3] = { 0, 0, 0 };
    printf("[jacobian]\n");
    for (int i = 0; i < 3; i++) {
        double row[3];
        for (int j = 0; j < 3; j++) {
            const double h = i == j ? H : 0; /* x_j moves; out_i reads x_i alone */
            row[j] = (value(TANH, x[i] + h) - value(TANH, x[i] - h)) / (2 * H);
            expected[j] += g[i] * row[j];
        }
        print_row((const char *[]){ "dout_1/dx", "dout_2/dx", "dout_3/dx" }[i], row);
        dx[i] = g[i] * derivative(TANH, x[i]);
    }
    printf("[elementwise]\n");
    print_row("g", g);
    print_row("g f'(x)", dx);
    print_row("differences", expected);
    for (int j = 0; j < 3; j++)
        must_be_near(dx[j], expected[j], 1e-7);
}

int main(void)
{
    print_jacobian();
    printf("[functions]\n");
    print_functions(-0.5);
    print_functions(2);

    double x = -0.5; /* Newton's method finds another x where silu is as at -2 */
    for (int step = 0; step < 50; step++)
        x -= (value(SILU, x) - value(SILU, -2)) / derivative(SILU, x);
    printf("[two]\n       x    silu   silu'\n");
    printf("%8.4f%8.4f%8.4f\n", -2.0, value(SILU, -2), derivative(SILU, -2));
    printf("%8.4f%8.4f%8.4f\n", x, value(SILU, x), derivative(SILU, x));
    must_be_near(value(SILU, x), value(SILU, -2), 1e-9);

    printf("[overflow]\n1 / (1 + e^-800)     %g\n", 1 / (1 + exp(-800)));
    printf("e^800 / (1 + e^800)  %s\n", isnan(exp(800) / (1 + exp(800))) ? "NaN" : "a number");
    printf("[kink]\n%8s%9s%9s%9s%9s\n", "", "left", "right", "central", "library");
    print_kink(RELU, 0);
    print_kink(ELU_PLUS_ONE, 1);
    printf("[dead]\n%8s%9s%9s%9s\n", "steps", "0", "100", "1000");
    for (int f = RELU; f <= ELU_PLUS_ONE; f += ELU_PLUS_ONE - RELU)
        printf("%-8s%9.4f%9.4f%9.4f\n", names[f], train(f, 0), train(f, 100), train(f, 1000));
    return failed;
}
