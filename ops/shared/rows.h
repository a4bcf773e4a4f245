/* Tensors of one element per row of another. */
#ifndef TAPEGRAD_OPS_SHARED_ROWS_H
#define TAPEGRAD_OPS_SHARED_ROWS_H

#include "autograd/tape.h"

/* The shape [...] for the shape [..., C]. */
static inline Shape shape_of_rows(Shape shape)
{
    shape.size[--shape.rank] = 0;
    return shape;
}

/* Raises unless the tensor has one element per row of x; the error message calls x `name`. */
static inline void check_one_per_row(Tape *tape, const char *label, const Tensor *tensor,
                                     const Tensor *x, const char *name)
{
    const Shape expected = shape_of_rows(x->shape);
    if (!shape_equal(tensor->shape, expected))
        tape_error(tape, "%s %s, expected %s: %s %s", label, tensor_text(tensor).text,
                   shape_text(expected).text, name, tensor_text(x).text);
}

#endif
