/* Shared by operations along one axis. */
#ifndef TAPEGRAD_OPS_LAYOUT_LAYOUT_H
#define TAPEGRAD_OPS_LAYOUT_LAYOUT_H

#include "ops/layout/kernels.h"
#include "ops/shared/internal.h"

AxisView view_of_axis(Shape shape, int index);

/* A negative axis counts from the end; raises if x has no such axis. */
AxisView axis_view(Tape *tape, const char *label, const Tensor *x, int axis);

/* The same, or all of the shape as [1, size, 1] if axis is ALL_AXES; *reduced is the shape without
 * the axis. */
AxisView axis_to_reduce(Tape *tape, const char *label, const Tensor *x, int axis, Shape *reduced);

/* to[i + c] <- from[j + c], c < count. A copy of bf16 elements does not convert them. */
ALWAYS_INLINE void contribute_run(int T, Real *to, int64_t i, bool accumulate, const Real *from,
                                  int64_t j, int64_t count)
{
    if (T == TENSOR_BF16 && !accumulate)
        memcpy(elements_at(T, to, i), elements_at(T, from, j), (size_t)count * element_bytes(T));
    else
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            contribute(T, to, i + c, accumulate, load(T, from, j + c));
}

/* to[r, c] <- from[r, c], r < rows, c < columns; to_stride and from_stride are row
 * strides in elements; to and from have the dtype of `like`. */
void copy_rows(const Tensor *like, Real *to, int64_t to_stride, bool accumulate, const Real *from,
               int64_t from_stride, int64_t rows, int64_t columns);

/* out[o, k, i] <- x[o, index[o, k, i], i], k < K, x viewed as [outer, size, inner]; and backward,
 * for the node's input 0: dx[o, c, i] <- sum over k with index[o, k, i] = c of dout[o, k, i]. */
void gather(const Tensor *x, Real *out, const int32_t *index, AxisView v, int64_t K);
void gather_backward(Node *node, const int32_t *index, AxisView v, int64_t K);

#endif
