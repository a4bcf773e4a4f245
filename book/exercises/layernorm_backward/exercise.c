/* Exercise 6.1: the right gradient is that of op_layernorm; the usual mistakes are loops of one
 * form, which sum h and h n over a row and add an expression of the sums. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

enum { X, G, WEIGHT, H, N, ROOT };
static const double EPS = 1e-5;

/* h = g weight, n and r of each row */
static void prepare(Case *c, int R, int C)
{
    for (int row = 0; row < R; row++) {
        const Real *x = c->in[X] + row * C;
        double mean = 0, variance = 0;
        for (int j = 0; j < C; j++)
            mean += x[j] / C;
        for (int j = 0; j < C; j++)
            variance += (x[j] - mean) * (x[j] - mean) / C;
        c->in[ROOT][row] = 1 / sqrt(variance + EPS);
        for (int j = 0; j < C; j++) {
            c->in[N][row * C + j] = (x[j] - mean) * c->in[ROOT][row];
            c->in[H][row * C + j] = c->in[G][row * C + j] * c->in[WEIGHT][j];
        }
    }
}

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 2, 5 }, { 1, 3 }, { 3, 7 } };
    const int R = c->size[0] = sizes[index][0], C = c->size[1] = sizes[index][1];
    case_normal(c, index, X, R * C);
    case_normal(c, index, G, R * C);
    case_normal(c, index, WEIGHT, C);
    prepare(c, R, C);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(R, C));
    Tensor *weight = tape_input(tape, c->in[WEIGHT], shape(C));
    Tensor *out = op_layernorm(tape, x, weight, weight, EPS);
    tape_backward_from(tape, out, tape_input(tape, c->in[G], shape(R, C)));
    case_right(c, 0, tensor_gradient(x)->data, R, C);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    layernorm_backward(out[0], c->in[H], c->in[N], c->in[ROOT], c->size[0], c->size[1]);
}

/* dx_j <- value, of sums of h and of h n from element `begin` to `end`. */
#define ROWS(name, begin, end, value)                                                              \
    static void name(const Case *all, const Gradient *out)                                         \
    {                                                                                              \
        const int R = all->size[0], C = all->size[1];                                              \
        const Real *h = all->in[H], *n = all->in[N];                                               \
        for (int row = 0; row < R; row++) {                                                        \
            const Real r = all->in[ROOT][row];                                                     \
            Real sum_h = 0, sum_hn = 0;                                                            \
            for (int i = begin; i < end; i++) {                                                    \
                sum_h += h[i];                                                                     \
                sum_hn += h[i] * n[i];                                                             \
            }                                                                                      \
            const Real mean_h = sum_h / C, mean_hn = sum_hn / C;                                   \
            for (int j = row * C; j < (row + 1) * C; j++)                                          \
                gradient_add(out[0], j, value + 0 * (r + mean_h + mean_hn));                       \
        }                                                                                          \
    }
#define ROW(name, value) ROWS(name, (row * C), (row + 1) * C, value)
ROW(both_constant, h[j] * r)
ROW(mean_constant, (h[j] - n[j] * mean_hn) * r)
ROW(variance_constant, (h[j] - mean_h) * r)
ROW(sums, (h[j] - sum_h - n[j] * sum_hn) * r)
ROW(unbiased, (h[j] - sum_h / (C - 1) - n[j] * sum_hn / (C - 1)) * r)
ROW(unbiased_variance, (h[j] - mean_h - n[j] * sum_hn / (C - 1)) * r)
ROW(without_r, h[j] - mean_h - n[j] * mean_hn)
ROW(mean_of_h, (h[j] - mean_h - n[j] * mean_h) * r)
ROW(without_n, (h[j] - mean_h - mean_hn) * r)
ROW(plus, (h[j] - mean_h + n[j] * mean_hn) * r)
ROWS(kept, 0, (row + 1) * C, (h[j] - mean_h - n[j] * mean_hn) * r)
ROWS(all_rows, 0, (R * C), (h[j] - mean_h / R - n[j] * mean_hn / R) * r)

int main(void)
{
    return grade(&(Exercise){
        .name = "layernorm_backward",
        .outputs = { "dx" },
        .make = make,
        .student = student,
        .mistakes = {
            { both_constant, "dx = r h holds mean and variance constant: x_j moves both, and by "
                             "them all n of its row. (In C, 1 / C is 0 for integers.)" },
            { mean_constant, "the mean of h is missing: x_j also moves the mean of its row, and "
                             "with it all n of the row" },
            { variance_constant, "n mean(h n) is missing: x_j also moves the variance of its row, "
                                 "and with it r and all n of the row" },
            { sums, "the sums are not divided by C: both terms are means of the row" },
            { unbiased, "the sums are divided by C - 1, expected by C: mean and variance of layer "
                        "norm are means of C elements" },
            { unbiased_variance, "the sum of h n is divided by C - 1, expected by C: the variance "
                                 "of layer norm is the mean of C squares" },
            { without_r, "the factor r is missing: n = (x - mean) r" },
            { mean_of_h, "n is multiplied by the mean of h, expected by the mean of the products "
                         "h n" },
            { without_n, "the mean of h n is subtracted without its factor n_j: the "
                         "derivative of r by x_j is proportional to n_j" },
            { plus, "the sign before n mean(h n) is wrong: a larger variance makes r smaller" },
            { kept, "the sums of a row contain those of the rows before it: set them to 0 at each "
                    "row" },
            { all_rows, "the means are of all rows: each row has its own mean and variance" },
        },
    });
}
