/* The losses' rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_LOSSES_OPERATIONS_H
#define TAPEGRAD_LOSSES_OPERATIONS_H

/* Targets sigmoid(x[1]), weights x[2] and positive weights x[3], or NULL */
static inline Tensor *binary_cross_entropy(Tape *tape, Tensor **x)
{
    const BinaryCrossEntropyOptions options = { .weights = x[2], .positive_weights = x[3] };
    return op_binary_cross_entropy(tape, x[0], op_sigmoid(tape, x[1]), options);
}

/* clang-format off */
#define LOSSES_OPERATIONS(ROW)                                                                     \
    ROW(soft_cross_entropy, op_soft_cross_entropy(tape, x[0], op_softmax(tape, x[1]), x[2]),       \
        UNMEASURED,                                                                                \
        { S(5), S(5) }, { S(3, 7), S(3, 7) }, { S(2, 3, 4), S(2, 3, 4), WEIGHTS(2, 3) },           \
        { S(37, 41), S(37, 41), WEIGHTS(37) }, { S(3, 1500), S(3, 1500) })                         \
    ROW(smoothed_cross_entropy, op_smoothed_cross_entropy(tape, x[0], x[1], 0.1, x[2]),            \
        UNMEASURED, { S(3, 7), INTEGERS(7, 3) }, { S(2, 3, 4), INTEGERS(4, 2, 3), WEIGHTS(2, 3) }, \
        { S(37, 41), INTEGERS(41, 37), WEIGHTS(37) }, { S(3, 1500), INTEGERS(1500, 3) })           \
    ROW(binary_cross_entropy, binary_cross_entropy(tape, x), UNMEASURED,                           \
        { S(5), S(5) }, { S(3, 7), S(3, 7), WEIGHTS(3, 7), WEIGHTS(7) },                           \
        { S(2, 3, 2, 4), S(2, 3, 2, 4), WEIGHTS(2, 3, 2, 4), WEIGHTS(2, 1) },                      \
        { S(37, 41), S(37, 41), WEIGHTS(37, 41), WEIGHTS(37, 1) })

#define LOSSES_RANDOM_ROWS(ROW)                                                                    \
    ROW(soft_cross_entropy, { S(B_, N_ + 1, M_), S(B_, N_ + 1, M_), WEIGHTS(B_, N_ + 1) })         \
    ROW(smoothed_cross_entropy, { S(N_ + 1, M_), INTEGERS((int32_t)M_, N_ + 1), WEIGHTS(N_ + 1) }) \
    ROW(binary_cross_entropy, { S(B_, N_ + 1, M_), S(B_, N_ + 1, M_), WEIGHTS(B_, N_ + 1, M_),     \
                                WEIGHTS(N_ + 1, ONE_OR(M_, H_)) })
/* clang-format on */

#endif
