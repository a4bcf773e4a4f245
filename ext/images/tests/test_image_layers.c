/* The convolution's layer: initial weights, equality with the operation, misuse. */
#include "tests/support.h"

#include <math.h>

static Tape *tape;
static Params *params;

static void begin(void)
{
    tape = tape_new(test_device());
    params = params_new(test_device(), 5);
}

static void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

/* The largest magnitude, between 0.8 and 1 times the bound that samples are drawn below. */
static void assert_uniform(const Tensor *tensor, double bound)
{
    const Real *values = test_values(tensor);
    double largest = 0;
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        largest = fmax(largest, fabs((double)values[i]));
    ck_assert_double_le(largest, bound * (1 + 1e-6));
    ck_assert_double_ge(largest, bound * 0.8);
}

TEST(initial_weights_depend_on_the_pixels_of_a_window)
{
    begin();
    const Window square = { .height = 5, .width = 5 }, upright = { .height = 5, .width = 2 };
    const LinearConfig xavier = { .weight = { INITIAL_XAVIER, 1 } };
    const Conv2d usual = nn_conv2d(params, "a", 4, 30, square);
    const Conv2d other = nn_conv2d_with(params, "b", 4, 30, upright, xavier);
    const Conv2d ones =
        nn_conv2d_with(params, "c", 1, 2, (Window){ .height = 1, .width = 1 },
                       (LinearConfig){ .weight = { INITIAL_ONE, 0 }, .no_bias = true });
    assert_uniform(usual.weight, 1 / sqrt(5 * 5 * 4));
    assert_uniform(usual.bias, 1 / sqrt(5 * 5 * 4));
    assert_uniform(other.weight, sqrt(6. / (5 * 2 * (4 + 30))));
    ck_assert(!ones.bias && test_values(ones.weight)[1] == 1);
    ck_assert_int_eq(params_count(params), 2 + 2 + 1);
    end();
}

TEST(a_convolution_takes_the_options_of_its_window_and_groups)
{
    enum { C = 6 };
    begin();
    const Window window = { .height = 3,
                            .width = 2,
                            .stride = 2,
                            .padding = 1,
                            .stride_width = 1,
                            .padding_height = 2,
                            .padding_width = 3,
                            .dilation = 2 };
    Conv2d conv = nn_conv2d(params, "c", /*in: per group*/ 1, C, window);
    conv.groups = C;
    Tensor *x = tape_input(tape, test_normal(1, 5 * 4 * C), shape(1, 5, 4, C));
    Tensor *out = nn_conv2d_forward(tape, &conv, x);
    assert_identical(test_values(out),
                     test_values(op_conv2d(tape, x, conv.weight, conv.bias, window, C)),
                     tensor_count(out));
    ck_assert_str_eq(shape_text(out->shape).text, "[1,4,10,6]");
    end();
}

TEST(misuse_of_the_layer_raises)
{
    begin();
    assert_raises("nn_conv2d_forward: the layer is NULL", nn_conv2d_forward(tape, NULL, NULL));
    assert_raises("nn_conv2d: c: in is 3, out 0, the window 3 x 3, expected 1 or more",
                  nn_conv2d(params, "c", 3, 0, (Window){ .height = 3, .width = 3 }));
    ck_assert_int_eq(params_count(params), 0);
    end();
}

int main(void)
{
    return test_main("image_layers", NULL, NULL);
}
