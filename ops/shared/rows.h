/* Tensors of one element per row of another; a row's log-sum-exp. */
#ifndef TAPEGRAD_OPS_SHARED_ROWS_H
#define TAPEGRAD_OPS_SHARED_ROWS_H

#include "ops/shared/internal.h"

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

/* ln sum_c e^x_c of a row x [C] */
static inline LogSumExp log_sum_exp(const Real *x, int64_t C)
{
    Real m = -(Real)INFINITY;
    double sum = 0;
    SUM(max, m)
    for (int64_t c = 0; c < C; c++)
        m = x[c] > m ? x[c] : m;
    SUM(+, sum)
    for (int64_t c = 0; c < C; c++)
        sum += real_exp(x[c] - m);
    return (LogSumExp){ m, (Real)log(sum) };
}

#endif
