/* The numbers of chapter 4. Returns 1 if a gradient of the page differs from central differences or
 * from the library's. */
#include "matrix.h"

static Matrix x = { 2, 3, { { 1, 2, 0 }, { -1, 1, 3 } } }; /* R = 2 rows, I = 3 inputs */
static Matrix w = { 4, 3, { { 1, 0, 2 }, { 0, 1, -1 }, { 2, 1, 0 }, { 1, -1, 1 } } }; /* O = 4 */
static Matrix b = { 1, 4, { { 0, 1, 0, -1 } } };
static Matrix g = { 2, 4, { { 1, 0, -1, 2 }, { 0, 3, 1, 1 } } };

/* y_ro = sum_i x_ri w_oi + b_o */
static Matrix linear(Matrix x, Matrix w, Matrix b)
{
    Matrix y = { x.rows, w.rows, { { 0 } } };
    for (int r = 0; r < x.rows; r++)
        for (int o = 0; o < w.rows; o++) {
            y.at[r][o] = b.at[0][o];
            for (int i = 0; i < x.columns; i++)
                y.at[r][o] += x.at[r][i] * w.at[o][i];
        }
    return y;
}

static double linear_loss(void)
{
    return sum_of_products(g, linear(x, w, b));
}

static void print_linear(Tape *tape)
{
    printf("[forward]\n");
    print("x", x);
    print("W", w);
    print("b", b);
    print("y", linear(x, w, b));
    printf("[backward]\n");
    const Matrix dx = product(g, w), dw = product(transposed(g), x), db = sum_of_rows(g);
    print("g", g);
    print("dx", dx);
    print("dW", dw);
    print("db", db);
    check(dx, &x, linear_loss);
    check(dw, &w, linear_loss);
    check(db, &b, linear_loss);
    Tensor *tx = tensor(tape, x, shape(2, 3)), *tw = tensor(tape, w, shape(4, 3));
    Tensor *tb = tensor(tape, b, shape(4));
    tape_backward_from(tape, op_linear(tape, tx, tw, tb), tensor(tape, g, shape(2, 4)));
    check_library(dx, tx);
    check_library(dw, tw);
    check_library(db, tb);
    tape_reset(tape);
}

/* The three products of matmul.c */
static Matrix a_b, a_bt, at_b; /* a of each; b follows from w */
