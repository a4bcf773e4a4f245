/* where: the elements of a or of b, by a condition c, all broadcast to one shape.
 *   out_i = a_i where c_i != 0, else b_i
 * Backward, g = dL/dout:
 *   da_i <- g_i where c_i != 0, else 0     db_i <- 0 where c_i != 0, else g_i
 * summed over the repeats of a and of b. Elements are chosen, not multiplied by 0: a NaN that is
 * not chosen reaches neither out nor a gradient. out is piecewise constant in c: dc = 0. */
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/kernels.h"

void where_forward_plain(Real *out, Choice in, int64_t n)
{
    EACH_BLOCK(first, n)
    {
        _Alignas(64) Real buffers[3][BLOCK_ELEMENTS];
        const int64_t count = block_count(first, n);
        const Real *c = broadcast_block(buffers[0], in.c, in.c_view, first, count);
        const Real *a = broadcast_block(buffers[1], in.a, in.a_view, first, count);
        const Real *b = broadcast_block(buffers[2], in.b, in.b_view, first, count);
        PRAGMA(omp simd)
        for (int64_t i = 0; i < count; i++)
            out[first + i] = c[i] != 0 ? a[i] : b[i];
    }
}

void where_backward_plain(Gradient dx, bool of_a, const Real *dout, const Real *c, Broadcast c_view)
{
    const int64_t n = broadcast_count(c_view);
    EACH_BLOCK(first, n)
    {
        _Alignas(64) Real buffer[BLOCK_ELEMENTS];
        const int64_t count = block_count(first, n);
        const Real *block = broadcast_block(buffer, c, c_view, first, count);
        PRAGMA(omp simd)
        for (int64_t i = 0; i < count; i++)
            gradient_add(dx, first + i, (block[i] != 0) == of_a ? dout[first + i] : 0);
    }
}

/* As in binary.c, the gradient of a repeated x is summed from a workspace. */
static void contribute_chosen(Node *node, Tensor *x, bool of_a)
{
    const Tensor *c = node->inputs[0], *out = node->outputs[0];
    const Gradient dx = tape_contribution(node, x);
    const int64_t n = tensor_count(out);
    if (!dx.data)
        return;
    Tensor *workspace = tensor_count(x) < n ? tape_tensor_of(node->tape, x->type, shape(n)) : NULL;
    kernels_of(x)->where_backward(workspace ? (Gradient){ workspace->data, false } : dx, of_a,
                                  tape_upstream(node, 0), c->data,
                                  broadcast_of(c->shape, out->shape));
    if (workspace)
        kernels_of(x)->broadcast_sum(dx, 1, workspace->data, broadcast_of(x->shape, out->shape),
                                     false);
    tape_scratch_free(node->tape, workspace);
}

static void where_backward(Node *node)
{
    contribute_chosen(node, node->inputs[1], true);
    contribute_chosen(node, node->inputs[2], false);
}

Tensor *op_where(Tape *tape, Tensor *condition, Tensor *a, Tensor *b)
{
    tape_use(tape, "op_where: condition", condition);
    tape_use(tape, "op_where: a", a);
    tape_use(tape, "op_where: b", b);
    Shape shape = condition->shape;
    if (!op_broadcast_with(&shape, a->shape) || !op_broadcast_with(&shape, b->shape))
        tape_error(tape,
                   "op_where: the shapes do not fit: condition %s, a %s, b %s; expected sizes that "
                   "are equal or 1, aligned at the last axis",
                   tensor_text(condition).text, tensor_text(a).text, tensor_text(b).text);
    op_cast_alike(tape, &a, &b);
    Tensor *c = op_cast(tape, condition, a->type), *out = tape_tensor_of(tape, a->type, shape);
    const Choice in = { c->data,
                        a->data,
                        b->data,
                        broadcast_of(c->shape, shape),
                        broadcast_of(a->shape, shape),
                        broadcast_of(b->shape, shape) };
    kernels_of(out)->where_forward(out->data, in, tensor_count(out));
    tape_record(tape,
                (Node){ "op_where", where_backward, .inputs = { c, a, b }, .outputs = { out } });
    return out;
}
