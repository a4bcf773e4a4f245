/* gather along the last axis, x [R, C], index [R, K]:
 *   out[r, k] = x[r, index[r, k]]
 * Backward, g = dL/dout:
 *   dx[r, c] <- sum over the k with index[r, k] = c of g[r, k]
 * One thread adds the terms of a row in the order of k, so results repeat bit for bit. The kernels
 * take x as [O, C, I] and index as [O, K, I], so op_max uses them for any axis. */
#include "ops/layout/indices.h"
#include "ops/layout/layout.h"

void gather_cpu(Real *out, const Real *x, const int32_t *index, AxisView v, int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
#pragma omp parallel for schedule(static) if (O * K * I >= PARALLEL_MINIMUM)
    for (int64_t o = 0; o < O; o++)
        for (int64_t k = o * K; k < (o + 1) * K; k++)
            for (int64_t i = 0; i < I; i++)
                out[k * I + i] = x[(o * C + index[k * I + i]) * I + i];
}

void gather(const Tensor *x, Real *out, const int32_t *index, AxisView v, int64_t K)
{
    KERNEL_CALL(x, gather, (out, x->data, index, v, K));
}

/* dx += */
void gather_add_cpu(Real *dx, const Real *dout, const int32_t *index, AxisView v, int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
#pragma omp parallel for schedule(static) if (O * K * I >= PARALLEL_MINIMUM)
    for (int64_t o = 0; o < O; o++)
        for (int64_t k = o * K; k < (o + 1) * K; k++)
            for (int64_t i = 0; i < I; i++)
                dx[(o * C + index[k * I + i]) * I + i] += dout[k * I + i];
}

void gather_contribute(const Tensor *x, Gradient dx, const Real *dout, const int32_t *index,
                       AxisView v, int64_t K)
{
    if (!dx.accumulate)
        device_zero(x->device, dx.data, (size_t)tensor_count(x) * tensor_element_bytes(x));
    KERNEL_CALL(x, gather_add, (dx.data, dout, index, v, K));
}

static void gather_backward(Node *node)
{
    Tensor *x = node->inputs[0], *indices = node->inputs[1];
    AxisView v = axis_view(node->tape, "op_gather: x", x->shape, -1);
    gather_contribute(x, tape_contribution(node, x), tape_upstream(node, 0), indices->integers, v,
                      tensor_count(indices) / v.outer);
}

Tensor *op_gather(Tape *tape, Tensor *x, Tensor *indices)
{
    tape_use(tape, "op_gather: x", x);
    tape_use_i32(tape, "op_gather: indices", indices);
    const AxisView v = axis_view(tape, "op_gather: x", x->shape, -1);
    Shape expected = x->shape;
    if (indices->shape.rank == x->shape.rank)
        expected.size[v.index] = indices->shape.size[v.index];
    if (!shape_equal(indices->shape, expected))
        tape_error(tape,
                   "op_gather: indices is %s, x is %s, expected equal sizes but along the last "
                   "axis",
                   shape_text(indices->shape).text, shape_text(x->shape).text);
    check_indices(tape, "op_gather: indices", indices, 0, v.size - 1, "the last axis of x");
    Tensor *out = tape_tensor_of(tape, x->type, indices->shape);
    gather(x, out->data, indices->integers, v, tensor_count(indices) / v.outer);
    tape_record(
        tape, (Node){ "op_gather", gather_backward, .inputs = { x, indices }, .outputs = { out } });
    return out;
}
