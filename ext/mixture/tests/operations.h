/* The mixture's rows of tests/operations.h and tests/random_shapes.h. */
/* op_sample_logistic_mixture(...) has no row: a draw has no exact result. */
#ifndef TAPEGRAD_MIXTURE_OPERATIONS_H
#define TAPEGRAD_MIXTURE_OPERATIONS_H

/* clang-format off */
#define MIXTURE_OPERATIONS(ROW)                                                                    \
    ROW(discretized_logistic_mixture, op_discretized_logistic_mixture(tape, x[0], x[1]),           \
        UNMEASURED, { S(5, 3), INTEGERS(256, 5) }, { S(5, 51), INTEGERS(256, 5) },                 \
        { S(3, 2, 2, 12), INTEGERS(256, 3, 2, 2) }, { S(37, 30), INTEGERS(256, 37) },              \
        { S(300, 3), INTEGERS(256, 300) }, { S(3, 3300), INTEGERS(256, 3) })

#define MIXTURE_RANDOM_ROWS(ROW)                                                                   \
    ROW(discretized_logistic_mixture, { S(N_, 3 * M_), INTEGERS(256, N_) })
/* clang-format on */

#endif
