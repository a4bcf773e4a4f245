/* rms_norm's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_RMS_NORM_OPERATIONS_H
#define TAPEGRAD_RMS_NORM_OPERATIONS_H

/* clang-format off */
#define RMS_NORM_OPERATIONS(ROW)                                                                   \
    ROW(rms_norm, op_rms_norm(tape, x[0], x[1], 0.3), PASSES(2, 5),                                \
        { S(ROWS, WIDTH), P(WIDTH) }, { S(5), P(5) }, { S(3, 19), P(19) }, { S(70, 3), P(3) },     \
        { S(2, 1, 3, 17), P(17) }, { S(200, 256), P(256) }, { S(20, 2500), P(2500) })              \
    ROW(rms_norm_one_plus, op_rms_norm(tape, x[0], op_add_scalar(tape, x[1], 1), 0.3),             \
        UNMEASURED, { S(3, 19), P(19) }, { S(37, 24), P(24) })                                     \
    ROW(rms_norm_alone, op_rms_norm(tape, x[0], NULL, 0.3), UNMEASURED,                            \
        { S(3, 7) }, { S(2, 3, 2, 19) }, { S(5, 1500) })                                           \
    ROW(l2_normalize, op_l2_normalize(tape, x[0], 0.3), PASSES(2, 5), { S(ROWS, WIDTH) },          \
        { S(5) }, { S(2, 3, 2, 19) }, { S(70, 3) }, { S(20, 1500) })

#define RMS_NORM_RANDOM_ROWS(ROW)                                                                  \
    ROW(rms_norm, { S(B_, N_, M_), P(M_) }) ROW(rms_norm_one_plus, { S(N_, M_), P(M_) })           \
    ROW(rms_norm_alone, { S(N_, M_) }) ROW(l2_normalize, { S(B_, N_, H_, M_) })
/* clang-format on */

#endif
