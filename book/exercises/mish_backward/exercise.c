/* Exercise 3.2: the library has no mish; the right gradient is that of op_softplus, op_tanh and
 * op_multiply. The last case has elements so large that exponential functions overflow. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

enum { X, G };
static const double LARGE = 800;

static void make(Case *c, int index)
{
    const int n = c->size[0] = 5 + 2 * index;
    case_normal(c, index, X, n);
    case_normal(c, index, G, n);
    if (index == CASES - 1) {
        c->in[X][2] = LARGE;
        c->in[X][5] = -LARGE;
    }
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(n));
    Tensor *out = op_multiply(tape, x, op_tanh(tape, op_softplus(tape, x)));
    tape_backward_from(tape, out, tape_input(tape, c->in[G], shape(n)));
    case_right(c, 0, tensor_gradient(x)->data, 1, n);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    mish_backward(out[0], c->in[G], c->in[X], c->size[0]);
    for (int i = 0; i < c->size[0]; i++)
        if (fabs(c->in[X][i]) == LARGE && !isfinite(out[0].data[i]))
            say("dx is infinite or NaN where x is 800 or -800: an exponential function overflows, "
                "and infinity / infinity is NaN. e^x / (1 + e^x) is equal to 1 / (1 + e^-x), which "
                "is right at both ends");
}

/* dx <- `value`, where t = tanh(softplus(x)), and s = softplus'(x) */
#define EACH_ELEMENT(name, value)                                                                  \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        for (int i = 0; i < c->size[0]; i++) {                                                     \
            const double x = c->in[X][i], g = c->in[G][i], s = 1 / (1 + exp(-x));                  \
            const double t = tanh(fmax(x, 0) + log1p(exp(-fabs(x))));                              \
            gradient_add(out[0], i, value + 0 * s * g);                                            \
        }                                                                                          \
    }
EACH_ELEMENT(no_upstream, t + x * (1 - t * t) * s)
EACH_ELEMENT(first_term, (g * t))
EACH_ELEMENT(second_term, (g * x) * (1 - t * t) * s)
EACH_ELEMENT(no_inner, (t + x * (1 - t * t)) * g)
EACH_ELEMENT(not_squared, (t + x * (1 - t) * s) * g)
EACH_ELEMENT(no_factor, (t + (1 - t * t) * s) * g)
EACH_ELEMENT(no_brackets, (g * t) + x * (1 - t * t) * s)
EACH_ELEMENT(overflow_below, (x == -LARGE ? 1 : t + x * (1 - t * t) * s) * g)

int main(void)
{
    return grade(&(Exercise){
        .name = "mish_backward",
        .outputs = { "dx" },
        .make = make,
        .student = student,
        .mistakes = {
            { no_upstream, "g is missing: the chain rule multiplies f'(x) by dL/dout" },
            { first_term, "this is half of the product rule: the second factor, "
                          "tanh(softplus(x)), depends on x too" },
            { second_term, "this is half of the product rule: the derivative of the first factor, "
                           "x, is 1, and leaves tanh(softplus(x))" },
            { no_inner, "softplus' is missing: the chain rule multiplies tanh' by the derivative "
                        "of what is inside, e^x / (1 + e^x)" },
            { not_squared, "the derivative of tanh u is 1 - tanh^2 u: the square is missing" },
            { no_factor, "the factor x is missing: the product rule multiplies the derivative of "
                         "the second factor by the first" },
            { no_brackets, "g multiplies the first term alone: put both terms in brackets" },
            { overflow_below, "dx is g where x is -800, expected 0: e^-x overflows in "
                              "x + ln(1 + e^-x). max(x, 0) + ln(1 + e^-|x|) never overflows" },
        },
    });
}
