/* sum and mean over the last axis of x [R, C], or over all of x as one row [1, C]:
 *   out[r] = f sum_c x[r, c], f = 1 for the sum, 1 / C for the mean
 * Backward, g = dL/dout:
 *   dx[r, c] <- f g[r]
 * out and g have dtype Real for every dtype of x. The order of summation does not depend on the
 * number of threads; on the CPU sums are in double precision. */
#include "ops/elementwise/broadcast.h"

/* x's shape with size 1 along the reduced axes; its broadcast to x's shape is the gradient. */
static Shape reduced_shape(Shape shape, Reduction over)
{
    if (over == OVER_ALL)
        return shape_scalar();
    shape.size[shape.rank - 1] = 1;
    return shape;
}

typedef struct Sum {
    Broadcast view;
    Real factor;
} Sum;

static void sum_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Sum *s = node->attributes;
    Gradient dx = tape_contribution(node, x);
    broadcast_copy(x, dx.data, dx.accumulate, s->factor, tape_upstream(node, 0), s->view, true);
}

static Tensor *reduce(Tape *tape, const char *name, Tensor *x, Reduction over, bool mean)
{
    if (over != OVER_ALL && over != OVER_LAST_AXIS)
        tape_error(tape, "%s: there is no reduction %d; expected OVER_ALL or OVER_LAST_AXIS", name,
                   (int)over);
    if (over == OVER_LAST_AXIS && x->shape.rank == 0)
        tape_error(tape, "%s: x is a scalar, which has no last axis; expected OVER_ALL", name);
    Shape shape = over == OVER_ALL ? shape_scalar() : shape_new(x->shape.rank - 1, x->shape.size);
    Sum s = { broadcast_of(reduced_shape(x->shape, over), x->shape), 1 };
    if (mean)
        s.factor = 1 / (Real)(tensor_count(x) / shape_count(shape));
    Tensor *out = tape_tensor(tape, shape);
    broadcast_sum(tape, x, out->data, false, s.factor, x->data, s.view, true);
    tape_record(tape, (Node){ .name = name,
                              .backward = sum_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_sum(Tape *tape, Tensor *x, Reduction over)
{
    tape_use(tape, "op_sum: x", x);
    return reduce(tape, "op_sum", x, over, false);
}

Tensor *op_mean(Tape *tape, Tensor *x, Reduction over)
{
    tape_use(tape, "op_mean: x", x);
    return reduce(tape, "op_mean", x, over, true);
}
