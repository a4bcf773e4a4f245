/* one_hot: a row of zeros with a 1 at each of R indices
 *   out_rc = 1 where c = index_r, else 0
 * Integers have no gradient, so the node has no input and is not kept. */
#include "ops/kernels.h"
#include "ops/shared/indices.h"

void one_hot_plain(Real *out, const int32_t *indices, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C)
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] = c == indices[r];
}

Tensor *op_one_hot(Tape *tape, Tensor *indices, int64_t classes)
{
    tape_use_i32(tape, "op_one_hot: indices", indices);
    Shape shape = indices->shape;
    if (shape.rank == MAX_RANK)
        tape_error(tape, "op_one_hot: indices %s, expected %d axes at most: out has one more",
                   tensor_text(indices).text, MAX_RANK - 1);
    if (classes < 1)
        tape_error(tape, "op_one_hot: classes is %lld, expected 1 or more", (long long)classes);
    op_check_indices(tape, "op_one_hot: indices", indices, 0, classes - 1, "the classes");
    shape.size[shape.rank++] = classes;
    Tensor *out = tape_tensor(tape, shape);
    kernels_of(out)->one_hot(out->data, indices->integers, tensor_count(indices), classes);
    tape_record(tape, (Node){ .name = "op_one_hot", .outputs = { out } });
    return out;
}
