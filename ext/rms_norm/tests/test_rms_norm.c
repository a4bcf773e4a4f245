/* op_rms_norm, op_l2_normalize and the layer. */
#include "tests/support.h"

#include <math.h>

static Tape *tape;

/* ----------------------------------------------------------------------------------- the values */
enum { ROWS = 3, C = 37 };

TEST(nan_propagates_in_its_row)
{
    tape = tape_new(test_device());
    Real *xs = test_normal(1, ROWS * C);
    xs[C + 35] = (Real)NAN;
    Tensor *x = tape_variable(tape, xs, shape(ROWS, C));
    Real *outs = test_values(op_rms_norm(tape, x, test_variable(tape, 2, shape(C)), 1));
    for (int i = 0; i < ROWS * C; i++)
        ck_assert_int_eq(isnan(outs[i]) != 0, i / C == 1);
    tape_free(tape);
}

/* A run that diverges does not look calm. */
TEST(a_row_whose_squares_overflow_is_normalized_to_nan)
{
    tape = tape_new(test_device());
    Real *xs = test_normal(1, ROWS * C);
    for (int c = 0; c < C; c++)
        xs[C + c] *= (Real)(sizeof(Real) == 4 ? 1e20 : 1e200);
    Tensor *x = tape_variable(tape, xs, shape(ROWS, C)), *weight = test_variable(tape, 2, shape(C));
    Tensor *out = op_rms_norm(tape, x, weight, 1);
    Real *outs = test_values(out);
    tape_backward_from(tape, out, test_variable(tape, 99, out->shape));
    Real *dx = test_values(tensor_gradient(x)), *dweight = test_values(tensor_gradient(weight));
    for (int i = 0; i < ROWS * C; i++) {
        ck_assert_int_eq(isnan(outs[i]) != 0, i / C == 1);
        ck_assert_int_eq(isnan(dx[i]) != 0, i / C == 1);
    }
    for (int c = 0; c < C; c++)
        ck_assert(isnan(dweight[c]));
    tape_free(tape);
}

/* Both forms start as the norm alone; then the stored weight differs by 1. */
TEST(rms_norms_scale_by_weight_or_by_one_plus_weight)
{
    enum { WIDTH = 7 };
    tape = tape_new(test_device());
    Params *params = params_new(test_device(), 5);
    const RmsNorm norms[] = { nn_rms_norm(params, "a", WIDTH),
                              nn_rms_norm_one_plus(params, "b", WIDTH) };
    Tensor *x = tape_variable(tape, test_normal(1, 3 * WIDTH), shape(3, WIDTH));
    for (int i = 0; i < 2; i++) {
        const Real *alone = test_values(op_rms_norm(tape, x, NULL, 1e-6));
        assert_close(test_values(nn_rms_norm_forward(tape, &norms[i], x)), alone, 3 * WIDTH, 1e-6);
        Real *weights = test_normal(2, WIDTH), *expected = test_zeros(3 * WIDTH);
        tensor_write(norms[i].weight, weights);
        for (int j = 0; j < 3 * WIDTH; j++)
            expected[j] = alone[j] * (weights[j % WIDTH] + (Real)i);
        assert_close(test_values(nn_rms_norm_forward(tape, &norms[i], x)), expected, 3 * WIDTH,
                     1e-6);
    }
    ck_assert(params_find(params, "a.weight") == norms[0].weight);
    tape_free(tape);
    params_free(params);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_raises)
{
    tape = tape_new(test_device());
    Params *params = params_new(test_device(), 5);
    Tensor *x = test_variable(tape, 1, shape(4, 5)), *w = test_variable(tape, 2, shape(5));
    Tensor *scalar = test_variable(tape, 1, shape_scalar());
    assert_raises("op_rms_norm: x is NULL", op_rms_norm(tape, NULL, w, 1));
    assert_raises("op_rms_norm: weight is [4], expected [5]: x is [4,5]",
                  op_rms_norm(tape, x, test_variable(tape, 2, shape(4)), 1));
    assert_raises("op_rms_norm: x is a scalar, expected one axis at least",
                  op_rms_norm(tape, scalar, w, 1));
    assert_raises("op_rms_norm: eps is 0, expected more than 0", op_rms_norm(tape, x, NULL, 0));
    assert_raises("op_l2_normalize: x is NULL", op_l2_normalize(tape, NULL, 1));
    assert_raises("op_l2_normalize: x is a scalar, expected one axis at least",
                  op_l2_normalize(tape, scalar, 1));
    assert_raises("op_l2_normalize: eps is nan, expected more than 0",
                  op_l2_normalize(tape, x, NAN));
    assert_raises("nn_rms_norm: n: width is 0, expected 1 or more", nn_rms_norm(params, "n", 0));
    assert_raises("nn_rms_norm_forward: the layer is NULL", nn_rms_norm_forward(tape, NULL, NULL));
    tape_free(tape);
    params_free(params);
}

int main(void)
{
    return test_main("rms_norm", NULL, NULL);
}
