/* x seen as [outer, size, inner]: out[o, n, i] = sum over j <= n (reverse: j >= n) of x[o, j, i]
 * Backward, g = dL/dout: x_j is in the sums n >= j, so the sums run the other way,
 *   dx[o, j, i] <- sum over n >= j (reverse: n <= j) of g[o, n, i] */
#include "ops/layout.h"

typedef struct Running {
    AxisView axis;
    bool reverse;
} Running;

/* A thread takes CHUNK neighbouring i along the axis; the sums run in double precision. */
static void cumulative_sum_cpu(Real *out, bool accumulate, const Real *x, bool reverse,
                               int64_t outer, int64_t size, int64_t inner)
{
    enum { CHUNK = 64 };
    bool parallel = outer * size * inner >= PARALLEL_MINIMUM;
#pragma omp parallel for collapse(2) schedule(static) if (parallel)
    for (int64_t o = 0; o < outer; o++)
        for (int64_t first = 0; first < inner; first += CHUNK) {
            double sum[CHUNK] = { 0 };
            int64_t count = inner - first < CHUNK ? inner - first : CHUNK;
            for (int64_t step = 0; step < size; step++) {
                int64_t n = reverse ? size - 1 - step : step;
                int64_t row = (o * size + n) * inner + first;
#pragma omp simd
                for (int64_t i = 0; i < count; i++) {
                    sum[i] += (double)x[row + i];
                    contribute(&out[row + i], accumulate, (Real)sum[i]);
                }
            }
        }
}

static void cumulative_sum_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Running *s = node->saved;
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x->device, cumulative_sum,
                (dx.data, dx.accumulate, tape_upstream(node, 0), !s->reverse, s->axis.outer,
                 s->axis.size, s->axis.inner));
}

Tensor *op_cumulative_sum(Tape *tape, Tensor *x, int axis, bool reverse)
{
    tape_use(tape, "op_cumulative_sum: x", x);
    Running s = { axis_view(tape, "op_cumulative_sum: x", x->shape, axis), reverse };
    Tensor *out = tape_tensor(tape, x->shape);
    DEVICE_CALL(x->device, cumulative_sum,
                (out->data, false, x->data, reverse, s.axis.outer, s.axis.size, s.axis.inner));
    tape_record(tape, (Node){ .name = "op_cumulative_sum",
                              .backward = cumulative_sum_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .saved = tape_save(tape, &s, sizeof s) });
    return out;
}
