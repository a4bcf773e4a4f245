/* For program.c: matrices of C numbers, and lines that show a gradient and compare it with central
 * differences and with the library's. */
#ifndef PRODUCTS_MATRIX_H
#define PRODUCTS_MATRIX_H

#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { MAX = 6 };
static bool failed;

typedef struct Matrix {
    int rows, columns;
    double at[MAX][MAX];
} Matrix;

/* out_ij = sum_l a_il b_lj */
static inline Matrix product(Matrix a, Matrix b)
{
    Matrix out = { a.rows, b.columns, { { 0 } } };
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < b.columns; j++)
            for (int l = 0; l < a.columns; l++)
                out.at[i][j] += a.at[i][l] * b.at[l][j];
    return out;
}

static inline Matrix transposed(Matrix a)
{
    Matrix out = { a.columns, a.rows, { { 0 } } };
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < a.columns; j++)
            out.at[j][i] = a.at[i][j];
    return out;
}

static inline Matrix sum_of_rows(Matrix a)
{
    Matrix ones = { 1, a.rows, { { 0 } } };
    for (int i = 0; i < a.rows; i++)
        ones.at[0][i] = 1;
    return product(ones, a);
}

/* sum_ij a_ij b_ij */
static inline double sum_of_products(Matrix a, Matrix b)
{
    double sum = 0;
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < a.columns; j++)
            sum += a.at[i][j] * b.at[i][j];
    return sum;
}

/* At most 44 columns, which a phone shows */
static inline void print(const char *label, Matrix a, int digits)
{
    for (int i = 0; i < a.rows; i++) {
        printf("%-6s", i ? "" : label);
        for (int j = 0; j < a.columns; j++)
            printf("%*.*f", digits ? 8 : 5, digits, a.at[i][j] + 0); /* no -0 */
        printf("\n");
    }
}

/* Compares a gradient with central differences of the loss by each element of input. */
static inline void check(Matrix gradient, Matrix *input, double (*loss)(void))
{
    const double h = 1e-5;
    failed |= gradient.rows != input->rows || gradient.columns != input->columns;
    for (int i = 0; i < input->rows; i++)
        for (int j = 0; j < input->columns; j++) {
            const double before = input->at[i][j];
            input->at[i][j] = before + h;
            const double right = loss();
            input->at[i][j] = before - h;
            const double left = loss();
            input->at[i][j] = before;
            failed |= !(fabs(gradient.at[i][j] - (right - left) / (2 * h)) < 1e-7);
        }
}

static inline Tensor *tensor(Tape *tape, Matrix a, Shape shape)
{
    Real values[MAX * MAX];
    for (int i = 0; i < a.rows; i++)
        for (int j = 0; j < a.columns; j++)
            values[i * a.columns + j] = (Real)a.at[i][j];
    return tape_variable(tape, values, shape);
}

/* The library computes in float here. */
static inline void check_library(Matrix gradient, Tensor *input)
{
    const Real *data = tensor_gradient(input)->data;
    for (int i = 0; i < gradient.rows; i++)
        for (int j = 0; j < gradient.columns; j++)
            failed |= !(fabs(gradient.at[i][j] - (double)data[i * gradient.columns + j]) < 1e-5);
}

#endif
