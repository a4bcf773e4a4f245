#include "tensor/internal.h"

#include <stdio.h>
#include <string.h>

Shape shape_new(int rank, const int64_t *sizes)
{
    if (rank < 0 || rank > MAX_RANK)
        error_raise("shape: %d sizes were given, expected at most %d", rank, MAX_RANK);
    Shape shape = { .rank = rank };
    int64_t bytes = sizeof(Real);
    for (int axis = 0; axis < rank; axis++) {
        if (sizes[axis] < 1)
            error_raise("shape: size %d is %lld, expected at least 1%s", axis,
                        (long long)sizes[axis], sizes[axis] == -1 ? "; no size is inferred" : "");
        if (__builtin_mul_overflow(bytes, sizes[axis], &bytes))
            error_raise("shape: a tensor of these %d sizes would take 2^63 bytes or more", rank);
        shape.size[axis] = sizes[axis];
    }
    return shape;
}

Shape shape_scalar(void)
{
    return (Shape){ .rank = 0 };
}

int64_t shape_count(Shape shape)
{
    int64_t count = 1;
    for (int axis = 0; axis < shape.rank; axis++)
        count *= shape.size[axis];
    return count;
}

int64_t shape_size(Shape shape, int axis)
{
    int index = axis < 0 ? shape.rank + axis : axis;
    if (index < 0 || index >= shape.rank)
        error_raise("shape_size: %s has no axis %d", shape_text(shape).text, axis);
    return shape.size[index];
}

int64_t shape_columns(Shape shape)
{
    return shape.rank == 0 ? 1 : shape.size[shape.rank - 1];
}

int64_t shape_rows(Shape shape)
{
    return shape_count(shape) / shape_columns(shape);
}

bool shape_equal(Shape a, Shape b)
{
    return a.rank == b.rank && memcmp(a.size, b.size, (size_t)a.rank * sizeof a.size[0]) == 0;
}

ShapeText shape_text(Shape shape)
{
    ShapeText result = { "[" };
    size_t length = 1;
    for (int axis = 0; axis < shape.rank; axis++)
        length += (size_t)snprintf(result.text + length, sizeof result.text - length, "%s%lld",
                                   axis ? "," : "", (long long)shape.size[axis]);
    snprintf(result.text + length, sizeof result.text - length, "]");
    return result;
}

void shape_need_size(const char *function, const char *field, int64_t *size, int64_t default_size,
                     int64_t max)
{
    if (*size < 0 || *size > max)
        error_raise("%s: %s is %lld, expected 1 to %lld, or 0 for the default", function, field,
                    (long long)*size, (long long)max);
    if (*size == 0)
        *size = default_size;
}
