/* max and argmax along one axis of x [outer, size, inner], or over all of x as [1, size, 1]:
 *   index[o, i] = the first j with the largest x[o, j, i]     out[o, i] = x[o, index[o, i], i]
 * A NaN counts as larger than every number, so it shows in the result.
 * Backward, g = dL/dout; only the first maximum is in the result:
 *   dx[o, index[o, i], i] <- g[o, i]; the other elements of dx get 0 */
#include "ops/kernels.h"
#include "ops/rows/kernels.h"
#include "ops/shared/internal.h"

enum { CHUNK = 64 };

/* count <= CHUNK adjacent maxima in vector lanes */
ALWAYS_INLINE void argmax_of_columns(int T, int32_t *index, const Real *x, int64_t size,
                                     int64_t inner, int64_t count)
{
    Real best[CHUNK];
    for (int64_t i = 0; i < count; i++) {
        best[i] = load(T, x, i);
        index[i] = 0;
    }
    for (int64_t j = 1; j < size; j++)
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const Real value = load(T, x, j * inner + i);
            const bool larger = !(value <= best[i]) & (best[i] == best[i]);
            index[i] = larger ? (int32_t)j : index[i];
            best[i] = larger ? value : best[i];
        }
}

/* Whether x[a] comes before x[b] as a maximum: NaN, then larger values, then lower indices. */
ALWAYS_INLINE bool before(int T, const Real *x, int64_t a, int64_t b)
{
    const Real x_a = load(T, x, a), x_b = load(T, x, b);
    const bool a_nan = x_a != x_a, b_nan = x_b != x_b;
    if (a_nan != b_nan)
        return a_nan;
    return x_a > x_b || ((a_nan || x_a == x_b) && a < b);
}

/* A row as 16 columns, whose maxima are then compared. */
ALWAYS_INLINE int32_t argmax_of_row(int T, const Real *x, int64_t size)
{
    enum { LANES = 16 };
    int32_t step[LANES];
    const int64_t steps = size / LANES;
    int64_t best = 0;
    if (steps > 0)
        argmax_of_columns(T, step, x, steps, LANES, LANES);
    for (int64_t lane = 0; steps > 0 && lane < LANES; lane++)
        best = before(T, x, step[lane] * LANES + lane, best) ? step[lane] * LANES + lane : best;
    for (int64_t j = steps * LANES; j < size; j++)
        best = before(T, x, j, best) ? j : best;
    return (int32_t)best;
}

void argmax_cpu(TensorType type, int32_t *index, const Real *x, AxisView v)
{
    const int64_t outer = v.outer, size = v.size, inner = v.inner;
#pragma omp parallel for collapse(2) schedule(static)                                              \
    num_threads(threads_for(outer *size *inner, 0.7))
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += CHUNK)
            if (inner == 1)
                BY_STORAGE(type, T, index[o] = argmax_of_row(T, elements_at(T, x, o * size), size));
            else
                BY_STORAGE(type, T,
                           argmax_of_columns(T, index + o * inner + i,
                                             elements_at(T, x, o * size * inner + i), size, inner,
                                             inner - i < CHUNK ? inner - i : CHUNK));
}

static Tensor *argmax(Tape *tape, Tensor *x, AxisView v, Shape shape)
{
    Tensor *index = tape_tensor_i32(tape, shape);
    index->written = (IntegerBounds){ .known = true, .greatest = (int32_t)(v.size - 1) };
    KERNEL_CALL(x, argmax, (index->integers, x->data, v));
    return index;
}

Tensor *op_argmax(Tape *tape, Tensor *x, int axis)
{
    tape_use(tape, "op_argmax: x", x);
    Shape shape;
    const AxisView v = axis_to_reduce(tape, "op_argmax: x", x, axis, &shape);
    return argmax(tape, x, v, shape);
}

static void max_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Gradient dx = tape_scattered_contribution(node, x);
    kernels_of(x)->gather_backward(dx.data, tape_upstream(node, 0), node->saved[0]->integers,
                                   *(const AxisView *)node->attributes, 1);
}

Tensor *op_max(Tape *tape, Tensor *x, int axis)
{
    tape_use(tape, "op_max: x", x);
    Shape shape;
    const AxisView v = axis_to_reduce(tape, "op_max: x", x, axis, &shape);
    Tensor *index = argmax(tape, x, v, shape), *out = tape_tensor_of(tape, x->type, shape);
    kernels_of(x)->gather_forward(out->data, x->data, index->integers, v, 1);
    tape_record(tape, (Node){ "op_max", max_backward, .inputs = { x }, .outputs = { out },
                              .saved = { index }, .attributes = tape_save(tape, &v, sizeof v) });
    return out;
}
