/* Gradients of copies and of sums, beside differences and the library's. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { R = 3, C = 4 };
static const Real X[R * C] = { 1, 2, 0, -1, 0.5, -1, 1, 2, 2, 1, -1, 0 };
static const Real G[R * C] = { 1, -0.5, 2, 0.5, -1, 1.5, 0, 2, 0.5, 1, -1, 1 };
static const Real B[C] = { 0.5, -1, 2, 1 };
static bool failed;

/* out of x = X and a variable v: b, or x itself */
typedef Tensor *Function(Tape *tape, Tensor *x, Tensor *v);

static Tensor *mean_of_rows(Tape *tape, Tensor *x, Tensor *v)
{
    (void)x;
    return op_mean(tape, v, 1);
}

/* out_1 = out_2 = the sum of v */
static Tensor *sum_twice(Tape *tape, Tensor *x, Tensor *v)
{
    (void)x;
    return op_broadcast_to(tape, op_sum(tape, v, ALL_AXES), shape(2));
}

static Tensor *compute(Tape *tape, Function *f, const Real *v, Shape s, Tensor **variable)
{
    *variable = tape_variable(tape, v, s);
    return f(tape, tape_input(tape, X, shape(R, C)), *variable);
}

/* L = sum of g out, where element j of v has moved by `by` */
static double loss(Function *f, const Real *v, Shape s, int j, Real by)
{
    Real moved[R * C];
    for (int i = 0; i < shape_count(s); i++)
        moved[i] = v[i] + (i == j ? by : 0);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *variable, *out = compute(tape, f, moved, s, &variable);
    double sum = 0;
    for (int i = 0; i < tensor_count(out); i++)
        sum += (double)(G[i] * out->data[i]);
    tape_free(tape);
    return sum;
}

static void print_row(const char *label, const double *v, int n)
{
    printf("%-12s", label);
    for (int i = 0; i < n; i++)
        printf("%7.2f", v[i]);
    printf("\n");
}

/* Prints at most C elements of the gradient `mine` of v, and the same of the others. */
static void compare(const char *label, const double *mine, Function *f, const Real *v, Shape s)
{
    const int n = (int)shape_count(s), shown = n < C ? n : C;
    double library[R * C], differences[R * C];
    Tape *tape = tape_new(device_open("plain"));
    Tensor *variable, *out = compute(tape, f, v, s, &variable);
    tape_backward_from(tape, out, tape_input(tape, G, out->shape));
    for (int j = 0; j < n; j++) {
        library[j] = (double)tensor_gradient(variable)->data[j];
        /* out is linear in v, so the differences are right for any step. */
        differences[j] = (loss(f, v, s, j, 1) - loss(f, v, s, j, -1)) / 2;
        failed |= !(fabs(mine[j] - differences[j]) < 1e-5 && fabs(mine[j] - library[j]) < 1e-5);
    }
    tape_free(tape);
    print_row(label, mine, shown);
    print_row("differences", differences, shown);
    print_row("library", library, shown);
}

int main(void)
{
    double row[C] = { 0 }, column[R] = { 0 }, number = 0, product[C] = { 0 }, mean[R * C];
    printf("[g]\n%-12s%7s%7s%7s%7s\n", "", "c = 1", "2", "3", "4");
    for (int r = 0; r < R; r++) {
        double g[C];
        for (int c = 0; c < C; c++) {
            g[c] = (double)G[r * C + c];
            row[c] += g[c];
            column[r] += g[c];
            number += g[c];
            product[c] += g[c] * (double)X[r * C + c];
            mean[r * C + c] = (double)G[r] / C;
        }
        print_row((const char *[]){ "g, r = 1", "r = 2", "r = 3" }[r], g, C);
    }
    printf("[row]\n");
    compare("db", row, op_add, B, shape(C));
    printf("[column and number]\n");
    compare("db, column", column, op_add, B, shape(R, 1));
    compare("db, number", &number, op_add, B, shape_scalar());
    printf("[product]\n");
    compare("db", product, op_multiply, B, shape(C));
    printf("[mean]\n");
    print_row("g", (double[]){ 1, -0.5, 2 }, R);
    compare("dx, r = 1", mean, mean_of_rows, X, shape(R, C));
    printf("[ones]\n");
    print_row("g", (double[]){ 1, -0.5 }, 2);
    compare("dx", (double[]){ 0.5, 0.5, 0.5 }, sum_twice, X, shape(3));
    return failed;
}
