/* Tensors of one element per row of another; functions of one row. */
#ifndef TAPEGRAD_OPS_SHARED_ROWS_H
#define TAPEGRAD_OPS_SHARED_ROWS_H

#include "ops/shared/internal.h"

/* The shape [...] for the shape [..., C]. */
static inline Shape shape_of_rows(Shape shape)
{
    shape.size[--shape.rank] = 0;
    return shape;
}

/* Raises unless the tensor has one element per row of x; the error message calls x `name`. */
static inline void check_one_per_row(Tape *tape, const char *label, const Tensor *tensor,
                                     const Tensor *x, const char *name)
{
    const Shape expected = shape_of_rows(x->shape);
    if (!shape_equal(tensor->shape, expected))
        tape_error(tape, "%s %s, expected %s: %s %s", label, tensor_text(tensor).text,
                   shape_text(expected).text, name, tensor_text(x).text);
}

/* Raises unless x has rows to normalize, and eps > 0. */
static inline void check_normalization(Tape *tape, const char *operation, const Tensor *x,
                                       double eps)
{
    if (x->shape.rank < 1)
        tape_error(tape, "%s: x is a scalar, expected one axis at least", operation);
    if (!((Real)eps > 0 && (Real)eps < (Real)INFINITY))
        tape_error(tape, "%s: eps is %g, expected more than 0", operation, eps);
}

/* max_c x_c, ignoring NaN; -infinity if there is no number */
static inline Real row_max(const Real *x, int64_t C)
{
    Real m = -(Real)INFINITY;
    SUM(max, m)
    for (int64_t c = 0; c < C; c++)
        m = x[c] > m ? x[c] : m;
    return m;
}

/* Sums over a row: in Real over runs of ROW_RUN elements, which compilers turn into sums of
 * vectors, and of the runs in double. */
enum { ROW_RUN = 256 };

/* sum_c x_c */
static inline double row_sum(const Real *x, int64_t C)
{
    double sum = 0;
    for (int64_t start = 0; start < C; start += ROW_RUN) {
        const int64_t end = C - start < ROW_RUN ? C : start + ROW_RUN;
        Real run = 0;
        SUM(+, run)
        for (int64_t c = start; c < end; c++)
            run += x[c];
        sum += (double)run;
    }
    return sum;
}

/* sum_c x_c y_c */
static inline double row_dot(const Real *x, const Real *y, int64_t C)
{
    double sum = 0;
    for (int64_t start = 0; start < C; start += ROW_RUN) {
        const int64_t end = C - start < ROW_RUN ? C : start + ROW_RUN;
        Real run = 0;
        SUM(+, run)
        for (int64_t c = start; c < end; c++)
            run += x[c] * y[c];
        sum += (double)run;
    }
    return sum;
}

/* ln sum_c e^x_c of a row x [C] */
static inline LogSumExp log_sum_exp(const Real *x, int64_t C)
{
    const Real m = row_max(x, C);
    Real powers[ROW_RUN];
    double sum = 0;
    for (int64_t start = 0; start < C; start += ROW_RUN) {
        const int64_t count = C - start < ROW_RUN ? C - start : ROW_RUN;
        PRAGMA(omp simd)
        for (int64_t c = 0; c < count; c++)
            powers[c] = real_exp(x[start + c] - m);
        sum += row_sum(powers, count);
    }
    return (LogSumExp){ m, (Real)log(sum) };
}

/* Of ops/rows/softmax.c, on the calling thread: g = dL/dout. */
void softmax_row(Real *out, const Real *x, int64_t C);
void softmax_row_backward(Gradient dx, const Real *g, const Real *out, int64_t C);
void log_softmax_row(Real *out, const Real *x, int64_t C);
void log_softmax_row_backward(Gradient dx, const Real *g, const Real *out, int64_t C);

#endif
