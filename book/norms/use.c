/* The chapter's other numbers: eps, the layer before a norm, batchnorm, the digits of a variance.
 * Returns 1 as program.c does. */
#include "numbers.h"

static const double DEVIATION[C] = { 5, -3, -1, -1 };

/* Rows of ever smaller variance v. With h = n, all of h is along n, and a projection leaves 0. */
static void print_eps(void)
{
    printf("[eps]\n     v  rms of n  left of n        r\n");
    for (double t = 1; t > 5e-5; t /= 10) {
        double x[C], n[C], dx[C];
        for (int c = 0; c < C; c++)
            x[c] = 4 + t * DEVIATION[c];
        const double r = normalize(&LAYER, n, x);
        norm_backward(&LAYER, dx, n, x);
        check(NULL, &LAYER, dx, n, x);
        printf("%6.0e %9.4f %10.4f %8.2f\n", 9 * t * t, sqrt(dot(n, n) / C), dx[0] / (r * n[0]), r);
    }
}

static double loss_of_layer(double *x, const double w[C][D], const double *a)
{
    for (int c = 0; c < C; c++)
        x[c] = w[c][0] * a[0] + w[c][1] * a[1];
    return loss_of(&LAYER, x, H);
}

/* x = W a, L = sum of h n, for W and multiples of it: dW_ck = dx_c a_k */
static void print_scale(void)
{
    static const double W[C][D] = { { 1, 2 }, { -1, 1 }, { 0, 3 }, { 2, -2 } }, a[D] = { 1, 2 };
    printf("[scale]\n    |W|        L     |dW|  sum W dW\n");
    for (double t = 1; t <= 100; t *= 10) {
        double w[C][D], x[C], dx[C], squares = 0, gradients = 0, sum = 0;
        for (int i = 0; i < C * D; i++)
            w[i / D][i % D] = t * W[i / D][i % D];
        const double loss = loss_of_layer(x, w, a);
        norm_backward(&LAYER, dx, H, x);
        for (int c = 0; c < C; c++)
            for (int k = 0; k < D; k++) {
                const double before = w[c][k], h = 1e-6 * t, dw = dx[c] * a[k];
                w[c][k] = before + h;
                const double right = loss_of_layer(x, w, a);
                w[c][k] = before - h;
                const double left = loss_of_layer(x, w, a);
                w[c][k] = before;
                compare(dw, (right - left) / (2 * h), 1e-8);
                squares += before * before;
                gradients += dw * dw;
                sum += before * dw;
            }
        printf("%7.2f %8.4f %8.4f %9.4f\n", sqrt(squares), loss, sqrt(gradients), shown(sum));
    }
}

/* One channel of four rows, in training, and in evaluation with the same mean and variance */
static void print_batchnorm(void)
{
    double dx[C];
    const double r = norm_backward(&LAYER, dx, H, X);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *mean = tape_persistent(tape, shape(1)), *variance = tape_persistent(tape, shape(1));
    tensor_write(mean, (Real[]){ 4 });
    tensor_write(variance, (Real[]){ 9 });
    printf("[batchnorm]\n");
    for (int training = 1; training >= 0; training--) {
        tape_set_training(tape, training);
        Tensor *x = tensor(tape, X, shape(C, 1)), *ones = tensor(tape, (double[]){ 1 }, shape(1));
        Tensor *out = op_batchnorm(tape, x, ones, tensor(tape, (double[]){ 0 }, shape(1)), mean,
                                   variance, /*momentum*/ 0, LAYER.eps);
        tape_backward_from(tape, out, tensor(tape, H, shape(C, 1)));
        for (int c = 0; c < C && !training; c++)
            dx[c] = r * H[c];
        row(training ? "training" : "evaluation", dx);
        library(tensor_gradient(x), dx);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* The variance, 9, of float rows with ever larger means. A volatile square is rounded to float also
 * where the processor has fused multiply-add. */
static void print_variance(void)
{
    printf("[variance]\n   mean deviations   squares in double\n");
    for (int exponent = 0; exponent <= 6; exponent++) {
        float x[C], sum = 0, squares = 0, deviations = 0;
        double sum64 = 0, squares64 = 0;
        for (int c = 0; c < C; c++) {
            x[c] = (float)(pow(10, exponent) + DEVIATION[c]);
            volatile float square = x[c] * x[c];
            sum += x[c];
            squares += square;
            sum64 += (double)x[c];
            squares64 += (double)x[c] * (double)x[c];
        }
        const float m = sum / C;
        for (int c = 0; c < C; c++)
            deviations += (x[c] - m) * (x[c] - m);
        volatile float square = m * m;
        const double m64 = sum64 / C;
        printf("%7.0f %10.2f %9.2f %9.2f\n", pow(10, exponent), (double)(deviations / C),
               (double)(squares / C - square), squares64 / C - m64 * m64);
    }
}

int main(void)
{
    print_eps();
    print_scale();
    print_batchnorm();
    print_variance();
    return failed;
}
