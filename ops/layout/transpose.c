/* transpose of two axes of sizes p and q, x viewed as [outer, p, middle, q, inner]:
 *   out[o, j, m, i, c] = x[o, i, m, j, c], i < p, j < q
 * Backward, g = dL/dout, the same transpose:
 *   dx[o, i, m, j, c] <- g[o, j, m, i, c] */
#include "ops/layout/layout.h"

typedef struct Exchange {
    int64_t outer, p, middle, q, inner;
} Exchange;

enum { TILE = 16 };

/* to[j, i] <- from[i, j] for runs of `inner` contiguous elements, i < rows, j < columns */
ALWAYS_INLINE void transpose_tile(int T, Real *to, int64_t to_row, bool accumulate,
                                  const Real *from, int64_t from_row, int64_t rows, int64_t columns,
                                  int64_t inner)
{
    if (inner > 1) {
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < rows; i++)
                contribute_run(T, to, j * to_row + i * inner, accumulate, from,
                               i * from_row + j * inner, inner);
        return;
    }
    for (int64_t j = 0; j < columns; j++, to = elements_at(T, to, to_row))
#pragma omp simd
        for (int64_t i = 0; i < rows; i++)
            contribute(T, to, i, accumulate, load(T, from, i * from_row + j));
}

/* In TILE x TILE tiles of p and q, so that source and destination both stay in cache. */
void transpose_cpu(TensorType type, Real *out, bool accumulate, const Real *x, int64_t outer,
                   int64_t p, int64_t middle, int64_t q, int64_t inner)
{
    const int64_t x_row = middle * q * inner, out_row = middle * p * inner;
    const int threads = threads_for(outer * p * x_row, 0.5);
    BY_STORAGE(type, T, {
        PRAGMA(omp parallel for collapse(3) schedule(static) num_threads(threads))
        for (int64_t o = 0; o < outer; o++)
            for (int64_t m = 0; m < middle; m++)
                for (int64_t j = 0; j < q; j += TILE)
                    for (int64_t i = 0; i < p; i += TILE)
                        transpose_tile(
                            T, elements_at(T, out, (((o * q + j) * middle + m) * p + i) * inner),
                            out_row, accumulate,
                            elements_at(T, x, (((o * p + i) * middle + m) * q + j) * inner), x_row,
                            p - i < TILE ? p - i : TILE, q - j < TILE ? q - j : TILE, inner);
    });
}

static void transpose_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Exchange *s = node->attributes;
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, transpose,
                (dx.data, dx.accumulate, tape_upstream(node, 0), s->outer, s->q, s->middle, s->p,
                 s->inner));
}

Tensor *op_transpose(Tape *tape, Tensor *x, int axis_a, int axis_b)
{
    tape_use(tape, "op_transpose: x", x);
    AxisView a = axis_view(tape, "op_transpose: x", x, axis_a);
    AxisView b = axis_view(tape, "op_transpose: x", x, axis_b);
    AxisView first = a.index < b.index ? a : b, last = a.index < b.index ? b : a;
    Shape shape = x->shape;
    shape.size[a.index] = b.size;
    shape.size[b.index] = a.size;
    Exchange s = { .outer = first.outer, .p = first.size, .q = last.size, .inner = last.inner };
    s.middle = last.outer / (first.outer * first.size);
    if (a.index == b.index) /* a plain copy */
        s = (Exchange){ 1, 1, 1, 1, tensor_count(x) };
    Tensor *out = tape_tensor_of(tape, x->type, shape);
    KERNEL_CALL(x, transpose, (out->data, false, x->data, s.outer, s.p, s.middle, s.q, s.inner));
    tape_record(tape, (Node){ "op_transpose", transpose_backward, .inputs = { x },
                              .outputs = { out }, .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}
