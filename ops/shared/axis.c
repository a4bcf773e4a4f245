#include "ops/shared/axis.h"

#include "ops/shared/internal.h"

AxisView view_of_axis(Shape shape, int index)
{
    AxisView view = { .index = index, .outer = 1, .size = shape.size[index], .inner = 1 };
    for (int i = 0; i < index; i++)
        view.outer *= shape.size[i];
    for (int i = index + 1; i < shape.rank; i++)
        view.inner *= shape.size[i];
    return view;
}

AxisView axis_view(Tape *tape, const char *label, const Tensor *x, int axis)
{
    const int rank = x->shape.rank, index = axis < 0 ? rank + axis : axis;
    if (index < 0 || index >= rank)
        tape_error(tape, "%s %s, which has no axis %d", label, tensor_text(x).text, axis);
    return view_of_axis(x->shape, index);
}

AxisView axis_to_reduce(Tape *tape, const char *label, const Tensor *x, int axis, Shape *reduced)
{
    const Shape shape = x->shape;
    *reduced = shape_scalar();
    if (axis == ALL_AXES)
        return (AxisView){ .outer = 1, .size = shape_count(shape), .inner = 1 };
    const AxisView view = axis_view(tape, label, x, axis);
    for (int i = 0; i < shape.rank; i++)
        if (i != view.index)
            reduced->size[reduced->rank++] = shape.size[i];
    return view;
}
