/* Exercise 7.2: the right gradients are those of params_clip_gradients; the usual mistakes are
 * variants of the norm and of the factor. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ARRAYS = 3 };
static const double C = 2.5;

/* Gradients with a norm above c, then of 0, then with a norm below c. The norm of the first array
 * alone exceeds c in the first case, those of the others do not. */
static void make(Case *c, int index)
{
    static const int counts[ARRAYS] = { 6, 3, 4 };
    static const double factors[CASES][ARRAYS] = { { 3, 0.8, 0.5 },
                                                   { 0, 0, 0 },
                                                   { 0.4, 0.2, 0.3 } };
    Params *params = params_new(device_open("plain"), /*seed*/ 1);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *loss = NULL, *weights[ARRAYS];
    for (int k = 0; k < ARRAYS; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        weights[k] =
            params_add(params, name, shape(counts[k]), (Initializer){ .kind = INITIAL_ZERO });
    }
    for (int k = 0; k < ARRAYS; k++) {
        c->size[k] = counts[k];
        case_normal(c, index, k, counts[k]);
        for (int i = 0; i < counts[k]; i++)
            c->in[k][i] *= factors[index][k];
        Tensor *g = tape_input(tape, c->in[k], shape(counts[k]));
        Tensor *term = op_sum(tape, op_multiply(tape, weights[k], g), ALL_AXES);
        loss = loss ? op_add(tape, loss, term) : term;
    }
    tape_backward(tape, loss);
    params_clip_gradients(params, C);
    for (int k = 0; k < ARRAYS; k++)
        case_right(c, k, tensor_gradient(weights[k])->data, 1, counts[k]);
    tape_free(tape);
    params_free(params);
}

static void begin(const Case *c, const Gradient *out)
{
    for (int k = 0; k < ARRAYS; k++)
        memcpy(out[k].data, c->in[k], (size_t)c->size[k] * sizeof(Real));
}

static void student(const Case *c, const Gradient *out)
{
    Real *gradients[ARRAYS];
    int counts[ARRAYS];
    begin(c, out);
    for (int k = 0; k < ARRAYS; k++) {
        gradients[k] = out[k].data;
        counts[k] = c->size[k];
    }
    clip(gradients, counts, ARRAYS, C);
    for (int k = 0; k < ARRAYS; k++)
        for (int i = 0; i < counts[k]; i++)
            if (isnan(gradients[k][i]) && c->in[k][i] == 0)
                say("gradients of 0 become NaN: c / 0 is infinite, and times 0 that is NaN; scale "
                    "only if the norm exceeds c");
}

static double square_of(const Case *c, int array)
{
    double sum = 0;
    for (int i = 0; i < c->size[array]; i++)
        sum += c->in[array][i] * c->in[array][i];
    return sum;
}

static double norm_of_all(const Case *c)
{
    return sqrt(square_of(c, 0) + square_of(c, 1) + square_of(c, 2));
}

static double limited(double norm)
{
    return norm > C ? C / norm : 1;
}

static double alone(const Case *c, int array)
{
    return limited(sqrt(square_of(c, array)));
}

static double so_far(const Case *c, int array)
{
    double sum = 0;
    for (int k = 0; k <= array; k++)
        sum += square_of(c, k);
    return limited(sqrt(sum));
}

static double first_array(const Case *c, int array)
{
    (void)array;
    return limited(sqrt(square_of(c, 0)));
}

static double added_norms(const Case *c, int array)
{
    (void)array;
    return limited(sqrt(square_of(c, 0)) + sqrt(square_of(c, 1)) + sqrt(square_of(c, 2)));
}

static double squared(const Case *c, int array)
{
    (void)array;
    return limited(norm_of_all(c) * norm_of_all(c));
}

static double to_1(const Case *c, int array)
{
    (void)array;
    return norm_of_all(c) > C ? 1 / norm_of_all(c) : 1;
}

static double largest(const Case *c, int array)
{
    double max = 0;
    for (int k = 0; k < ARRAYS; k++)
        for (int i = 0; i < c->size[k]; i++)
            max = fmax(max, fabs(c->in[k][i]));
    (void)array;
    return limited(max);
}

static double always(const Case *c, int array)
{
    (void)array;
    return norm_of_all(c) > 0 ? C / norm_of_all(c) : 1;
}

#define SCALED(name, factor_of)                                                                    \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        for (int k = 0; k < ARRAYS; k++)                                                           \
            for (int i = 0; i < c->size[k]; i++)                                                   \
                out[k].data[i] = c->in[k][i] * factor_of(c, k);                                    \
    }
SCALED(each_array, alone)
SCALED(too_early, so_far)
SCALED(only_first, first_array)
SCALED(sum_of_norms, added_norms)
SCALED(no_root, squared)
SCALED(no_c, to_1)
SCALED(max_norm, largest)
SCALED(enlarges, always)

static void each_element(const Case *c, const Gradient *out)
{
    for (int k = 0; k < ARRAYS; k++)
        for (int i = 0; i < c->size[k]; i++)
            out[k].data[i] = fmax(-C, fmin(C, c->in[k][i]));
}

int main(void)
{
    return grade(&(Exercise){
        .name = "clip_gradients",
        .outputs = { "gradients[0]", "gradients[1]", "gradients[2]" },
        .fills = true,
        .tolerance = 1e-5, /* some add a small eps to the norm */
        .make = make,
        .student = student,
        .mistakes = {
            { begin, "no gradient has changed, though the norm exceeds c: is the body "
                     "still empty?" },
            { each_array, "each array is scaled by its own norm: that turns the gradient, whose "
                          "direction is that of all weights together" },
            { too_early, "arrays are scaled before all squares are summed: compute the norm in a "
                         "first loop and scale in a second one" },
            { only_first, "the norm is that of the first array: sum the squares of all arrays" },
            { sum_of_norms, "the norms of the arrays are added: squares add, and the root comes "
                            "last" },
            { no_root, "the root is missing: the norm is sqrt of the sum of squares" },
            { no_c, "the norm becomes 1, not c: the factor is c / norm" },
            { max_norm, "the norm is the root of the sum of squares, not the largest element" },
            { each_element, "each element is clipped by itself: that turns the gradient, since "
                            "only the large ones shrink" },
            { enlarges, "small gradients are scaled up to the norm c: clipping only limits, so "
                        "leave them if the norm is at most c" },
        },
    });
}
