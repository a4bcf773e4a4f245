/* Prints the numbers of the chapter, in sections that the page includes. Returns 1 if a gradient of
 * the page differs from central differences. */
#include "numbers.h"

static const double X[2 * C] = { 1, 2, 4, 0, 3, -1 }; /* logits; the sections show the first row */
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
    double q[C], dx[C];
    printf("[forward]\n");
    row("x", X);
    row("e^x", (double[C]){ exp(X[0]), exp(X[1]), exp(X[2]) });
    row("p", p);
    printf("sum of p         %9.4f\n", sum_of_products(p, ONES));

    printf("[overflow]\n");
    const float powers[C] = { expf(89), expf(90), expf(92) },
                sum = powers[0] + powers[1] + powers[2];
    const double far[C] = { 89, 90, 92 };
    printf("e^88 in float     %g\ne^89 in float     %g\n", (double)expf(88), (double)expf(89));
    row("x", far);
    row("e^x / sum of e^x", (double[C]){ powers[0] / sum, powers[1] / sum, powers[2] / sum });
    library("op_softmax", op_softmax, far, G, NULL);

    printf("[jacobian]\n");
    for (int c = 0; c < C; c++) {
        const double one_hot[C] = { c == 0, c == 1, c == 2 };
        for (int j = 0; j < C; j++)
            dx[j] = p[c] * (one_hot[j] - p[j]);
        compare((const char *[]){ "dp_1/dx", "dp_2/dx", "dp_3/dx" }[c], dx, softmax, X, one_hot);
    }

    printf("[backward]\n");
    row("g", G);
    printf("sum of p g       %9.4f\n", sum_of_products(p, G));
    softmax_backward(dx, p, G);
    compare("p (g - sum p g)", dx, softmax, X, G);
    library(NULL, op_softmax, X, G, dx);

    printf("[temperature]\n");
    softmax_of_half(q, X);
    row("p of x / 2", q);
    softmax_backward(dx, q, G);
    for (int j = 0; j < C; j++)
        dx[j] /= 2;
    compare("dx", dx, softmax_of_half, X, G);
}

static Tensor *softmax_then_log(Tape *tape, Tensor *x)
{
    return op_log(tape, op_softmax(tape, x));
}

static void print_cross_entropy(const double *p)
{
    const double minus_y[C] = { 0, -1, 0 }, g[C] = { 0, -1 / p[1], 0 };
    double dx[C];
    printf("[target]\n");
    printf("L = -ln p_2      %9.4f\n", -log(p[1]));
    compare("g = dL/dp", g, logarithm, p, minus_y);
    softmax_backward(dx, p, g);
    row("p (g - sum p g)", dx);
    compare("p - y", (double[C]){ p[0], p[1] - 1, p[2] }, log_softmax, X, minus_y);

    printf("[log_sum_exp]\n");
    compare("p", p, log_sum_exp, X, (double[C]){ 1, 0, 0 });

    printf("[zero]\n");
    const double far[C] = { 0, 0, 200 }, minus_first[C] = { -1, 0, 0 };
    library("op_log(op_softmax)", softmax_then_log, far, minus_first, NULL);
    library("op_log_softmax", op_log_softmax, far, minus_first, (double[C]){ -1, 0, 1 });

    printf("[log_softmax]\n");
    for (int j = 0; j < C; j++)
        dx[j] = G[j] - p[j] * sum_of_products(ONES, G);
    compare("g - p sum g", dx, log_softmax, X, G);
    library(NULL, op_log_softmax, X, G, dx);
}

/* Two rows with these weights, in a loss whose upstream gradient is 10 */
static void print_rows(const Real *w)
{
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
        compare(r ? "row 2" : "row 1", dx, log_softmax, X + r * C,
                (double[C]){ -factor * y[0], -factor * y[1], -factor * y[2] });
        result("  dx, library", tensor_gradient(x), r, dx);
    }
    tape_free(tape);
}

int main(void)
{
    double p[C];
    softmax(p, X);
    print_softmax(p);
    print_cross_entropy(p);
    printf("[mean]\n");
    print_rows((Real[]){ 1, 1 });
    printf("[mask]\n");
    print_rows((Real[]){ 1, 0 });
    return failed;
}
