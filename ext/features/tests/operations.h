/* The features' rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_FEATURES_OPERATIONS_H
#define TAPEGRAD_FEATURES_OPERATIONS_H

enum { POLYNOMIAL = 1 + HEAD_DIM + HEAD_DIM * (HEAD_DIM + 1) / 2, RANDOM = 2 * HEAD_DIM };

/* clang-format off */
#define FEATURES_OPERATIONS(ROW)                                                                   \
    ROW(polynomial_features, op_polynomial_features(tape, x[0]),                                   \
        PASSES(1 + (double)POLYNOMIAL / HEAD_DIM, 3 + 2 * (double)POLYNOMIAL / HEAD_DIM),          \
        { S(SEQUENCES, POSITIONS, HEADS, HEAD_DIM) }, { S(5) }, { S(2, 1, 3, 4) }, { S(3, 1) },    \
        { S(3, 7) }, { S(3, 5, 7) }, { S(110, 16) })                                               \
    /* exp, cos and sin multiply the rounding error of their argument by its magnitude. */         \
    ROW(random_features, op_random_features(tape, op_scale(tape, x[0], 0.25), x[1]),               \
        FLOPS(2.0 * RANDOM, 6.0 * RANDOM),                                                         \
        { S(SEQUENCES, POSITIONS, HEADS, HEAD_DIM), S(RANDOM, HEAD_DIM) }, { S(4), S(5, 4) },      \
        { S(2, 1, 3, 1), S(2, 1) }, { S(3, 4), S(5, 4) }, { S(3, 7, 9), S(5, 9) },                 \
        { S(37, 8), S(1100, 8) })                                                                  \
    ROW(fourier_features, op_fourier_features(tape, op_scale(tape, x[0], 0.25), x[1]),             \
        FLOPS(2.0 * RANDOM, 4.0 * RANDOM),                                                         \
        { S(SEQUENCES, POSITIONS, HEADS, HEAD_DIM), S(RANDOM, HEAD_DIM) }, { S(4), S(5, 4) },      \
        { S(2, 1, 3, 1), S(2, 1) }, { S(3, 4), S(5, 4) }, { S(3, 7, 9), S(5, 9) })

#define FEATURES_RANDOM_ROWS(ROW)                                                                  \
    ROW(polynomial_features, { S(N_, M_) })                                                        \
    ROW(random_features, { S(B_, N_, K_), S(M_, K_) })                                             \
    ROW(fourier_features, { S(B_, N_, K_), S(M_, K_) })
/* clang-format on */

#endif
