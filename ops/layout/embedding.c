/* embedding: the rows of weight [V, D] at R indices
 *   out_rd = weight_(index_r)d
 * Backward, g = dL/dout:
 *   dweight_vd <- sum over the r with index_r = v of g_rd */
#include "ops/layout/indices.h"
#include "ops/layout/kernels.h"

#include <omp.h>

/* out [R, D], weight [V, D], indices [R] */
void embedding_forward_cpu(TensorType type, Real *out, const Real *weight, const int32_t *indices,
                           int64_t R, int64_t D)
{
    const int threads = threads_for(R * D, 0.1);
    BY_STORAGE(type, T, {
        PRAGMA(omp parallel for schedule(static) num_threads(threads))
        for (int64_t r = 0; r < R; r++) {
            const Real *row = weight + indices[r] * D;
            PRAGMA(omp simd)
            for (int64_t d = 0; d < D; d++)
                store(T, out, r * D + d, row[d]);
        }
    });
}

/* dweight [V, D] at indices += dout [R, D], in columns start to end - 1, in the order of rows */
ALWAYS_INLINE void add_columns(int T, Real *dweight, const Real *dout, const int32_t *indices,
                               int64_t R, int64_t D, int64_t start, int64_t end)
{
    for (int64_t r = 0; r < R; r++) {
        Real *row = dweight + indices[r] * D;
#pragma omp simd
        for (int64_t d = start; d < end; d++)
            row[d] += load(T, dout, r * D + d);
    }
}

/* Each thread owns some columns of dweight, so sums are in the order of the rows for any number of
 * threads. The columns are whole cache lines, so no two threads write the same line. */
void embedding_backward_cpu(TensorType type, Real *dweight, bool accumulate, Real *scratch,
                            const Real *dout, const int32_t *indices, int64_t R, int64_t V,
                            int64_t D)
{
    (void)scratch;
    if (!accumulate)
        PARALLEL_FOR(i, V * D)
            dweight[i] = 0;
    const int64_t line = 64 / (int64_t)sizeof(Real), lines = (D + line - 1) / line;
#pragma omp parallel num_threads(threads_for(R *D, 0.1))
    {
        int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t start = lines * thread / threads * line;
        int64_t end = lines * (thread + 1) / threads * line;
        end = end < D ? end : D;
        BY_STORAGE(type, T, add_columns(T, dweight, dout, indices, R, D, start, end));
    }
}

static void embedding_backward(Node *node)
{
    Tensor *weight = node->inputs[0], *indices = node->inputs[1], *out = node->outputs[0];
    int64_t R = tensor_count(indices), V = weight->shape.size[0], D = weight->shape.size[1];
    int64_t wanted = CUDA_CALL(out->device, embedding_scratch, (R, D), 0);
    Tensor *scratch = wanted ? tape_scratch(node->tape, shape(wanted)) : NULL;
    Gradient dweight = tape_contribution(node, weight);
    KERNEL_CALL(out, embedding_backward,
                (dweight.data, dweight.accumulate, scratch ? scratch->data : NULL,
                 tape_upstream(node, 0), indices->integers, R, V, D));
    tape_scratch_free(node->tape, scratch);
}

Tensor *op_embedding(Tape *tape, Tensor *weight, Tensor *indices)
{
    tape_use_real(tape, "op_embedding: weight", weight);
    tape_use_i32(tape, "op_embedding: indices", indices);
    if (weight->shape.rank != 2)
        tape_error(tape, "op_embedding: weight %s, expected two axes, [V, D]",
                   tensor_text(weight).text);
    Shape out_shape = indices->shape;
    if (out_shape.rank == MAX_RANK)
        tape_error(tape, "op_embedding: indices %s, expected %d axes at most: out has one more",
                   tensor_text(indices).text, MAX_RANK - 1);
    int64_t V = weight->shape.size[0], D = weight->shape.size[1];
    check_indices(tape, "op_embedding: indices", indices, 0, V - 1, "the rows of weight");
    out_shape.size[out_shape.rank++] = D;
    TensorType type = tape_precision(tape) == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Tensor *out = tape_tensor_of(tape, type, out_shape);
    KERNEL_CALL(out, embedding_forward,
                (out->data, weight->data, indices->integers, tensor_count(indices), D));
    tape_record(tape, (Node){ "op_embedding", embedding_backward, .inputs = { weight, indices },
                              .outputs = { out } });
    return out;
}
