/* softmax of each of R rows of C elements
 *   out_c = e^(x_c - m) / sum_j e^(x_j - m)          m = max_j x_j cancels; it prevents overflow
 * A row of -infinity alone has no softmax: NaN.
 * Backward, g = dL/dout. With s = sum_j e^x_j, d s / d x_j = e^x_j and the quotient rule,
 *   d out_c / d x_j = ([c = j] e^x_c s - e^x_c e^x_j) / s^2 = out_c ([c = j] - out_j)
 *   dx_j <- sum_c g_c out_c ([c = j] - out_j) = out_j (g_j - sum_c g_c out_c)
 *
 * log_softmax, its logarithm
 *   out_c = x_c - ln sum_j e^x_j = (x_c - m) - ln sum_j e^(x_j - m)
 * Backward, with d out_c / d x_j = [c = j] - e^out_j:
 *   dx_j <- g_j - e^out_j sum_c g_c */
#include "ops/kernels.h"
#include "ops/shared/rows.h"

/* out_c = e^(x_c - m); returns their sum */
static inline double softmax_powers(Real *out, const Real *x, Real m, int64_t C)
{
    PRAGMA(omp simd)
    for (int64_t c = 0; c < C; c++)
        out[c] = real_exp(x[c] - m);
    return row_sum(out, C);
}

void softmax_row(Real *out, const Real *x, int64_t C)
{
    const Real scale = (Real)(1 / softmax_powers(out, x, row_max(x, C), C));
    for (int64_t c = 0; c < C; c++)
        out[c] *= scale;
}

void softmax_row_backward(Gradient dx, const Real *g, const Real *out, int64_t C)
{
    const Real sum = (Real)row_dot(g, out, C);
    PRAGMA(omp simd)
    for (int64_t c = 0; c < C; c++)
        gradient_add(dx, c, out[c] * (g[c] - sum));
}

void log_softmax_row(Real *out, const Real *x, int64_t C)
{
    const Real m = row_max(x, C), log_sum = (Real)log(softmax_powers(out, x, m, C));
    PRAGMA(omp simd)
    for (int64_t c = 0; c < C; c++)
        out[c] = (x[c] - m) - log_sum;
}

void log_softmax_row_backward(Gradient dx, const Real *g, const Real *out, int64_t C)
{
    const Real sum = (Real)row_sum(g, C);
    PRAGMA(omp simd)
    for (int64_t c = 0; c < C; c++)
        gradient_add(dx, c, g[c] - real_exp(out[c]) * sum);
}

void softmax_forward_plain(Real *out, const Real *x, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C)
        softmax_row(out + r * C, x + r * C, C);
}

void softmax_backward_plain(Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C)
        softmax_row_backward(gradient_from(dx, r * C), dout + r * C, out + r * C, C);
}

void log_softmax_forward_plain(Real *out, const Real *x, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C)
        log_softmax_row(out + r * C, x + r * C, C);
}

void log_softmax_backward_plain(Gradient dx, const Real *dout, const Real *out, int64_t R,
                                int64_t C)
{
    EACH_ROW(r, R, C)
        log_softmax_row_backward(gradient_from(dx, r * C), dout + r * C, out + r * C, C);
}

static void softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    kernels_of(x)->softmax_backward(tape_contribution(node, x), tape_upstream(node, 0), out->data,
                                    shape_rows(x->shape), shape_columns(x->shape));
}

Tensor *op_softmax(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_softmax: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->softmax_forward(out->data, x->data, shape_rows(x->shape),
                                   shape_columns(x->shape));
    tape_record(tape,
                (Node){ "op_softmax", softmax_backward, .inputs = { x }, .outputs = { out } });
    return out;
}

static void log_softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    kernels_of(x)->log_softmax_backward(tape_contribution(node, x), tape_upstream(node, 0),
                                        out->data, shape_rows(x->shape), shape_columns(x->shape));
}

Tensor *op_log_softmax(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_log_softmax: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->log_softmax_forward(out->data, x->data, shape_rows(x->shape),
                                       shape_columns(x->shape));
    tape_record(tape, (Node){ "op_log_softmax", log_softmax_backward, .inputs = { x },
                              .outputs = { out } });
    return out;
}
