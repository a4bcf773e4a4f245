/* log_softmax of each of R rows of C elements
 *   out_c = x_c - ln sum_j e^x_j
 * Backward, g = dL/dout, with dout_c / dx_j = [c = j] - e^out_j:
 *   dx_j <- g_j - e^out_j sum_c g_c */
#include "ops/rows/kernels.h"
#include "ops/rows/rows.h"

/* out [R, C], x [R, C] */
void log_softmax_forward_cpu(Real *out, const Real *x, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t row = 0; row < R; row++) {
        Real log_sum_exp = row_log_sum_exp(x + row * C, C);
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            out[row * C + c] = x[row * C + c] - log_sum_exp;
    }
}

/* dx [R, C], dout [R, C], out [R, C] */
void log_softmax_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *out,
                              int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t row = 0; row < R; row++) {
        const Real *g = dout + row * C, *outs = out + row * C;
        Real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < C; c++)
            sum += g[c];
#pragma omp simd
        for (int64_t c = 0; c < C; c++)
            contribute(&dx[row * C + c], accumulate, g[c] - real_exp(outs[c]) * sum);
    }
}

static void log_softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, log_softmax_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data, shape_rows(x->shape),
                 shape_columns(x->shape)));
}

Tensor *op_log_softmax(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_log_softmax: x", x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    KERNEL_CALL(out, log_softmax_forward,
                (out->data, x->data, shape_rows(x->shape), shape_columns(x->shape)));
    tape_record(tape, (Node){ .name = "op_log_softmax",
                              .backward = log_softmax_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
