/* max and argmax along one axis of x [outer, size, inner], or over all of x as [1, size, 1]:
 *   index[o, i] = the first j with the largest x[o, j, i]     out[o, i] = x[o, index[o, i], i]
 * A NaN counts as larger than every number, so it shows in the result.
 * Backward, g = dL/dout; only the first maximum is in the result:
 *   dx[o, index[o, i], i] <- g[o, i]; the other elements of dx get 0 */
#include "ops/kernels.h"
#include "ops/shared/axis.h"
#include "ops/shared/internal.h"

void argmax_plain(int32_t *index, const Real *x, AxisView v)
{
    EACH_ROW(item, v.outer * v.inner, v.size) {
        const Real *x_o = x + item / v.inner * v.size * v.inner + item % v.inner;
        int64_t first = 0;
        Real max = x_o[0];
        for (int64_t j = 1; j < v.size && max == max; j++)
            if (!(x_o[j * v.inner] <= max)) { /* larger, or NaN */
                max = x_o[j * v.inner];
                first = j;
            }
        index[item] = (int32_t)first;
    }
}

static Tensor *argmax(Tape *tape, const char *label, Tensor *x, int axis, AxisView *v)
{
    Shape shape;
    tape_use(tape, label, x);
    *v = axis_to_reduce(tape, label, x, axis, &shape);
    if (v->size > INT32_MAX)
        tape_error(tape, "%s %s, expected at most 2^31 - 1 elements along the axis", label,
                   tensor_text(x).text);
    Tensor *index = bounded_integers(tape, shape, (int32_t)(v->size - 1));
    kernels_of(x)->argmax(index->integers, x->data, *v);
    return index;
}

Tensor *op_argmax(Tape *tape, Tensor *x, int axis)
{
    AxisView v;
    Tensor *index = argmax(tape, "op_argmax: x", x, axis, &v);
    tape_record(tape, (Node){ .name = "op_argmax", .outputs = { index } });
    return index;
}

static void max_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Gradient dx = tape_scattered_contribution(node, x);
    kernels_of(x)->gather_backward(dx.data, tape_upstream(node, 0), node->saved[0]->integers,
                                   *(const AxisView *)node->attributes, 1);
}

Tensor *op_max(Tape *tape, Tensor *x, int axis)
{
    AxisView v;
    Tensor *index = argmax(tape, "op_max: x", x, axis, &v);
    Tensor *out = tape_tensor_of(tape, x->type, index->shape);
    kernels_of(x)->gather_forward(out->data, x->data, index->integers, v, 1);
    tape_record(tape, (Node){ "op_max", max_backward, .inputs = { x }, .outputs = { out },
                              .saved = { index }, .attributes = tape_save(tape, &v, sizeof v) });
    return out;
}
