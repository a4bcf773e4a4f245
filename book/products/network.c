/* The gradients of a network with one hidden layer, by the formulas of the chapter's table. Returns
 * 1 if one of them differs from central differences or from the library's. */
#include "matrix.h"

enum { R = 3, HIDDEN = 4 }; /* points, hidden units */
static const int32_t moons[R] = { 0, 1, 1 };
static Matrix x = { R, 2, { { 0.5, 1 }, { 1.5, -0.5 }, { 0, 0.25 } } };
static Matrix w1 = { HIDDEN, 2, { { 1, -0.5 }, { 0.5, 1 }, { -1, 0.25 }, { 0.75, 0.5 } } };
static Matrix b1 = { 1, HIDDEN, { { 0, 0.5, -0.5, 0.25 } } };
static Matrix w2 = { 2, HIDDEN, { { 1, -1, 0.5, 0.25 }, { -0.5, 1, 1, -0.75 } } };
static Matrix b2 = { 1, 2, { { 0.25, -0.25 } } };

typedef struct Values {
    Matrix v, p; /* hidden units, probabilities */
    double loss;
} Values;

static Matrix linear(Matrix x, Matrix w, Matrix b)
{
    Matrix y = product(x, transposed(w));
    for (int r = 0; r < y.rows; r++)
        for (int o = 0; o < y.columns; o++)
            y.at[r][o] += b.at[0][o];
    return y;
}

static Values forward(void)
{
    Values values = { .v = linear(x, w1, b1) };
    for (int r = 0; r < R; r++)
        for (int i = 0; i < HIDDEN; i++)
            values.v.at[r][i] = tanh(values.v.at[r][i]);
    values.p = linear(values.v, w2, b2);
    for (int r = 0; r < R; r++) {
        double *p = values.p.at[r];
        const double sum = exp(p[0]) + exp(p[1]);
        for (int c = 0; c < 2; c++)
            p[c] = exp(p[c]) / sum;
        values.loss -= log(p[moons[r]]) / R;
    }
    return values;
}

static double loss(void)
{
    return forward().loss;
}

/* dz = (p - [c = t]) / R */
static Matrix error_of(Matrix p)
{
    for (int r = 0; r < R; r++)
        for (int c = 0; c < 2; c++)
            p.at[r][c] = (p.at[r][c] - (c == moons[r])) / R;
    return p;
}

/* du = dv (1 - v^2) */
static Matrix tanh_backward(Matrix dv, Matrix v)
{
    for (int r = 0; r < R; r++)
        for (int i = 0; i < HIDDEN; i++)
            dv.at[r][i] *= 1 - v.at[r][i] * v.at[r][i];
    return dv;
}

int main(void)
{
    const Values values = forward();
    const Matrix dz = error_of(values.p);
    const Matrix dw2 = product(transposed(dz), values.v), db2 = sum_of_rows(dz);
    const Matrix dv = product(dz, w2), du = tanh_backward(dv, values.v);
    const Matrix dw1 = product(transposed(du), x), db1 = sum_of_rows(du);
    Matrix gradients[4] = { dw1, db1, dw2, db2 };
    Matrix *weights[4] = { &w1, &b1, &w2, &b2 };
    static const char *const names[4] = { "dW_1", "db_1", "dW_2", "db_2" };

    Tape *tape = tape_new(device_open("plain"));
    Tensor *t[4];
    printf("[network]\n");
    for (int k = 0; k < 4; k++) {
        const int rows = weights[k]->rows, columns = weights[k]->columns;
        print(names[k], gradients[k], 4);
        check(gradients[k], weights[k], loss);
        t[k] = tensor(tape, *weights[k], k % 2 ? shape(columns) : shape(rows, columns));
    }
    Tensor *v = op_tanh(tape, op_linear(tape, tensor(tape, x, shape(R, 2)), t[0], t[1]));
    Tensor *targets = tape_input_i32(tape, moons, shape(R));
    tape_backward(tape, op_cross_entropy(tape, op_linear(tape, v, t[2], t[3]), targets, NULL));
    for (int k = 0; k < 4; k++)
        check_library(gradients[k], t[k]);
    tape_free(tape);
    return failed;
}
