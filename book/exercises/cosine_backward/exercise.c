/* Exercise 6.2: the right gradient is that of four operations of the library; the usual mistakes
 * are loops of one form, which sum the products of a row and add an expression of the sums. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

enum { X, Y, G };
static const double TINY = 1e-300; /* the eps of op_l2_normalize, which must be above 0 */

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 3, 4 }, { 1, 5 }, { 4, 3 } };
    const int R = c->size[0] = sizes[index][0], C = c->size[1] = sizes[index][1];
    case_normal(c, index, X, R * C);
    case_normal(c, index, Y, R * C); /* those after the first C are for answers with a y per row */
    case_normal(c, index, G, R);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(R, C));
    Tensor *y = tape_input(tape, c->in[Y], shape(1, C));
    Tensor *products =
        op_multiply(tape, op_l2_normalize(tape, x, TINY), op_l2_normalize(tape, y, TINY));
    tape_backward_from(tape, op_sum(tape, products, 1), tape_input(tape, c->in[G], shape(R)));
    case_right(c, 0, tensor_gradient(x)->data, R, C);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    cosine_backward(out[0], c->in[G], c->in[X], c->in[Y], c->size[0], c->size[1]);
}

/* The quantities of one row. Sums with x are from element `begin` to `end` of all rows. */
typedef struct Row {
    Real xx, yy, xy; /* the sums of x^2, y^2 and x y */
    Real p, q, out;  /* 1 / |x|, 1 / |y|, p q x.y */
} Row;

static Row sums(const Real *x, const Real *y, int begin, int end, int C)
{
    Row s = { 0 };
    for (int c = 0; c < C; c++)
        s.yy += y[c] * y[c];
    for (int i = begin; i < end; i++) {
        s.xx += x[i] * x[i];
        s.xy += x[i] * y[i % C];
    }
    s.p = 1 / sqrt(s.xx);
    s.q = 1 / sqrt(s.yy);
    s.out = s.p * s.q * s.xy;
    return s;
}

/* dx_j <- value; g is that of the row */
#define ROWS(name, begin, end, y_of_row, value)                                                    \
    static void name(const Case *all, const Gradient *to)                                          \
    {                                                                                              \
        const int R = all->size[0], C = all->size[1];                                              \
        for (int row = 0; row < R; row++) {                                                        \
            const Real *all_x = all->in[X], *y = y_of_row, *x = all_x + row * C;                   \
            const Row s = sums(all_x, y, begin, end, C);                                           \
            const Real g = all->in[G][row], p = s.p, q = s.q, out = s.out;                         \
            for (int j = 0; j < C; j++)                                                            \
                gradient_add(to[0], row *C + j, value + 0 * (g + p + q + out + x[j] + y[j]));      \
        }                                                                                          \
    }
#define ROW(name, value) ROWS(name, (row * C), (row + 1) * C, all->in[Y], value)
ROW(length_constant, y[j] * g * p * q)
ROW(plus, (q * y[j] + out * p * x[j]) * g * p)
ROW(one_length, (p * q * y[j] - out * p * x[j]) * g)
ROW(no_upstream, (q * y[j] - out * p * x[j]) * p)
ROW(first_upstream, (q * y[j] - out * p * x[j]) * p * all->in[G][0])
ROW(dot_product, (q * y[j] - s.xy * p * x[j]) * g * p)
ROW(of_y, (p * x[j] - out * q * y[j]) * g * q)
ROW(without_root, (y[j] / s.yy - s.xy / s.xx / s.yy / s.xx * x[j]) * g / s.xx)
ROW(without_y, (y[j] - s.xy * p * p * x[j]) * g * p)
ROWS(kept, 0, (row + 1) * C, all->in[Y], (q * y[j] - out * p * x[j]) * g * p)
ROWS(all_rows, 0, (R * C), all->in[Y], (q * y[j] - out * p * x[j]) * g * p)
ROWS(y_per_row, (row * C), (row + 1) * C, all->in[Y] + row * C, (q * y[j] - out * p * x[j]) * g * p)

int main(void)
{
    return grade(&(Exercise){
        .name = "cosine_backward",
        .outputs = { "dx" },
        .make = make,
        .student = student,
        .mistakes = {
            { length_constant, "y / (|x| |y|) alone holds |x| constant: x_j also changes the "
                               "length by which x.y is divided" },
            { plus, "the sign before the second term is wrong: |x| is in the denominator of out" },
            { one_length, "out x is divided by |x|, expected by |x|^2: the derivative of 1 / |x| "
                          "by x_j is -x_j / |x|^3" },
            { no_upstream, "g is missing: the chain rule multiplies by dL/dout of the row" },
            { first_upstream, "g[0] is used for all rows: g has one number per row" },
            { dot_product, "the second term has x.y, expected out = x.y / (|x| |y|)" },
            { of_y, "this is the gradient of y: x and y are exchanged" },
            { without_root, "a length is the square root of a sum of squares: the root is "
                            "missing" },
            { without_y, "y is not divided by its length: its direction alone counts" },
            { kept, "the sums of a row contain those of the rows before it: set them to 0 at each "
                    "row" },
            { all_rows, "the sums are of all rows: each row has its own length and cosine" },
            { y_per_row, "each row reads another y: y has C elements, which all rows share" },
        },
    });
}
