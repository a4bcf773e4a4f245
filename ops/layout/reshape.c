/* reshape: out = x with another shape. out is a view that shares x's storage and gradient: a
 * contribution to dL/dout is one to dL/dx, so there is no backward function. */
#include "ops/shared/integers.h"
#include "ops/shared/internal.h"

Tensor *op_reshape(Tape *tape, Tensor *x, Shape shape)
{
    use_any_dtype(tape, "op_reshape: x", x);
    shape = shape_new(shape.rank, shape.size);
    if (shape_count(shape) != tensor_count(x))
        tape_error(tape, "op_reshape: x %s of %lld elements, which do not fill %s",
                   tensor_text(x).text, (long long)tensor_count(x), shape_text(shape).text);
    Tensor *out = tape_view(tape, x, shape);
    tape_record(tape, (Node){ .name = "op_reshape", .inputs = { x }, .outputs = { out } });
    return out;
}
