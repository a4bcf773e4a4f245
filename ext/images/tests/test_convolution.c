/* Convolution, pooling and unfolding: exact values, equality of the three, misuse. operations.h has
 * gradients. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "ext/images/tests/operations.h" /* WINDOW */

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

static Tensor *normal_input(Shape of)
{
    return tape_input(tape, test_normal(1, shape_count(of)), of);
}

/* Kernels of 2 x 2 pixels over an image of 2 x 3, without padding and with one pixel of it. */
TEST(conv2d_sums_products_of_pixels_and_weights)
{
    begin();
    Tensor *x = tape_variable(tape, VALUES(1, 2, 3, 4, 5, 6), shape(1, 2, 3, 1));
    Tensor *weight = tape_variable(tape, VALUES(1, 10, 100, 1000, 0, 0, 0, -1), shape(2, 2, 2, 1));
    Tensor *bias = tape_variable(tape, VALUES(0.5, 0), shape(2));
    Tensor *out = tensor_keep(op_conv2d(tape, x, weight, bias, (Window){ 0 }, 1));
    assert_values(out, shape(1, 1, 2, 2), VALUES(5421.5, -5, 6532.5, -6));
    tape_backward_from(tape, out, tape_input(tape, VALUES(1, 2, 3, 4), shape(1, 1, 2, 2)));
    assert_values(tensor_gradient(x), shape(1, 2, 3, 1), VALUES(1, 13, 30, 100, 1298, 2996));
    assert_values(tensor_gradient(weight), shape(2, 2, 2, 1),
                  VALUES(7, 11, 19, 23, 10, 16, 28, 34));
    assert_values(tensor_gradient(bias), shape(2), VALUES(4, 6));
    tape_reset(tape);

    x = tape_input(tape, VALUES(1, 2, 3, 4, 5, 6), shape(1, 2, 3, 1));
    weight = tape_input(tape, VALUES(1, 10, 100, 1000), shape(1, 2, 2, 1));
    out = op_conv2d(tape, x, weight, NULL, (Window){ .stride = 2, .padding = 1 }, 1);
    assert_values(out, shape(1, 2, 2, 1), VALUES(1000, 3200, 40, 65));
    tape_free(tape);
}

/* Each direction has its own; a pooling window of stride 0 its own size. */
TEST(windows_with_two_strides_and_paddings)
{
    begin();
    const Window window = { 1, 2, 2, 0, 1, 1, 0, 1 };
    Tensor *x = tape_input(tape, VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9), shape(1, 3, 3, 1));
    assert_values(op_unfold(tape, x, window), shape(1, 3, 2, 2),
                  VALUES(0, 0, 0, 0, 4, 5, 5, 6, 0, 0, 0, 0));
    assert_values(op_average_pool(tape, x, window), shape(1, 3, 2, 1),
                  VALUES(0, 0, 4.5, 5.5, 0, 0));
    assert_values(op_max_pool(tape, x, (Window){ 1, 2, 2, 0, 1, 0, 1, 1 }), shape(1, 2, 4, 1),
                  VALUES(1, 2, 3, 3, 7, 8, 9, 9));
    assert_values(op_max_pool(tape, x, (Window){ .height = 1, .width = 3 }), shape(1, 3, 1, 1),
                  VALUES(3, 6, 9));
    Tensor *weight = tape_input(tape, VALUES(1, 10), shape(1, 1, 2, 1));
    const Window of_weight = { .stride = 2, .stride_width = 1, .padding_width = 1 };
    assert_values(op_conv2d(tape, x, weight, NULL, of_weight, 1), shape(1, 2, 4, 1),
                  VALUES(10, 21, 32, 3, 70, 87, 98, 9));
    tape_free(tape);
}

/* Dilated by d, a filter is one of zeros with its weights d apart. */
TEST(a_dilated_convolution_has_zeros_between_its_weights)
{
    enum { H = 9, W = 11, C = 3, O = 5, D = 3 };
    begin();
    Tensor *x = normal_input(shape(2, H, W, C));
    const Real *weights = test_normal(2, O * 3 * 2 * C);
    Real *wide = test_zeros(O * (2 * D + 1) * (D + 1) * C);
    for (int o = 0; o < O; o++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 2; j++)
                memcpy(wide + ((o * (2 * D + 1) + i * D) * (D + 1) + j * D) * C,
                       weights + ((o * 3 + i) * 2 + j) * C, C * sizeof(Real));
    Tensor *expected = op_conv2d(tape, x, tape_input(tape, wide, shape(O, 2 * D + 1, D + 1, C)),
                                 NULL, (Window){ .stride = 2, .padding = 1 }, 1);
    Tensor *out = op_conv2d(tape, x, tape_input(tape, weights, shape(O, 3, 2, C)), NULL,
                            (Window){ .stride = 2, .padding = 1, .dilation = D }, 1);
    ck_assert_str_eq(shape_text(out->shape).text, shape_text(expected->shape).text);
    assert_close(test_values(out), test_values(expected), tensor_count(out), 1e-5);
    tape_free(tape);
}

/* Filters of a group see its channels alone. */
TEST(a_grouped_convolution_is_one_per_group)
{
    enum { C = 6, O = 9, GROUPS = 3 };
    begin();
    Tensor *x = normal_input(shape(2, 5, 7, C)), *parts[GROUPS];
    Tensor *weight = normal_input(shape(O, 3, 2, C / GROUPS)), *bias = normal_input(shape(O));
    const Window window = { .padding = 1, .stride_width = 2 };
    for (int g = 0; g < GROUPS; g++)
        parts[g] = op_conv2d(tape, op_slice(tape, x, -1, g * C / GROUPS, C / GROUPS),
                             op_slice(tape, weight, 0, g * O / GROUPS, O / GROUPS),
                             op_slice(tape, bias, 0, g * O / GROUPS, O / GROUPS), window, 1);
    Tensor *out = op_conv2d(tape, x, weight, bias, window, GROUPS);
    Tensor *expected = op_concat(tape, parts, GROUPS, -1);
    assert_close(test_values(out), test_values(expected), tensor_count(out), 1e-5);
    tape_free(tape);
}

/* With weights [O, height, width, C], a row of op_unfold's windows has the order of weight_o. */
TEST(conv2d_is_unfold_and_linear)
{
    enum { B = 3, H = 11, W = 9, C = 5, O = 20 };
    begin();
    Tensor *x = normal_input(shape(B, H, W, C)), *weight = normal_input(shape(O, 3, 4, C));
    Tensor *bias = normal_input(shape(O));
    Tensor *out = op_conv2d(tape, x, weight, bias, (Window){ .stride = 2, .padding = 1 }, 1);
    Tensor *expected = op_linear(tape, op_unfold(tape, x, WINDOW(3, 4, 2, 1)),
                                 op_reshape(tape, weight, shape(O, 3 * 4 * C)), bias);
    assert_close(test_values(out), test_values(expected), tensor_count(expected), 1e-5);
    tape_free(tape);
}

TEST(misuse_of_conv2d_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 5, 6, 3)), *weight = normal_input(shape(4, 3, 3, 3));
    const Window none = { 0 };
    assert_raises("op_conv2d: weight is NULL", op_conv2d(tape, x, NULL, NULL, none, 1));
    assert_raises("op_conv2d: x is [5,6,3], expected four axes, [B, H, W, C]",
                  op_conv2d(tape, normal_input(shape(5, 6, 3)), weight, NULL, none, 1));
    assert_raises("op_conv2d: weight is [4,27], expected four axes, [O, height, width, C]",
                  op_conv2d(tape, x, normal_input(shape(4, 27)), NULL, none, 1));
    assert_raises("op_conv2d: weight is [4,3,3,2], expected 3 in its last axis: x is [2,5,6,3]",
                  op_conv2d(tape, x, normal_input(shape(4, 3, 3, 2)), NULL, none, 1));
    assert_raises("op_conv2d: bias is [3], expected [4]: weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, normal_input(shape(3)), none, 1));
    assert_raises("op_conv2d: a window of 3 x 7 does not fit into x, [2,5,6,3], with padding 0",
                  op_conv2d(tape, x, normal_input(shape(4, 3, 7, 3)), NULL, none, 1));
    assert_raises("op_conv2d: the window is 3 x 3, stride -2, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_conv2d(tape, x, weight, NULL, (Window){ .stride = -2 }, 1));
    assert_raises("op_conv2d: stride_width is -1, padding_height 0, padding_width 0; expected 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_conv2d(tape, x, weight, NULL, (Window){ .stride_width = -1 }, 1));
    assert_raises("op_conv2d: dilation is -1, expected 1 to 2^31 - 1 (or 0 for the default)",
                  op_conv2d(tape, x, weight, NULL, (Window){ .dilation = -1 }, 1));
    assert_raises("op_conv2d: a window of 3 x 3 does not fit into x, [2,5,6,3], with padding 0, "
                  "dilated",
                  op_conv2d(tape, x, weight, NULL, (Window){ .dilation = 3 }, 1));
    assert_raises("op_conv2d: groups is -1, expected a divisor of 3 channels and 4 filters: x is "
                  "[2,5,6,3], weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, NULL, none, -1));
    assert_raises("op_conv2d: groups is 3, expected a divisor of 3 channels and 4 filters: x is "
                  "[2,5,6,3], weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, NULL, none, 3));
    assert_raises("op_conv2d: weight is [6,3,3,3], expected 1 in its last axis: x is [2,5,6,3]",
                  op_conv2d(tape, x, normal_input(shape(6, 3, 3, 3)), NULL, none, 3));
    assert_raises("op_conv2d: groups is 0, expected a divisor of 3 channels and 4 filters: x is "
                  "[2,5,6,3], weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, NULL, none, 0));
    assert_raises("op_conv2d: the window is 3 x 2, expected the weight's or 0: weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, NULL, (Window){ .height = 3, .width = 2 }, 1));
    assert_raises("op_conv2d: the window is 2 x 0, expected the weight's or 0: weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, NULL, (Window){ .height = 2 }, 1));
    assert_raises("op_unfold: dilation is 2, expected 1 (or 0 for the default)",
                  op_unfold(tape, x, (Window){ .height = 2, .width = 2, .dilation = 2 }));
    assert_raises("op_max_pool: dilation is 2, expected 1 (or 0 for the default)",
                  op_max_pool(tape, x, (Window){ .height = 2, .width = 2, .dilation = 2 }));
    assert_raises("op_average_pool: dilation is -1, expected 1 (or 0 for the default)",
                  op_average_pool(tape, x, (Window){ .height = 2, .width = 2, .dilation = -1 }));
    tape_free(tape);
}

/* -------------------------------------------------------------------------------------- pooling */
/* Two channels; the last column of x is in no window. */
TEST(pooling_of_windows_side_by_side)
{
    const Real x[] = { 1, 10, 2, 20, 5, 50, 4, 90, 3, 30, 4, 0, 7, 60, 6, 80 };
    begin();
    for (int stride = 0; stride <= 2; stride += 2) {
        const Window window = { .height = 2, .width = 2, .stride = stride };
        Tensor *in = tape_input(tape, x, shape(1, 2, 4, 2));
        assert_values(op_max_pool(tape, in, window), shape(1, 1, 2, 2), VALUES(4, 30, 7, 90));
        assert_values(op_average_pool(tape, in, window), shape(1, 1, 2, 2),
                      VALUES(2.5, 15, 5.5, 70));
    }
    Tensor *in = tape_variable(tape, VALUES(1, 2, 9, 4, 3, 9), shape(1, 2, 3, 1));
    Tensor *out = tensor_keep(op_max_pool(tape, in, (Window){ .height = 2, .width = 2 }));
    assert_values(out, shape(1, 1, 1, 1), VALUES(4));
    tape_backward_from(tape, out, tape_input(tape, VALUES(5), shape(1, 1, 1, 1)));
    assert_values(tensor_gradient(in), shape(1, 2, 3, 1), VALUES(0, 0, 0, 5, 0, 0));
    tape_free(tape);
}

/* -1 is the maximum of four; the first of equal elements gets the gradient. */
TEST(padding_is_never_the_maximum_and_counts_as_zero_in_averages)
{
    begin();
    const Window window = WINDOW(2, 2, 1, 1);
    Tensor *x = tape_variable(tape, VALUES(-1, -2, -2, -2), shape(1, 2, 2, 1));
    Tensor *out = tensor_keep(op_max_pool(tape, x, window));
    assert_values(out, shape(1, 3, 3, 1), VALUES(-1, -1, -2, -1, -1, -2, -2, -2, -2));
    tape_backward_from(
        tape, out, tape_input(tape, VALUES(1, 2, 4, 8, 16, 32, 64, 128, 256), shape(1, 3, 3, 1)));
    assert_values(tensor_gradient(x), shape(1, 2, 2, 1), VALUES(27, 36, 192, 256));
    tape_reset(tape);
    x = tape_variable(tape, VALUES(-4, -8, -12, -16), shape(1, 2, 2, 1));
    out = tensor_keep(op_average_pool(tape, x, window));
    assert_values(out, shape(1, 3, 3, 1), VALUES(-1, -3, -2, -4, -10, -6, -3, -7, -4));
    tape_backward_from(
        tape, out,
        tape_input(tape, VALUES(4, 8, 16, 32, 64, 128, 256, 512, 1024), shape(1, 3, 3, 1)));
    assert_values(tensor_gradient(x), shape(1, 2, 2, 1), VALUES(27, 54, 216, 432));
    tape_free(tape);
}

TEST(nan_and_infinity_in_pooling)
{
    begin();
    Tensor *x = tape_variable(tape, VALUES(1, NAN, NAN, -INFINITY, -INFINITY, -INFINITY),
                              shape(1, 1, 6, 1));
    Tensor *out = tensor_keep(op_max_pool(tape, x, (Window){ .height = 1, .width = 3 }));
    const Real *values = test_values(out);
    ck_assert(isnan(values[0]));
    ck_assert_double_eq((double)values[1], -(double)INFINITY);
    tape_backward_from(tape, out, tape_input(tape, VALUES(2, 3), shape(1, 1, 2, 1)));
    assert_values(tensor_gradient(x), shape(1, 1, 6, 1), VALUES(0, 2, 0, 3, 0, 0));
    tape_free(tape);
}

/* The definition, in double */
static double average_of(const Real *x, const int64_t *size, const int64_t *at, Window window)
{
    double sum = 0;
    for (int64_t i = 0; i < window.height; i++)
        for (int64_t j = 0; j < window.width; j++) {
            const int64_t stride_x = window.stride_width ? window.stride_width : window.stride;
            const int64_t h = at[1] * window.stride + i - window.padding - window.padding_height;
            const int64_t w = at[2] * stride_x + j - window.padding - window.padding_width;
            if (h >= 0 && h < size[1] && w >= 0 && w < size[2])
                sum += (double)x[((at[0] * size[1] + h) * size[2] + w) * size[3] + at[3]];
        }
    return sum / (double)(window.height * window.width);
}

TEST(average_pooling_equals_sums_in_double)
{
    const Window windows[] = { WINDOW(3, 3, 2, 1),
                               { 2, 4, 1, 3, 2, 1, 0, 1 },
                               { 1, 2, 5, 0, 3, 0, 1, 1 },
                               WINDOW(9, 11, 1, 0) };
    const int64_t size[] = { 3, 9, 11, 130 };
    const Shape of_x = shape(3, 9, 11, 130);
    begin();
    for (int k = 0; k < 4; k++) {
        const Real *x = test_normal(1, shape_count(of_x));
        Tensor *out = op_average_pool(tape, tape_input(tape, x, of_x), windows[k]);
        const Real *values = test_values(out);
        for (int64_t e = 0; e < tensor_count(out); e++) {
            const int64_t *of = out->shape.size, pixel = e / of[3];
            const int64_t at[] = { pixel / of[2] / of[1], pixel / of[2] % of[1], pixel % of[2],
                                   e % of[3] };
            ck_assert_double_eq_tol((double)values[e], average_of(x, size, at, windows[k]), 1e-6);
        }
    }
    tape_free(tape);
}

/* Sums of terms of 1 + 2^-9 are exact in float, up to 2^14 of them. */
static Tensor *equal_terms(Shape of)
{
    Real *values = test_zeros(shape_count(of));
    for (int64_t i = 0; i < shape_count(of); i++)
        values[i] = 1 + (Real)0x1p-9;
    return tape_input(tape, values, of);
}

TEST(averages_and_gradients_over_large_images_are_exact)
{
    enum { SIZE = 512, O = 2 };
    begin();
    const Shape image = shape(1, SIZE, SIZE, 3);
    Tensor *pixels = equal_terms(image);
    assert_values(op_average_pool(tape, pixels, WINDOW(SIZE, SIZE, 1, 0)), shape(1, 1, 1, 3),
                  VALUES(1 + 0x1p-9, 1 + 0x1p-9, 1 + 0x1p-9));
    Real *ones = test_zeros(SIZE * SIZE);
    for (int i = 0; i < SIZE * SIZE; i++)
        ones[i] = 1;
    Tensor *x = tape_input(tape, ones, shape(1, SIZE, SIZE, 1));
    Tensor *weight = tape_variable(tape, test_zeros(O), shape(O, 1, 1, 1));
    Tensor *bias = tape_variable(tape, test_zeros(O), shape(O));
    Tensor *out = op_conv2d(tape, x, weight, bias, (Window){ 0 }, 1);
    tape_backward_from(tape, out, equal_terms(out->shape));
    const Real sum = (Real)(SIZE * SIZE * (1 + 0x1p-9));
    assert_values(tensor_gradient(weight), shape(O, 1, 1, 1), VALUES(sum, sum));
    assert_values(tensor_gradient(bias), shape(O), VALUES(sum, sum));
    tape_free(tape);
}

/* Every window covers the image and 2^40 - 4 pixels of padding. */
TEST(windows_may_be_larger_than_the_image)
{
    const int64_t size = 1 << 20;
    begin();
    Tensor *x = tape_variable(tape, VALUES(1, 5, 2, 3), shape(1, 2, 2, 1));
    Tensor *out = tensor_keep(op_max_pool(tape, x, WINDOW(size, size, 2, size / 2)));
    assert_values(out, shape(1, 2, 2, 1), VALUES(5, 5, 5, 5));
    tape_backward_from(tape, out, tape_input(tape, VALUES(1, 2, 4, 8), shape(1, 2, 2, 1)));
    assert_values(tensor_gradient(x), shape(1, 2, 2, 1), VALUES(0, 15, 0, 0));
    tape_reset(tape);
    x = tape_input(tape, VALUES(1, 5, 2, 3), shape(1, 2, 2, 1));
    out = op_average_pool(tape, x, WINDOW(size, size, 3, size / 2));
    assert_values(out, shape(1, 1, 1, 1), VALUES((Real)(11.0 / (1LL << 40))));
    tape_free(tape);
}

TEST(misuse_of_pooling_raises)
{
    begin();
    Tensor *x = tape_input(tape, test_normal(1, 24), shape(1, 3, 4, 2));
    assert_raises("op_max_pool: x is NULL", op_max_pool(tape, NULL, WINDOW(1, 1, 0, 0)));
    assert_raises("op_average_pool: x is [24], expected four axes, [B, H, W, C]",
                  op_average_pool(tape, op_reshape(tape, x, shape(24)), WINDOW(1, 1, 0, 0)));
    assert_raises("op_average_pool: the window is 2 x 2, stride -1, padding 0; expected 1 or more, "
                  "1 or more (or 0 for the default), 0 to 2^31 - 1",
                  op_average_pool(tape, x, WINDOW(2, 2, -1, 0)));
    assert_raises("op_max_pool: the window is 0 x 0, stride 0, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_max_pool(tape, x, (Window){ .stride = 0 }));
    assert_raises("shape: a tensor of these 4 sizes would take 2^63 bytes or more",
                  op_average_pool(tape, x, WINDOW(INT32_MAX, INT32_MAX, 1, INT32_MAX / 2)));
    assert_raises("op_max_pool: a window of 4 x 4 does not fit into x, [1,3,4,2], with padding 0",
                  op_max_pool(tape, x, (Window){ .height = 4, .width = 4 }));
    assert_raises("op_max_pool: the window is 3 x 2, padding 2 x 2; expected a padding of at most "
                  "half of the window, or a window may have no pixel",
                  op_max_pool(tape, x, WINDOW(3, 2, 1, 2)));
    assert_raises("op_max_pool: the window is 3 x 3, padding 1 x 2; expected a padding of at most "
                  "half of the window, or a window may have no pixel",
                  op_max_pool(tape, x, (Window){ 3, 3, 1, 1, 0, 0, 1, 1 }));
    assert_raises(
        "op_average_pool: stride_width is 1, padding_height -1, padding_width 0; expected "
        "1 or more (or 0 for the default), 0 to 2^31 - 1",
        op_average_pool(tape, x, (Window){ 2, 2, 1, 1, 0, -1, 0, 1 }));
    assert_raises(
        "op_average_pool: stride_width is -2, padding_height 0, padding_width 0; expected "
        "1 or more (or 0 for the default), 0 to 2^31 - 1",
        op_average_pool(tape, x, (Window){ .height = 2, .width = 2, .stride_width = -2 }));
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- unfold */
TEST(unfold_with_padding_and_stride)
{
    begin();
    Tensor *x = tape_variable(tape, VALUES(1, 2, 3, 4, 5, 6), shape(1, 2, 3, 1));
    Tensor *out = tensor_keep(op_unfold(tape, x, WINDOW(2, 2, 2, 1)));
    assert_values(out, shape(1, 2, 2, 4), VALUES(0, 0, 0, 1, 0, 0, 2, 3, 0, 4, 0, 0, 5, 6, 0, 0));
    tape_reset(tape);
    x = tape_variable(tape, VALUES(1, 2, 3, 4, 5, 6), shape(1, 2, 3, 1));
    out = tensor_keep(op_unfold(tape, x, (Window){ .height = 2, .width = 2 }));
    assert_values(out, shape(1, 1, 2, 4), VALUES(1, 2, 4, 5, 2, 3, 5, 6));
    tape_backward_from(tape, out,
                       tape_input(tape, VALUES(1, 2, 4, 8, 16, 32, 64, 128), shape(1, 1, 2, 4)));
    assert_values(tensor_gradient(x), shape(1, 2, 3, 1), VALUES(1, 18, 32, 4, 72, 128));
    tape_free(tape);
}

/* Windows of 2 x 2 without overlap: the maximum of each, per channel. */
TEST(unfold_and_max_are_max_pooling)
{
    const Real x[] = { 1, 10, 2, 20, 5, 50, 4, 90, 3, 30, 4, 0, 7, 60, 6, 80 }; /* [1, 2, 4, 2] */
    const Real expected[] = { 4, 30, 7, 90 };
    begin();
    Tensor *out = op_unfold(tape, tape_input(tape, x, shape(1, 2, 4, 2)), WINDOW(2, 2, 2, 0));
    out = op_max(tape, op_reshape(tape, out, shape(1, 2, 4, 2)), 2);
    ck_assert_mem_eq(test_values(out), expected, sizeof expected);
    tape_free(tape);
}

TEST(misuse_of_unfold_raises)
{
    begin();
    Tensor *x = normal_input(shape(1, 3, 4, 2));
    assert_raises("op_unfold: x is NULL", op_unfold(tape, NULL, WINDOW(1, 1, 0, 0)));
    assert_raises("op_unfold: x is [3,4], expected four axes, [B, H, W, C]",
                  op_unfold(tape, normal_input(shape(3, 4)), WINDOW(1, 1, 0, 0)));
    assert_raises("op_unfold: the window is 2 x 0, stride 0, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_unfold(tape, x, (Window){ .height = 2 }));
    assert_raises("op_unfold: the window is 2 x 2, stride -1, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_unfold(tape, x, WINDOW(2, 2, -1, 0)));
    assert_raises("op_unfold: a window of 6 x 2 does not fit into x, [1,3,4,2], with padding 1",
                  op_unfold(tape, x, WINDOW(6, 2, 1, 1)));
    assert_raises(
        "op_unfold: the window is 2 x 2, stride 1, padding 9223372036854775807; expected 1 "
        "or more, 1 or more (or 0 for the default), 0 to 2^31 - 1",
        op_unfold(tape, x, WINDOW(2, 2, 1, INT64_MAX)));
    assert_raises("shape: a tensor of these 3 sizes would take 2^63 bytes or more",
                  op_unfold(tape, x, WINDOW(INT32_MAX, INT32_MAX, 1, INT32_MAX)));
    tape_free(tape);
}

int main(void)
{
    return test_main("convolution", NULL, NULL);
}
