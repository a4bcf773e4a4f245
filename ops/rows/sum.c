/* sum and mean over the last axis of x [R, C], or over all of x as one row [1, C]:
 *   out[r] = f sum_c x[r, c], f = 1 for the sum, 1 / C for the mean
 * Backward, g = dL/dout:
 *   dx[r, c] <- f g[r]
 * out and g have dtype Real for every dtype of x. The order of summation does not depend on the
 * number of threads; on the CPU sums are in double precision. */
#include "ops/elementwise/broadcast.h"
#include "ops/rows/kernels.h"

void sum_forward_cpu(Real *out, Real *scratch, Real factor, const Real *x, int64_t rows,
                     int64_t columns)
{
    (void)scratch;
    if (rows == 1) {
        *out = factor * (Real)sum_all(x, columns);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * columns >= PARALLEL_MINIMUM)
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < columns; c++)
            sum += (double)x[r * columns + c];
        out[r] = factor * (Real)sum;
    }
}

void sum_backward_cpu(Real *dx, bool accumulate, Real factor, const Real *dout, int64_t rows,
                      int64_t columns)
{
#pragma omp parallel for collapse(2) schedule(static) if (rows * columns >= PARALLEL_MINIMUM)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t start = 0; start < columns; start += BLOCK) {
            Real *row = dx + r * columns + start;
            int64_t count = block_count(start, columns);
#pragma omp simd
            for (int64_t c = 0; c < count; c++)
                contribute(&row[c], accumulate, factor * dout[r]);
        }
}

static void sum_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Real *factor = node->attributes;
    int64_t rows = tensor_count(node->outputs[0]);
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(
        x, sum_backward,
        (dx.data, dx.accumulate, *factor, tape_upstream(node, 0), rows, tensor_count(x) / rows));
}

static Tensor *reduce(Tape *tape, const char *name, Tensor *x, Reduction over, bool mean)
{
    if (over != OVER_ALL && over != OVER_LAST_AXIS)
        tape_error(tape, "%s: there is no reduction %d; expected OVER_ALL or OVER_LAST_AXIS", name,
                   (int)over);
    if (over == OVER_LAST_AXIS && x->shape.rank == 0)
        tape_error(tape, "%s: x is a scalar, which has no last axis; expected OVER_ALL", name);
    Shape shape = over == OVER_ALL ? shape_scalar() : shape_new(x->shape.rank - 1, x->shape.size);
    int64_t rows = shape_count(shape), columns = tensor_count(x) / rows;
    Real factor = mean ? 1 / (Real)columns : 1;
    Tensor *out = tape_tensor(tape, shape);
    int64_t wanted = CUDA_CALL(x->device, sum_scratch, (rows, columns), 0);
    Tensor *scratch = wanted ? tape_scratch(tape, shape(wanted)) : NULL;
    DEVICE_CALL(x, sum_forward,
                (out->data, scratch ? scratch->data : NULL, factor, x->data, rows, columns));
    tape_scratch_free(tape, scratch);
    tape_record(tape, (Node){ .name = name,
                              .backward = sum_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .attributes = tape_save(tape, &factor, sizeof factor) });
    return out;
}

Tensor *op_sum(Tape *tape, Tensor *x, Reduction over)
{
    tape_use(tape, "op_sum: x", x);
    return reduce(tape, "op_sum", x, over, false);
}

Tensor *op_mean(Tape *tape, Tensor *x, Reduction over)
{
    tape_use(tape, "op_mean: x", x);
    return reduce(tape, "op_mean", x, over, true);
}
