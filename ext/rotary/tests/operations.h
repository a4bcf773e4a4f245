/* op_rotary's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_ROTARY_OPERATIONS_H
#define TAPEGRAD_ROTARY_OPERATIONS_H

/* By halves of 4 elements of all heads but the last; positions far apart, of each sequence. */
static inline Tensor *rotate_far(Tape *tape, Tensor *x)
{
    const int64_t *size = x->shape.size;
    int32_t positions[256];
    for (int32_t i = 0; i < size[0] * size[1]; i++)
        positions[i] = i * 7919 % 1000003;
    return op_rotary(
        tape, x,
        (RotaryOptions){ .dims = 4,
                         .heads = size[2] > 1 ? size[2] - 1 : 1,
                         .base = 500,
                         .halves = true,
                         .positions = tape_input_i32(tape, positions, shape(size[0], size[1])) });
}

/* clang-format off */
#define ROTARY_OPERATIONS(ROW)                                                                     \
    ROW(rotary, op_rotary(tape, x[0], (RotaryOptions){ 0 }), PASSES(2, 4),                         \
        { S(SEQUENCES, POSITIONS, HEADS, HEAD_DIM) }, { S(2, 5, 3, 4) }, { S(1, 1, 1, 2) },        \
        { S(2, 37, 3, 10) }, { S(3, 130, 2, 32) })                                                 \
    ROW(rotary_halves, op_rotary(tape, x[0], (RotaryOptions){ .halves = true }), UNMEASURED,       \
        { S(2, 5, 3, 4) }, { S(3, 130, 2, 32) })                                                   \
    ROW(rotary_far, rotate_far(tape, x[0]), UNMEASURED, { S(2, 5, 3, 5) }, { S(2, 37, 2, 24) })

#define ROTARY_RANDOM_ROWS(ROW)                                                                    \
    ROW(rotary, { S(B_, N_, H_, 2 * M_) }) ROW(rotary_halves, { S(B_, N_, H_, 2 * M_) })           \
    ROW(rotary_far, { S(B_, N_, H_, 3 + M_) })
/* clang-format on */

#endif
