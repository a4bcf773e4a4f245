/* What operations along one axis share. */
#ifndef TAPEGRAD_OPS_LAYOUT_LAYOUT_H
#define TAPEGRAD_OPS_LAYOUT_LAYOUT_H

#include "ops/shared/internal.h"

/* A shape seen from one of its axes: [outer, size, inner], with the product of the axes before it
 * and of those after it. */
typedef struct AxisView {
    int index; /* of the axis, from the front */
    int64_t outer, size, inner;
} AxisView;

/* Negative axes count from the end; raises when there is no such axis. */
AxisView axis_view(Tape *tape, const char *operation, Shape shape, int axis);

/* to[r, c] <- from[r mod from_rows, c], r < rows, c < columns, where rows lie to_stride and
 * from_stride numbers apart; all are stored as `like`. */
void copy_rows(const Tensor *like, Real *to, int64_t to_stride, bool accumulate, const Real *from,
               int64_t from_rows, int64_t from_stride, int64_t rows, int64_t columns);

#endif
