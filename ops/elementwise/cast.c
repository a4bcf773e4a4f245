/* cast: out = x in another dtype, Real or bf16, which has the upper 16 bits of a float
 * Backward, g = dL/dout:
 *   dx <- g */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void op_convert(Device *device, Gradient to, const Real *from, bool to_bf16, int64_t n)
{
    op_kernels_on(device, TENSOR_REAL)->cast(to, from, to_bf16, n);
}

static void cast_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    op_convert(x->device, tape_contribution(node, x), tape_upstream(node, 0),
               x->type == TENSOR_BF16, tensor_count(x));
}

Tensor *op_cast(Tape *tape, Tensor *x, TensorType type)
{
    tape_use(tape, "op_cast: x", x);
    if (type != TENSOR_REAL && type != TENSOR_BF16)
        tape_error(tape, "op_cast: there is no conversion to type %d", (int)type);
    if (type == TENSOR_BF16 && tape_precision(tape) != PRECISION_BF16)
        tape_error(tape, "op_cast: bf16 is for tapes of that precision; see tape_set_precision");
    if (x->type == type)
        return x;
    Tensor *out = tape_tensor_of(tape, type, x->shape);
    op_convert(x->device, (Gradient){ out->data, false }, x->data, type == TENSOR_BF16,
               tensor_count(x));
    tape_record(tape, (Node){ "op_cast", cast_backward, .inputs = { x }, .outputs = { out } });
    return out;
}

void op_cast_alike(Tape *tape, Tensor **a, Tensor **b)
{
    if ((*a)->type == (*b)->type)
        return;
    *a = op_cast(tape, *a, TENSOR_BF16);
    *b = op_cast(tape, *b, TENSOR_BF16);
}
