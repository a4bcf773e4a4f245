/* Exercise 12.2: classes for many u. The right ones are those of a cumulative sum in double, the
 * usual mistakes variants of it. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

enum { LOGITS, U, DRAWS = 40 };
static const double temperatures[CASES] = { 0.5, 0.7, 2 };

typedef enum {
    RIGHT,
    MULTIPLIES,
    NO_TEMPERATURE,
    UNNORMALIZED,
    EACH_ALONE,
    TOO_LATE,
    LAST_MISSING,
    FROM_LAST,
    INCLUSIVE,
    UNIFORM,
    LARGEST,
} Fault;

static double largest(const Real *x, int n)
{
    double max = x[0];
    for (int c = 1; c < n; c++)
        max = fmax(max, x[c]);
    return max;
}

static int faulty_sample(const Real *x, int n, double T, double u, Fault fault)
{
    const double max = largest(x, n);
    const double factor = fault == MULTIPLIES ? T : fault == NO_TEMPERATURE ? 1 : 1 / T;
    const int classes = fault == LAST_MISSING ? n - 1 : n;
    double sum = 0, cumulative = 0;
    if (fault == UNIFORM)
        return (int)(u * n);
    for (int c = 0; c < classes; c++)
        sum += exp((x[c] - max) * factor);
    for (int i = 0; i < classes; i++) {
        const int c = fault == FROM_LAST ? n - 1 - i : i;
        const double p = exp((x[c] - max) * factor) / (fault == UNNORMALIZED ? 1 : sum);
        if (fault == TOO_LATE && cumulative > u)
            return c;
        cumulative = fault == EACH_ALONE ? p : cumulative + p;
        if (fault == LARGEST ? x[c] == max : fault == INCLUSIVE ? cumulative >= u : cumulative > u)
            if (fault != TOO_LATE)
                return c;
    }
    return fault == FROM_LAST ? 0 : classes - 1;
}

/* All draws of a case. */
static void draw(const Case *c, Real *classes, Fault fault)
{
    for (int k = 0; k < DRAWS; k++)
        classes[k] =
            faulty_sample(c->in[LOGITS], c->size[0], temperatures[c->size[1]], c->in[U][k], fault);
}

/* The second case has large logits; the third an excluded class, and u = 0. */
static void make(Case *c, int index)
{
    static const int sizes[CASES] = { 5, 3, 7 };
    Random random = random_new(/*seed*/ 1, (uint64_t)index);
    Real right[DRAWS];
    c->size[0] = sizes[index];
    c->size[1] = index;
    case_normal(c, index, LOGITS, c->size[0]);
    for (int i = 0; i < c->size[0]; i++)
        c->in[LOGITS][i] += index == 1 ? 1000 : 0;
    random_uniform(&random, c->in[U], DRAWS);
    if (index == 2) {
        c->in[LOGITS][0] = -INFINITY;
        c->in[U][0] = 0;
    }
    draw(c, right, RIGHT);
    case_right(c, 0, right, 1, DRAWS);
}

static void student(const Case *c, const Gradient *out)
{
    for (int k = 0; k < DRAWS; k++)
        out[0].data[k] = sample(c->in[LOGITS], c->size[0], temperatures[c->size[1]], c->in[U][k]);
}

static void last_replaced(const Case *c, const Gradient *out)
{
    draw(c, out[0].data, RIGHT);
    for (int k = 0; k < DRAWS; k++)
        out[0].data[k] = fmin(out[0].data[k], c->size[0] - 2);
}

static void from_1(const Case *c, const Gradient *out)
{
    draw(c, out[0].data, RIGHT);
    for (int k = 0; k < DRAWS; k++)
        out[0].data[k]++;
}

/* All the same class, in this case alone. */
static void always(const Case *c, const Gradient *out, int index, int class)
{
    draw(c, out[0].data, RIGHT);
    for (int k = 0; k < DRAWS && c->size[1] == index; k++)
        out[0].data[k] = class;
}

static void empty(const Case *c, const Gradient *out)
{
    always(c, out, 0, 0);
}

/* Where all e^x are infinite, comparisons with NaN are false. */
static void overflow_to_first(const Case *c, const Gradient *out)
{
    always(c, out, 1, 0);
}

static void overflow_to_last(const Case *c, const Gradient *out)
{
    always(c, out, 1, c->size[0] - 1);
}

static void overflow_to_nothing(const Case *c, const Gradient *out)
{
    always(c, out, 1, -1);
}

#define OVERFLOW                                                                                   \
    "e^1000 overflows, and infinity by infinity is NaN, for which each comparison is false: "      \
    "subtract the largest logit first"

static void faulty(const Case *c, const Gradient *out)
{
    draw(c, out[0].data, (Fault)c->fault);
}

int main(void)
{
    return grade(&(Exercise){
        .name = "sample",
        .outputs = { "class" },
        .fills = true,
        .make = make,
        .student = student,
        .mistakes = {
            { empty, "the result is always 0: the body is still empty" },
            { from_1, "the classes are counted from 1: the first is 0" },
            { last_replaced, "the last class is never drawn: where no earlier sum exceeds u, it "
                             "is n - 1" },
            { overflow_to_first, OVERFLOW },
            { overflow_to_last, OVERFLOW },
            { overflow_to_nothing, OVERFLOW },
        },
        .faulty = faulty,
        .faults = {
            [MULTIPLIES] = "the logits are multiplied by the temperature: divide, so that a high "
                           "one levels the probabilities",
            [NO_TEMPERATURE] = "the temperature has no effect: divide the logits by it, before "
                               "e^x; a factor of all e^x cancels",
            [UNNORMALIZED] = "e^x is compared without the sum of all: divide by it, or multiply u "
                             "by it",
            [EACH_ALONE] = "u is compared with each p_c alone: compare it with the sum so far, of "
                           "which each class has the part p_c",
            [TOO_LATE] = "the class after the right one: add p_c before you compare",
            [LAST_MISSING] = "the last class is left out: the loops end at n",
            [FROM_LAST] = "the sum begins with the last class: the probabilities are right, but "
                          "begin with class 0",
            [UNIFORM] = "all classes are equally probable: the logits have no effect",
            [LARGEST] = "always the largest logit: this is the limit for temperature 0; let u "
                        "decide",
            [INCLUSIVE] = "a class of probability 0 is drawn when u is 0: compare by >, not >=",
        },
    });
}
