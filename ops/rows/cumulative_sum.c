/* cumulative_sum along one axis, x viewed as [outer, size, inner]:
 *   out[o, n, i] = sum over j <= n (reverse: j >= n) of x[o, j, i]
 * Backward, g = dL/dout: x_j contributes to the sums n >= j, so the gradient is summed in reverse,
 *   dx[o, j, i] <- sum over n >= j (reverse: n <= j) of g[o, n, i] */
#include "ops/shared/axis.h"
#include "ops/rows/kernels.h"
#include "ops/shared/internal.h"

typedef struct Running {
    AxisView axis;
    bool reverse;
} Running;

/* The last axis: each sum reads contiguous elements. */
ALWAYS_INLINE void run_along_row(int T, Real *out, bool accumulate, const Real *x, bool reverse,
                                 int64_t size)
{
    double sum = 0;
    for (int64_t step = 0; step < size; step++) {
        int64_t n = reverse ? size - 1 - step : step;
        sum += (double)load(T, x, n);
        contribute(T, out, n, accumulate, (Real)sum);
    }
}

/* Another axis: count <= CHUNK adjacent sums run in parallel, in vector lanes. */
enum { CHUNK = 64 };
ALWAYS_INLINE void run_along_columns(int T, Real *out, bool accumulate, const Real *x, bool reverse,
                                     int64_t size, int64_t inner, int64_t count)
{
    double sum[CHUNK] = { 0 };
    for (int64_t step = 0; step < size; step++) {
        int64_t row = (reverse ? size - 1 - step : step) * inner;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            sum[i] += (double)load(T, x, row + i);
            contribute(T, out, row + i, accumulate, (Real)sum[i]);
        }
    }
}

/* Sums in double precision. */
void cumulative_sum_cpu(TensorType type, Real *out, bool accumulate, const Real *x, bool reverse,
                        AxisView v)
{
    const int64_t outer = v.outer, size = v.size, inner = v.inner;
#pragma omp parallel for collapse(2) schedule(static)                                              \
    num_threads(threads_for(outer *size *inner, 1))
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i += CHUNK) {
            int64_t at = o * size * inner + i, count = inner - i < CHUNK ? inner - i : CHUNK;
            if (inner == 1)
                BY_STORAGE(type, T,
                           run_along_row(T, elements_at(T, out, at), accumulate,
                                         elements_at(T, x, at), reverse, size));
            else
                BY_STORAGE(type, T,
                           run_along_columns(T, elements_at(T, out, at), accumulate,
                                             elements_at(T, x, at), reverse, size, inner, count));
        }
}

static void cumulative_sum_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Running *s = node->attributes;
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, cumulative_sum,
                (dx.data, dx.accumulate, tape_upstream(node, 0), !s->reverse, s->axis));
}

/* label: the operation's name and its argument's */
static Tensor *cumulative_sum(Tape *tape, const char *name, const char *label, Tensor *x, int axis,
                              bool reverse)
{
    tape_use(tape, label, x);
    Running s = { axis_view(tape, label, x, axis), reverse };
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    KERNEL_CALL(x, cumulative_sum, (out->data, false, x->data, reverse, s.axis));
    tape_record(tape, (Node){ name, cumulative_sum_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_cumulative_sum(Tape *tape, Tensor *x, int axis)
{
    return cumulative_sum(tape, "op_cumulative_sum", "op_cumulative_sum: x", x, axis, false);
}

Tensor *op_reverse_cumulative_sum(Tape *tape, Tensor *x, int axis)
{
    return cumulative_sum(tape, "op_reverse_cumulative_sum", "op_reverse_cumulative_sum: x", x,
                          axis, true);
}
