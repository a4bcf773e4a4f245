/* embedding: the rows of weight [V, D] at R indices
 *   out_rd = weight_(index_r)d
 * Backward, g = dL/dout:
 *   dweight_vd <- sum over the r with index_r = v of g_rd
 * scatter_add is the transpose, whose forward and backward passes are these in exchange:
 *   out_vd = sum over the r with index_r = v of x_rd
 *   dx_rd <- g_(index_r)d */
#include "ops/kernels.h"
#include "ops/shared/indices.h"

void embedding_forward_plain(Gradient out, const Real *weight, const int32_t *indices, int64_t R,
                             int64_t D)
{
    EACH_ROW(r, R, D) {
        const Real *row = weight + indices[r] * D;
        PRAGMA(omp simd)
        for (int64_t d = 0; d < D; d++)
            gradient_add(out, r * D + d, row[d]);
    }
}

/* In double, as a row may have millions of terms. Threads take different columns, so the terms of a
 * sum are added in the order of r. */
void embedding_backward_plain(Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                              int64_t V, int64_t D)
{
    enum { LINE = 16 }; /* columns that no two threads share */
    double *sums = (double *)(void *)device_workspace(2 * V * D);
    memset(sums, 0, (size_t)(V * D) * sizeof *sums);
    EACH_ROW(line, (D + LINE - 1) / LINE, R * LINE) {
        const int64_t start = line * LINE, end = start + LINE < D ? start + LINE : D;
        for (int64_t r = 0; r < R; r++)
            for (int64_t d = start; d < end; d++)
                sums[indices[r] * D + d] += dout[r * D + d];
    }
    EACH(i, V * D)
        gradient_add(dweight, i, (Real)sums[i]);
    device_workspace_free((const Real *)(const void *)sums);
}

static void embedding_backward(Node *node)
{
    Tensor *weight = node->inputs[0], *indices = node->inputs[1], *out = node->outputs[0];
    kernels_of(out)->embedding_backward(tape_contribution(node, weight), tape_upstream(node, 0),
                                        indices->integers, tensor_count(indices),
                                        weight->shape.size[0], weight->shape.size[1]);
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
    op_check_indices(tape, "op_embedding: indices", indices, 0, V - 1, "the rows of weight");
    out_shape.size[out_shape.rank++] = D;
    Tensor *out = tape_tensor_of(tape, product_type(tape), out_shape);
    kernels_of(out)->embedding_forward((Gradient){ out->data, false }, weight->data,
                                       indices->integers, tensor_count(indices), D);
    tape_record(tape, (Node){ "op_embedding", embedding_backward, .inputs = { weight, indices },
                              .outputs = { out } });
    return out;
}

static void scatter_add_backward(Node *node)
{
    Tensor *x = node->inputs[0], *indices = node->inputs[1];
    kernels_of(x)->embedding_forward(tape_contribution(node, x), tape_upstream(node, 0),
                                     indices->integers, tensor_count(indices),
                                     node->outputs[0]->shape.size[1]);
}

Tensor *op_scatter_add(Tape *tape, Tensor *x, Tensor *indices, int64_t rows)
{
    tape_use(tape, "op_scatter_add: x", x);
    tape_use_i32(tape, "op_scatter_add: indices", indices);
    Shape expected = x->shape;
    expected.rank -= expected.rank > 0;
    expected.size[expected.rank] = 0;
    if (x->shape.rank == 0 || !shape_equal(indices->shape, expected))
        tape_error(tape, "op_scatter_add: x %s, indices %s, expected x to have one axis more",
                   tensor_text(x).text, tensor_text(indices).text);
    if (rows < 1)
        tape_error(tape, "op_scatter_add: rows is %lld, expected 1 or more", (long long)rows);
    op_check_indices(tape, "op_scatter_add: indices", indices, 0, rows - 1, "the rows of out");
    const int64_t C = shape_columns(x->shape);
    Tensor *out = tape_tensor(tape, shape(rows, C));
    kernels_of(x)->embedding_backward((Gradient){ out->data, false }, x->data, indices->integers,
                                      tensor_count(indices), rows, C);
    tape_record(tape, (Node){ "op_scatter_add", scatter_add_backward, .inputs = { x, indices },
                              .outputs = { out } });
    return out;
}
