/* concat along one axis, merged with the axes after it: a [outer, na], b [b_rows, nb],
 * out [outer, na + nb]
 *   out[o, 0 .. na - 1] = a[o]     out[o, na .. na + nb - 1] = b[o mod b_rows]
 * b_rows is outer, or less if b lacks leading axes and is broadcast.
 * Backward, g = dL/dout:
 *   da[o] <- g[o, 0 .. na - 1]     db[p] <- sum over o mod b_rows = p of g[o, na .. na + nb - 1] */
#include "ops/elementwise/broadcast.h"
#include "ops/layout/layout.h"

typedef struct Concat {
    int64_t outer, na, nb;
} Concat;

static void concat_backward(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1];
    const Concat *s = node->attributes;
    const Real *dout = tape_upstream(node, 0);
    int64_t stride = s->na + s->nb;

    Gradient da = tape_contribution(node, a);
    if (da.data)
        copy_rows(a, da.data, s->na, da.accumulate, dout, s->outer, stride, s->outer, s->na);

    Broadcast view = { s->outer * s->nb / tensor_count(b), 1, 1, tensor_count(b), 1 };
    WideGradient db = wide_gradient_begin(node, b, view);
    if (db.data)
        copy_rows(b, db.data, s->nb, db.accumulate, elements_on(b, dout, s->na), s->outer, stride,
                  s->outer, s->nb);
    wide_gradient_end(node, b, view, db);
}

/* The shape of out; raises unless b's other axes equal a's, except leading axes that b lacks. */
static Shape concat_shape(Tape *tape, const Tensor *a, const Tensor *b, AxisView axis)
{
    int lacking = a->shape.rank - b->shape.rank;
    bool fits = lacking >= 0 && lacking <= axis.index;
    for (int i = lacking; fits && i < a->shape.rank; i++)
        fits &= i == axis.index || a->shape.size[i] == b->shape.size[i - lacking];
    if (!fits)
        tape_error(tape,
                   "op_concat: the shapes do not fit along axis %d: a is %s, b is %s; expected the "
                   "other axes equal, or b without leading ones before that axis",
                   axis.index, shape_text(a->shape).text, shape_text(b->shape).text);
    Shape shape = a->shape;
    shape.size[axis.index] += b->shape.size[axis.index - lacking];
    return shape;
}

Tensor *op_concat(Tape *tape, Tensor *a, Tensor *b, int axis)
{
    tape_use(tape, "op_concat: a", a);
    tape_use(tape, "op_concat: b", b);
    cast_alike(tape, &a, &b);
    AxisView view = axis_view(tape, "op_concat: a", a->shape, axis);
    Tensor *out = tape_tensor_of(tape, a->type, concat_shape(tape, a, b, view));
    Concat s = { .outer = view.outer, .na = view.size * view.inner };
    s.nb = tensor_count(out) / s.outer - s.na;
    int64_t b_rows = tensor_count(b) / s.nb;
    copy_rows(out, out->data, s.na + s.nb, false, a->data, s.outer, s.na, s.outer, s.na);
    copy_rows(out, tensor_at(out, s.na), s.na + s.nb, false, b->data, b_rows, s.nb, s.outer, s.nb);
    tape_record(tape, (Node){ .name = "op_concat",
                              .backward = concat_backward,
                              .inputs = { a, b },
                              .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}
