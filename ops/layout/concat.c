/* concat: n tensors joined along an axis, which is merged with the axes after it: x_t [outer, n_t],
 * out [outer, stride], stride = sum of n_t, start_t = n_0 + ... + n_{t-1}
 *   out[o, start_t + c] = x_t[o, c], c < n_t
 * Backward, g = dL/dout, a slice per tensor:
 *   dx_t[o, c] <- g[o, start_t + c]
 * stack gives each tensor a new axis of size 1 and joins along it: outer counts the axes before. */
#include "ops/kernels.h"
#include "ops/shared/axis.h"
#include "ops/shared/integers.h"
#include "ops/shared/internal.h"

static void concat_backward(Node *node)
{
    const Tensor *out = node->outputs[0];
    const int64_t outer = *(const int64_t *)node->attributes, stride = tensor_count(out) / outer;
    const Real *dout = tape_upstream(node, 0);
    int64_t start = 0;
    for (int t = 0; t < node->more_count; t++) {
        Tensor *x = node->more_inputs[t];
        const int64_t columns = tensor_count(x) / outer;
        Gradient dx = tape_contribution(node, x);
        if (dx.data)
            kernels_of(x)->copy_rows(dx, columns, tensor_elements_on(x, dout, start), stride, outer,
                                     columns);
        start += columns;
    }
}

/* Checks the tensors, all int32 if the first one is, and returns a copy of the list; if one is
 * bf16, all are cast to bf16. */
static Tensor **use_all(Tape *tape, const char *name, Tensor *const *tensors, int count)
{
    if (!tape)
        tape_use(tape, name, NULL); /* raises */
    if (!tensors || count < 1)
        tape_error(tape, "%s: there are %d tensors, expected 1 or more", name, tensors ? count : 0);
    const bool integers = tensors[0] && tensors[0]->type == TENSOR_INT32;
    bool bf16 = false;
    for (int t = 0; t < count; t++) {
        char label[64];
        const int length = snprintf(label, sizeof label, "%s: tensors[%d]", name, t);
        /* The tape keeps the label for later messages. */
        const char *kept = tape_save(tape, label, (size_t)length + 1);
        (integers ? tape_use_i32 : tape_use)(tape, kept, tensors[t]);
        bf16 |= tensors[t]->type == TENSOR_BF16;
    }
    Tensor **list = (Tensor **)(uintptr_t)tape_save(tape, tensors, (size_t)count * sizeof *list);
    for (int t = 0; bf16 && t < count; t++)
        list[t] = op_cast(tape, list[t], TENSOR_BF16);
    return list;
}

/* out has the shape of the result; outer is the product of its axes before the joined one. */
static Tensor *concatenate(Tape *tape, const char *name, Tensor **list, int count, Shape shape,
                           int64_t outer)
{
    Tensor *out = tape_tensor_of(tape, list[0]->type, shape);
    const int64_t stride = tensor_count(out) / outer;
    int64_t start = 0;
    for (int t = 0; t < count; t++) {
        const int64_t columns = tensor_count(list[t]) / outer;
        const IntegerCopy copy = { shape(outer, columns), { stride, 1 }, { columns, 1 } };
        if (out->type == TENSOR_INT32)
            kernels_of(out)->copy_integers(out->integers + start, list[t]->integers, copy);
        else
            kernels_of(out)->copy_rows((Gradient){ tensor_at(out, start), false }, stride,
                                       list[t]->data, columns, outer, columns);
        start += columns;
    }
    if (out->type == TENSOR_INT32) {
        note_copied(tape, name, out, list, count);
        return out;
    }
    tape_record(tape,
                (Node){ name, concat_backward, .more_inputs = list, .more_count = count,
                        .outputs = { out }, .attributes = tape_save(tape, &outer, sizeof outer) });
    return out;
}

Tensor *op_concat(Tape *tape, Tensor *const *tensors, int count, int axis)
{
    Tensor **list = use_all(tape, "op_concat", tensors, count);
    Shape shape = list[0]->shape;
    AxisView view = axis_view(tape, "op_concat: tensors[0]", list[0], axis);
    int64_t *size = &shape.size[view.index];
    for (int t = 1; t < count; t++) {
        Shape other = list[t]->shape;
        const int64_t more = other.rank > view.index ? other.size[view.index] : 0;
        other.size[view.index] = list[0]->shape.size[view.index];
        if (!shape_equal(other, list[0]->shape))
            tape_error(
                tape,
                "op_concat: tensors[0] %s, tensors[%d] %s; expected equal sizes but along axis %d",
                tensor_text(list[0]).text, t, tensor_text(list[t]).text, view.index);
        *size += more;
    }
    return concatenate(tape, "op_concat", list, count, shape, view.outer);
}

Tensor *op_stack(Tape *tape, Tensor *const *tensors, int count, int axis)
{
    Tensor **list = use_all(tape, "op_stack", tensors, count);
    Shape shape = list[0]->shape;
    if (shape.rank == MAX_RANK)
        tape_error(tape, "op_stack: tensors[0] %s, expected %d axes at most: out has one more",
                   tensor_text(list[0]).text, MAX_RANK - 1);
    for (int t = 1; t < count; t++)
        if (!shape_equal(list[t]->shape, shape))
            tape_error(tape, "op_stack: tensors[0] %s, tensors[%d] %s, expected the same",
                       tensor_text(list[0]).text, t, tensor_text(list[t]).text);
    const int index = axis < 0 ? shape.rank + 1 + axis : axis;
    if (index < 0 || index > shape.rank)
        tape_error(tape, "op_stack: tensors[0] %s, whose stack has no axis %d",
                   tensor_text(list[0]).text, axis);
    memmove(&shape.size[index + 1], &shape.size[index],
            (size_t)(shape.rank - index) * sizeof *shape.size);
    shape.size[index] = count;
    shape.rank++;
    return concatenate(tape, "op_stack", list, count, shape, view_of_axis(shape, index).outer);
}
