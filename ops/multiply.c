/* out = a b; where one is repeated, out[i] = a[i mod na] b[i mod nb]
 * Backward, g = dL/dout, summed over the repeats:
 *   da <- g b     db <- g a */
#include "ops/elementwise.h"

static void multiply_forward_cpu(Real *out, const Real *a, int64_t na, const Real *b, int64_t nb,
                                 int64_t n)
{
    PARALLEL_BLOCKS(start, n) {
        Real room[BLOCK];
        const int64_t count = block_count(start, n);
        const Real *a_here = repeated(room, a, na, start, count);
        const Real *b_here = repeated(room, b, nb, start, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[start + i] = a_here[i] * b_here[i];
    }
}

/* dx <- dout times the other factor, [m] */
static void multiply_backward_cpu(Real *dx, bool accumulate, const Real *dout, const Real *other,
                                  int64_t m, int64_t n)
{
    PARALLEL_BLOCKS(start, n) {
        Real room[BLOCK];
        const int64_t count = block_count(start, n);
        const Real *other_here = repeated(room, other, m, start, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            contribute(&dx[start + i], accumulate, dout[start + i] * other_here[i]);
    }
}

static void multiply_backward(Node *node)
{
    int64_t n = tensor_count(node->outputs[0]);
    for (int side = 0; side < 2; side++) {
        Tensor *x = node->inputs[side], *other = node->inputs[1 - side];
        Broadcast dx = broadcast_begin(node, x, n);
        if (dx.data)
            DEVICE_CALL(x, multiply_backward,
                        (dx.data, dx.accumulate, tape_upstream(node, 0), other->data,
                         tensor_count(other), n));
        broadcast_end(node, x, dx);
    }
}

Tensor *op_multiply(Tape *tape, Tensor *a, Tensor *b)
{
    tape_use(tape, "op_multiply: a", a);
    tape_use(tape, "op_multiply: b", b);
    cast_alike(tape, &a, &b);
    Tensor *out = tape_tensor_of(tape, a->type, broadcast_shape(tape, "op_multiply", a, b));
    DEVICE_CALL(out, multiply_forward,
                (out->data, a->data, tensor_count(a), b->data, tensor_count(b), tensor_count(out)));
    tape_record(tape, (Node){ .name = "op_multiply",
                              .backward = multiply_backward,
                              .inputs = { a, b },
                              .outputs = { out } });
    return out;
}
