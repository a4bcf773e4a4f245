/* op_causal_convolution's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_CAUSAL_CONVOLUTION_OPERATIONS_H
#define TAPEGRAD_CAUSAL_CONVOLUTION_OPERATIONS_H

/* out and the final state: x, taps and, if there are any, a bias and a state */
static inline Tensor *convolve(Tape *tape, Tensor **x, CausalConvolutionOptions options)
{
    Tensor *parts[2];
    options.state = x[3];
    parts[0] = op_causal_convolution(tape, x[0], x[1], x[2], options, parts + 1);
    return with_final(tape, parts, 2);
}

static inline Tensor *convolve_by_offsets(Tape *tape, Tensor **x)
{
    const int32_t N = (int32_t)x[0]->shape.size[1], offsets[5] = { 0, 0, N / 2, N / 2 + 1, N };
    return convolve(
        tape, x, (CausalConvolutionOptions){ .offsets = tape_input_i32(tape, offsets, shape(5)) });
}

/* clang-format off */
#define CAUSAL_CONVOLUTION_OPERATIONS(ROW)                                                         \
    ROW(causal_convolution,                                                                        \
        op_causal_convolution(tape, x[0], x[1], x[2], (CausalConvolutionOptions){ 0 }, NULL),      \
        PASSES(2, 6),                                                                              \
        { S(SEQUENCES, POSITIONS, WIDTH), P(WIDTH, 4), P(WIDTH) },                                 \
        { S(2, 5, 3), P(3, 4), P(3) }, { S(1, 1, 1), P(1, 2), P(1) },                              \
        { S(3, 2, 5), P(5, 7) }, { S(3, 41, 37), P(37, 4), P(37) },                                \
        { S(2, 150, 130), P(130, 3), P(130) }, { S(1, 2100, 7), P(7, 5), P(7) })                   \
    ROW(convolution_state, convolve(tape, x, (CausalConvolutionOptions){ 0 }), UNMEASURED,         \
        { S(2, 5, 3), P(3, 4), P(3), P(2, 3, 3) }, { S(2, 2, 3), P(3, 4), P(3), P(2, 3, 3) },      \
        { S(2, 1, 5), P(5, 4), P(5) }, { S(3, 41, 37), P(37, 3), P(37), P(3, 2, 37) })             \
    ROW(convolution_lengths,                                                                       \
        convolve(tape, x, (CausalConvolutionOptions){ .lengths = lengths_of(tape, x[0]) }),        \
        UNMEASURED, { S(2, 5, 3), P(3, 4), P(3), P(2, 3, 3) },                                     \
        { S(3, 41, 37), P(37, 3), P(37), P(3, 2, 37) })                                            \
    ROW(convolution_offsets, convolve_by_offsets(tape, x), UNMEASURED,                             \
        { S(1, 9, 3), P(3, 4), P(3), P(4, 3, 3) }, { S(1, 9, 3), P(3, 4) },                        \
        { S(1, 101, 37), P(37, 3), P(37), P(4, 2, 37) })

#define CAUSAL_CONVOLUTION_RANDOM_ROWS(ROW)                                                        \
    ROW(causal_convolution, { S(B_, N_, M_), P(M_, 1 + H_), P(M_) })                               \
    ROW(convolution_state, { S(B_, N_, M_), P(M_, 1 + H_), P(M_), P(B_, H_, M_) })                 \
    ROW(convolution_lengths, { S(2, N_, M_), P(M_, 1 + H_), P(M_), P(2, H_, M_) })                 \
    ROW(convolution_offsets, { S(1, N_ + 2, M_), P(M_, 1 + H_), P(M_), P(4, H_, M_) })
/* clang-format on */

#endif
