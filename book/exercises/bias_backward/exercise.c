/* Exercise 3.1: the right gradient is that of op_add. In the first case R = C, so that a sum over
 * the wrong axis has as its result the right count of elements, and gets its own sentence. */
#include "exercise.h"
#include "../grade.h"

enum { X, G, B };

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 3, 3 }, { 2, 5 }, { 7, 4 } };
    const int R = c->size[0] = sizes[index][0], C = c->size[1] = sizes[index][1];
    case_normal(c, index, X, R * C);
    case_normal(c, index, G, R * C);
    case_normal(c, index, B, C);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_input(tape, c->in[X], shape(R, C));
    Tensor *b = tape_variable(tape, c->in[B], shape(C));
    tape_backward_from(tape, op_add(tape, x, b), tape_input(tape, c->in[G], shape(R, C)));
    case_right(c, 0, tensor_gradient(b)->data, 1, C);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    bias_backward(out[0], c->in[G], c->size[0], c->size[1]);
}

/* In each column: sum = the sum over r of `term`; db_c <- `value` */
#define COLUMNS(name, term, value)                                                                 \
    static void name(const Case *all, const Gradient *out)                                         \
    {                                                                                              \
        const int R = all->size[0], C = all->size[1];                                              \
        const Real *g = all->in[G];                                                                \
        for (int c = 0; c < C; c++) {                                                              \
            Real sum = 0;                                                                          \
            for (int r = 0; r < R; r++)                                                            \
                sum += term;                                                                       \
            gradient_add(out[0], c, value);                                                        \
        }                                                                                          \
    }
COLUMNS(wrong_axis, g[c * C + r], sum)
COLUMNS(mean, g[r * C + c], sum / R)
COLUMNS(last_row, g[r * C + c], g[(R - 1) * C + c] + 0 * sum)
COLUMNS(first_row, g[r * C + c], g[c] + 0 * sum)
COLUMNS(counts, 1 + 0 * g[r * C + c], sum)
COLUMNS(stride, g[r * R + c], sum)

static void everything(const Case *all, const Gradient *out)
{
    Real sum = 0;
    for (int i = 0; i < all->size[0] * all->size[1]; i++)
        sum += all->in[G][i];
    for (int c = 0; c < all->size[1]; c++)
        gradient_add(out[0], c, sum);
}

int main(void)
{
    return grade(&(Exercise){
        .name = "bias_backward",
        .outputs = { "db" },
        .make = make,
        .student = student,
        .mistakes = {
            { wrong_axis, "the sums run along the rows: b_c is copied into all rows, so db_c is "
                          "the sum of column c, over r" },
            { mean, "this is the mean over the rows: each copy of b_c moves the loss by its own "
                    "g_rc, and the changes add. Do not divide by R" },
            { last_row, "only the last row arrives: where accumulate is false, gradient_add "
                        "stores, and each call replaces the one before. Sum over r first, then "
                        "call it once per element" },
            { first_row, "only the first row is read: b_c was copied into all R rows" },
            { counts, "all elements are R, the number of copies: g is missing. Sum g_rc, not the "
                      "derivatives dout_rc/db_c = 1" },
            { stride, "row r of g begins at r * C, not at r * R: a row has C elements" },
            { everything, "each element is the sum of all g: b_c is read in column c alone" },
        },
    });
}
