/* Shared by operations along one axis. */
#ifndef TAPEGRAD_OPS_LAYOUT_LAYOUT_H
#define TAPEGRAD_OPS_LAYOUT_LAYOUT_H

#include "ops/shared/internal.h"

/* A shape viewed from one of its axes as [outer, size, inner]: outer is the product of the axes
 * before it, inner of those after it. */
typedef struct AxisView {
    int index; /* of the axis, from the front */
    int64_t outer, size, inner;
} AxisView;

/* A negative axis counts from the end; raises if there is no such axis. */
AxisView axis_view(Tape *tape, const char *operation, Shape shape, int axis);

/* The same, or all of the shape as [1, size, 1] if axis is ALL_AXES; *reduced is the shape without
 * the axis. */
AxisView axis_to_reduce(Tape *tape, const char *label, Shape shape, int axis, Shape *reduced);

/* to[r, c] <- from[r, c], r < rows, c < columns; to_stride and from_stride are row
 * strides in elements; to and from have the dtype of `like`. */
void copy_rows(const Tensor *like, Real *to, int64_t to_stride, bool accumulate, const Real *from,
               int64_t from_stride, int64_t rows, int64_t columns);

#endif
