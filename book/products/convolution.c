/* A convolution in one dimension is a product with the windows of its input. Returns 1 if a
 * gradient of the page differs from central differences or from the library's. */
#include "matrix.h"

static Matrix x = { 1, 6, { { 1, 2, 0, -1, 3, 1 } } }; /* N = 6 */
static Matrix w = { 1, 3, { { 2, 1, -1 } } };          /* K = 3 */
static const Matrix g = { 1, 4, { { 1, 3, 2, -1 } } }; /* M = N - K + 1 = 4 outputs */

/* X_nk = x_(n + k) */
static Matrix windows_of(Matrix x, int K)
{
    Matrix X = { x.columns - K + 1, K, { { 0 } } };
    for (int n = 0; n < X.rows; n++)
        for (int k = 0; k < K; k++)
            X.at[n][k] = x.at[0][n + k];
    return X;
}

/* dx_(n + k) <- dX_nk */
static Matrix sum_of_windows(Matrix dX)
{
    Matrix dx = { 1, dX.rows + dX.columns - 1, { { 0 } } };
    for (int n = 0; n < dX.rows; n++)
        for (int k = 0; k < dX.columns; k++)
            dx.at[0][n + k] += dX.at[n][k];
    return dx;
}

/* A_n,(n + k) = w_k, and 0 elsewhere: out = A x */
static Matrix band_of(Matrix w, int N)
{
    Matrix A = { N - w.columns + 1, N, { { 0 } } };
    for (int n = 0; n < A.rows; n++)
        for (int k = 0; k < w.columns; k++)
            A.at[n][n + k] = w.at[0][k];
    return A;
}

static double convolution_loss(void)
{
    return sum_of_products(transposed(g), product(windows_of(x, 3), transposed(w)));
}

int main(void)
{
    const Matrix X = windows_of(x, 3), out = product(X, transposed(w));
    const Matrix dX = product(transposed(g), w), dx = sum_of_windows(dX);
    const Matrix dw = product(g, X);
    printf("[convolution]\n");
    print("x", x, 0);
    print("w", w, 0);
    print("X", X, 0);
    print("out", transposed(out), 0);
    printf("[transposed]\n");
    print("g", g, 0);
    print("dX", dX, 0);
    print("dx", dx, 0);
    print("dw", dw, 0);
    check(dx, &x, convolution_loss);
    check(product(g, band_of(w, 6)), &x, convolution_loss); /* A^T g, as a row */
    check(dw, &w, convolution_loss);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *tx = tensor(tape, x, shape(1, 1, 6, 1));
    Tensor *tw = tensor(tape, w, shape(1, 1, 3, 1));
    Tensor *image = op_conv2d(tape, tx, tw, NULL, (Window){ .stride = 1 }, 1);
    tape_backward_from(tape, image, tensor(tape, g, shape(1, 1, 4, 1)));
    check_library(dx, tx);
    check_library(dw, tw);
    tape_free(tape);
    return failed;
}
