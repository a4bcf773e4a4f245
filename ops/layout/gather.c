/* gather along the last axis, x [R, C], index [R, K]:
 *   out[r, k] = x[r, index[r, k]]
 * Backward, g = dL/dout:
 *   dx[r, c] <- sum over the k with index[r, k] = c of g[r, k]
 * One thread adds the terms of a row in the order of k, so results repeat bit for bit. The kernels
 * take x as [O, C, I] and index as [O, K, I], so op_max uses them for any axis. */
#include "ops/layout/indices.h"
#include "ops/layout/layout.h"

#include <omp.h>

void gather_cpu(TensorType type, Real *out, const Real *x, const int32_t *index, AxisView v,
                int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
    BY_STORAGE(type, T, {
        PRAGMA(omp parallel for schedule(static) num_threads(threads_for(O * K * I, 1)))
        for (int64_t o = 0; o < O; o++)
            for (int64_t k = o * K; k < (o + 1) * K; k++)
                for (int64_t i = 0; i < I; i++)
                    store(T, out, k * I + i, load(T, x, (o * C + index[k * I + i]) * I + i));
    });
}

void gather(const Tensor *x, Real *out, const int32_t *index, AxisView v, int64_t K)
{
    KERNEL_CALL(x, gather, (out, x->data, index, v, K));
}

/* One row in bf16, dx [C] += dout [K] at index: the terms of an element are added in Real, in sum
 * [C], and rounded once. Elements of sum without terms are not used. */
static void gather_add_row(Real *dx, Real *sum, const Real *dout, const int32_t *index, int64_t K)
{
    for (int64_t k = 0; k < K; k++)
        sum[index[k]] = load(TENSOR_BF16, dx, index[k]);
    for (int64_t k = 0; k < K; k++)
        sum[index[k]] += load(TENSOR_BF16, dout, k);
    for (int64_t k = 0; k < K; k++)
        store(TENSOR_BF16, dx, index[k], sum[index[k]]);
}

/* dx +=. scratch: [threads, C] for bf16 and I = 1, or NULL */
void gather_add_cpu(TensorType type, Real *dx, Real *scratch, const Real *dout,
                    const int32_t *index, AxisView v, int64_t K)
{
    const int64_t O = v.outer, C = v.size, I = v.inner;
    const int threads = threads_for(O * K * I, 1);
    if (scratch) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t o = 0; o < O; o++)
            gather_add_row(elements_at(TENSOR_BF16, dx, o * C), scratch + omp_get_thread_num() * C,
                           elements_at(TENSOR_BF16, dout, o * K), index + o * K, K);
        return;
    }
    BY_STORAGE(type, T, {
        PRAGMA(omp parallel for schedule(static) num_threads(threads))
        for (int64_t o = 0; o < O; o++)
            for (int64_t k = o * K; k < (o + 1) * K; k++)
                for (int64_t i = 0; i < I; i++)
                    contribute(T, dx, (o * C + index[k * I + i]) * I + i, true,
                               load(T, dout, k * I + i));
    });
}

void gather_backward(Node *node, const int32_t *index, AxisView v, int64_t K)
{
    Tensor *x = node->inputs[0];
    const bool in_real = x->type == TENSOR_BF16 && v.inner == 1 && K > 1;
    Tensor *scratch = in_real ? thread_scratch(node->tape, x, v.size) : NULL;
    const Gradient dx = tape_scattered_contribution(node, x);
    KERNEL_CALL(x, gather_add,
                (dx.data, scratch ? scratch->data : NULL, tape_upstream(node, 0), index, v, K));
    tape_scratch_free(node->tape, scratch);
}

static void op_gather_backward(Node *node)
{
    const Tensor *indices = node->inputs[1];
    AxisView v = axis_view(node->tape, "op_gather: x", node->inputs[0], -1);
    gather_backward(node, indices->integers, v, tensor_count(indices) / v.outer);
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
    check_indices(tape, "op_gather: indices", indices, 0, v.size - 1, "the last axis of x");
    Tensor *out = tape_tensor_of(tape, x->type, indices->shape);
    gather(x, out->data, indices->integers, v, tensor_count(indices) / v.outer);
    tape_record(tape, (Node){ "op_gather", op_gather_backward, .inputs = { x, indices },
                              .outputs = { out } });
    return out;
}
