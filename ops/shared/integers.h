/* Operations that move elements of int32 tensors: the copy, and the bounds of the result. Integers
 * are not copied as Reals: an addition to 0, of which contributions consist, changes some bits. */
#ifndef TAPEGRAD_OPS_SHARED_INTEGERS_H
#define TAPEGRAD_OPS_SHARED_INTEGERS_H

#include "autograd/tape.h"
#include "tensor/kernel.h"

/* A copy of the elements [i, j, ..] of a shape: on either side, each is at i stride_0 + j stride_1
 * + .. */
typedef struct IntegerCopy {
    Shape shape;
    int64_t to[MAX_RANK], from[MAX_RANK]; /* strides, in elements */
} IntegerCopy;

typedef struct IntegerPlaces {
    int64_t to, from;
} IntegerPlaces;

/* Those of element e of the shape, in row-major order. */
SHARED_FUNCTION IntegerPlaces integer_places(const IntegerCopy *copy, int64_t e)
{
    IntegerPlaces places = { 0, 0 };
    for (int axis = copy->shape.rank - 1; axis >= 0; axis--) {
        const int64_t size = copy->shape.size[axis], i = e % size;
        places.to += i * copy->to[axis];
        places.from += i * copy->from[axis];
        e /= size;
    }
    return places;
}

/* The strides of a tensor of this shape. */
void row_major_strides(int64_t *stride, Shape shape);

/* As tape_use, but accepts int32. */
void use_any_dtype(Tape *tape, const char *label, Tensor *x);

/* The bounds of all elements of two tensors. */
IntegerBounds bounds_of_both(IntegerBounds a, IntegerBounds b);

/* Before a replay: raises unless integers of these bounds, which become others, are within those
 * that are required; from and to name both for the message. */
void check_bounds_in(Tape *tape, const char *operation, const char *from, const char *to,
                     IntegerBounds bounds, IntegerBounds required);

/* Records that out consists of elements of the `count` tensors `from`, and so has their bounds; for
 * a captured step again before each replay, since these tensors may have been written meanwhile. */
void note_copied(Tape *tape, const char *operation, Tensor *out, Tensor *const *from, int count);

#endif
