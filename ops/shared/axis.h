/* A shape viewed from one of its axes. */
#ifndef TAPEGRAD_OPS_SHARED_AXIS_H
#define TAPEGRAD_OPS_SHARED_AXIS_H

#include "autograd/tape.h"

/* [outer, size, inner]: outer is the product of the axes before the axis, inner of those after. */
typedef struct AxisView {
    int index; /* of the axis, from the front */
    int64_t outer, size, inner;
} AxisView;

AxisView view_of_axis(Shape shape, int index);

/* A negative axis counts from the end; raises if x has no such axis. */
AxisView axis_view(Tape *tape, const char *label, const Tensor *x, int axis);

/* The same, or all of the shape as [1, size, 1] if axis is ALL_AXES; *reduced is the shape without
 * the axis. */
AxisView axis_to_reduce(Tape *tape, const char *label, const Tensor *x, int axis, Shape *reduced);

#endif
