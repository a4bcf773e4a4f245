#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/kernels.h"

Shape broadcast_shape(Tape *tape, const char *operation, const Tensor *a, const Tensor *b)
{
    const Shape large = a->shape.rank >= b->shape.rank ? a->shape : b->shape;
    const Shape small = a->shape.rank >= b->shape.rank ? b->shape : a->shape;
    bool fits = true;
    for (int i = 1; i <= small.rank; i++)
        fits &= large.size[large.rank - i] == small.size[small.rank - i];
    if (!fits)
        tape_error(tape,
                   "%s: the shapes do not fit: a is %s, b is %s; expected equal ones, or one the "
                   "trailing axes of the other",
                   operation, shape_text(a->shape).text, shape_text(b->shape).text);
    return large;
}

/* ------------------------------------------------------------------------------------------sums */
enum { PARTS = 64, CHUNK = 64 };

/* In PARTS parts for any number of threads: a fixed order of summation. */
double sum_all(const Real *x, int64_t n)
{
    double part[PARTS], sum = 0;
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MINIMUM)
    for (int p = 0; p < PARTS; p++) {
        double partial = 0;
#pragma omp simd reduction(+ : partial)
        for (int64_t i = n * p / PARTS; i < n * (p + 1) / PARTS; i++)
            partial += (double)x[i];
        part[p] = partial;
    }
    for (int p = 0; p < PARTS; p++)
        sum += part[p];
    return sum;
}

/* Each thread sums CHUNK columns at a time over all rows. */
void sum_repeats_cpu(Real *out, bool accumulate, Real factor, Real *scratch, const Real *x,
                     int64_t rows, int64_t columns)
{
    (void)scratch;
    if (rows == 1) {
        PARALLEL_FOR(c, columns)
            contribute(&out[c], accumulate, factor * x[c]);
        return;
    }
    if (columns == 1) {
        contribute(out, accumulate, factor * (Real)sum_all(x, rows));
        return;
    }
#pragma omp parallel for schedule(static) if (rows * columns >= PARALLEL_MINIMUM)
    for (int64_t first = 0; first < columns; first += CHUNK) {
        int64_t count = columns - first < CHUNK ? columns - first : CHUNK;
        double sum[CHUNK] = { 0 };
        for (int64_t r = 0; r < rows; r++)
#pragma omp simd
            for (int64_t c = 0; c < count; c++)
                sum[c] += (double)x[r * columns + first + c];
        for (int64_t c = 0; c < count; c++)
            contribute(&out[first + c], accumulate, factor * (Real)sum[c]);
    }
}

void sum_repeats(Tape *tape, const Tensor *like, Real *out, bool accumulate, Real factor,
                 const Real *x, int64_t rows, int64_t columns)
{
    int64_t wanted = CUDA_CALL(like->device, sum_repeats_scratch, (rows, columns), 0);
    Tensor *scratch = wanted ? tape_scratch(tape, shape(wanted)) : NULL;
    DEVICE_CALL(like, sum_repeats,
                (out, accumulate, factor, scratch ? scratch->data : NULL, x, rows, columns));
    tape_scratch_free(tape, scratch);
}

/* ----------------------------------------------------------------- gradients of repeated inputs */
Broadcast broadcast_begin(Node *node, Tensor *x, int64_t n)
{
    Gradient gradient = tape_contribution(node, x);
    if (!gradient.data || tensor_count(x) == n)
        return (Broadcast){ .data = gradient.data, .accumulate = gradient.accumulate };
    Tensor *scratch = tape_tensor_of(node->tape, x->type, shape(n));
    return (Broadcast){ .data = scratch->data, .gradient = gradient, .scratch = scratch };
}

void broadcast_end(Node *node, Tensor *x, Broadcast broadcast)
{
    if (!broadcast.scratch)
        return;
    int64_t m = tensor_count(x);
    sum_repeats(node->tape, x, broadcast.gradient.data, broadcast.gradient.accumulate, 1,
                broadcast.data, tensor_count(broadcast.scratch) / m, m);
    tape_scratch_free(node->tape, broadcast.scratch);
}
