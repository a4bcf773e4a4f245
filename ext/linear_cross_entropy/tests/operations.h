/* linear_cross_entropy's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAK_LINEAR_CROSS_ENTROPY_OPERATIONS_H
#define TAPEGRAK_LINEAR_CROSS_ENTROPY_OPERATIONS_H

/* Of x / 2: in bf16 the weight's rounding errors, times x, are errors of the logits. More than 512
 * rows are several blocks. */
static inline Tensor *linear_cross_entropy(Tape *tape, Tensor **x, Tensor *bias, Tensor *targets,
                                           Tensor *weights)
{
    return op_linear_cross_entropy(tape, op_scale(tape, x[0], 0.5), x[1], bias, targets, weights);
}

/* clang-format off */
#define LINEAR_CROSS_ENTROPY_OPERATIONS(ROW)                                                       \
    ROW(linear_cross_entropy, linear_cross_entropy(tape, x, x[2], x[3], x[4]), UNMEASURED,         \
        { S(3, 5), P(7, 5), P(7), INTEGERS(7, 3) },                                                \
        { S(2, 3, 4), P(5, 4), P(5), INTEGERS(5, 2, 3), WEIGHTS(2, 3) },                           \
        { S(37, 24), P(1500, 24), P(1500), INTEGERS(1500, 37) },                                   \
        { S(1100, 13), P(11, 13), P(11), INTEGERS(11, 1100) },                                     \
        { S(1025, 3), P(70, 3), P(70), INTEGERS(70, 1025), WEIGHTS(1025) })                        \
    ROW(linear_cross_entropy_alone, linear_cross_entropy(tape, x, NULL, x[2], NULL), UNMEASURED,   \
        { S(2, 3, 2, 4), P(1, 4), INTEGERS(1, 2, 3, 2) }, { S(6, 4), P(5, 4), INTEGERS(5, 6) },    \
        { S(520, 24), P(37, 24), INTEGERS(37, 520) })

#define LINEAR_CROSS_ENTROPY_RANDOM_ROWS(ROW)                                                      \
    ROW(linear_cross_entropy,                                                                      \
        { S(B_, N_ + 1, K_), P(M_, K_), P(M_), INTEGERS((int32_t)M_, B_, N_ + 1),                  \
          WEIGHTS(B_, N_ + 1) })                                                                   \
    ROW(linear_cross_entropy_alone, { S(N_, K_), P(M_, K_), INTEGERS((int32_t)M_, N_) })
/* clang-format on */

#endif
