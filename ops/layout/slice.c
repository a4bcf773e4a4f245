/* slice along one axis, x viewed as [outer, size, inner]:
 *   out[o, j, i] = x[o, start + j, i], j < count
 * Backward, g = dL/dout:
 *   dx[o, start + j, i] <- g[o, j, i]; the other elements of dx get 0
 * select is a slice of one entry, without the axis.
 * split is count slices: only the first contribution zeroes dx, later ones add to their part. */
#include "ops/kernels.h"
#include "ops/shared/axis.h"
#include "ops/shared/integers.h"
#include "ops/shared/internal.h"

/* The axis is merged with those after it: out [outer, columns] is x [outer, stride] from column
 * `first` on. */
typedef struct Slice {
    int64_t outer, stride, first, columns;
} Slice;

void copy_rows_plain(Gradient to, int64_t to_stride, const Real *from, int64_t from_stride,
                     int64_t rows, int64_t columns)
{
    EACH_ROW(r, rows, columns)
        for (int64_t c = 0; c < columns; c++)
            gradient_add(to, r * to_stride + c, from[r * from_stride + c]);
}

static void slice_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Slice *s = node->attributes;
    Gradient dx = tape_contribution(node, x);
    if (!dx.accumulate)
        device_zero(x->device, dx.data, (size_t)tensor_count(x) * tensor_element_bytes(x));
    dx.data = tensor_elements_on(x, dx.data, s->first);
    kernels_of(x)->copy_rows(dx, s->stride, tape_upstream(node, 0), s->columns, s->outer,
                             s->columns);
}

Tensor *op_slice(Tape *tape, Tensor *x, int axis, int64_t start, int64_t count)
{
    use_any_dtype(tape, "op_slice: x", x);
    const AxisView v = axis_view(tape, "op_slice: x", x, axis);
    if (start < 0 || count < 1 || start > v.size - count)
        tape_error(tape,
                   "op_slice: x %s: its axis %d has no %lld entries from %lld on; expected "
                   "0 <= start, 1 <= count, start + count <= %lld",
                   tensor_text(x).text, axis, (long long)count, (long long)start,
                   (long long)v.size);
    const Slice s = { v.outer, v.size * v.inner, start * v.inner, count * v.inner };
    Shape shape = x->shape;
    shape.size[v.index] = count;
    Tensor *out = tape_tensor_of(tape, x->type, shape);
    if (x->type == TENSOR_INT32) {
        const IntegerCopy copy = { shape(s.outer, s.columns), { s.columns, 1 }, { s.stride, 1 } };
        kernels_of(x)->copy_integers(out->integers, x->integers + s.first, copy);
        note_copied(tape, "op_slice", out, &x, 1);
        return out;
    }
    kernels_of(x)->copy_rows((Gradient){ out->data, false }, s.columns, tensor_at(x, s.first),
                             s.stride, s.outer, s.columns);
    tape_record(tape, (Node){ "op_slice", slice_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_select(Tape *tape, Tensor *x, int axis, int64_t index)
{
    use_any_dtype(tape, "op_select: x", x);
    const AxisView v = axis_view(tape, "op_select: x", x, axis);
    if (index < 0 || index >= v.size)
        tape_error(tape,
                   "op_select: x %s: index is %lld, expected 0 to %lld, the entries of axis %d",
                   tensor_text(x).text, (long long)index, (long long)(v.size - 1), axis);
    Shape shape;
    axis_to_reduce(tape, "op_select: x", x, v.index, &shape);
    return op_reshape(tape, op_slice(tape, x, v.index, index, 1), shape);
}

void op_split(Tape *tape, Tensor *x, int axis, int count, Tensor **parts)
{
    use_any_dtype(tape, "op_split: x", x);
    const int64_t size = axis_view(tape, "op_split: x", x, axis).size;
    if (!parts)
        tape_error(tape, "op_split: parts is NULL, expected an array of %d tensors", count);
    if (count < 1 || size % count != 0)
        tape_error(tape, "op_split: x %s: its axis %d does not split into %d equal parts",
                   tensor_text(x).text, axis, count);
    for (int i = 0; i < count; i++)
        parts[i] = op_slice(tape, x, axis, i * (size / count), size / count);
}
