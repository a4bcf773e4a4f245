/* transpose of two axes of sizes p and q, x viewed as [outer, p, middle, q, inner]:
 *   out[o, j, m, i, c] = x[o, i, m, j, c], i < p, j < q
 * Backward, g = dL/dout, the same transpose:
 *   dx[o, i, m, j, c] <- g[o, j, m, i, c]
 * permute is one transpose per axis that is not yet in its place. */
#include "ops/kernels.h"
#include "ops/shared/axis.h"
#include "ops/shared/integers.h"
#include "ops/shared/internal.h"

typedef struct Exchange {
    int64_t outer, p, middle, q, inner;
} Exchange;

void transpose_plain(Gradient out, const Real *x, int64_t outer, int64_t p, int64_t middle,
                     int64_t q, int64_t inner)
{
    EACH_ROW(row, outer * q, middle * p * inner) {
        const int64_t o = row / q, j = row % q;
        for (int64_t m = 0; m < middle; m++)
            for (int64_t i = 0; i < p; i++)
                for (int64_t c = 0; c < inner; c++)
                    gradient_add(out, ((row * middle + m) * p + i) * inner + c,
                                 x[(((o * p + i) * middle + m) * q + j) * inner + c]);
    }
}

static void transpose_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Exchange *s = node->attributes;
    kernels_of(x)->transpose(tape_contribution(node, x), tape_upstream(node, 0), s->outer, s->q,
                             s->middle, s->p, s->inner);
}

Tensor *op_transpose(Tape *tape, Tensor *x, int axis_a, int axis_b)
{
    use_any_dtype(tape, "op_transpose: x", x);
    AxisView a = axis_view(tape, "op_transpose: x", x, axis_a);
    AxisView b = axis_view(tape, "op_transpose: x", x, axis_b);
    AxisView first = a.index < b.index ? a : b, last = a.index < b.index ? b : a;
    Shape shape = x->shape;
    shape.size[a.index] = b.size;
    shape.size[b.index] = a.size;
    Exchange s = { .outer = first.outer, .p = first.size, .q = last.size, .inner = last.inner };
    s.middle = last.outer / (first.outer * first.size);
    if (a.index == b.index) /* a plain copy */
        s = (Exchange){ 1, 1, 1, 1, tensor_count(x) };
    Tensor *out = tape_tensor_of(tape, x->type, shape);
    if (x->type == TENSOR_INT32) {
        IntegerCopy copy = { .shape = shape };
        row_major_strides(copy.to, shape);
        row_major_strides(copy.from, x->shape);
        copy.from[a.index] = b.inner;
        copy.from[b.index] = a.inner;
        kernels_of(x)->copy_integers(out->integers, x->integers, copy);
        note_copied(tape, "op_transpose", out, &x, 1);
        return out;
    }
    kernels_of(x)->transpose((Gradient){ out->data, false }, x->data, s.outer, s.p, s.middle, s.q,
                             s.inner);
    tape_record(tape, (Node){ "op_transpose", transpose_backward, .inputs = { x },
                              .outputs = { out }, .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_permute(Tape *tape, Tensor *x, const int *axes)
{
    use_any_dtype(tape, "op_permute: x", x);
    if (!axes)
        tape_error(tape, "op_permute: axes is NULL, expected one per axis of x");
    const Tensor *original = x;
    int order[] = { 0, 1, 2, 3 }; /* the axes of the original x, as they are now */
    for (int i = 0; i < original->shape.rank; i++) {
        const int axis = axis_view(tape, "op_permute: x", original, axes[i]).index;
        int at = i;
        while (at < original->shape.rank && order[at] != axis)
            at++;
        if (at == original->shape.rank)
            tape_error(tape, "op_permute: x %s: axes[%d] is %d again, expected each axis once",
                       tensor_text(original).text, i, axes[i]);
        if (at == i)
            continue;
        x = op_transpose(tape, x, i, at);
        order[at] = order[i];
    }
    return x;
}
