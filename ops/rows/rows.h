/* Shared by the operations along the last axis: one row of C elements. */
#ifndef TAPEGRAD_OPS_ROWS_ROWS_H
#define TAPEGRAD_OPS_ROWS_ROWS_H

#include "ops/shared/internal.h"
#include "ops/shared/math.h"

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
        tape_error(tape, "%s is %s, expected %s: %s is %s", label, shape_text(tensor->shape).text,
                   shape_text(expected).text, name, shape_text(x->shape).text);
}

/* max_c x_c of x [C] of dtype T, ignoring NaN: in 16 independent lanes, which the compiler
 * vectorizes, then reduced. */
ALWAYS_INLINE Real row_max(int T, const Real *x, int64_t C)
{
    enum { AT_ONCE = 16 };
    Real m[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        m[i] = -(Real)INFINITY;
    int64_t c = 0;
    for (; c + AT_ONCE <= C; c += AT_ONCE) {
#pragma omp simd
        for (int i = 0; i < AT_ONCE; i++)
            m[i] = load(T, x, c + i) > m[i] ? load(T, x, c + i) : m[i];
    }
    for (; c < C; c++)
        m[0] = load(T, x, c) > m[0] ? load(T, x, c) : m[0];
    for (int i = 1; i < AT_ONCE; i++)
        m[0] = m[i] > m[0] ? m[i] : m[0];
    return m[0];
}

/* ln sum_c e^x_c = m + ln sum_c e^(x_c - m), m = max_c x_c */
ALWAYS_INLINE Real row_log_sum_exp(int T, const Real *x, int64_t C)
{
    Real m = row_max(T, x, C), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += real_exp(load(T, x, c) - m);
    return m + real_log(sum);
}

#endif
