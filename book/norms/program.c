/* Prints the numbers of the chapter, in sections that the page includes. Returns 1 if a gradient of
 * the page differs from central differences or from the library's. */
#include "numbers.h"

static const Norm RMS = { false, 1.0 / C, 1e-5 }, L2 = { false, 1, 1e-5 };
static const double WEIGHT[C] = { 1, 2, 0.5, 1 };
static const double G[2 * C] = { 1, -0.5, 8, 0, 2, 1, 0, -1 };

static void print_forward(void)
{
    double n[C], plus[C], times[C];
    const double r = normalize(&LAYER, n, X), m = mean_of(X);
    printf("[forward]\n");
    row("x", X);
    printf("m = %.3f  v = %.3f  r = %.3f\n", m, 1 / (r * r) - LAYER.eps, r);
    row("n", n);
    printf("[forget]\n");
    for (int c = 0; c < C; c++) {
        plus[c] = X[c] + 10;
        times[c] = m + 3 * (X[c] - m);
    }
    row("x + 10", plus);
    normalize(&LAYER, n, plus);
    row("its n", n);
    row("m + 3 (x-m)", times);
    normalize(&LAYER, n, times);
    row("its n", n);
}

static void print_backward(void)
{
    double n[C], dx[C], direct[C], on_1[C], on_n[C], rest[C];
    const double r = normalize(&LAYER, n, X);
    norm_backward(&LAYER, dx, H, X);
    for (int c = 0; c < C; c++) {
        direct[c] = r * H[c];
        on_1[c] = mean_of(H);
        on_n[c] = n[c] * dot(H, n) / C;
        rest[c] = H[c] - on_1[c] - on_n[c];
    }
    printf("[backward]\n");
    row("h", H);
    printf("mean(h) = %.3f  mean(h n) = %.3f\n", mean_of(H), dot(H, n) / C);
    row("r h", direct);
    row("dx", dx);
    check("differences", &LAYER, dx, H, X);
    printf("[projections]\n");
    row("h", H);
    row("along 1", on_1);
    row("along n", on_n);
    row("the rest", rest);
    printf("sum dx = %.3f  sum dx n = %.3f\n", shown(C * mean_of(dx)), shown(dot(dx, n)));
}

/* Both rows, by the library. The differences by weight_c are exact, since L is linear in it. */
static void print_weight(void)
{
    double n[2 * C], gn[2 * C], dweight[C], dbias[C], dx[C];
    printf("[weight]\n");
    for (int i = 0; i < 2 * C; i += C) {
        normalize(&LAYER, n + i, X + i);
        for (int c = i; c < i + C; c++)
            gn[c] = G[c] * n[c];
        row(i ? "g n, row 2" : "g n, row 1", gn + i);
    }
    for (int c = 0; c < C; c++) {
        const double more = WEIGHT[c] + 1, less = WEIGHT[c] - 1;
        const double right = G[c] * more * n[c] + G[C + c] * more * n[C + c];
        const double left = G[c] * less * n[c] + G[C + c] * less * n[C + c];
        dweight[c] = gn[c] + gn[C + c];
        dbias[c] = G[c] + G[C + c];
        compare(dweight[c], (right - left) / 2, 1e-12);
    }
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tensor(tape, X, shape(2, C)), *weight = tensor(tape, WEIGHT, shape(C));
    Tensor *bias = tensor(tape, (double[C]){ 0, 1, 0, 0 }, shape(C));
    Tensor *out = op_layernorm(tape, x, weight, bias, LAYER.eps);
    tape_backward_from(tape, out, tensor(tape, G, shape(2, C)));
    row("dweight", dweight);
    library(tensor_gradient(weight), dweight);
    row("dbias", dbias);
    library(tensor_gradient(bias), dbias);
    norm_backward(&LAYER, dx, H, X);
    row("dx, row 1", dx);
    library(tensor_gradient(x), dx);
    tape_free(tape);
}

static void print_length(const char *section, const Norm *norm)
{
    double n[C], dx[C];
    printf("[%s]\n", section);
    const double r = normalize(norm, n, X);
    norm_backward(norm, dx, H, X);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tensor(tape, X, shape(C));
    Tensor *out =
        norm == &RMS ? op_rms_norm(tape, x, NULL, RMS.eps) : op_l2_normalize(tape, x, L2.eps);
    tape_backward_from(tape, out, tensor(tape, H, shape(C)));
    printf("r = %.3f\n", r);
    row("n", n);
    row("dx", dx);
    check("differences", norm, dx, H, X);
    library(tensor_gradient(x), dx);
    printf("sum dx x = %.3f  sum dx = %.3f\n", shown(dot(dx, X)), shown(C * mean_of(dx)));
    tape_free(tape);
}

int main(void)
{
    print_forward();
    print_backward();
    print_weight();
    print_length("rms", &RMS);
    print_length("l2", &L2);
    return failed;
}
