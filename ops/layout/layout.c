#include "ops/layout/layout.h"

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

/* Long rows are cut into pieces, so that few rows also occupy all threads. */
void copy_rows_cpu(TensorType type, Real *to, int64_t to_stride, bool accumulate, const Real *from,
                   int64_t from_stride, int64_t rows, int64_t columns)
{
    enum { PIECE = 1024 };
    const int threads = threads_for(rows * columns, 0.2);
    BY_STORAGE(type, T, {
        PRAGMA(omp parallel for collapse(2) schedule(static) num_threads(threads))
        for (int64_t r = 0; r < rows; r++)
            for (int64_t first = 0; first < columns; first += PIECE)
                contribute_run(T, to, r * to_stride + first, accumulate, from,
                               r * from_stride + first,
                               columns - first < PIECE ? columns - first : PIECE);
    });
}

void copy_rows(const Tensor *like, Real *to, int64_t to_stride, bool accumulate, const Real *from,
               int64_t from_stride, int64_t rows, int64_t columns)
{
    KERNEL_CALL(like, copy_rows, (to, to_stride, accumulate, from, from_stride, rows, columns));
}
