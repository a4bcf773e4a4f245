/* Causal linear attention and its gradients as plain loops, in the letters of causal.c: to be read,
 * and for tests/attention_oracle.c, which includes this file; the library does not contain it.
 *
 * One sequence and head, in double: a = phi(q) and b = phi(k) [N, D]; v~ = [v, 1] and its gradient
 * dv~ [N, W], W = M + 1; S~ and R~ [D, W]. The feature map is elementwise: dq = da phi'(q). */
#include <stdint.h>
#include <stdlib.h>

/* From position i on:  T <- T + y_i w_i^T,  o_i = T^T x_i;  x, y [N, Y], w, o [N, W], T [Y, W] */
static void scan_from(int64_t i, int64_t step, const double *x, const double *y, const double *w,
                      double *T, double *o, int64_t N, int64_t Y, int64_t W)
{
    for (; i >= 0 && i < N; i += step)
        for (int64_t c = 0; c < W; c++) {
            o[i * W + c] = 0;
            for (int64_t r = 0; r < Y; r++) {
                T[r * W + c] += y[i * Y + r] * w[i * W + c];
                o[i * W + c] += T[r * W + c] * x[i * Y + r];
            }
        }
}

static void scan(const double *x, const double *y, const double *w, double *T, double *o, int64_t N,
                 int64_t Y, int64_t W)
{
    scan_from(0, 1, x, y, w, T, o, N, Y, W);
}

static void scan_reverse(const double *x, const double *y, const double *w, double *T, double *o,
                         int64_t N, int64_t Y, int64_t W)
{
    scan_from(N - 1, -1, x, y, w, T, o, N, Y, W);
}

static double *transposed(const double *x, int64_t rows, int64_t columns)
{
    double *to = malloc((size_t)(rows * columns) * sizeof *to);
    for (int64_t i = 0; i < rows * columns; i++)
        to[i % columns * rows + i / columns] = x[i];
    return to;
}

/* out [N, W]: [out_i, den_i]. S: the initial state, becomes the final one. */
static void reference_forward(double *out, double *S, const double *a, const double *b,
                              const double *v, double eps, int64_t N, int64_t D, int64_t W)
{
    scan(a, b, v, S, out, N, D, W); /* num~ */
    for (int64_t i = 0; i < N; i++, out += W) {
        out[W - 1] += eps; /* den_i */
        for (int64_t m = 0; m < W - 1; m++)
            out[m] /= out[W - 1]; /* out_i = num_i / den_i */
    }
}

/* g [N, W]: dL/dout and a column of any values; becomes dnum~. S: the initial state. R: dL/dS~_N,
 * becomes dL/dS~_0. */
static void reference_backward(double *da, double *db, double *dv, double *R, double *g,
                               const double *out, const double *a, const double *b, const double *v,
                               const double *S, int64_t N, int64_t D, int64_t W)
{
    double *dnum = g, *S_t = transposed(S, D, W), *R_t = transposed(R, D, W);
    for (int64_t i = 0; i < N; i++, g += W, out += W) {
        const double den = out[W - 1];
        g[W - 1] = 0;
        for (int64_t m = 0; m < W - 1; m++) {
            g[m] /= den;               /* dnum_i = g_i / den_i */
            g[W - 1] -= g[m] * out[m]; /* dden_i = -dnum_i.out_i */
        }
    }
    scan(dnum, v, b, S_t, da, N, W, D);
    scan_reverse(v, dnum, a, R_t, db, N, W, D);
    scan_reverse(b, a, dnum, R, dv, N, D, W);
    free(S_t);
    free(R_t);
}
