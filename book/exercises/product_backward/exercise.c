/* Exercise 1.2: the right gradients are those of op_multiply. */
#include "exercise.h"
#include "../grade.h"

enum { A, B, G };

static int count_of(const Case *c)
{
    return c->size[0];
}

static bool is_square(const Case *c)
{
    return c->size[1] != 0;
}

static Tensor *product(Tape *tape, Tensor *a, Tensor *b, void (*backward)(Node *))
{
    Tensor *out = tape_tensor(tape, a->shape);
    for (int64_t i = 0; i < tensor_count(a); i++)
        out->data[i] = a->data[i] * b->data[i];
    tape_record(
        tape,
        (Node){ .name = "product", .backward = backward, .inputs = { a, b }, .outputs = { out } });
    return out;
}

/* The gradients of a and b, where L = g.(a b + a), so a is used twice, or three times. */
static void run(const Case *c, const Gradient *out, void (*backward)(Node *))
{
    const int n = count_of(c);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *a = tape_variable(tape, c->in[A], shape(n));
    Tensor *b = is_square(c) ? a : tape_variable(tape, c->in[B], shape(n));
    Tensor *ab = backward ? product(tape, a, b, backward) : op_multiply(tape, a, b);
    tape_backward_from(tape, op_add(tape, ab, a), tape_input(tape, c->in[G], shape(n)));
    const Tensor *inputs[2] = { a, b };
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < n && inputs[k]->has_gradient; i++)
            out[k].data[i] = inputs[k]->gradient->data[i];
    tape_free(tape);
}

static void make(Case *c, int index)
{
    const int n = c->size[0] = 3 + 2 * index;
    c->size[1] = index == 1; /* a and b are the same tensor */
    case_normal(c, index, A, n);
    case_normal(c, index, B, n);
    case_normal(c, index, G, n);
    Real da[ELEMENTS], db[ELEMENTS];
    run(c, (Gradient[]){ { da, false }, { db, false } }, NULL);
    case_right(c, 0, da, 1, n);
    case_right(c, 1, db, 1, n);
}

/* An answer that runs the tape with this backward function. */
#define ANSWER(name)                                                                               \
    static void name##_answer(const Case *c, const Gradient *out)                                  \
    {                                                                                              \
        run(c, out, name);                                                                         \
    }
ANSWER(product_backward)

/* A backward function that contributes `da` to a and `db` to b by `add`. */
#define BACKWARD(name, add, da_i, db_i)                                                            \
    static void name(Node *node)                                                                   \
    {                                                                                              \
        Tensor *a = node->inputs[0], *b = node->inputs[1];                                         \
        const Real *g = tape_upstream(node, 0);                                                    \
        Gradient da = tape_contribution(node, a), db = tape_contribution(node, b);                 \
        for (int64_t i = 0; i < tensor_count(a); i++) {                                            \
            add(da, i, da_i);                                                                      \
            add(db, i, db_i);                                                                      \
        }                                                                                          \
    }                                                                                              \
    ANSWER(name)
static void store(Gradient to, int64_t i, Real value)
{
    to.data[i] = value;
}
BACKWARD(own_factor, gradient_add, g[i] * a->data[i], g[i] * b->data[i])
BACKWARD(no_upstream, gradient_add, b->data[i] + 0 * g[i], a->data[i])
BACKWARD(replaces, store, g[i] * b->data[i], g[i] * a->data[i])
BACKWARD(sum_of_factors, gradient_add, g[i] + 0 * b->data[i], g[i])

/* x x by one factor: only a gets a contribution where both are one tensor. */
static void one_factor(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1];
    const Real *g = tape_upstream(node, 0);
    for (int side = 0; side < (a == b ? 1 : 2); side++) {
        Gradient d = tape_contribution(node, side ? b : a);
        for (int64_t i = 0; i < tensor_count(a); i++)
            gradient_add(d, i, g[i] * (side ? a : b)->data[i]);
    }
}
ANSWER(one_factor)

int main(void)
{
    return grade(&(Exercise){
        .name = "product_backward",
        .outputs = { "da", "db" },
        .fills = true,
        .make = make,
        .student = product_backward_answer,
        .mistakes = {
            { own_factor_answer, "da has the factor a and db the factor b: the derivative of a b "
                                 "by a is b, the other factor" },
            { no_upstream_answer, "g is missing: the chain rule multiplies by dL/dout" },
            { replaces_answer, "the contribution replaces what the gradient held: a is used "
                               "elsewhere too. Add, by gradient_add" },
            { sum_of_factors_answer, "this is the derivative of a + b: of a product each factor "
                                     "is the derivative by the other" },
            { one_factor_answer, "where a and b are one tensor, both uses contribute: the "
                                 "derivative of x x is 2 x" },
        },
    });
}
