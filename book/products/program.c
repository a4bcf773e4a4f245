/* A linear layer and products of matrices. Returns 1 if a gradient of the page differs from central
 * differences or from the library's. */
#include "matrix.h"

static Matrix x = { 2, 3, { { 1, 2, 0 }, { -1, 1, 3 } } }; /* R = 2 rows, I = 3 inputs */
static Matrix w = { 4, 3, { { 1, 0, 2 }, { 0, 1, -1 }, { 2, 1, 0 }, { 1, -1, 1 } } }; /* O = 4 */
static Matrix b = { 1, 4, { { 0, 1, 0, -1 } } };
static Matrix g = { 2, 4, { { 1, 0, -1, 2 }, { 0, 3, 2, 1 } } };

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
    print("x", x, 0);
    print("W", w, 0);
    print("b", b, 0);
    print("y", linear(x, w, b), 0);
    printf("[backward]\n");
    const Matrix dx = product(g, w), dw = product(transposed(g), x), db = sum_of_rows(g);
    print("g", g, 0);
    print("dx", dx, 0);
    print("dW", dw, 0);
    print("db", db, 0);
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

static Matrix left, right; /* the operands a and b of out = a b, a b^T or a^T b */
static bool is_left_transposed, is_right_transposed;

static double product_loss(void)
{
    return sum_of_products(g, product(is_left_transposed ? transposed(left) : left,
                                      is_right_transposed ? transposed(right) : right));
}

static void check_product(Tape *tape, Tensor *(*operation)(Tape *, Tensor *, Tensor *), Matrix da,
                          Matrix db)
{
    check(da, &left, product_loss);
    check(db, &right, product_loss);
    Tensor *a = tensor(tape, left, shape(left.rows, left.columns));
    Tensor *b = tensor(tape, right, shape(right.rows, right.columns));
    tape_backward_from(tape, operation(tape, a, b), tensor(tape, g, shape(2, 4)));
    check_library(da, a);
    check_library(db, b);
    tape_reset(tape);
}

static void check_products(Tape *tape)
{
    left = x;
    right = transposed(w);
    check_product(tape, op_matmul, product(g, transposed(right)), product(transposed(left), g));
    right = w;
    is_right_transposed = true;
    check_product(tape, op_matmul_nt, product(g, right), product(transposed(g), left));
    left = transposed(x);
    right = transposed(w);
    is_right_transposed = false;
    is_left_transposed = true;
    check_product(tape, op_matmul_tn, product(right, transposed(g)), product(left, g));
}

int main(void)
{
    Tape *tape = tape_new(device_open("plain"));
    print_linear(tape);
    check_products(tape);
    tape_free(tape);
    return failed;
}
