/* Exercise 4.2: the right gradients are those of op_conv2d, of an image with one row; the usual
 * mistakes are loops over all n and k that add one product to dx and one to dw. */
#include "exercise.h"
#include "../grade.h"

enum { X, W, G };

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 7, 3 }, { 9, 2 }, { 8, 5 } };
    const int N = c->size[0] = sizes[index][0], K = c->size[1] = sizes[index][1];
    case_normal(c, index, X, N + K); /* more numbers than the arrays have: a wrong index */
    case_normal(c, index, W, K);     /* reads none that is 0 */
    case_normal(c, index, G, N + K);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, c->in[X], shape(1, 1, N, 1));
    Tensor *w = tape_variable(tape, c->in[W], shape(1, 1, K, 1));
    Tensor *out = op_conv2d(tape, x, w, NULL, (Window){ .stride = 1 }, 1);
    tape_backward_from(tape, out, tape_input(tape, c->in[G], shape(1, 1, N - K + 1, 1)));
    case_right(c, 0, tensor_gradient(x)->data, 1, N);
    case_right(c, 1, tensor_gradient(w)->data, 1, K);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    convolution_backward(out[0].data, out[1].data, c->in[G], c->in[X], c->in[W], c->size[0],
                         c->size[1]);
}

/* For n < `end`, k < K, and where `use` is true: dx_m `add` dx_value, dw_k `add_w` dw_value */
#define LOOPS(name, end, use, m, add, dx_value, add_w, dw_value)                                   \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        const int N = c->size[0], K = c->size[1];                                                  \
        const Real *g = c->in[G], *x = c->in[X], *w = c->in[W];                                    \
        Real *dx = out[0].data, *dw = out[1].data;                                                 \
        for (int n = 0; n < end; n++)                                                              \
            for (int k = 0; k < K; k++) {                                                          \
                if (use)                                                                           \
                    dx[m] add dx_value;                                                            \
                dw[k] add_w dw_value;                                                              \
            }                                                                                      \
    }
#define M (N - K + 1)
LOOPS(reversed, M, true, n + k, +=, g[n] * w[K - 1 - k], +=, g[n] * x[n + k])
LOOPS(both_reversed, M, true, n + k, +=, g[n] * w[K - 1 - k], +=, g[n] * x[n + K - 1 - k])
LOOPS(edges, M, n + k >= K - 1 && n + k < M, n + k, +=, g[n] * w[k], +=, g[n] * x[n + k])
LOOPS(as_forward, M, n + k < M, n, +=, g[n + k] * w[k], +=, g[n] * x[n + k])
LOOPS(no_k, M, true, n, +=, g[n] * w[k], +=, g[n] * x[n + k])
LOOPS(x_n, M, true, n + k, +=, g[n] * w[k], +=, g[n] * x[n])
LOOPS(x_k, M, true, n + k, +=, g[n] * w[k], +=, g[n] * x[k])
LOOPS(stores, M, true, n + k, =, g[n] * w[k], +=, g[n] * x[n + k])
LOOPS(stores_both, M, true, n + k, =, g[n] * w[k], =, g[n] * x[n + k])
LOOPS(to_N, N, n + k < N, n + k, +=, g[n] * w[k], +=, g[n] * (n + k < N ? x[n + k] : 0))
LOOPS(own_operand, M, true, n + k, +=, g[n] * x[n + k], +=, g[n] * w[k])
LOOPS(no_upstream, M, true, n + k, +=, 0 * g[n] + w[k], +=, x[n + k])

int main(void)
{
    return grade(&(Exercise){
        .name = "convolution_backward",
        .outputs = { "dx", "dw" },
        .adds = true,
        .make = make,
        .student = student,
        .mistakes = {
            { reversed, "the kernel is reversed in dx: out_n multiplies x_(n + k) with w_k, so "
                        "w_k is also its derivative" },
            { both_reversed, "the kernel is reversed, in dx and in dw: here out_n multiplies "
                             "x_(n + k) with w_k, and no index runs backwards" },
            { edges, "dx misses the elements at both edges: they are in fewer than K windows, but "
                     "each of these windows contributes" },
            { as_forward, "dx_n sums g_(n + k) w_k, the same loop as in the forward pass: x_m is "
                          "read by out_n with n = m - k, not m + k" },
            { no_k, "all terms of a window are added to dx_n: the factor of w_k is x_(n + k), so "
                    "g_n w_k belongs to dx_(n + k)" },
            { x_n, "the offset k is missing in dw: w_k multiplies x_(n + k), not x_n" },
            { x_k, "the offset n is missing in dw: w_k multiplies x_(n + k), not x_k" },
            { stores, "= where += is needed, in dx: windows overlap, and x_m gets a contribution "
                      "from each window that contains it" },
            { stores_both, "= where += is needed, in dx and dw: an element is used by several "
                           "windows, and = keeps the last use alone" },
            { to_N, "n runs to N: only N - K + 1 windows fit into x, and g has no element beyond "
                    "them" },
            { own_operand, "dx multiplies g with x, and dw multiplies it with w: each gets the "
                           "other operand" },
            { no_upstream, "g is missing: the chain rule multiplies each use by dL/dout_n" },
        },
    });
}
