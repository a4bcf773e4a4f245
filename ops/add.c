/* out = a + b; where one is repeated, out[i] = a[i mod na] + b[i mod nb]
 * Backward, g = dL/dout, summed over the repeats:
 *   da <- g     db <- g */
#include "ops/elementwise.h"

static void add_forward_cpu(Real *out, const Real *a, int64_t na, const Real *b, int64_t nb,
                            int64_t n)
{
    PARALLEL_BLOCKS(start, n) {
        Real room[BLOCK];
        const int64_t count = block_count(start, n);
        const Real *a_here = repeated(room, a, na, start, count);
        const Real *b_here = repeated(room, b, nb, start, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[start + i] = a_here[i] + b_here[i];
    }
}

static void add_backward(Node *node)
{
    const Real *dout = tape_upstream(node, 0); /* [n] */
    int64_t n = tensor_count(node->outputs[0]);
    for (int side = 0; side < 2; side++) {
        Tensor *x = node->inputs[side];
        Gradient dx = tape_contribution(node, x); /* [m] */
        int64_t m = tensor_count(x);
        if (dx.data)
            sum_repeats(node->tape, x, dx.data, dx.accumulate, 1, dout, n / m, m);
    }
}

Tensor *op_add(Tape *tape, Tensor *a, Tensor *b)
{
    tape_use(tape, "op_add: a", a);
    tape_use(tape, "op_add: b", b);
    cast_alike(tape, &a, &b);
    Tensor *out = tape_tensor_of(tape, a->type, broadcast_shape(tape, "op_add", a, b));
    DEVICE_CALL(out, add_forward,
                (out->data, a->data, tensor_count(a), b->data, tensor_count(b), tensor_count(out)));
    tape_record(tape, (Node){ .name = "op_add",
                              .backward = add_backward,
                              .inputs = { a, b },
                              .outputs = { out } });
    return out;
}
