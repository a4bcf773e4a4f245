/* softmax of each of R rows of C elements
 *   out_c = e^(x_c - m) / sum_j e^(x_j - m)          m = max_j x_j cancels; it prevents overflow
 * Backward, g = dL/dout, with dout_c / dx_j = out_c ([c = j] - out_j):
 *   dx_j <- out_j (g_j - sum_c g_c out_c) */
#include "ops/rows/kernels.h"
#include "ops/rows/rows.h"

/* out [R, C], x [R, C] */
void softmax_forward_cpu(Real *out, const Real *x, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t row = 0; row < R; row++) {
        const Real *xs = x + row * C;
        Real *outs = out + row * C;
        Real m = row_max(xs, C), sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < C; c++) {
            outs[c] = real_exp(xs[c] - m);
            sum += outs[c];
        }
        Real scale = 1 / sum;
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            outs[c] *= scale;
    }
}

/* dx [R, C], dout [R, C], out [R, C] */
void softmax_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out, int64_t R,
                          int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t row = 0; row < R; row++) {
        const Real *g = dout + row * C, *outs = out + row * C;
        Real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < C; c++)
            sum += g[c] * outs[c];
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            contribute(&dx[row * C + c], accumulate, outs[c] * (g[c] - sum));
    }
}

static void softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, softmax_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, shape_rows(x->shape),
                 shape_columns(x->shape)));
}

Tensor *op_softmax(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_softmax: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    KERNEL_CALL(out, softmax_forward,
                (out->data, x->data, shape_rows(x->shape), shape_columns(x->shape)));
    tape_record(tape, (Node){ .name = "op_softmax",
                              .backward = softmax_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
