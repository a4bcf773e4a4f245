/* The kernels of this room. */
#ifndef TAPEGRAD_OPS_LAYOUT_KERNELS_H
#define TAPEGRAD_OPS_LAYOUT_KERNELS_H

#include "tensor/kernel.h"

/* A shape viewed from one of its axes as [outer, size, inner]: outer is the product of the axes
 * before it, inner of those after it. */
typedef struct AxisView {
    int index; /* of the axis, from the front */
    int64_t outer, size, inner;
} AxisView;

/* The sizes of unfold.c's formulas. */
typedef struct Unfold {
    int64_t B, H, W, C;    /* x */
    int64_t rows, columns; /* windows per column and per row of the image */
    int64_t height, width; /* of a window */
    int64_t stride, padding;
} Unfold;

OLD_KERNEL(void, copy_rows, Real *to, int64_t to_stride, bool accumulate, const Real *from,
           int64_t from_stride, int64_t rows, int64_t columns);

OLD_KERNEL(void, transpose, Real *out, bool accumulate, const Real *x, int64_t outer, int64_t p,
           int64_t middle, int64_t q, int64_t inner);

OLD_KERNEL(void, embedding_forward, Real *out, const Real *weight, const int32_t *indices,
           int64_t R, int64_t D);
CUDA_FUNCTION(int64_t, embedding_scratch, int64_t R, int64_t D);
OLD_KERNEL(void, embedding_backward, Real *dweight, bool accumulate, Real *scratch,
           const Real *dout, const int32_t *indices, int64_t R, int64_t V, int64_t D);

OLD_KERNEL(void, gather, Real *out, const Real *x, const int32_t *index, AxisView v, int64_t K);
OLD_KERNEL(void, gather_add, Real *dx, Real *scratch, const Real *dout, const int32_t *index,
           AxisView v, int64_t K);

OLD_KERNEL(void, unfold, Real *out, const Real *x, Unfold u);
OLD_KERNEL(void, fold, Real *dx, bool accumulate, const Real *dout, Unfold u);

DEVICE_FUNCTION(void, store_integers, int32_t *to, const int32_t *columns, const int32_t *from,
                int64_t R, int64_t N);

#endif
