/* Convolution: exact values, equality with unfolding and a matrix product, misuse.
 * tests/operations.h has gradients. */
#include "tests/support.h"

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
    Tensor *out = tensor_keep(op_conv2d(tape, x, weight, bias, (Conv2dOptions){ 0 }));
    assert_values(out, shape(1, 1, 2, 2), VALUES(5421.5, -5, 6532.5, -6));
    tape_backward_from(tape, out, tape_input(tape, VALUES(1, 2, 3, 4), shape(1, 1, 2, 2)));
    assert_values(tensor_gradient(x), shape(1, 2, 3, 1), VALUES(1, 13, 30, 100, 1298, 2996));
    assert_values(tensor_gradient(weight), shape(2, 2, 2, 1),
                  VALUES(7, 11, 19, 23, 10, 16, 28, 34));
    assert_values(tensor_gradient(bias), shape(2), VALUES(4, 6));
    tape_reset(tape);

    x = tape_input(tape, VALUES(1, 2, 3, 4, 5, 6), shape(1, 2, 3, 1));
    weight = tape_input(tape, VALUES(1, 10, 100, 1000), shape(1, 2, 2, 1));
    out = op_conv2d(tape, x, weight, NULL, (Conv2dOptions){ .stride = 2, .padding = 1 });
    assert_values(out, shape(1, 2, 2, 1), VALUES(1000, 3200, 40, 65));
    tape_free(tape);
}

/* With weights [O, height, width, C], a row of op_unfold's windows has the order of weight_o. */
TEST(conv2d_is_unfold_and_linear)
{
    enum { B = 3, H = 11, W = 9, C = 5, O = 20 };
    begin();
    Tensor *x = normal_input(shape(B, H, W, C)), *weight = normal_input(shape(O, 3, 4, C));
    Tensor *bias = normal_input(shape(O));
    Tensor *out = op_conv2d(tape, x, weight, bias, (Conv2dOptions){ 2, 1 });
    Tensor *expected = op_linear(tape, op_unfold(tape, x, (Window){ 3, 4, 2, 1 }),
                                 op_reshape(tape, weight, shape(O, 3 * 4 * C)), bias);
    assert_close(test_values(out), test_values(expected), tensor_count(expected), 1e-5);
    tape_free(tape);
}

TEST(misuse_of_conv2d_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 5, 6, 3)), *weight = normal_input(shape(4, 3, 3, 3));
    const Conv2dOptions none = { 0 };
    assert_raises("op_conv2d: weight is NULL", op_conv2d(tape, x, NULL, NULL, none));
    assert_raises("op_conv2d: x is [5,6,3], expected four axes, [B, H, W, C]",
                  op_conv2d(tape, normal_input(shape(5, 6, 3)), weight, NULL, none));
    assert_raises("op_conv2d: weight is [4,27], expected four axes, [O, height, width, C]",
                  op_conv2d(tape, x, normal_input(shape(4, 27)), NULL, none));
    assert_raises("op_conv2d: weight is [4,3,3,2], expected 3 in its last axis: x is [2,5,6,3]",
                  op_conv2d(tape, x, normal_input(shape(4, 3, 3, 2)), NULL, none));
    assert_raises("op_conv2d: bias is [3], expected [4]: weight is [4,3,3,3]",
                  op_conv2d(tape, x, weight, normal_input(shape(3)), none));
    assert_raises("op_conv2d: a window of 3 x 7 does not fit into x, [2,5,6,3], with padding 0",
                  op_conv2d(tape, x, normal_input(shape(4, 3, 7, 3)), NULL, none));
    assert_raises("op_conv2d: the window is 3 x 3, stride -2, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_conv2d(tape, x, weight, NULL, (Conv2dOptions){ .stride = -2 }));
    tape_free(tape);
}

int main(void)
{
    return test_main("convolution", NULL, NULL);
}
