/* CTC's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_CTC_OPERATIONS_H
#define TAPEGRAD_CTC_OPERATIONS_H

/* A target of n symbols, some of them twice in a row; the second of two sequences is shorter. */
static inline Tensor *ctc_of_symbols(Tape *tape, Tensor *logits, int64_t n)
{
    const int64_t *size = logits->shape.size;
    int32_t targets[16 * 100], lengths[2] = { (int32_t)size[1], (int32_t)(size[1] - size[1] / 3) };
    for (int64_t i = 0; i < size[0] * n; i++)
        targets[i] = (int32_t)(1 + i * i / 3 % (size[2] - 1));
    return op_ctc(
        tape, logits, tape_input_i32(tape, targets, shape(size[0], n)),
        (CtcOptions){ .lengths = size[0] == 2 ? tape_input_i32(tape, lengths, shape(2)) : NULL });
}

/* clang-format off */
#define CTC_OPERATIONS(ROW)                                                                        \
    ROW(ctc, ctc_of_symbols(tape, x[0], 1), UNMEASURED, { S(2, 6, 3) }, { S(1, 2, 2) })            \
    ROW(ctc_long, ctc_of_symbols(tape, x[0], 40), UNMEASURED, { S(1, 81, 3) }, { S(2, 150, 29) })  \
    ROW(ctc_speech, ctc_of_symbols(tape, x[0], x[0]->shape.size[1] / 8),                           \
        FLOPS(3.7, 11), /* times ROWS WIDTH: 3 and 9 per frame and state of 16 x 800 x 201 */      \
        { S(16, 800, 41) }, { S(2, 16, 7) })

#define CTC_RANDOM_ROWS(ROW)                                                                       \
    ROW(ctc, { S(B_, N_, 1 + M_) }) ROW(ctc_speech, { S(B_, 8 + N_, 1 + M_) })                     \
    ROW(ctc_long, { S(B_, 120 + N_, 1 + M_) }) /* frames for 40 equal symbols */
/* clang-format on */

#endif
