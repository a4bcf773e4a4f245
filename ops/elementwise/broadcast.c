/* broadcast_to: x repeated along its axes of size 1 and along missing leading axes. With the view
 * of broadcast.h,
 *   out[o, p, m, q, i] = x[p, q]
 * Backward, g = dL/dout: x[p, q] contributes to all its copies,
 *   dx[p, q] <- sum over o, m, i of g[o, p, m, q, i]
 * So copy and sum are each other's gradients; binary operations, op_sum and op_mean use both. */
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/kernels.h"

bool op_broadcast_with(Shape *out, Shape x)
{
    const Shape small = out->rank >= x.rank ? x : *out;
    bool fits = true;
    *out = out->rank >= x.rank ? *out : x;
    for (int i = 1; i <= small.rank; i++) {
        int64_t *size = &out->size[out->rank - i], other = small.size[small.rank - i];
        fits &= *size == other || *size == 1 || other == 1;
        *size = *size == 1 ? other : *size;
    }
    return fits;
}

/* From the last axis on: repeated axes extend I, M, O; the others Q, P. */
Broadcast broadcast_of(Shape x, Shape out)
{
    int64_t sizes[] = { 1, 1, 1, 1, 1 }; /* I, Q, M, P, O */
    int part = 0;
    for (int i = 1; i <= out.rank; i++) {
        const int64_t size = out.size[out.rank - i];
        const bool repeated = i > x.rank || x.size[x.rank - i] < size;
        if (size == 1)
            continue;
        part += repeated == part % 2;
        sizes[part] *= size;
    }
    Broadcast b = { .I = sizes[0], .Q = sizes[1], .M = sizes[2], .P = sizes[3], .O = sizes[4] };
    if (b.P == 1) {
        b.O *= b.M;
        b.M = 1;
    }
    if (b.Q == 1) {
        b.O *= b.I;
        b.I = 1;
    }
    return b;
}

const Real *broadcast_block(Real *buffer, const Real *x, Broadcast b, int64_t first, int64_t count)
{
    const int64_t at = first < b.Q ? first : first % b.Q;
    if (broadcast_of_whole(b) && at + count <= b.Q)
        return x + at;
    const bool one = b.P * b.Q == 1;
    int64_t i = first % b.I, q = first / b.I % b.Q, pm = first / (b.I * b.Q);
    for (int64_t done = 0, run; done < count; done += run) { /* a run of equal elements, or a row */
        const Real *from = x + (b.P == 1 ? 0 : pm / b.M % b.P * b.Q) + q;
        run = one ? count : b.I > 1 ? b.I - i : b.Q - q;
        run = run < count - done ? run : count - done;
        if (one || b.I > 1)
            for (int64_t j = 0; j < run; j++)
                buffer[done + j] = *from;
        else
            memcpy(buffer + done, from, (size_t)run * sizeof *buffer);
        i = 0;
        q += b.I > 1 ? 1 : b.Q - q;
        if (q == b.Q) {
            q = 0;
            pm++;
        }
    }
    return buffer;
}

void broadcast_copy_plain(Gradient out, Real factor, const Real *x, Broadcast b, bool real_x)
{
    (void)real_x; /* all dtypes are Real here */
    const int64_t n = broadcast_count(b);
    if (b.P * b.Q == 1) {
        const Real value = factor * *x;
        EACH(i, n)
            gradient_add(out, i, value);
        return;
    }
    EACH_BLOCK(first, n)
    {
        _Alignas(64) Real buffer[BLOCK_ELEMENTS];
        const int64_t count = block_count(first, n);
        const Real *block = broadcast_block(buffer, x, b, first, count);
        PRAGMA(omp simd)
        for (int64_t i = 0; i < count; i++)
            gradient_add(out, first + i, factor * block[i]);
    }
}

void broadcast_sum_plain(Gradient out, double factor, const Real *x, Broadcast b, bool real_out)
{
    if (b.P * b.Q == broadcast_count(b)) {
        broadcast_copy_plain(out, (Real)factor, x, b, real_out);
        return;
    }
    EACH_ROW(pq, b.P * b.Q, b.O * b.M * b.I) {
        const int64_t p = pq / b.Q, q = pq % b.Q;
        double sum = 0;
        for (int64_t o = 0; o < b.O; o++)
            for (int64_t m = 0; m < b.M; m++) {
                const Real *run = x + (((o * b.P + p) * b.M + m) * b.Q + q) * b.I;
                SUM(+, sum)
                for (int64_t i = 0; i < b.I; i++)
                    sum += (double)run[i];
            }
        gradient_add(out, pq, (Real)(factor * sum));
    }
}

static void broadcast_to_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    kernels_of(x)->broadcast_sum(tape_contribution(node, x), 1, tape_upstream(node, 0),
                                 broadcast_of(x->shape, node->outputs[0]->shape), false);
}

/* out = x, int32, repeated: the stride of a repeated axis of x is 0. */
static void broadcast_integers(Tape *tape, Tensor *out, Tensor *x)
{
    IntegerCopy copy = { .shape = out->shape };
    const int missing = out->shape.rank - x->shape.rank;
    row_major_strides(copy.to, out->shape);
    row_major_strides(copy.from + missing, x->shape);
    for (int axis = 0; axis < x->shape.rank; axis++)
        if (x->shape.size[axis] == 1)
            copy.from[missing + axis] = 0;
    kernels_of(x)->copy_integers(out->integers, x->integers, copy);
    note_copied(tape, "op_broadcast_to", out, &x, 1);
}

Tensor *op_broadcast_to(Tape *tape, Tensor *x, Shape shape)
{
    use_any_dtype(tape, "op_broadcast_to: x", x);
    shape = shape_new(shape.rank, shape.size);
    bool fits = x->shape.rank <= shape.rank;
    for (int i = 1; fits && i <= x->shape.rank; i++) {
        const int64_t size = x->shape.size[x->shape.rank - i];
        fits = size == 1 || size == shape.size[shape.rank - i];
    }
    if (!fits)
        tape_error(tape,
                   "op_broadcast_to: x %s, which does not fit %s; expected sizes that are equal or "
                   "1, aligned at the last axis",
                   tensor_text(x).text, shape_text(shape).text);
    Tensor *out = tape_tensor_of(tape, x->type, shape);
    if (x->type == TENSOR_INT32) {
        broadcast_integers(tape, out, x);
        return out;
    }
    kernels_of(x)->broadcast_copy((Gradient){ out->data, false }, 1, x->data,
                                  broadcast_of(x->shape, shape), false);
    tape_record(tape, (Node){ "op_broadcast_to", broadcast_to_backward, .inputs = { x },
                              .outputs = { out } });
    return out;
}

Tensor *op_repeat_heads(Tape *tape, Tensor *x, int64_t times)
{
    tape_use(tape, "op_repeat_heads: x", x);
    const int64_t *size = x->shape.size;
    if (x->shape.rank != 4)
        tape_error(tape, "op_repeat_heads: x %s, expected four axes, [B, N, G, D]",
                   tensor_text(x).text);
    if (times < 1)
        tape_error(tape, "op_repeat_heads: times is %lld, expected 1 or more", (long long)times);
    const int64_t rows = size[0] * size[1] * size[2], D = size[3];
    Tensor *out = op_reshape(tape, x, shape(rows, 1, D));
    out = op_broadcast_to(tape, out, shape(rows, times, D));
    return op_reshape(tape, out, shape(size[0], size[1], size[2] * times, D));
}
