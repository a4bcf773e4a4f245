/* The numbers of CTC: all paths, alpha, beta, and gradients beside differences and the library's.
 * Returns 1 if some differ. */
#include "ctc.h"

#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

static bool failed;

/* All paths: prints how many have the text a b, and returns the sum of their probabilities. */
static double enumerate(void)
{
    double p = 0, best = 0;
    int count = 0, best_path = 0;
    for (int path = 0; path < PATHS; path++) {
        int text = 0, before = 0; /* text: the symbols' digits */
        double product = 1;
        for (int t = 0, rest = path; t < T; t++, rest /= K) {
            const int symbol = rest % K;
            text = symbol != 0 && symbol != before ? 10 * text + symbol : text;
            before = symbol;
            product *= Y[t][symbol];
        }
        if (text != 12)
            continue;
        best_path = product > best ? path : best_path;
        best = fmax(best, product);
        p += product;
        count++;
    }
    printf("%d of %d paths have the text a b\n", count, PATHS);
    printf("their sum p = %.6f\nthe largest, ", p);
    for (int t = 0, rest = best_path; t < T; t++, rest /= K)
        printf("%c ", NAME[rest % K]);
    printf("  %.6f\n", best);
    return p;
}

/* x [T, rows], a row for each symbol of the list */
static void print_rows(const char *name, int rows, const int *symbols, const double *x)
{
    for (int s = 0; s < rows; s++) {
        printf("%-5s%c", name, NAME[symbols[s]]);
        for (int t = 0; t < T; t++)
            printf(" %7.4f", x[t * rows + s]);
        printf("\n");
    }
}

/* L = -ln p of the logits x */
static double loss_of(const double (*x)[K])
{
    double y[T][K], a[T][S];
    for (int t = 0; t < T; t++)
        for (int k = 0; k < K; k++)
            y[t][k] = exp(x[t][k]) / (exp(x[t][0]) + exp(x[t][1]) + exp(x[t][2]));
    return -log(prefixes(a, (const double(*)[K])y));
}

/* o, and y - o beside differences and the library's gradient */
static void print_gradient(double (*a)[S], double (*b)[S], double p)
{
    double x[T][K], o[T][K] = { { 0 } }, mine[T][K], differences[T][K];
    Real logits[T][K];
    for (int t = 0; t < T; t++) {
        for (int s = 0; s < S; s++)
            o[t][SYMBOL[s]] += a[t][s] * b[t][s] / p;
        for (int k = 0; k < K; k++)
            logits[t][k] = (Real)(x[t][k] = log(Y[t][k]));
    }
    Tape *tape = tape_new(device_open("plain"));
    Tensor *in = tape_variable(tape, logits[0], shape(1, T, K));
    Tensor *targets = tape_input_i32(tape, (int32_t[]){ 1, 2 }, shape(1, 2));
    const CtcOptions options = { .ignore_infeasible = false };
    Tensor *loss = tensor_keep(op_ctc(tape, in, targets, options));
    tape_backward(tape, op_sum(tape, loss, ALL_AXES));
    for (int e = 0; e < T * K; e++) {
        double *moved = x[0] + e, before = *moved, h = 1e-5;
        *moved = before + h;
        const double right = loss_of((const double(*)[K])x);
        *moved = before - h;
        const double left = loss_of((const double(*)[K])x);
        *moved = before;
        differences[e / K][e % K] = (right - left) / (2 * h);
        mine[e / K][e % K] = Y[e / K][e % K] - o[e / K][e % K];
        failed |= !(fabs(differences[e / K][e % K] - mine[e / K][e % K]) < 1e-8);
        failed |= !(fabs((double)tensor_gradient(in)->data[e] - mine[e / K][e % K]) < 1e-5);
    }
    failed |= !(fabs(tensor_item(loss) + log(p)) < 1e-5);
    tape_free(tape);
    printf("[posterior]\n%s", FRAMES);
    print_rows("o", K, EACH_SYMBOL, o[0]);
    print_rows("y-o", K, EACH_SYMBOL, mine[0]);
    print_rows("diff", K, EACH_SYMBOL, differences[0]);
}

int main(void)
{
    double a[T][S], b[T][S];
    printf("[paths]\n%s", FRAMES);
    print_rows("y", K, EACH_SYMBOL, Y[0]);
    const double p = prefixes(a, Y), expected = enumerate();
    suffixes(b, Y);
    printf("[alpha]\n%s", FRAMES);
    print_rows("", S, SYMBOL, a[0]);
    printf("[beta]\n%s", FRAMES);
    print_rows("", S, SYMBOL, b[0]);
    printf("sum   ");
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int s = 0; s < S; s++)
            sum += a[t][s] * b[t][s];
        printf(t < T - 1 ? " %7.4f" : " %7.4f\n", sum);
        failed |= !(fabs(sum - expected) < 1e-12);
    }
    print_gradient(a, b, p);
    return failed;
}
