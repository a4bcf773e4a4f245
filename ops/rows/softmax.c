/* softmax of each of R rows of C elements
 *   out_c = e^(x_c - m) / sum_j e^(x_j - m)          m = max_j x_j cancels; it prevents overflow
 * Backward, g = dL/dout, with dout_c / dx_j = out_c ([c = j] - out_j):
 *   dx_j <- out_j (g_j - sum_c g_c out_c)
 *
 * log_softmax, its logarithm
 *   out_c = x_c - ln sum_j e^x_j
 * Backward, with dout_c / dx_j = [c = j] - e^out_j:
 *   dx_j <- g_j - e^out_j sum_c g_c */
#include "ops/rows/kernels.h"
#include "ops/rows/rows.h"

static void softmax_row(Real *out, const Real *x, int64_t C)
{
    const Real m = row_max(x, C);
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++) {
        out[c] = real_exp(x[c] - m);
        sum += out[c];
    }
    const Real scale = 1 / sum;
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        out[c] *= scale;
}

static void log_softmax_row(Real *out, const Real *x, int64_t C)
{
    const Real log_sum_exp = row_log_sum_exp(x, C);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        out[c] = x[c] - log_sum_exp;
}

/* out [R, C], x [R, C] */
void softmax_forward_cpu(Real *out, const Real *x, bool logarithm, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t row = 0; row < R; row++)
        (logarithm ? log_softmax_row : softmax_row)(out + row * C, x + row * C, C);
}

static void softmax_row_backward(Real *dx, bool accumulate, const Real *g, const Real *out,
                                 int64_t C)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += g[c] * out[c];
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        contribute(&dx[c], accumulate, out[c] * (g[c] - sum));
}

static void log_softmax_row_backward(Real *dx, bool accumulate, const Real *g, const Real *out,
                                     int64_t C)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += g[c];
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        contribute(&dx[c], accumulate, g[c] - real_exp(out[c]) * sum);
}

/* dx [R, C], dout [R, C], out [R, C] */
void softmax_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                          bool logarithm, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t i = 0; i < R * C; i += C)
        (logarithm ? log_softmax_row_backward : softmax_row_backward)(dx + i, accumulate, dout + i,
                                                                      out + i, C);
}

static void softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, softmax_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data,
                 *(const bool *)node->attributes, shape_rows(x->shape), shape_columns(x->shape)));
}

/* label: the operation's name and its argument's */
static Tensor *softmax(Tape *tape, const char *name, const char *label, Tensor *x, bool logarithm)
{
    tape_use(tape, label, x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    KERNEL_CALL(out, softmax_forward,
                (out->data, x->data, logarithm, shape_rows(x->shape), shape_columns(x->shape)));
    tape_record(tape, (Node){ name, softmax_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &logarithm, sizeof logarithm) });
    return out;
}

Tensor *op_softmax(Tape *tape, Tensor *x)
{
    return softmax(tape, "op_softmax", "op_softmax: x", x, false);
}

Tensor *op_log_softmax(Tape *tape, Tensor *x)
{
    return softmax(tape, "op_log_softmax", "op_log_softmax: x", x, true);
}
