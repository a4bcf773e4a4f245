/* softmax of each of R rows of C elements
 *   out_c = e^(x_c - m) / sum_j e^(x_j - m)          m = max_j x_j cancels; it prevents overflow
 * Backward, g = dL/dout, with dout_c / dx_j = out_c ([c = j] - out_j):
 *   dx_j <- out_j (g_j - sum_c g_c out_c)
 *
 * log_softmax, its logarithm
 *   out_c = x_c - ln sum_j e^x_j = (x_c - m) - ln sum_j e^(x_j - m)
 * Backward, with dout_c / dx_j = [c = j] - e^out_j:
 *   dx_j <- g_j - e^out_j sum_c g_c */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void softmax_forward_plain(Real *out, const Real *x, bool logarithm, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C)
    {
        const Real *x_r = x + r * C;
        Real *out_r = out + r * C, m = -(Real)INFINITY;
        double sum = 0;
        SUM(max, m)
        for (int64_t c = 0; c < C; c++)
            m = x_r[c] > m ? x_r[c] : m;
        SUM(+, sum)
        for (int64_t c = 0; c < C; c++)
            sum += (out_r[c] = real_exp(x_r[c] - m));
        const Real log_sum = (Real)log(sum), scale = (Real)(1 / sum);
        for (int64_t c = 0; c < C; c++)
            out_r[c] = logarithm ? x_r[c] - m - log_sum : out_r[c] * scale;
    }
}

void softmax_backward_plain(Gradient dx, const Real *dout, const Real *out, bool logarithm,
                            int64_t R, int64_t C)
{
    EACH_ROW(r, R, C)
    {
        const Real *g = dout + r * C, *out_r = out + r * C;
        double sum = 0;
        SUM(+, sum)
        for (int64_t c = 0; c < C; c++)
            sum += (logarithm ? g[c] : g[c] * out_r[c]);
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++)
            gradient_add(dx, r * C + c,
                         logarithm ? g[c] - real_exp(out_r[c]) * (Real)sum
                                   : out_r[c] * (g[c] - (Real)sum));
    }
}

static void softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    kernels_of(x)->softmax_backward(tape_contribution(node, x), tape_upstream(node, 0), out->data,
                                    *(const bool *)node->attributes, shape_rows(x->shape),
                                    shape_columns(x->shape));
}

/* label: the operation's name and its argument's */
static Tensor *softmax(Tape *tape, const char *name, const char *label, Tensor *x, bool logarithm)
{
    tape_use(tape, label, x);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->softmax_forward(out->data, x->data, logarithm, shape_rows(x->shape),
                                   shape_columns(x->shape));
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
