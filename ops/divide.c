/* out = a / b; where one is repeated, out[i] = a[i mod na] / b[i mod nb]
 * Backward, g = dL/dout, summed over the repeats:
 *   da <- g / b     db <- -g a / b^2 = -g out / b */
#include "ops/elementwise.h"

static void divide_forward_cpu(Real *out, const Real *a, int64_t na, const Real *b, int64_t nb,
                               int64_t n)
{
    PARALLEL_BLOCKS(start, n) {
        Real room[BLOCK];
        const int64_t count = block_count(start, n);
        const Real *a_here = repeated(room, a, na, start, count);
        const Real *b_here = repeated(room, b, nb, start, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[start + i] = a_here[i] / b_here[i];
    }
}

/* da <- dout / b */
static void divide_backward_a_cpu(Real *da, bool accumulate, const Real *dout, const Real *b,
                                  int64_t nb, int64_t n)
{
    PARALLEL_BLOCKS(start, n) {
        Real room[BLOCK];
        const int64_t count = block_count(start, n);
        const Real *b_here = repeated(room, b, nb, start, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            contribute(&da[start + i], accumulate, dout[start + i] / b_here[i]);
    }
}

/* db <- -dout out / b */
static void divide_backward_b_cpu(Real *db, bool accumulate, const Real *dout, const Real *out,
                                  const Real *b, int64_t nb, int64_t n)
{
    PARALLEL_BLOCKS(start, n) {
        Real room[BLOCK];
        const int64_t count = block_count(start, n);
        const Real *b_here = repeated(room, b, nb, start, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            contribute(&db[start + i], accumulate, -dout[start + i] * out[start + i] / b_here[i]);
    }
}

static void divide_backward(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1], *out = node->outputs[0];
    const Real *dout = tape_upstream(node, 0);
    int64_t nb = tensor_count(b), n = tensor_count(out);

    Broadcast da = broadcast_begin(node, a, n);
    if (da.data)
        DEVICE_CALL(a, divide_backward_a, (da.data, da.accumulate, dout, b->data, nb, n));
    broadcast_end(node, a, da);

    Broadcast db = broadcast_begin(node, b, n);
    if (db.data)
        DEVICE_CALL(b, divide_backward_b,
                    (db.data, db.accumulate, dout, out->data, b->data, nb, n));
    broadcast_end(node, b, db);
}

Tensor *op_divide(Tape *tape, Tensor *a, Tensor *b)
{
    tape_use(tape, "op_divide: a", a);
    tape_use(tape, "op_divide: b", b);
    cast_alike(tape, &a, &b);
    Tensor *out = tape_tensor_of(tape, a->type, broadcast_shape(tape, "op_divide", a, b));
    DEVICE_CALL(out, divide_forward,
                (out->data, a->data, tensor_count(a), b->data, tensor_count(b), tensor_count(out)));
    tape_record(tape, (Node){ .name = "op_divide",
                              .backward = divide_backward,
                              .inputs = { a, b },
                              .outputs = { out } });
    return out;
}
