/* The binary operations: each applies a function of binary_functions.h to the elements of a and b,
 * broadcast to one shape.
 *   out_i = f(a_i, b_i)
 * Backward, g = dL/dout:
 *   da_i <- g_i df/da     db_i <- g_i df/db     summed over the repeats of a and of b */
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/kernels.h"

enum { SIDE_a, SIDE_b };

#define FORWARD_LOOP(op, value)                                                                    \
    static void op##_loop(Real *out, const Real *as, const Real *bs, int64_t n)                    \
    {                                                                                              \
        PRAGMA(omp simd)                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const Real a = as[i], b = bs[i];                                                       \
            out[i] = value;                                                                        \
        }                                                                                          \
    }
#define GRADIENT_LOOP(op, side, gradient, read)                                                    \
    static void op##_gradient_loop_##side(Gradient dx, const Real *upstream, const Real *outs,     \
                                          const Real *reads, int64_t n)                            \
    {                                                                                              \
        PRAGMA(omp simd)                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const Real dout = upstream[i], out = outs[i], read = reads[i];                         \
            (void)out;                                                                             \
            gradient_add(dx, i, gradient);                                                         \
        }                                                                                          \
    }
#define BINARY_LOOPS(op, value, da, a_reads, db, b_reads)                                          \
    FORWARD_LOOP(op, value)                                                                        \
    GRADIENT_LOOP(op, a, da, a_reads)                                                              \
    GRADIENT_LOOP(op, b, db, b_reads)
#define LINEAR_LOOPS(op, value, da, db) FORWARD_LOOP(op, value)
BINARY_ROWS(BINARY_LOOPS, LINEAR_LOOPS, FORWARD_LOOP)

static const struct Binary {
    const char *name, *labels[2]; /* the labels of its arguments, for messages */
    BinaryLoops loops;            /* backward: NULL if the derivatives are constants */
    int reads[2];                 /* the side that each gradient reads, */
    Real derivatives[2];          /* or the constants, */
    bool step;                    /* or none: no gradient flows */
} binary_rows[] = {
#define NAMES(op)                                                                                  \
    "op_" #op,                                                                                     \
    {                                                                                              \
        "op_" #op ": a", "op_" #op ": b"                                                           \
    }
#define BINARY_ENTRY(op, value, da, a_reads, db, b_reads)                                          \
    [BINARY_##op] = { NAMES(op),                                                                   \
                      { op##_loop, { op##_gradient_loop_a, op##_gradient_loop_b } },               \
                      .reads = { SIDE_##a_reads, SIDE_##b_reads } },
#define LINEAR_ENTRY(op, value, da, db)                                                            \
    [BINARY_##op] = { NAMES(op), { .forward = op##_loop }, .derivatives = { da, db } },
#define STEP_ENTRY(op, value) [BINARY_##op] = { NAMES(op), { .forward = op##_loop }, .step = true },
    BINARY_ROWS(BINARY_ENTRY, LINEAR_ENTRY, STEP_ENTRY)
};

BinaryLoops binary_loops(BinaryFunction f)
{
    return binary_rows[f].loops;
}

void binary_forward_plain(BinaryFunction f, Real *out, const Real *a, Broadcast a_view,
                          const Real *b, Broadcast b_view, int64_t n)
{
    EACH_BLOCK(first, n)
    {
        _Alignas(64) Real buffers[2][BLOCK_ELEMENTS];
        const int64_t count = block_count(first, n);
        binary_rows[f].loops.forward(out + first,
                                     broadcast_block(buffers[0], a, a_view, first, count),
                                     broadcast_block(buffers[1], b, b_view, first, count), count);
    }
}

void binary_backward_plain(BinaryFunction f, int side, Gradient dx, const Real *dout,
                           const Real *out, const Real *read, Broadcast view)
{
    const int64_t n = broadcast_count(view);
    EACH_BLOCK(first, n)
    {
        _Alignas(64) Real buffer[BLOCK_ELEMENTS];
        const int64_t count = block_count(first, n);
        binary_rows[f].loops.backward[side](gradient_from(dx, first), dout + first, out + first,
                                            broadcast_block(buffer, read, view, first, count),
                                            count);
    }
}

/* dL/dx as if x had all elements of out goes into a workspace if x is repeated; its repeats are
 * then summed. */
static void contribute_side(Node *node, BinaryFunction f, int side)
{
    const struct Binary *row = &binary_rows[f];
    Tensor *x = node->inputs[side], *read = node->inputs[row->reads[side]], *out = node->outputs[0];
    const Gradient dx = tape_contribution(node, x);
    const Broadcast view = broadcast_of(x->shape, out->shape);
    const Real *dout = tape_upstream(node, 0);
    const int64_t n = tensor_count(out);
    if (!dx.data)
        return;
    if (!row->loops.backward[side]) {
        kernels_of(x)->broadcast_sum(dx, row->derivatives[side], dout, view, false);
        return;
    }
    Tensor *workspace = tensor_count(x) < n ? tape_tensor_of(node->tape, x->type, shape(n)) : NULL;
    kernels_of(x)->binary_backward(f, side, workspace ? (Gradient){ workspace->data, false } : dx,
                                   dout, out->data, read->data,
                                   broadcast_of(read->shape, out->shape));
    if (workspace)
        kernels_of(x)->broadcast_sum(dx, 1, workspace->data, view, false);
    tape_scratch_free(node->tape, workspace);
}

static void binary_backward(Node *node)
{
    const BinaryFunction f = *(const BinaryFunction *)node->attributes;
    contribute_side(node, f, SIDE_a);
    contribute_side(node, f, SIDE_b);
}

static Tensor *binary(Tape *tape, BinaryFunction f, Tensor *a, Tensor *b)
{
    const struct Binary *row = &binary_rows[f];
    tape_use(tape, row->labels[SIDE_a], a);
    tape_use(tape, row->labels[SIDE_b], b);
    Shape shape = a->shape;
    if (!op_broadcast_with(&shape, b->shape))
        tape_error(tape,
                   "%s: the shapes do not fit: a %s, b %s; expected sizes that are equal or 1, "
                   "aligned at the last axis",
                   row->name, tensor_text(a).text, tensor_text(b).text);
    op_cast_alike(tape, &a, &b);
    Tensor *out = tape_tensor_of(tape, a->type, shape);
    kernels_of(out)->binary_forward(f, out->data, a->data, broadcast_of(a->shape, out->shape),
                                    b->data, broadcast_of(b->shape, out->shape), tensor_count(out));
    if (row->step)
        return out;
    tape_record(tape, (Node){ row->name, binary_backward, .inputs = { a, b }, .outputs = { out },
                              .attributes = tape_save(tape, &f, sizeof f) });
    return out;
}

Tensor *op_add(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_add, a, b);
}

Tensor *op_subtract(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_subtract, a, b);
}

Tensor *op_multiply(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_multiply, a, b);
}

Tensor *op_divide(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_divide, a, b);
}

Tensor *op_maximum(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_maximum, a, b);
}

Tensor *op_minimum(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_minimum, a, b);
}

Tensor *op_equal(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_equal, a, b);
}

Tensor *op_less(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_less, a, b);
}

Tensor *op_less_equal(Tape *tape, Tensor *a, Tensor *b)
{
    return binary(tape, BINARY_less_equal, a, b);
}
