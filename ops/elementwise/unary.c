/* The unary operations: each applies a function of unary_functions.h to every element.
 *   out_i = f(x_i)
 * Backward, g = dL/dout:
 *   dx_i <- g_i f'(x_i)
 * The backward pass reads x or, where f' is a function of f, out. */
#include "ops/elementwise/elementwise.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

typedef enum Saved { SAVED_x, SAVED_out } Saved;

/* The two loops of a row. The element that the backward pass reads is named x or out. simdlen: gcc
 * takes vectors of 512 bits where there are some. */
#define UNARY_LOOPS(op, value, gradient, saved)                                                    \
    static void op##_loop(Real *out, const Real *input, Constants k, int64_t n)                    \
    {                                                                                              \
        (void)k;                                                                                   \
        PRAGMA(omp simd simdlen(16))                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const Real x = input[i];                                                               \
            out[i] = value;                                                                        \
        }                                                                                          \
    }                                                                                              \
    static void op##_gradient_loop(Gradient dx, const Real *upstream, const Real *read,            \
                                   Constants k, int64_t n)                                         \
    {                                                                                              \
        (void)k;                                                                                   \
        PRAGMA(omp simd simdlen(16))                                                               \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const Real dout = upstream[i], saved = read[i];                                        \
            (void)saved;                                                                           \
            gradient_add(dx, i, gradient);                                                         \
        }                                                                                          \
    }
/* Whether math_sine serves all of x [n]. */
static bool all_near(const Real *x, int64_t n)
{
    int32_t far = 0;
    PRAGMA(omp simd simdlen(16) reduction(+ : far))
    for (int64_t i = 0; i < n; i++)
        far += !math_near(x[i]);
    return far == 0;
}

/* Those of a periodic row: of vectors where all x are near. */
#define PERIODIC_LOOPS(op, quarters)                                                               \
    UNARY_LOOPS(near_##op, math_sine(x, quarters), dout *math_sine(x, quarters + 1), x)            \
    UNARY_LOOPS(any_##op, math_any_sine(x, quarters), dout *math_any_sine(x, quarters + 1), x)     \
    static void op##_loop(Real *out, const Real *x, Constants k, int64_t n)                        \
    {                                                                                              \
        (all_near(x, n) ? near_##op##_loop : any_##op##_loop)(out, x, k, n);                       \
    }                                                                                              \
    static void op##_gradient_loop(Gradient dx, const Real *dout, const Real *x, Constants k,      \
                                   int64_t n)                                                      \
    {                                                                                              \
        (all_near(x, n) ? near_##op##_gradient_loop : any_##op##_gradient_loop)(dx, dout, x, k,    \
                                                                                n);                \
    }
UNARY_ROWS(UNARY_LOOPS, PERIODIC_LOOPS)

static const struct Unary {
    const char *name, *label; /* the label of its argument, for messages */
    Saved saved;
    UnaryLoops loops;
} unary_rows[] = {
#define UNARY_ENTRY(op, value, gradient, saved)                                                    \
    [UNARY_##op] = { "op_" #op, "op_" #op ": x", SAVED_##saved, { op##_loop, op##_gradient_loop } },
#define PERIODIC_ENTRY(op, quarters) UNARY_ENTRY(op, , , x)
    UNARY_ROWS(UNARY_ENTRY, PERIODIC_ENTRY)
};

UnaryLoops unary_loops(UnaryFunction f)
{
    return unary_rows[f].loops;
}

void unary_forward_plain(UnaryFunction f, Real *out, const Real *x, Constants k, int64_t n)
{
    EACH_BLOCK(first, n)
    unary_rows[f].loops.forward(out + first, x + first, k, block_count(first, n));
}

void unary_backward_plain(UnaryFunction f, Gradient dx, const Real *dout, const Real *read,
                          Constants k, int64_t n)
{
    EACH_BLOCK(first, n)
    unary_rows[f].loops.backward(gradient_from(dx, first), dout + first, read + first, k,
                                 block_count(first, n));
}

typedef struct UnaryAttributes {
    UnaryFunction f;
    Constants k;
} UnaryAttributes;

static void unary_backward(Node *node)
{
    const UnaryAttributes *a = node->attributes;
    Tensor *x = node->inputs[0], *read = unary_rows[a->f].saved == SAVED_x ? x : node->outputs[0];
    kernels_of(x)->unary_backward(a->f, tape_contribution(node, x), tape_upstream(node, 0),
                                  read->data, a->k, tensor_count(x));
}

static Tensor *unary_with(Tape *tape, UnaryFunction f, Tensor *x, double c, double d)
{
    const UnaryAttributes a = { f, { (Real)c, (Real)d } };
    tape_use(tape, unary_rows[f].label, x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->unary_forward(f, out->data, x->data, a.k, tensor_count(x));
    tape_record(tape, (Node){ unary_rows[f].name, unary_backward, .inputs = { x },
                              .outputs = { out }, .attributes = tape_save(tape, &a, sizeof a) });
    return out;
}

static Tensor *unary(Tape *tape, UnaryFunction f, Tensor *x)
{
    return unary_with(tape, f, x, 0, 0);
}

/* clang-format off */
Tensor *op_exp(Tape *tape, Tensor *x)          { return unary(tape, UNARY_exp, x); }
Tensor *op_log(Tape *tape, Tensor *x)          { return unary(tape, UNARY_log, x); }
Tensor *op_tanh(Tape *tape, Tensor *x)         { return unary(tape, UNARY_tanh, x); }
Tensor *op_sigmoid(Tape *tape, Tensor *x)      { return unary(tape, UNARY_sigmoid, x); }
Tensor *op_relu(Tape *tape, Tensor *x)         { return unary(tape, UNARY_relu, x); }
Tensor *op_squared_relu(Tape *tape, Tensor *x) { return unary(tape, UNARY_squared_relu, x); }
Tensor *op_gelu(Tape *tape, Tensor *x)         { return unary(tape, UNARY_gelu, x); }
Tensor *op_gelu_tanh(Tape *tape, Tensor *x)    { return unary(tape, UNARY_gelu_tanh, x); }
Tensor *op_elu(Tape *tape, Tensor *x)          { return unary(tape, UNARY_elu, x); }
Tensor *op_elu_plus_one(Tape *tape, Tensor *x) { return unary(tape, UNARY_elu_plus_one, x); }
Tensor *op_softplus(Tape *tape, Tensor *x)     { return unary(tape, UNARY_softplus, x); }
Tensor *op_silu(Tape *tape, Tensor *x)         { return unary(tape, UNARY_silu, x); }
Tensor *op_log_sigmoid(Tape *tape, Tensor *x)  { return unary(tape, UNARY_log_sigmoid, x); }
Tensor *op_sqrt(Tape *tape, Tensor *x)         { return unary(tape, UNARY_sqrt, x); }
Tensor *op_square(Tape *tape, Tensor *x)       { return unary(tape, UNARY_square, x); }
Tensor *op_abs(Tape *tape, Tensor *x)          { return unary(tape, UNARY_abs, x); }
Tensor *op_sin(Tape *tape, Tensor *x)          { return unary(tape, UNARY_sin, x); }
Tensor *op_cos(Tape *tape, Tensor *x)          { return unary(tape, UNARY_cos, x); }
/* clang-format on */

Tensor *op_scale(Tape *tape, Tensor *x, double factor)
{
    return unary_with(tape, UNARY_scale, x, factor, 0);
}

Tensor *op_add_scalar(Tape *tape, Tensor *x, double value)
{
    return unary_with(tape, UNARY_add_scalar, x, value, 0);
}

Tensor *op_pow(Tape *tape, Tensor *x, double exponent)
{
    return unary_with(tape, UNARY_pow, x, exponent, 0);
}

Tensor *op_clamp(Tape *tape, Tensor *x, double low, double high)
{
    tape_use(tape, unary_rows[UNARY_clamp].label, x);
    if (!(low <= high))
        tape_error(tape, "op_clamp: low is %g, high is %g, expected low <= high", low, high);
    return unary_with(tape, UNARY_clamp, x, low, high);
}
