/* slice along one axis, x viewed as [outer, size, inner]:
 *   out[o, j, i] = x[o, start + j, i], j < count
 * Backward, g = dL/dout:
 *   dx[o, start + j, i] <- g[o, j, i]; the other elements of dx get 0 */
#include "ops/layout/layout.h"

typedef struct Slice {
    AxisView axis;
    int64_t start, count;
} Slice;

static void slice_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Slice *s = node->attributes;
    int64_t x_stride = s->axis.size * s->axis.inner, out_stride = s->count * s->axis.inner;
    Gradient dx = tape_contribution(node, x);
    if (!dx.accumulate)
        device_zero(x->device, dx.data, (size_t)tensor_count(x) * tensor_element_bytes(x));
    copy_rows(x, elements_on(x, dx.data, s->start * s->axis.inner), x_stride, dx.accumulate,
              tape_upstream(node, 0), out_stride, s->axis.outer, out_stride);
}

Tensor *op_slice(Tape *tape, Tensor *x, int axis, int64_t start, int64_t count)
{
    tape_use(tape, "op_slice: x", x);
    Slice s = { axis_view(tape, "op_slice: x", x->shape, axis), start, count };
    if (start < 0 || count < 1 || start > s.axis.size - count)
        tape_error(tape,
                   "op_slice: axis %d of x, %s, has no %lld entries from %lld on; expected "
                   "0 <= start, 1 <= count, start + count <= %lld",
                   axis, shape_text(x->shape).text, (long long)count, (long long)start,
                   (long long)s.axis.size);
    Shape shape = x->shape;
    shape.size[s.axis.index] = count;
    Tensor *out = tape_tensor_of(tape, x->type, shape);
    int64_t x_stride = s.axis.size * s.axis.inner, out_stride = count * s.axis.inner;
    copy_rows(x, out->data, out_stride, false, tensor_at(x, start * s.axis.inner), x_stride,
              s.axis.outer, out_stride);
    tape_record(tape, (Node){ .name = "op_slice",
                              .backward = slice_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}
