/* Exercise 5.2: the right gradient is that of op_cross_entropy. The usual mistakes are loops of the
 * same form, which add one expression per element. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

enum { X, G, TARGETS, FAR_LOGITS = 2 }; /* inputs; the number of the case of large logits */

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 3, 5 }, { 2, 4 }, { 3, 4 } };
    const int N = c->size[0] = sizes[index][0], C = c->size[1] = sizes[index][1];
    c->size[2] = index;
    case_normal(c, index, X, N * C);
    case_normal(c, index, G, 1);
    int32_t targets[ELEMENTS];
    for (int r = 0; r < N; r++) {
        targets[r] = (2 * r + 1) % C;
        c->in[TARGETS][r] = targets[r];
        for (int j = 0; j < C && index == FAR_LOGITS; j++)
            c->in[X][r * C + j] += 1000 - 1000 * r; /* rows near 1000, 0 and -1000 */
    }
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(N, C));
    Tensor *loss = op_cross_entropy(tape, x, tape_input_i32(tape, targets, shape(N)), NULL);
    tape_backward_from(tape, loss, tape_input(tape, c->in[G], shape_scalar()));
    case_right(c, 0, tensor_gradient(x)->data, N, C);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    const int N = c->size[0], C = c->size[1];
    int t[ELEMENTS];
    for (int r = 0; r < N; r++)
        t[r] = (int)c->in[TARGETS][r];
    cross_entropy_backward(out[0], c->in[X], t, c->in[G][0], N, C);
    for (int i = 0; i < N * C && c->size[2] == FAR_LOGITS; i++)
        if (!isfinite(out[0].data[i]))
            say("NaN or infinity for logits near 1000 and -1000: e^1000 overflows, and e^-1000 is "
                "0. Before exp, subtract each row's own maximum, which may be negative");
}

/* p = e^(x - m) / sum of e^(x - m), where m and the sum are of each group of n elements */
static void softmax_of_groups(Real *p, const Real *x, int count, int n)
{
    for (int start = 0; start < count; start += n) {
        Real m = x[start], sum = 0;
        for (int i = start; i < start + n; i++)
            m = fmax(m, x[i]);
        for (int i = start; i < start + n; i++)
            sum += exp(x[i] - m);
        for (int i = start; i < start + n; i++)
            p[i] = exp(x[i] - m) / sum;
    }
}

/* dx_i <- value at element j of row r. p is softmax of the rows, q of all elements together. */
#define ELEMENTWISE(name, value)                                                                   \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        const int N = c->size[0], C = c->size[1];                                                  \
        const Real g = c->in[G][0];                                                                \
        Real p[ELEMENTS], q[ELEMENTS], y[ELEMENTS];                                                \
        softmax_of_groups(p, c->in[X], N *C, C);                                                   \
        softmax_of_groups(q, c->in[X], N *C, N *C);                                                \
        for (int i = 0; i < N * C; i++)                                                            \
            y[i] = i % C == (int)c->in[TARGETS][i / C];                                            \
        for (int i = 0; i < N * C; i++)                                                            \
            gradient_add(out[0], i, value + 0 * (g + p[i] + q[i] + y[i]));                         \
    }
ELEMENTWISE(without_mean, g *(p[i] - y[i]))
ELEMENTWISE(mean_twice, g / N / N * (p[i] - y[i]))
ELEMENTWISE(mean_of_elements, g / (N * C) * (p[i] - y[i]))
ELEMENTWISE(negative, g / N * (y[i] - p[i]))
ELEMENTWISE(without_y, g / N * p[i])
ELEMENTWISE(target_alone, g / N * y[i] * (p[i] - 1))
ELEMENTWISE(y_without_factor, g / N * p[i] - y[i])
ELEMENTWISE(added_twice, g / N * (y[i] > 0 ? -1 : p[i]))
ELEMENTWISE(first_target, g / N * (p[i] - y[i % C]))
ELEMENTWISE(without_g, (p[i] - y[i]) / N)
ELEMENTWISE(bare, p[i] - y[i])
ELEMENTWISE(all_rows, g / N * (q[i] - y[i]))

int main(void)
{
    return grade(&(Exercise){
        .name = "cross_entropy_backward",
        .outputs = { "dx" },
        .make = make,
        .student = student,
        .mistakes = {
            { without_mean, "1/N is missing: the loss is the mean over N rows, so each row has "
                            "the factor 1/N" },
            { mean_twice, "1/N is there twice, 1/N^2: the mean divides once" },
            { mean_of_elements, "the factor is 1/(N C), expected 1/N: a row has one loss, not C" },
            { negative, "the sign is wrong, y - p: more of x_t makes the loss smaller, so dx_t is "
                        "negative for a positive g" },
            { without_y, "the one-hot y is missing: the loss also has the term -x_t, whose "
                         "derivative is -1" },
            { target_alone, "only x_t of each row gets a gradient: the log-sum-exp in the loss "
                            "depends on all logits of the row" },
            { y_without_factor, "g / N multiplies p alone: it is a factor of y, too" },
            { added_twice, "at the targets p is missing: a second gradient_add for an element "
                           "replaces the first one if accumulate is false. Add p - y by one call" },
            { first_target, "the target of row 0 is used for all rows: row r has its own, t[r]" },
            { without_g, "the upstream gradient g is missing: the mean may be one term of a "
                         "larger loss" },
            { bare, "p - y is the gradient of one row's own loss: in a mean over N rows it has the "
                    "factor g / N" },
            { all_rows, "p is normalized over all rows: the p of each row sum to 1" },
        },
    });
}
