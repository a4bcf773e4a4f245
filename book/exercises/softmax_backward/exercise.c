/* Exercise 5.1: the right gradient is that of op_softmax; the usual mistakes are loops of the same
 * form, which sum one expression over a row and add another one. */
#include "exercise.h"
#include "../grade.h"

#include <string.h>

enum { X, G, P };

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 2, 5 }, { 1, 3 }, { 3, 7 } };
    const int R = c->size[0] = sizes[index][0], C = c->size[1] = sizes[index][1];
    case_normal(c, index, X, R * C);
    case_normal(c, index, G, R * C);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(R, C));
    Tensor *p = tensor_keep(op_softmax(tape, x));
    tape_backward_from(tape, p, tape_input(tape, c->in[G], shape(R, C)));
    memcpy(c->in[P], p->data, (size_t)(R * C) * sizeof(Real));
    case_right(c, 0, tensor_gradient(x)->data, R, C);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    softmax_backward(out[0], c->in[G], c->in[P], c->size[0], c->size[1]);
}

/* In each row: sum = the sum over c of `before`; dx_j <- `value` */
#define ROWS(name, before, value)                                                                  \
    static void name(const Case *all, const Gradient *out)                                         \
    {                                                                                              \
        const int R = all->size[0], C = all->size[1];                                              \
        for (int r = 0; r < R; r++) {                                                              \
            const Real *g = all->in[G] + r * C, *p = all->in[P] + r * C;                           \
            Real sum = 0;                                                                          \
            for (int c = 0; c < C; c++)                                                            \
                sum += before;                                                                     \
            for (int j = 0; j < C; j++)                                                            \
                gradient_add(out[0], r *C + j, value);                                             \
        }                                                                                          \
    }
ROWS(without_sum, 0 * g[c], p[j] * g[j] + 0 * sum)
ROWS(plus, p[c] * g[c], p[j] * (g[j] + sum))
ROWS(diagonal, 0 * p[c], p[j] * (1 - p[j]) * g[j] + 0 * sum)
ROWS(plain_sum, g[c], p[j] * (g[j] - sum))
ROWS(outside, p[c] * g[c], p[j] * g[j] - sum)
ROWS(no_factor, p[c] * g[c], g[j] - sum)
ROWS(mean, p[c] * g[c] / C, p[j] * (g[j] - sum))

static void all_rows(const Case *all, const Gradient *out)
{
    const int n = all->size[0] * all->size[1];
    const Real *g = all->in[G], *p = all->in[P];
    Real sum = 0;
    for (int i = 0; i < n; i++)
        sum += p[i] * g[i];
    for (int i = 0; i < n; i++)
        gradient_add(out[0], i, p[i] * (g[i] - sum));
}

/* The sum of a row and of all rows before it */
static void running_sum(const Case *all, const Gradient *out)
{
    const int R = all->size[0], C = all->size[1];
    const Real *g = all->in[G], *p = all->in[P];
    Real sum = 0;
    for (int r = 0; r < R; r++) {
        for (int i = r * C; i < (r + 1) * C; i++)
            sum += p[i] * g[i];
        for (int i = r * C; i < (r + 1) * C; i++)
            gradient_add(out[0], i, p[i] * (g[i] - sum));
    }
}

int main(void)
{
    return grade(&(Exercise){
        .name = "softmax_backward",
        .outputs = { "dx" },
        .make = make,
        .student = student,
        .mistakes = {
            { without_sum, "the sum over p g is missing: each x_j moves all outputs of its row, "
                           "not p_j alone" },
            { plus, "the sign before the sum is wrong: more of x_j means less of the other "
                    "outputs" },
            { diagonal, "only the Jacobian's diagonal is used, p_j (1 - p_j): x_j also moves the "
                        "p_c with c != j" },
            { plain_sum, "the sum is of g, expected of p g: each g_c is weighted by "
                         "dp_c/dx_j = -p_c p_j" },
            { mean, "the sum is divided by C: the p_c are weights that sum to 1 already" },
            { outside, "p_j multiplies g_j alone: it is a factor of the sum, too" },
            { no_factor, "the factor p_j is missing" },
            { running_sum, "the sum of one row continues in the next: begin each row with 0" },
            { all_rows, "the sum runs over all rows: each row has its own softmax" },
        },
    });
}
