/* Max pooling and average pooling: exact values and errors. */
#include "tests/support.h"

#include <math.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

static void assert_values(Tensor *tensor, Shape expected_shape, const Real *expected)
{
    ck_assert_msg(shape_equal(tensor->shape, expected_shape), "shape %s",
                  shape_text(tensor->shape).text);
    ck_assert_mem_eq(test_values(tensor), expected,
                     (size_t)shape_count(expected_shape) * sizeof(Real));
}

#define VALUES(...) ((const Real[]){ __VA_ARGS__ })

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

/* Windows share pixels: -1 is the maximum of four; of equal elements the first gets the gradient. */
TEST(padding_is_never_the_maximum_and_counts_as_zero_in_averages)
{
    begin();
    const Window window = { 2, 2, 1, 1 };
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
    const Window window = { .height = 1, .width = 3 };
    Tensor *x = tape_variable(tape, VALUES(1, NAN, NAN, -INFINITY, -INFINITY, -INFINITY),
                              shape(1, 1, 6, 1));
    Tensor *out = tensor_keep(op_max_pool(tape, x, (Window){ 1, 3, 3, 0 }));
    assert_raises("op_max_pool: the window is 1 x 3, stride 0; expected a square or a stride",
                  op_max_pool(tape, x, window));
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
            const int64_t h = at[1] * window.stride + i - window.padding;
            const int64_t w = at[2] * window.stride + j - window.padding;
            if (h >= 0 && h < size[1] && w >= 0 && w < size[2])
                sum += (double)x[((at[0] * size[1] + h) * size[2] + w) * size[3] + at[3]];
        }
    return sum / (double)(window.height * window.width);
}

TEST(average_pooling_equals_sums_in_double)
{
    const Window windows[] = { { 3, 3, 2, 1 }, { 2, 4, 1, 3 }, { 1, 2, 5, 0 }, { 9, 11, 1, 0 } };
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

TEST(misuse_of_pooling_raises)
{
    begin();
    Tensor *x = tape_input(tape, test_normal(1, 24), shape(1, 3, 4, 2));
    assert_raises("op_max_pool: x is NULL", op_max_pool(tape, NULL, (Window){ 1, 1, 0, 0 }));
    assert_raises("op_average_pool: x is [24], expected four axes, [B, H, W, C]",
                  op_average_pool(tape, op_reshape(tape, x, shape(24)), (Window){ 1, 1, 0, 0 }));
    assert_raises("op_average_pool: the window is 2 x 2, stride -1, padding 0; expected 1 or more, "
                  "1 or more (or 0 for the default), 0 to 2^31 - 1",
                  op_average_pool(tape, x, (Window){ 2, 2, -1, 0 }));
    assert_raises("op_max_pool: the window is 0 x 0, stride 0, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for the default), 0 to 2^31 - 1",
                  op_max_pool(tape, x, (Window){ .stride = 0 }));
    assert_raises("op_max_pool: a window of 4 x 4 does not fit into x, [1,3,4,2], with padding 0",
                  op_max_pool(tape, x, (Window){ .height = 4, .width = 4 }));
    assert_raises("op_max_pool: the window is 3 x 2, padding 2; expected a padding of at most half "
                  "of the window, or a window may have no pixel",
                  op_max_pool(tape, x, (Window){ 3, 2, 1, 2 }));
    tape_free(tape);
}

int main(void)
{
    return test_main("pooling", NULL, NULL);
}
