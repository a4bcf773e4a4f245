/* The rows of images in tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_IMAGES_OPERATIONS_H
#define TAPEGRAD_IMAGES_OPERATIONS_H

/* Running statistics of C channels: in training they get updates, which no result shows. */
static inline Tensor *batchnorm(Tape *tape, Tensor **x, bool training)
{
    const int64_t C = x[1]->shape.size[0];
    static Real *values; /* as in far_apart */
    free(values);
    values = malloc((size_t)(2 * C) * sizeof *values);
    if (!values)
        abort();
    for (int64_t c = 0; c < C; c++) {
        values[c] = (Real)(c % 5) / 8;
        values[C + c] = (Real)(c % 3 + 1) / 2;
    }
    Tensor *mean = tape_input(tape, values, shape(C));
    Tensor *variance = tape_input(tape, values + C, shape(C));
    const bool before = tape_set_training(tape, training);
    Tensor *out = op_batchnorm(tape, x[0], x[1], x[2], mean, variance, 0.1, 1e-3);
    tape_set_training(tape, before);
    return out;
}

/* clang-format off */
#define WINDOW(height, width, stride, padding)                                                     \
    (Window){ height, width, stride, padding, 0, 0, 0, 0 }

#define IMAGES_OPERATIONS(ROW)                                                                     \
    ROW(batchnorm, batchnorm(tape, x, true), PASSES(3, 8),                                         \
        { S(ROWS, WIDTH), P(WIDTH), P(WIDTH) }, { S(5, 1), P(1), P(1) },                           \
        { S(5, 19), P(19), P(19) }, { S(2, 3, 3, 4), P(4), P(4) }, { S(70, 3), P(3), P(3) },       \
        { S(3, 50, 24), P(24), P(24) }, { S(2100, 7), P(7), P(7) },                                \
        { S(9, 300), P(300), P(300) })                                                             \
    ROW(batchnorm_running, batchnorm(tape, x, false), UNMEASURED,                                  \
        { S(5), P(5), P(5) }, { S(5, 19), P(19), P(19) }, { S(1, 3, 3, 4), P(4), P(4) },           \
        { S(3, 50, 24), P(24), P(24) })                                                            \
    ROW(unfold, op_unfold(tape, x[0], WINDOW(3, 2, 2, 1)), UNMEASURED, { S(2, 5, 4, 3) },          \
        { S(2, 7, 9, 3) }, { S(3, 6, 4, 16) },                                                     \
        { S(2, 4, 90, 25) })                                                                       \
    ROW(unfold_far, op_unfold(tape, x[0], WINDOW(5, 1, 3, 2)), UNMEASURED, { S(2, 5, 6, 2) },      \
        { S(3, 29, 31, 8) })                                                                       \
    ROW(unfold_padding, op_unfold(tape, x[0], WINDOW(1, 2, 1, 4)), UNMEASURED,                     \
        { S(2, 5, 6, 2) }, { S(3, 29, 31, 8) })                                                    \
    ROW(unfold_gaps, op_unfold(tape, x[0], WINDOW(2, 5, 7, 0)), UNMEASURED,                        \
        { S(2, 5, 6, 2) }, { S(3, 29, 31, 8) })                                                    \
    ROW(unfold_two_directions,                                                                     \
        op_unfold(tape, x[0], (Window){ 3, 2, 2, 1, 3, 1, 2, 1 }), UNMEASURED,                     \
        { S(2, 3, 4, 3) }, { S(3, 17, 31, 8) })                                                    \
    ROW(unfold_inside, op_unfold(tape, x[0], (Window){ .height = 2, .width = 3 }), UNMEASURED,     \
        { S(1, 5, 6, 8) })                                                                         \
    ROW(unfold_3_by_3, op_unfold(tape, x[0], WINDOW(3, 3, 1, 1)), PASSES(10, 20),                  \
        { S(ROWS, 4, 4, WIDTH / 16) }, { S(1, 3, 4, 2) })                                          \
    ROW(conv2d, op_conv2d(tape, x[0], x[1], x[2], (Window){ .stride = 2, .padding = 1 }, 1),       \
        UNMEASURED,                                                                                \
        { S(2, 5, 4, 3), P(5, 3, 2, 3), P(5) }, { S(1, 4, 5, 1), P(3, 2, 3, 1), P(3) },            \
        { S(3, 29, 31, 5), P(9, 4, 3, 5), P(9) })                                                  \
    ROW(conv2d_far,                                                                                \
        op_conv2d(tape, x[0], x[1], NULL, (Window){ .stride = 3, .padding = 4 }, 1),               \
        UNMEASURED, { S(2, 3, 4, 2), P(3, 5, 1, 2) }, { S(3, 29, 31, 8), P(16, 5, 1, 8) })         \
    ROW(conv2d_3_by_3, op_conv2d(tape, x[0], x[1], x[2], (Window){ .padding = 1 }, 1),             \
        FLOPS(18.0 * 64, 54.0 * 64), { S(SEQUENCES, 32, 32, 32), P(64, 3, 3, 32), P(64) },         \
        { S(1, 3, 4, 2), P(3, 3, 3, 2), P(3) }, { S(5, 28, 28, 16), P(24, 3, 3, 16), P(24) })      \
    ROW(conv2d_two_directions,                                                                     \
        op_conv2d(tape, x[0], x[1], x[2],                                                          \
            (Window){ .stride = 2, .stride_width = 1, .padding_height = 2, .padding = 1 }, 1),     \
        UNMEASURED, { S(2, 4, 5, 2), P(3, 3, 2, 2), P(3) },                                        \
        { S(3, 19, 23, 8), P(9, 3, 4, 8), P(9) })                                                  \
    ROW(conv2d_dilated,                                                                            \
        op_conv2d(tape, x[0], x[1], x[2],                                                          \
            (Window){ .stride_width = 2, .padding_width = 2, .dilation = 2 }, 1),                  \
        UNMEASURED, { S(2, 5, 4, 2), P(3, 3, 2, 2), P(3) },                                        \
        { S(3, 19, 23, 8), P(9, 3, 4, 8), P(9) })                                                  \
    ROW(conv2d_groups,                                                                             \
        op_conv2d(tape, x[0], x[1], x[2],                                                          \
                  (Window){ .stride = 2, .padding = 1, .dilation = 2 }, 2),                        \
        UNMEASURED, { S(2, 4, 5, 4), P(6, 2, 3, 2), P(6) }, { S(1, 4, 5, 2), P(2, 3, 2, 1) },      \
        { S(3, 19, 23, 10), P(24, 3, 4, 5), P(24) })                                               \
    ROW(conv2d_depthwise,                                                                          \
        op_conv2d(tape, x[0], x[1], x[2],                                                          \
                  (Window){ .padding = 1 }, x[0]->shape.size[3]),                                  \
        PASSES(2, 6), { S(SEQUENCES, 32, 32, 32), P(32, 3, 3, 1), P(32) },                         \
        { S(2, 3, 4, 3), P(3, 2, 3, 1), P(3) }, { S(1, 3, 4, 2), P(6, 3, 2, 1), P(6) },            \
        { S(3, 19, 23, 37), P(37, 3, 3, 1), P(37) }, { S(9, 29, 23, 5), P(20, 3, 3, 1) })          \
    ROW(conv2d_with_itself, op_conv2d(tape, x[0], x[0], NULL, (Window){ .padding = 1 }, 1),        \
        UNMEASURED, { P(2, 3, 3, 2) })                                                             \
    ROW(max_pool, op_max_pool(tape, x[0], WINDOW(2, 2, 0, 0)), PASSES(1.5, 3),                     \
        { S(ROWS, 4, 4, WIDTH / 16) }, { S(2, 4, 5, 3) }, { S(2, 7, 9, 70) })                      \
    ROW(max_pool_overlap, op_max_pool(tape, far_apart(tape, x[0]), WINDOW(3, 2, 1, 1)),            \
        UNMEASURED,                                                                                \
        { S(2, 5, 4, 3) }, { S(1, 1, 1, 1) }, { S(3, 6, 4, 16) }, { S(2, 4, 30, 130) })            \
    ROW(max_pool_gaps, op_max_pool(tape, far_apart(tape, x[0]), WINDOW(2, 5, 7, 1)),               \
        UNMEASURED,                                                                                \
        { S(2, 5, 6, 2) }, { S(3, 29, 31, 8) })                                                    \
    ROW(max_pool_two_directions,                                                                   \
        op_max_pool(tape, far_apart(tape, x[0]), (Window){ 2, 5, 2, 0, 3, 1, 2, 1 }), UNMEASURED,  \
        { S(2, 5, 6, 3) }, { S(3, 17, 31, 8) })                                                    \
    ROW(average_pool_two_directions,                                                               \
        op_average_pool(tape, x[0], (Window){ 3, 2, 1, 1, 3, 2, 0, 1 }), UNMEASURED,               \
        { S(2, 5, 6, 3) }, { S(3, 17, 31, 8) })                                                    \
    ROW(average_pool, op_average_pool(tape, x[0], WINDOW(2, 2, 0, 0)), PASSES(1.25, 2.5),          \
        { S(ROWS, 4, 4, WIDTH / 16) }, { S(2, 4, 5, 3) }, { S(2, 7, 9, 70) })                      \
    ROW(average_pool_overlap, op_average_pool(tape, x[0], WINDOW(5, 3, 2, 4)), UNMEASURED,         \
        { S(2, 5, 4, 3) }, { S(1, 1, 1, 1) }, { S(3, 6, 4, 16) }, { S(2, 4, 30, 130) })            \
    ROW(average_pool_gaps, op_average_pool(tape, x[0], WINDOW(2, 5, 7, 0)), UNMEASURED,            \
        { S(2, 5, 6, 2) }, { S(3, 29, 31, 8) })

#define IMAGES_RANDOM_ROWS(ROW)                                                                    \
    ROW(batchnorm, { S(B_, N_ + 3, M_), P(M_), P(M_) })                                            \
    ROW(batchnorm_running, { S(B_, N_, M_), P(M_), P(M_) })                                        \
    ROW(unfold, { S(B_, N_, M_, H_) })                                                             \
    ROW(unfold_inside, { S(B_, N_ + 1, M_ + 2, H_) })                                              \
    ROW(conv2d, { S(B_, N_, M_ + 1, H_), P(K_, 3, 1 + N_ % 3, H_), P(K_) })                        \
    ROW(conv2d_3_by_3, { S(B_, N_, H_, M_), P(K_, 3, 3, M_), P(K_) })                              \
    ROW(unfold_3_by_3, { S(B_, N_, M_, H_) })                                                      \
    ROW(max_pool_overlap, { S(B_, N_, M_, K_) })                                                   \
    ROW(average_pool, { S(B_, N_ + 1, M_ + 1, K_) })                                               \
    ROW(average_pool_overlap, { S(B_, N_, M_, H_) })                                               \
    ROW(unfold_far, { S(B_, N_, M_, H_) })                                                         \
    ROW(unfold_padding, { S(B_, N_, M_, H_) })                                                     \
    ROW(unfold_gaps, { S(B_, N_ + 1, M_ + 4, H_) })                                                \
    ROW(conv2d_far, { S(B_, N_, M_, H_), P(K_, 1 + N_ % 4, 1 + M_ % 4, H_) })                      \
    ROW(conv2d_two_directions, { S(B_, N_, M_ + 1, H_), P(K_, 3, 1 + N_ % 3, H_), P(K_) })         \
    ROW(conv2d_dilated, { S(B_, N_ + 4, M_, H_), P(K_, 3, 1 + N_ % 3, H_), P(K_) })                \
    ROW(conv2d_groups, { S(B_, N_ + 2, M_, 2 * H_), P(2 * K_, 1 + N_ % 3, 2, H_), P(2 * K_) })     \
    ROW(conv2d_depthwise, { S(B_, N_, M_, K_), P(K_ * H_, 1 + N_ % 3, 2, 1), P(K_ * H_) })         \
    ROW(unfold_two_directions, { S(B_, N_, M_, H_) })                                              \
    ROW(max_pool_two_directions, { S(B_, N_ + 2, M_ + 2, K_) })                                    \
    ROW(average_pool_two_directions, { S(B_, N_, M_, H_) })                                        \
    ROW(conv2d_with_itself, { S(B_, N_, M_, H_) })                                                 \
    ROW(max_pool, { S(B_, N_ + 1, M_ + 1, K_) })                                                   \
    ROW(max_pool_gaps, { S(B_, N_, M_ + 2, K_) })                                                  \
    ROW(average_pool_gaps, { S(B_, N_ + 1, M_ + 4, K_) })
/* clang-format on */

#endif
