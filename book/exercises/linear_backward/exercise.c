/* Exercise 4.1: the right gradients are those of op_linear; the usual mistakes are loops of the
 * same form. R < O in all cases, so that a db that is indexed by r stays within its O elements. */
#include "exercise.h"
#include "../grade.h"

enum { X, W, B, G };

static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 2, 3, 4 }, { 3, 5, 7 }, { 4, 2, 5 } };
    const int R = c->size[0] = sizes[index][0], I = c->size[1] = sizes[index][1];
    const int O = c->size[2] = sizes[index][2];
    case_normal(c, index, X, R * I);
    case_normal(c, index, W, O * I);
    case_normal(c, index, G, R * O);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(R, I));
    Tensor *w = tape_variable(tape, c->in[W], shape(O, I));
    Tensor *b = tape_variable(tape, c->in[B], shape(O));
    tape_backward_from(tape, op_linear(tape, x, w, b), tape_input(tape, c->in[G], shape(R, O)));
    case_right(c, 0, tensor_gradient(x)->data, R, I);
    case_right(c, 1, tensor_gradient(w)->data, O, I);
    case_right(c, 2, tensor_gradient(b)->data, 1, O);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    linear_backward(out[0].data, out[1].data, out[2].data, c->in[G], c->in[X], c->in[W], c->size[0],
                    c->size[1], c->size[2]);
}

/* For all r, o and i: dx_ri `add` dx_value, dw_at `add` dw_value; for i = 0: db_o `add` db_value */
#define LOOPS(name, add, dx_value, dw_at, dw_value, db_at, db_value)                               \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        const int R = c->size[0], I = c->size[1], O = c->size[2];                                  \
        const Real *g = c->in[G], *x = c->in[X], *w = c->in[W];                                    \
        Real *dx = out[0].data, *dw = out[1].data, *db = out[2].data;                              \
        for (int r = 0; r < R; r++)                                                                \
            for (int o = 0; o < O; o++)                                                            \
                for (int i = 0; i < I; i++) {                                                      \
                    dx[r * I + i] add dx_value;                                                    \
                    dw[dw_at] add dw_value;                                                        \
                    if (i == 0)                                                                    \
                        db[db_at] add db_value;                                                    \
                }                                                                                  \
    }
#define G_RO g[r * O + o]
#define X_RI x[r * I + i]
#define W_OI w[o * I + i]
#define W_AT o *I + i
LOOPS(dw_transposed, +=, G_RO *W_OI, i *O + o, G_RO *X_RI, o, G_RO)
LOOPS(w_as_inputs, +=, G_RO *w[i * O + o], W_AT, G_RO *X_RI, o, G_RO)
LOOPS(g_in_dw, +=, G_RO *W_OI, W_AT, g[o * R + r] * X_RI, o, G_RO)
LOOPS(sum_of_row, +=, G_RO *W_OI, W_AT, G_RO *X_RI, r, G_RO)
LOOPS(g_in_db, +=, G_RO *W_OI, W_AT, G_RO *X_RI, o, g[o * R + r])
LOOPS(mean, +=, G_RO *W_OI, W_AT, G_RO *X_RI / R, o, G_RO / R)
LOOPS(own_operand, +=, G_RO *X_RI, W_AT, G_RO *W_OI, o, G_RO)
LOOPS(no_upstream, +=, 0 * G_RO + W_OI, W_AT, X_RI, o, 1)
LOOPS(db_counts, +=, G_RO *W_OI, W_AT, G_RO *X_RI, o, 1)
LOOPS(last_term, =, G_RO *W_OI, W_AT, G_RO *X_RI, o, G_RO)

int main(void)
{
    return grade(&(Exercise){
        .name = "linear_backward",
        .outputs = { "dx", "dw", "db" },
        .adds = true,
        .make = make,
        .student = student,
        .mistakes = {
            { dw_transposed, "dw has the layout of its transpose, [I, O]: a gradient has the shape "
                             "of its tensor, so dw_oi is dw[o * I + i]" },
            { w_as_inputs, "in dx, w is read as if it were [I, O]: it has one row per output, so "
                           "w_oi is w[o * I + i]" },
            { g_in_dw, "in dw, g is read as if it were stored transposed: dW = g^T x says which "
                       "index is summed, but g_ro is still g[r * O + o]" },
            { sum_of_row, "db_r sums a row of g: b_o is used in every row r, so db_o sums column o "
                          "of g, over r" },
            { g_in_db, "in db, g is read as if it were stored transposed: db_o sums a column of g, "
                       "whose elements g[r * O + o] are O apart" },
            { mean, "dw and db are means over the R rows: they are sums. If L is a mean, g "
                    "contains 1 / R already" },
            { own_operand, "dx multiplies g with x, and dw multiplies it with w: the derivative of "
                           "x w by x is w, the other operand" },
            { no_upstream, "g is missing: the chain rule multiplies each use by dL/dy_ro" },
            { db_counts, "db counts the rows: each use of b_o contributes 1 times g_ro" },
            { last_term, "= where += is needed: each element is used several times, and = keeps "
                         "the last use alone" },
        },
    });
}
