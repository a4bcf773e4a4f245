/* Prints the numbers of the chapter, in sections that the page includes. Returns 1 if a gradient of
 * the page differs from central differences. */
#include "numbers.h"

static const double X[2 * C] = { 1, 2, 4, 0, 3, -1 }; /* logits; most sections use the first row */
static const double Y[2 * C] = { 0, 1, 0, 1, 0, 0 };  /* one-hot targets */
static const int32_t TARGETS[2] = { 1, 0 };           /* the same; in C, classes count from 0 */
static const double G[C] = { 1, -1, 2 }, ONES[C] = { 1, 1, 1 };

/* p (g - sum of p g) */
static void softmax_backward(double *dx, const double *p, const double *g)
{
    const double sum = sum_of_products(p, g);
    for (int j = 0; j < C; j++)
        dx[j] = p[j] * (g[j] - sum);
}

static void print_softmax(const double *p)
{
    printf("[forward]\n");
    row("x", X);
    row("e^x", (double[C]){ exp(X[0]), exp(X[1]), exp(X[2]) });
    row("p", p);
    printf("sum of p    %9.4f\n", sum_of_products(p, ONES));

    printf("[overflow]\n");
    const double far[C] = { 89, 90, 92 };
    const float e[C] = { expf(89), expf(90), expf(92) }, sum = e[0] + e[1] + e[2];
    printf("e^88 in float %.3g\ne^89 in float %g\n", (double)expf(88), (double)expf(89));
    row("x", far);
    row("e^x / sum", (double[C]){ e[0] / sum, e[1] / sum, e[2] / sum });
    library("op_softmax", op_softmax, far, NULL, NULL);
    printf("[jacobian]\n");
    double jacobian[C][C], q[C], dx[C];
    for (int c = 0; c < C; c++) {
        for (int j = 0; j < C; j++)
            jacobian[c][j] = p[c] * ((c == j) - p[j]);
        row((const char *[]){ "dp_1/dx", "dp_2/dx", "dp_3/dx" }[c], jacobian[c]);
    }
    for (int c = 0; c < C; c++)
        check(c ? "" : "differences", jacobian[c], softmax, X,
              (double[C]){ c == 0, c == 1, c == 2 });

    printf("[backward]\n");
    row("g", G);
    printf("sum of p g  %9.4f\n", sum_of_products(p, G));
    softmax_backward(dx, p, G);
    row("p (g - sum)", dx);
    check("differences", dx, softmax, X, G);
    library(NULL, op_softmax, X, G, dx);

    printf("[temperature]\n");
    softmax_of_half(q, X);
    row("p of x / 2", q);
    softmax_backward(dx, q, G);
    for (int j = 0; j < C; j++)
        dx[j] /= 2;
    row("dx", dx);
    check("differences", dx, softmax_of_half, X, G);
}

static void print_cross_entropy(const double *p)
{
    const double minus_y[C] = { 0, -1, 0 }, g[C] = { 0, -1 / p[1], 0 };
    const double error[C] = { p[0], p[1] - 1, p[2] };
    double dx[C];
    printf("[target]\nL = -ln p_2 %9.4f\n", -log(p[1]));
    row("g = dL/dp", g);
    check("differences", g, logarithm, p, minus_y);
    softmax_backward(dx, p, g);
    row("p (g - sum)", dx);
    row("p - y", error);
    check("differences", error, log_softmax, X, minus_y);
    printf("[log_sum_exp]\n");
    row("p", p);
    check("differences", p, log_sum_exp, X, (double[C]){ 1, 0, 0 });
    printf("[zero]\n");
    const double far[C] = { 0, 0, 200 }, minus_first[C] = { -1, 0, 0 };
    library("log(softmax)", log_of_softmax, far, minus_first, NULL);
    library("log_softmax", op_log_softmax, far, minus_first, (double[C]){ -1, 0, 1 });
    printf("[log_softmax]\n");
    for (int j = 0; j < C; j++)
        dx[j] = G[j] - p[j] * sum_of_products(ONES, G);
    row("g - p sum g", dx);
    check("differences", dx, log_softmax, X, G);
    library(NULL, op_log_softmax, X, G, dx);
}

/* Both rows, with these weights, in a loss whose upstream gradient is 10 */
static void print_rows(const char *section, const Real *w)
{
    printf("[%s]\n", section);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = variable(tape, X, 2), *targets = tape_input_i32(tape, TARGETS, shape(2));
    Tensor *loss = op_cross_entropy(tape, x, targets, tape_input(tape, w, shape(2)));
    tape_backward_from(tape, loss, tape_input(tape, (Real[]){ 10 }, shape_scalar()));
    for (int r = 0; r < 2; r++) {
        const double *y = Y + r * C, factor = 10 * (double)(w[r] / (w[0] + w[1]));
        double p[C], dx[C];
        softmax(p, X + r * C);
        for (int c = 0; c < C; c++)
            dx[c] = factor * (p[c] - y[c]);
        row(r ? "dx, row 2" : "dx, row 1", dx);
        check("differences", dx, log_softmax, X + r * C,
              (double[C]){ -factor * y[0], -factor * y[1], -factor * y[2] });
        result("library", tensor_gradient(x), r, dx);
    }
    tape_free(tape);
}

int main(void)
{
    double p[C];
    softmax(p, X);
    print_softmax(p);
    print_cross_entropy(p);
    print_rows("mean", (Real[]){ 1, 1 });
    print_rows("mask", (Real[]){ 1, 0 });
    return failed;
}
