/* Causal convolution: exact values, sequences split over calls and packed, its layer, misuse.
 * operations.h has gradients. */
#include "tests/support.h"

#include <math.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

static Tensor *normal_input(Shape of)
{
    return tape_input(tape, test_normal(1, shape_count(of)), of);
}

/* One channel, three taps; the sequences have 4, 0 and 2 positions. */
TEST(causal_convolution_by_lengths)
{
    begin();
    Tensor *x =
        tape_input(tape, VALUES(1, 2, 3, 4, NAN, NAN, NAN, NAN, 5, 6, NAN, NAN), shape(3, 4, 1));
    Tensor *weight = tape_input(tape, VALUES(100, 10, 1), shape(1, 3)), *after;
    CausalConvolutionOptions options = { 0 };
    options.lengths = tape_input_i32(tape, (int32_t[]){ 4, 0, 2 }, shape(3));
    options.state = tape_input(tape, VALUES(8, 9, 8, 7, 0, 3), shape(3, 2, 1));
    Tensor *out = op_causal_convolution(tape, x, weight, NULL, options, &after);
    assert_values(out, shape(3, 4, 1), VALUES(891, 912, 123, 234, 0, 0, 0, 0, 35, 356, 0, 0));
    assert_values(after, shape(3, 2, 1), VALUES(3, 4, 8, 7, 5, 6));
    tape_free(tape);
}

/* Results, final state and gradients of a sequence that is split into parts of these lengths: each
 * part's final state is the state of the next. */
static void check_split(const int64_t *parts, int count, const Tensor *x_all, const Real *out,
                        const Real *after, Tensor *const *gradients)
{
    const int64_t N = x_all->shape.size[1], C = x_all->shape.size[2];
    Tape *whole = tape;
    begin();
    Tensor *x = tape_variable(tape, test_values(x_all), x_all->shape);
    Tensor *weight = tape_variable(tape, test_normal(2, C * 4), shape(C, 4));
    Tensor *state = tape_variable(tape, test_normal(3, 2 * 3 * C), shape(2, 3, C)), *outs[64];
    Tensor *passed = state;
    int64_t first = 0;
    for (int i = 0; i < count; first += parts[i++])
        outs[i] = op_causal_convolution(tape, op_slice(tape, x, 1, first, parts[i]), weight, NULL,
                                        (CausalConvolutionOptions){ .state = passed }, &passed);
    ck_assert_int_eq(first, N);
    Tensor *joined = op_concat(tape, outs, count, 1);
    assert_close(test_values(joined), out, 2 * N * C, 1e-6);
    assert_close(test_values(passed), after, 2 * 3 * C, 0);
    tape_backward(tape, op_add(tape, op_sum(tape, op_square(tape, joined), ALL_AXES),
                               op_sum(tape, op_square(tape, passed), ALL_AXES)));
    Tensor *const inputs[] = { x, weight, state };
    for (int i = 0; i < 3; i++)
        assert_close(test_values(tensor_gradient(inputs[i])), test_values(gradients[i]),
                     tensor_count(inputs[i]), 1e-4);
    tape_free(tape);
    tape = whole;
}

TEST(a_sequence_may_be_split_anywhere)
{
    enum { N = 17, C = 5 };
    begin();
    Tensor *x = tape_variable(tape, test_normal(1, 2 * N * C), shape(2, N, C)), *after;
    Tensor *weight = tape_variable(tape, test_normal(2, C * 4), shape(C, 4));
    Tensor *state = tape_variable(tape, test_normal(3, 2 * 3 * C), shape(2, 3, C));
    Tensor *out = tensor_keep(op_causal_convolution(
        tape, x, weight, NULL, (CausalConvolutionOptions){ .state = state }, &after));
    const Real *outs = test_values(out), *afters = test_values(after);
    tape_backward(tape, op_add(tape, op_sum(tape, op_square(tape, out), ALL_AXES),
                               op_sum(tape, op_square(tape, after), ALL_AXES)));
    Tensor *const gradients[] = { tensor_gradient(x), tensor_gradient(weight),
                                  tensor_gradient(state) };
    int64_t ones[N];
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    check_split(ones, N, x, outs, afters, gradients);
    check_split((int64_t[]){ 1, 9, 7 }, 3, x, outs, afters, gradients);
    check_split((int64_t[]){ 2, 2, 13 }, 3, x, outs, afters, gradients);
    tape_free(tape);
}

/* Packed sequences are those that are convolved one by one. */
TEST(no_tap_reaches_into_another_sequence)
{
    enum { N = 12, C = 3 };
    const int32_t offsets[] = { 0, 5, 5, 6, N };
    begin();
    Tensor *x = normal_input(shape(1, N, C)), *weight = normal_input(shape(C, 4)), *after, *own;
    Tensor *state = normal_input(shape(4, 3, C));
    Tensor *out = op_causal_convolution(
        tape, x, weight, NULL,
        (CausalConvolutionOptions){ .offsets = tape_input_i32(tape, offsets, shape(5)),
                                    .state = state },
        &after);
    for (int s = 0; s < 4; s++) {
        const int64_t first = offsets[s], n = offsets[s + 1] - first;
        Tensor *of_state = op_slice(tape, state, 0, s, 1);
        Tensor *found = op_slice(tape, after, 0, s, 1);
        if (n == 0) {
            assert_close(test_values(found), test_values(of_state), 3 * C, 0);
            continue;
        }
        Tensor *alone =
            op_causal_convolution(tape, op_slice(tape, x, 1, first, n), weight, NULL,
                                  (CausalConvolutionOptions){ .state = of_state }, &own);
        assert_close(test_values(op_slice(tape, out, 1, first, n)), test_values(alone), n * C, 0);
        assert_close(test_values(found), test_values(own), 3 * C, 0);
    }
    tape_free(tape);
}

TEST(misuse_of_causal_convolution_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 5, 3)), *weight = normal_input(shape(3, 4));
    Tensor *offsets = tape_input_i32(tape, (int32_t[]){ 0, 2, 5 }, shape(3));
    const CausalConvolutionOptions none = { 0 };
    assert_raises("op_causal_convolution: x is NULL",
                  op_causal_convolution(tape, NULL, weight, NULL, none, NULL));
    assert_raises("op_causal_convolution: weight is NULL",
                  op_causal_convolution(tape, x, NULL, NULL, none, NULL));
    assert_raises("op_causal_convolution: x is [3,4], expected [B, N, C]",
                  op_causal_convolution(tape, weight, weight, NULL, none, NULL));
    assert_raises("op_causal_convolution: weight is [3,1], expected [3, K] with K from 2 on: x is "
                  "[2,5,3]",
                  op_causal_convolution(tape, x, normal_input(shape(3, 1)), NULL, none, NULL));
    assert_raises("op_causal_convolution: bias is [4], expected [3]: x is [2,5,3]",
                  op_causal_convolution(tape, x, weight, normal_input(shape(4)), none, NULL));
    assert_raises(
        "op_causal_convolution: state is [2,4,3], expected [2,3,3]: [sequences, K - 1, C]",
        op_causal_convolution(tape, x, weight, NULL,
                              (CausalConvolutionOptions){ .state = normal_input(shape(2, 4, 3)) },
                              NULL));
    assert_raises(
        "op_causal_convolution: lengths[1] is 6, expected 0 to 5, the positions of x",
        op_causal_convolution(tape, x, weight, NULL,
                              (CausalConvolutionOptions){
                                  .lengths = tape_input_i32(tape, (int32_t[]){ 0, 6 }, shape(2)) },
                              NULL));
    assert_raises("op_causal_convolution: offsets: x is [2,5,3], expected one sequence, [1, N, "
                  "..], which they divide",
                  op_causal_convolution(tape, x, weight, NULL,
                                        (CausalConvolutionOptions){ .offsets = offsets }, NULL));
    x = normal_input(shape(1, 6, 3));
    assert_raises("op_causal_convolution: offsets[2] is 5, expected ascending numbers from 0 to 6, "
                  "the number of positions",
                  op_causal_convolution(tape, x, weight, NULL,
                                        (CausalConvolutionOptions){ .offsets = offsets }, NULL));
    assert_raises(
        "op_causal_convolution: offsets: lengths are given too, expected one of the two",
        op_causal_convolution(
            tape, x, weight, NULL,
            (CausalConvolutionOptions){
                .offsets = offsets, .lengths = tape_input_i32(tape, (int32_t[]){ 5 }, shape(1)) },
            NULL));
    tape_free(tape);
}

/* Over 2^17 rows of 1 + 2^-15: a float sum of 1024 rows loses 2^-15. */
TEST(the_gradient_of_the_bias_is_exact)
{
    enum { R = 1 << 17 };
    begin();
    Real *values = test_zeros(R), term = 1 + (Real)0x1p-15;
    for (int r = 0; r < R; r++)
        values[r] = term;
    Tensor *x = tape_input(tape, values, shape(1, R, 1)),
           *bias = tape_variable(tape, &term, shape(1));
    Tensor *out = op_causal_convolution(tape, x, tape_input(tape, VALUES(0, 0), shape(1, 2)), bias,
                                        (CausalConvolutionOptions){ 0 }, NULL);
    tape_backward_from(tape, out, x);
    assert_values(tensor_gradient(bias), shape(1), VALUES((Real)(R * (double)term)));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ the layer */
static double largest(const Tensor *tensor)
{
    const Real *values = test_values(tensor);
    double result = 0;
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        result = fmax(result, fabs((double)values[i]));
    return result;
}

/* Each input has `taps` outputs, whatever the number of channels. */
TEST(initial_weights_depend_on_the_taps)
{
    Params *params = params_new(test_device(), 5);
    const CausalConvolution usual = nn_causal_convolution(params, "usual", 100, 4);
    const CausalConvolution xavier = nn_causal_convolution_with(
        params, "xavier", 100, 4, (LinearConfig){ .weight = { INITIAL_XAVIER, 1 } });
    const CausalConvolution alone =
        nn_causal_convolution_with(params, "alone", 100, 4, (LinearConfig){ .no_bias = true });
    ck_assert_double_eq_tol(largest(usual.weight) / 0.5, 1, 0.05);
    ck_assert_double_eq_tol(largest(usual.bias) / 0.5, 1, 0.05);
    ck_assert_double_eq_tol(largest(xavier.weight) / sqrt(6. / (4 + 4)), 1, 0.05);
    ck_assert(!alone.bias);
    ck_assert_int_eq(params_count(params), 2 + 2 + 1);
    params_free(params);
}

TEST(misuse_of_the_layer_raises)
{
    begin();
    Params *params = params_new(test_device(), 5);
    assert_raises("nn_causal_convolution: c: channels is 3 and taps 1, expected 1 or more and 2 or "
                  "more",
                  nn_causal_convolution(params, "c", 3, 1));
    assert_raises(
        "nn_causal_convolution_forward: the layer is NULL",
        nn_causal_convolution_forward(tape, NULL, NULL, (CausalConvolutionOptions){ 0 }, NULL));
    params_free(params);
    tape_free(tape);
}

int main(void)
{
    return test_main("causal convolution", NULL, NULL);
}
