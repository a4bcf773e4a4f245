/* Exercise 1.1: the right gradients are the library's; the usual mistakes are variants of one
 * pass. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

/* Each has an entry that is read twice, once as both factors of a product. */
enum { LENGTH = 8 };
static const int counts[CASES] = { 5, 6, LENGTH };
static const Entry tapes[CASES][LENGTH] = {
    { { 'x', 0, 0 }, { '*', 0, 0 }, { 'e', 0, 0 }, { '+', 1, 2 }, { '*', 3, 0 } },
    { { 'x', 0, 0 }, { 'x', 0, 0 }, { '*', 0, 1 }, { '*', 2, 2 }, { 'e', 1, 1 }, { '*', 3, 4 } },
    { { 'x', 0, 0 },
      { 'x', 0, 0 },
      { 'e', 0, 0 },
      { '+', 0, 1 },
      { '*', 3, 2 },
      { '*', 4, 4 },
      { '+', 5, 3 },
      { '*', 6, 1 } },
};

enum { VALUE };

static Tensor *compute(Tape *tape, const Entry *e, Tensor **made, const Real *input)
{
    switch (e->operation) {
    case '+':
        return op_add(tape, made[e->a], made[e->b]);
    case '*':
        return op_multiply(tape, made[e->a], made[e->b]);
    case 'e':
        return op_exp(tape, made[e->a]);
    default:
        return tape_variable(tape, input, shape_scalar());
    }
}

static void make(Case *c, int index)
{
    const int n = counts[index];
    Real gradient[LENGTH];
    c->size[0] = index;
    case_normal(c, index, VALUE, n);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *made[LENGTH] = { NULL };
    for (int i = 0; i < n; i++) {
        made[i] = tensor_keep(compute(tape, &tapes[index][i], made, &c->in[VALUE][i]));
        c->in[VALUE][i] = tensor_item(made[i]);
    }
    tape_backward(tape, made[n - 1]);
    for (int i = 0; i < n; i++)
        gradient[i] = tensor_item(tensor_gradient(made[i]));
    case_right(c, 0, gradient, 1, n);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    const int index = c->size[0];
    tape_gradients(out[0].data, tapes[index], c->in[VALUE], counts[index]);
}

typedef enum {
    STORES,
    FORWARD,
    NO_START,
    NO_CLEARING,
    INPUT_OF_EXP,
    OWN_FACTOR,
    ONE_FACTOR,
    EXP_TWICE
} Fault;

static void add_to(Real *gradient, int i, double value, Fault fault)
{
    gradient[i] = fault == STORES ? value : gradient[i] + value;
}

static void faulty(const Case *c, const Gradient *out)
{
    const Fault fault = (Fault)c->fault;
    const int index = c->size[0], n = counts[index];
    const Real *v = c->in[VALUE];
    Real *d = out[0].data;
    for (int i = 0; i < n && fault != NO_CLEARING; i++)
        d[i] = 0;
    d[n - 1] = fault == NO_START ? 0 : 1;
    for (int k = n - 1; k >= 0; k--) {
        const int i = fault == FORWARD ? n - 1 - k : k;
        const Entry e = tapes[index][i];
        if (e.operation == '+') {
            add_to(d, e.a, d[i], fault);
            add_to(d, e.b, d[i], fault);
        } else if (e.operation == '*') {
            add_to(d, e.a, d[i] * v[fault == OWN_FACTOR ? e.a : e.b], fault);
            if (fault != ONE_FACTOR || e.a != e.b)
                add_to(d, e.b, d[i] * v[fault == OWN_FACTOR ? e.b : e.a], fault);
        } else if (e.operation == 'e') {
            for (int times = 0; times < (fault == EXP_TWICE ? 2 : 1); times++)
                add_to(d, e.a, d[i] * v[fault == INPUT_OF_EXP ? e.a : i], fault);
        }
    }
}

int main(void)
{
    return grade(&(Exercise){
        .name = "tape_gradients",
        .outputs = { "gradient" },
        .fills = true,
        .make = make,
        .student = student,
        .faulty = faulty,
        .faults = {
            [STORES] = "= where += is needed: an entry that is read twice gets the sum of both "
                       "contributions",
            [FORWARD] = "the entries are visited from the first to the last: when an entry is "
                        "visited, its own gradient must be complete",
            [NO_START] = "all gradients are 0: the derivative of L by itself is 1, and the pass "
                         "begins with it",
            [NO_CLEARING] = "gradient holds old numbers at first, and += adds to them: set all to "
                            "0 before the pass",
            [INPUT_OF_EXP] = "the derivative of e^a by a is e^a, the value of the entry itself, "
                             "not a",
            [OWN_FACTOR] = "the derivative of a b by a is b, the other factor",
            [EXP_TWICE] = "e^a reads a once, so it contributes once, not to a and to b",
            [ONE_FACTOR] = "in x x both operands are the same entry: each factor contributes",
        },
    });
}
