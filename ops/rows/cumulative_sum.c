/* cumulative_sum along one axis, x viewed as [outer, size, inner]:
 *   out[o, n, i] = sum over j <= n (reverse: j >= n) of x[o, j, i]
 * Backward, g = dL/dout: x_j contributes to the sums n >= j, so the gradient is summed in reverse,
 *   dx[o, j, i] <- sum over n >= j (reverse: n <= j) of g[o, n, i] */
#include "ops/kernels.h"
#include "ops/shared/axis.h"
#include "ops/shared/internal.h"

typedef struct Running {
    AxisView axis;
    bool reverse;
} Running;

void cumulative_sum_plain(Gradient out, const Real *x, bool reverse, AxisView v)
{
    EACH_ROW(item, v.outer * v.inner, v.size) {
        const int64_t start = item / v.inner * v.size * v.inner + item % v.inner;
        double sum = 0;
        for (int64_t step = 0; step < v.size; step++) {
            const int64_t n = start + (reverse ? v.size - 1 - step : step) * v.inner;
            sum += x[n];
            gradient_add(out, n, (Real)sum);
        }
    }
}

static void cumulative_sum_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Running *s = node->attributes;
    kernels_of(x)->cumulative_sum(tape_contribution(node, x), tape_upstream(node, 0), !s->reverse,
                                  s->axis);
}

/* label: the operation's name and its argument's */
static Tensor *cumulative_sum(Tape *tape, const char *name, const char *label, Tensor *x, int axis,
                              bool reverse)
{
    tape_use(tape, label, x);
    Running s = { axis_view(tape, label, x, axis), reverse };
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->cumulative_sum((Gradient){ out->data, false }, x->data, reverse, s.axis);
    tape_record(tape, (Node){ name, cumulative_sum_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_cumulative_sum(Tape *tape, Tensor *x, int axis)
{
    return cumulative_sum(tape, "op_cumulative_sum", "op_cumulative_sum: x", x, axis, false);
}

Tensor *op_reverse_cumulative_sum(Tape *tape, Tensor *x, int axis)
{
    return cumulative_sum(tape, "op_reverse_cumulative_sum", "op_reverse_cumulative_sum: x", x,
                          axis, true);
}
