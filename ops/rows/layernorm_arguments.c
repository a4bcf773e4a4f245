/* Shared by layernorm and residual_layernorm. */
#include "ops/rows/layernorm.h"
#include "ops/shared/internal.h"

void layernorm_check(Tape *tape, const char *operation, const Tensor *x, const Tensor *weight,
                     const Tensor *bias, double eps)
{
    if (x->shape.rank < 1)
        tape_error(tape, "%s: x is a scalar, expected one axis at least", operation);
    Shape expected = shape(shape_columns(x->shape));
    if (!shape_equal(weight->shape, expected) || !shape_equal(bias->shape, expected))
        tape_error(tape, "%s: weight %s, bias %s, expected %s: x %s", operation,
                   tensor_text(weight).text, tensor_text(bias).text, shape_text(expected).text,
                   tensor_text(x).text);
    if (!((Real)eps > 0 && (Real)eps < (Real)INFINITY))
        tape_error(tape, "%s: eps is %g, expected more than 0", operation, eps);
}

NormArguments layernorm_arguments(const Tensor *x, const Tensor *weight, const Tensor *bias,
                                  const Tensor *statistics, double eps)
{
    return (NormArguments){ .x = x->data,
                            .weight = weight->data,
                            .bias = bias->data,
                            .eps = (Real)eps,
                            .statistics = (Statistics *)statistics->data,
                            .R = shape_rows(x->shape),
                            .C = shape_columns(x->shape) };
}
