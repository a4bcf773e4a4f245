/* sum and mean along one axis of x [outer, size, inner], or over all of x as [1, size, 1]:
 *   out[o, i] = f sum_j x[o, j, i], f = 1 for the sum, 1 / size for the mean
 * Backward, g = dL/dout, is a broadcast along the axis:
 *   dx[o, j, i] <- f g[o, i]
 * out and g have dtype Real for every dtype of x. The order of summation does not depend on the
 * number of threads; sums are in double precision and rounded once. */
#include "ops/elementwise/broadcast.h"
#include "ops/kernels.h"
#include "ops/shared/axis.h"

typedef struct Sum {
    Broadcast view; /* of out, broadcast to x */
    double factor;
} Sum;

static void sum_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Sum *s = node->attributes;
    kernels_of(x)->broadcast_copy(tape_contribution(node, x), (Real)s->factor,
                                  tape_upstream(node, 0), s->view, true);
}

static Tensor *reduce(Tape *tape, const char *name, const char *label, Tensor *x, int axis,
                      bool mean)
{
    tape_use(tape, label, x);
    Shape shape;
    const AxisView v = axis_to_reduce(tape, label, x, axis, &shape);
    const Sum s = { broadcast_of(shape(v.outer, 1, v.inner), shape(v.outer, v.size, v.inner)),
                    mean ? 1 / (double)v.size : 1 };
    Tensor *out = tape_tensor(tape, shape);
    kernels_of(x)->broadcast_sum((Gradient){ out->data, false }, s.factor, x->data, s.view, true);
    tape_record(tape, (Node){ name, sum_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_sum(Tape *tape, Tensor *x, int axis)
{
    return reduce(tape, "op_sum", "op_sum: x", x, axis, false);
}

Tensor *op_mean(Tape *tape, Tensor *x, int axis)
{
    return reduce(tape, "op_mean", "op_mean: x", x, axis, true);
}

/* variance: the mean of d^2, d = x - mean, in two passes: sum x^2 / n - mean^2 would cancel. All in
 * Real, since bf16 would round the mean. The operations make the gradient; as sum_i d_i = 0,
 *   dx_j <- sum_i 2 d_i ([i = j] - 1 / n) g / n = 2 d_j g / n */
Tensor *op_variance(Tape *tape, Tensor *x, int axis)
{
    tape_use(tape, "op_variance: x", x);
    Shape shape;
    const AxisView v = axis_to_reduce(tape, "op_variance: x", x, axis, &shape);
    if (axis != ALL_AXES) { /* the mean keeps its axis */
        shape = x->shape;
        shape.size[v.index] = 1;
    }
    x = op_cast(tape, x, TENSOR_REAL);
    Tensor *mean = op_reshape(tape, op_mean(tape, x, axis), shape);
    return op_mean(tape, op_square(tape, op_subtract(tape, x, mean)), axis);
}
