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
    printf("[paths]\n%d of %d paths have the text a b\n", count, PATHS);
    printf("their sum p = %.6f\nthe largest, ", p);
    for (int t = 0, rest = best_path; t < T; t++, rest /= K)
        printf("%c ", NAME[rest % K]);
    printf("  %.6f\n", best);
    return p;
}

static void print_states(const char *section, double (*x)[S])
{
    printf("[%s]\nstate   t = 1   t = 2   t = 3   t = 4\n", section);
    for (int s = 0; s < S; s++) {
        printf("%d  %c ", s + 1, NAME[SYMBOL[s]]);
        for (int t = 0; t < T; t++)
            printf(" %7.4f", x[t][s]);
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

/* For every frame: y, o, and y - o beside differences and the library's gradient. */
static void print_gradient(double (*a)[S], double (*b)[S], double p)
{
    double x[T][K], o[T][K] = { { 0 } };
    Real logits[T][K];
    for (int t = 0; t < T; t++) {
        for (int s = 0; s < S; s++)
            o[t][SYMBOL[s]] += a[t][s] * b[t][s] / p;
        for (int k = 0; k < K; k++)
            logits[t][k] = (Real)(x[t][k] = log(Y[t][k]));
    }
    printf("[posterior]\nt y -  y a y b    o -    o a    o b\n");
    for (int t = 0; t < T; t++)
        printf("%d %3.1f %4.1f%4.1f %6.3f %6.3f %6.3f\n", t + 1, Y[t][0], Y[t][1], Y[t][2], o[t][0],
               o[t][1], o[t][2]);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *in = tape_variable(tape, logits[0], shape(1, T, K));
    Tensor *targets = tape_input_i32(tape, (int32_t[]){ 1, 2 }, shape(1, 2));
    Tensor *loss =
        tensor_keep(op_ctc(tape, in, targets, (CtcOptions){ .ignore_infeasible = false }));
    tape_backward(tape, op_sum(tape, loss, ALL_AXES));
    printf("[gradient]\nt       y - o          differences\n");
    for (int t = 0; t < T; t++) {
        double mine[K], differences[K];
        for (int k = 0; k < K; k++) {
            const double before = x[t][k], h = 1e-5;
            x[t][k] = before + h;
            const double right = loss_of((const double(*)[K])x);
            x[t][k] = before - h;
            differences[k] = (right - loss_of((const double(*)[K])x)) / (2 * h);
            x[t][k] = before;
            mine[k] = Y[t][k] - o[t][k];
            failed |= !(fabs(differences[k] - mine[k]) < 1e-8);
            failed |= !(fabs((double)tensor_gradient(in)->data[t * K + k] - mine[k]) < 1e-5);
        }
        printf("%d %5.2f %5.2f %5.2f   %5.2f %5.2f %5.2f\n", t + 1, mine[0], mine[1], mine[2],
               differences[0], differences[1], differences[2]);
    }
    failed |= !(fabs(tensor_item(loss) + log(p)) < 1e-5);
    tape_free(tape);
}

int main(void)
{
    double a[T][S], b[T][S];
    const double p = prefixes(a, Y), expected = enumerate();
    suffixes(b, Y);
    print_states("alpha", a);
    print_states("beta", b);
    printf("sum ");
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
