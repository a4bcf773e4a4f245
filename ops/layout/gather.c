/* gather along the last axis, x [R, C], index [R, K]:
 *   out[r, k] = x[r, index[r, k]]
 * Backward, g = dL/dout:
 *   dx[r, c] <- sum over the k with index[r, k] = c of g[r, k]
 * One thread adds the terms of a row in the order of k, so results repeat bit for bit. The kernels
 * take x as [O, C, I] and index as [O, K, I], so op_max uses them for any axis. */
#include "ops/kernels.h"
#include "ops/shared/indices.h"

void gather_forward_plain(Real *out, const Real *x, const int32_t *index, AxisView v, int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
    EACH_ROW(o, O, K * I)
        for (int64_t k = o * K; k < (o + 1) * K; k++)
            for (int64_t i = 0; i < I; i++)
                out[k * I + i] = x[(o * C + index[k * I + i]) * I + i];
}

void gather_backward_plain(Real *dx, const Real *dout, const int32_t *index, AxisView v, int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
    EACH_ROW(o, O, K * I)
        for (int64_t k = o * K; k < (o + 1) * K; k++)
            for (int64_t i = 0; i < I; i++)
                dx[(o * C + index[k * I + i]) * I + i] += dout[k * I + i];
}

static void gather_backward(Node *node)
{
    Tensor *x = node->inputs[0], *indices = node->inputs[1];
    const AxisView v = view_of_axis(x->shape, x->shape.rank - 1);
    const Gradient dx = tape_scattered_contribution(node, x);
    kernels_of(x)->gather_backward(dx.data, tape_upstream(node, 0), indices->integers, v,
                                   tensor_count(indices) / v.outer);
}

Tensor *op_gather(Tape *tape, Tensor *x, Tensor *indices)
{
    tape_use(tape, "op_gather: x", x);
    tape_use_i32(tape, "op_gather: indices", indices);
    const AxisView v = axis_view(tape, "op_gather: x", x, -1);
    Shape expected = x->shape;
    if (indices->shape.rank == x->shape.rank)
        expected.size[v.index] = indices->shape.size[v.index];
    if (!shape_equal(indices->shape, expected))
        tape_error(tape,
                   "op_gather: indices %s, x %s, expected equal sizes but along the last axis",
                   tensor_text(indices).text, tensor_text(x).text);
    op_check_indices(tape, "op_gather: indices", indices, 0, v.size - 1, "the last axis of x");
    Tensor *out = tape_tensor_of(tape, x->type, indices->shape);
    kernels_of(x)->gather_forward(out->data, x->data, indices->integers, v,
                                  tensor_count(indices) / v.outer);
    tape_record(
        tape, (Node){ "op_gather", gather_backward, .inputs = { x, indices }, .outputs = { out } });
    return out;
}
