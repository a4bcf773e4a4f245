/* Reductions, cumulative sums and operations that move elements: small examples that define the
 * plain kernels, claims of their own, misuse. tests/operations.h has the values, compared with
 * plain, and the gradients, compared with finite differences. */
#include "tests/support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

static Tensor *normal_input(Shape of)
{
    return tape_input(tape, test_normal(1, shape_count(of)), of);
}

/* ----------------------------------------------------------------------------------------- sums */
/* x = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]] */
static Tensor *one_to_eight(void)
{
    return tape_input(tape, (const Real[]){ 1, 2, 3, 4, 5, 6, 7, 8 }, shape(2, 2, 2));
}

TEST(sum_and_mean_along_each_axis)
{
    begin();
    Tensor *x = one_to_eight();
    assert_values(op_sum(tape, x, 0), shape(2, 2), VALUES(6, 8, 10, 12));
    assert_values(op_sum(tape, x, 1), shape(2, 2), VALUES(4, 6, 12, 14));
    assert_values(op_sum(tape, x, -1), shape(2, 2), VALUES(3, 7, 11, 15));
    assert_values(op_sum(tape, x, ALL_AXES), shape_scalar(), VALUES(36));
    assert_values(op_mean(tape, x, -2), shape(2, 2), VALUES(2, 3, 6, 7));
    assert_values(op_mean(tape, x, ALL_AXES), shape_scalar(), VALUES(4.5));
    tape_free(tape);
}

/* Without a rounding error of 1 / n, and though the sum overflows; a double has no more digits for
 * the sum than for the elements. */
TEST(the_mean_of_a_constant_is_the_constant)
{
    enum { COUNT = 200 };
    const Real constants[] = { 1, (Real)0.1, sizeof(Real) == 4 ? (Real)3e38 : 1 };
    begin();
    for (int64_t n = 1; n <= COUNT; n++)
        for (int i = 0; i < (sizeof(Real) == 4 ? 3 : 1); i++, tape_reset(tape)) {
            Real xs[2 * COUNT];
            for (int64_t j = 0; j < 2 * n; j++)
                xs[j] = constants[i];
            Tensor *rows = tape_input(tape, xs, shape(2, n));
            Tensor *columns = tape_input(tape, xs, shape(n, 2));
            Tensor *means[] = { op_mean(tape, rows, 1), op_mean(tape, columns, 0),
                                op_mean(tape, rows, ALL_AXES) };
            for (int m = 0; m < 3; m++)
                ck_assert_double_le(
                    fabs(tensor_item(op_max(tape, means[m], ALL_AXES)) / (double)constants[i] - 1),
                    sizeof(Real) == 4 ? 0 : DBL_EPSILON);
            if (sizeof(Real) == 4)
                ck_assert_double_eq(tensor_item(op_variance(tape, rows, ALL_AXES)), 0);
        }
    tape_free(tape);
}

TEST(variance_along_each_axis)
{
    begin();
    Tensor *x = one_to_eight();
    assert_values(op_variance(tape, x, 0), shape(2, 2), VALUES(4, 4, 4, 4));
    assert_values(op_variance(tape, x, 1), shape(2, 2), VALUES(1, 1, 1, 1));
    assert_values(op_variance(tape, x, -1), shape(2, 2), VALUES(0.25, 0.25, 0.25, 0.25));
    assert_values(op_variance(tape, x, ALL_AXES), shape_scalar(), VALUES(5.25));
    Tensor *scalar = tape_input(tape, (const Real[]){ 3 }, shape_scalar());
    assert_values(op_variance(tape, scalar, ALL_AXES), shape_scalar(), VALUES(0));
    tape_free(tape);
}

/* In one pass, sum x^2 / n - mean^2, no digit of it would be left in float32. */
TEST(variance_with_a_large_offset)
{
    enum { COUNT = 1 << 16 };
    begin();
    Real x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = (Real)(1000000 + (i % 2 ? 1 : -1));
    Tensor *variance = op_variance(tape, tape_input(tape, x, shape(COUNT)), ALL_AXES);
    ck_assert_double_eq(tensor_item(variance), 1);
    tape_free(tape);
}

/* A plain float sum of this length would stop at 2^24. */
TEST(sums_are_accurate)
{
    enum { COUNT = (1 << 24) + 1000 };
    begin();
    Tensor *x = op_add_scalar(tape, op_scale(tape, normal_input(shape(COUNT)), 0), 1);
    ck_assert(tensor_item(op_sum(tape, x, ALL_AXES)) == COUNT);
    ck_assert(tensor_item(op_sum(tape, x, -1)) == COUNT);
    ck_assert(tensor_item(op_mean(tape, x, ALL_AXES)) == 1);
    tape_free(tape);
}

TEST(sums_carry_nan)
{
    const Real x[] = { 1, NAN, 1, 1 };
    begin();
    Real *out = test_values(op_sum(tape, tape_input(tape, x, shape(2, 2)), -1));
    ck_assert(isnan(out[0]) && out[1] == 2);
    ck_assert(isnan(tensor_item(op_mean(tape, tape_input(tape, x, shape(2, 2)), ALL_AXES))));
    Tensor *running = op_cumulative_sum(tape, tape_input(tape, x, shape(4)), 0);
    out = test_values(running);
    ck_assert(out[0] == 1 && isnan(out[1]) && isnan(out[2]) && isnan(out[3]));
    tape_free(tape);
}

TEST(misuse_of_sum_raises)
{
    const Real one = 1;
    begin();
    Tensor *scalar = tape_input(tape, &one, shape_scalar());
    assert_raises("op_sum: x is NULL", op_sum(tape, NULL, ALL_AXES));
    assert_raises("op_mean: x is NULL", op_mean(tape, NULL, -1));
    assert_raises("op_argmax: x is NULL", op_argmax(tape, NULL, 0));
    assert_raises("op_max: x is NULL", op_max(tape, NULL, 0));
    assert_raises("op_sum: x is [], which has no axis -1", op_sum(tape, scalar, -1));
    assert_raises("op_mean: x is [], which has no axis 0", op_mean(tape, scalar, 0));
    Tensor *matrix = normal_input(shape(2, 3));
    assert_raises("op_max: x is [2,3], which has no axis 2", op_max(tape, matrix, 2));
    assert_raises("op_argmax: x is [2,3], which has no axis -3", op_argmax(tape, matrix, -3));
    Params *params = params_new(test_device(), 1);
    Tensor *weight =
        params_add(params, "decoder.weight", shape(2, 3), (Initializer){ INITIAL_NORMAL, 1 });
    assert_raises("op_sum: x decoder.weight is [2,3], which has no axis 2",
                  op_sum(tape, weight, 2));
    params_free(params);
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- maxima */

TEST(the_first_maximum_gets_the_gradient)
{
    begin();
    Tensor *x = tape_variable(tape, VALUES(3, 1, 3, 0, 2, 2), shape(2, 3));
    ck_assert_int_eq(test_integers(op_argmax(tape, x, 1))[0], 0);
    ck_assert_int_eq(test_integers(op_argmax(tape, x, 1))[1], 1);
    Tensor *out = tensor_keep(op_max(tape, x, 1));
    assert_values(out, shape(2), VALUES(3, 2));
    tape_backward_from(tape, out, tape_input(tape, VALUES(5, 7), shape(2)));
    assert_values(tensor_gradient(x), shape(2, 3), VALUES(5, 0, 0, 0, 7, 0));
    tape_reset(tape);
    x = tape_variable(tape, VALUES(3, 1, 3, 0, 2, 2), shape(2, 3));
    out = tensor_keep(op_max(tape, x, 0));
    assert_values(out, shape(3), VALUES(3, 2, 3));
    assert_values(op_max(tape, x, ALL_AXES), shape_scalar(), VALUES(3));
    tape_backward_from(tape, out, tape_input(tape, VALUES(5, 7, 9), shape(3)));
    assert_values(tensor_gradient(x), shape(2, 3), VALUES(5, 0, 9, 0, 7, 0));
    tape_free(tape);
}

/* An index is an int32. */
TEST(an_axis_of_more_than_2_31_elements_has_no_argmax)
{
    begin();
    Tensor *x = normal_input(shape(3, 2));
    x->shape.size[1] = (int64_t)1 << 30; /* nothing reads the elements */
    const char *sentence =
        "op_max: x is [3,1073741824], expected at most 2^31 - 1 elements along the axis";
    assert_raises(sentence, op_max(tape, x, ALL_AXES));
    assert_raises("op_argmax: x is [3,1073741824], expected at most 2^31 - 1 elements along the "
                  "axis",
                  op_argmax(tape, x, ALL_AXES));
    x->shape.size[1] = 2;
    tape_free(tape);
}

TEST(max_carries_nan)
{
    const Real x[] = { 1, NAN, INFINITY, NAN, -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    begin();
    Tensor *input = tape_input(tape, x, shape(2, 4));
    Real *out = test_values(op_max(tape, input, 1));
    int32_t *index = test_integers(op_argmax(tape, input, 1));
    ck_assert(isnan(out[0]) && out[1] == -(Real)INFINITY && index[0] == 1 && index[1] == 0);
    out = test_values(op_max(tape, input, 0));
    ck_assert(out[0] == 1 && isnan(out[1]) && isinf(out[2]) && isnan(out[3]));
    tape_free(tape);
}

/* With many equal elements, and every fifth row with two NaN or one. */
TEST(the_first_maximum_of_rows_of_every_length)
{
    enum { ROWS = 40, LENGTHS = 70 };
    Real x[ROWS * LENGTHS];
    Random random = random_new(1, random_stream("maxima"));
    begin();
    for (int64_t C = 1; C <= LENGTHS; C++) {
        int64_t expected[ROWS] = { 0 };
        for (int64_t r = 0; r < ROWS; r++) {
            Real *row = x + r * C;
            for (int64_t c = 0; c < C; c++)
                row[c] = (Real)random_integer(&random, 0, 4);
            for (int i = 0; r % 5 == 0 && i < 2; i++)
                row[random_integer(&random, 0, C)] = NAN;
            for (int64_t c = 1; c < C && !isnan(row[expected[r]]); c++)
                if (isnan(row[c]) || row[c] > row[expected[r]])
                    expected[r] = c;
        }
        const int32_t *found =
            test_integers(op_argmax(tape, tape_input(tape, x, shape(ROWS, C)), -1));
        for (int r = 0; r < ROWS; r++)
            ck_assert_msg(found[r] == expected[r], "row %d of %lld: %d, expected %lld", r,
                          (long long)C, (int)found[r], (long long)expected[r]);
    }
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- gather */
TEST(gather_by_index_and_its_gradient)
{
    begin();
    Tensor *x = tape_variable(tape, VALUES(1, 2, 3, 4, 5, 6), shape(2, 3));
    Tensor *index = tape_input_i32(tape, (int32_t[]){ 2, 0, 2, 1, 1, 0, 1, 1 }, shape(2, 4));
    Tensor *out = tensor_keep(op_gather(tape, x, index));
    assert_values(out, shape(2, 4), VALUES(3, 1, 3, 2, 5, 4, 5, 5));
    tape_backward_from(tape, out, tape_input(tape, VALUES(1, 2, 4, 8, 1, 2, 4, 8), shape(2, 4)));
    assert_values(tensor_gradient(x), shape(2, 3), VALUES(2, 8, 5, 2, 13, 0));
    tape_free(tape);
}

TEST(one_hot_by_index)
{
    begin();
    Tensor *indices = tape_input_i32(tape, (const int32_t[]){ 2, 0, 1, 2 }, shape(2, 2));
    assert_values(op_one_hot(tape, indices, 3), shape(2, 2, 3),
                  VALUES(0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1));
    Tensor *index = tape_input_i32(tape, (const int32_t[]){ 1 }, shape_scalar());
    assert_values(op_one_hot(tape, index, 2), shape(2), VALUES(0, 1));
    ck_assert(!tape_has_recorded(tape));
    tape_free(tape);
}

TEST(misuse_of_one_hot_raises)
{
    begin();
    Tensor *indices = tape_input_i32(tape, (const int32_t[]){ 2, 0, -1 }, shape(3));
    assert_raises("op_one_hot: indices is NULL", op_one_hot(tape, NULL, 3));
    assert_raises("op_one_hot: indices has dtype Real, expected int32",
                  op_one_hot(tape, normal_input(shape(3)), 3));
    assert_raises("op_one_hot: classes is 0, expected 1 or more", op_one_hot(tape, indices, 0));
    assert_raises("op_one_hot: indices[0] is 2, expected 0 to 1, the classes",
                  op_one_hot(tape, indices, 2));
    assert_raises("op_one_hot: indices[2] is -1, expected 0 to 2, the classes",
                  op_one_hot(tape, indices, 3));
    indices = tape_input_i32(tape, (const int32_t[]){ 0 }, shape(1, 1, 1, 1));
    assert_raises("op_one_hot: indices is [1,1,1,1], expected 3 axes at most: out has one more",
                  op_one_hot(tape, indices, 2));
    tape_free(tape);
}

TEST(embedding_by_index_and_its_gradient)
{
    begin();
    Tensor *weight = tape_variable(tape, VALUES(1, 2, 3, 4, 5, 6), shape(3, 2));
    Tensor *index = tape_input_i32(tape, (int32_t[]){ 2, 0, 2 }, shape(3));
    Tensor *out = tensor_keep(op_embedding(tape, weight, index));
    assert_values(out, shape(3, 2), VALUES(5, 6, 1, 2, 5, 6));
    tape_backward_from(tape, out, tape_input(tape, VALUES(1, 2, 4, 8, 16, 32), shape(3, 2)));
    assert_values(tensor_gradient(weight), shape(3, 2), VALUES(4, 8, 0, 0, 17, 34));
    tape_free(tape);
}

/* Sums of terms of 1 + 2^-10 are exact in float, up to 2^13 of them. */
TEST(the_gradient_of_a_frequent_index_is_exact)
{
    enum { R = 1 << 17, D = 3 };
    begin();
    Real *values = test_zeros(R * D), term = 1 + (Real)0x1p-10;
    static int32_t indices[R];
    for (int r = 0; r < R; r++)
        indices[r] = r == 5 || r == R - 2 ? 3 : 1;
    for (int i = 0; i < R * D; i++)
        values[i] = term;
    Tensor *weight = tape_variable(tape, test_zeros(4 * D), shape(4, D));
    Tensor *out = op_embedding(tape, weight, tape_input_i32(tape, indices, shape(R)));
    tape_backward_from(tape, out, tape_input(tape, values, out->shape));
    const Real sum = (Real)((R - 2) * (double)term), two = 2 * term;
    assert_values(tensor_gradient(weight), shape(4, D),
                  VALUES(0, 0, 0, sum, sum, sum, 0, 0, 0, two, two, two));
    tape_free(tape);
}

/* If each addition were rounded to bf16, the sum would stay at 256. CUDA rounds each. */
TEST(gather_rounds_a_bf16_gradient_once)
{
    enum { K = 300 };
    begin();
    if (!device_is_cuda(test_device()) && test_has_bf16()) {
        tape_set_precision(tape, PRECISION_BF16);
        Tensor *x = tape_variable(tape, test_zeros(2), shape(2));
        Tensor *index = tape_input_i32(tape, (int32_t[K]){ 0 }, shape(K));
        Tensor *out = op_gather(tape, op_cast(tape, x, TENSOR_BF16), index);
        tape_backward(tape, op_sum(tape, op_cast(tape, out, TENSOR_REAL), ALL_AXES));
        const Real *gradient = test_values(tensor_gradient(x));
        ck_assert(gradient[0] == K && gradient[1] == 0);
    }
    tape_free(tape);
}

/* On a bf16 tape too: a parameter's values and gradients stay float32. */
TEST(gather_does_not_round_float32)
{
    begin();
    if (!test_has_bf16()) {
        tape_free(tape);
        return;
    }
    tape_set_precision(tape, PRECISION_BF16);
    const Real values[] = { (Real)1.001, (Real)-2.0003, (Real)3.00007 };
    Tensor *x = tape_variable(tape, values, shape(1, 3));
    Tensor *index = tape_input_i32(tape, (int32_t[3]){ 2, 0, 1 }, shape(1, 3));
    Tensor *out = tensor_keep(op_gather(tape, x, index));
    ck_assert_int_eq(out->type, TENSOR_REAL);
    const Real expected[] = { values[2], values[0], values[1] };
    ck_assert_mem_eq(test_values(out), expected, sizeof expected);
    tape_backward_from(tape, out, tape_input(tape, expected, shape(1, 3)));
    ck_assert_mem_eq(test_values(tensor_gradient(x)), values, sizeof values);
    tape_free(tape);
}

TEST(misuse_of_gather_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    Tensor *index = tape_input_i32(tape, (int32_t[]){ 0, 2, 1, 3 }, shape(2, 2));
    assert_raises("op_gather: x is NULL", op_gather(tape, NULL, index));
    assert_raises("op_gather: indices is NULL", op_gather(tape, x, NULL));
    assert_raises("op_gather: indices has dtype Real, expected int32", op_gather(tape, x, x));
    assert_raises("op_gather: indices[3] is 3, expected 0 to 2, the last axis of x",
                  op_gather(tape, x, index));
    assert_raises("op_gather: indices is [2,2], x is [3,3], expected equal sizes but along the "
                  "last axis",
                  op_gather(tape, normal_input(shape(3, 3)), index));
    assert_raises("op_gather: indices is [4], x is [2,3], expected equal sizes but along the last "
                  "axis",
                  op_gather(tape, x, tape_input_i32(tape, (int32_t[4]){ 0 }, shape(4))));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------ cumulative sums */
TEST(cumulative_sum_along_each_axis)
{
    begin();
    Tensor *x = one_to_eight();
    assert_values(op_cumulative_sum(tape, x, 0), x->shape, VALUES(1, 2, 3, 4, 6, 8, 10, 12));
    assert_values(op_cumulative_sum(tape, x, 1), x->shape, VALUES(1, 2, 4, 6, 5, 6, 12, 14));
    assert_values(op_cumulative_sum(tape, x, -1), x->shape, VALUES(1, 3, 3, 7, 5, 11, 7, 15));
    assert_values(op_reverse_cumulative_sum(tape, x, 1), x->shape,
                  VALUES(4, 6, 3, 4, 12, 14, 7, 8));
    assert_values(op_reverse_cumulative_sum(tape, x, -1), x->shape,
                  VALUES(3, 2, 7, 4, 11, 6, 15, 8));
    tape_free(tape);
}

TEST(misuse_of_cumulative_sum_raises)
{
    const Real x[6] = { 0 };
    begin();
    Tensor *matrix = tape_input(tape, x, shape(2, 3));
    assert_raises("op_cumulative_sum: x is NULL", op_cumulative_sum(tape, NULL, 0));
    assert_raises("op_cumulative_sum: x is [2,3], which has no axis 2",
                  op_cumulative_sum(tape, matrix, 2));
    assert_raises("op_cumulative_sum: x is [2,3], which has no axis -3",
                  op_cumulative_sum(tape, matrix, -3));
    assert_raises("op_reverse_cumulative_sum: x is [2,3], which has no axis 2",
                  op_reverse_cumulative_sum(tape, matrix, 2));
    assert_raises("op_cumulative_sum: x is [], which has no axis -1",
                  op_cumulative_sum(tape, tape_input(tape, x, shape_scalar()), -1));
    tape_free(tape);
}

/* -------------------------------------------------------------------------------------- reshape */
TEST(reshape_shares_storage)
{
    begin();
    Tensor *x = tape_variable(tape, test_normal(1, 24), shape(2, 3, 4));
    Tensor *view = op_reshape(tape, x, shape(6, 4));
    ck_assert(shape_equal(view->shape, shape(6, 4)));
    ck_assert_ptr_eq(view->data, x->data);
    Tensor *scalar = tape_variable(tape, test_normal(1, 1), shape(1));
    ck_assert_int_eq(op_reshape(tape, scalar, shape_scalar())->shape.rank, 0);
    tape_free(tape);
}

/* Head g serves query heads g R to g R + R - 1, and gets the sum of their gradients. */
TEST(repeated_heads_serve_groups_of_query_heads)
{
    enum { B = 2, N = 5, G = 3, R = 4, D = 7 };
    begin();
    Tensor *x = tape_variable(tape, test_normal(1, B * N * G * D), shape(B, N, G, D));
    Tensor *out = op_repeat_heads(tape, x, R);
    ck_assert(shape_equal(out->shape, shape(B, N, G * R, D)));
    const Real *heads = test_values(x), *repeated = test_values(out);
    for (int i = 0; i < B * N * G * R; i++)
        ck_assert_mem_eq(repeated + i * D, heads + i / R * D, D * sizeof *heads);
    const Real *g = test_normal(2, B * N * G * R * D);
    tape_backward_from(tape, out, tape_input(tape, g, out->shape));
    Real *expected = test_zeros(B * N * G * D);
    for (int i = 0; i < B * N * G * R * D; i++)
        expected[i / (R * D) * D + i % D] += g[i];
    assert_close(test_values(tensor_gradient(x)), expected, B * N * G * D, VECTOR_TOLERANCE);
    tape_free(tape);
}

TEST(misuse_of_repeat_heads_raises)
{
    begin();
    assert_raises("op_repeat_heads: x is NULL", op_repeat_heads(tape, NULL, 2));
    assert_raises("op_repeat_heads: x is [2,3], expected four axes, [B, N, G, D]",
                  op_repeat_heads(tape, normal_input(shape(2, 3)), 2));
    assert_raises("op_repeat_heads: times is 0, expected 1 or more",
                  op_repeat_heads(tape, normal_input(shape(1, 2, 1, 2)), 0));
    tape_free(tape);
}

TEST(misuse_of_reshape_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    assert_raises("op_reshape: x is NULL", op_reshape(tape, NULL, shape(2)));
    assert_raises("op_reshape: x is [2,3] of 6 elements, which do not fill [4]",
                  op_reshape(tape, x, shape(4)));
    assert_raises("op_reshape: x is [2,3] of 6 elements, which do not fill []",
                  op_reshape(tape, x, shape_scalar()));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ transpose */
TEST(transpose_of_each_pair_of_axes)
{
    begin();
    Tensor *x = one_to_eight();
    assert_values(op_transpose(tape, x, 0, 1), x->shape, VALUES(1, 2, 5, 6, 3, 4, 7, 8));
    assert_values(op_transpose(tape, x, -1, 1), x->shape, VALUES(1, 3, 2, 4, 5, 7, 6, 8));
    assert_values(op_transpose(tape, x, 0, 2), x->shape, VALUES(1, 5, 3, 7, 2, 6, 4, 8));
    assert_values(op_transpose(tape, x, 1, 1), x->shape, VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    x = op_reshape(tape, x, shape(4, 1, 2));
    assert_values(op_transpose(tape, x, 0, 2), shape(2, 1, 4), VALUES(1, 3, 5, 7, 2, 4, 6, 8));
    tape_free(tape);
}

/* Tiles with ragged ends, of several threads. */
TEST(transposed_twice_is_the_tensor)
{
    begin();
    const Shape of = shape(3, 67, 5, 83);
    Tensor *x = normal_input(of), *once = op_transpose(tape, x, 1, 3);
    ck_assert(shape_equal(once->shape, shape(3, 83, 5, 67)));
    ck_assert_mem_eq(test_values(op_transpose(tape, once, 3, 1)), test_values(x),
                     (size_t)shape_count(of) * sizeof(Real));
    tape_free(tape);
}

TEST(misuse_of_transpose_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    assert_raises("op_transpose: x is NULL", op_transpose(tape, NULL, 0, 1));
    assert_raises("op_transpose: x is [2,3], which has no axis 2", op_transpose(tape, x, 0, 2));
    assert_raises("op_transpose: x is [2,3], which has no axis -3", op_transpose(tape, x, -3, 0));
    tape_free(tape);
}

/* ---------------------------------------------------------------------------- slices and concat */
/* Every order of 4 axes, by strides. */
TEST(permute_to_each_order)
{
    const int64_t size[] = { 2, 3, 4, 5 }, stride[] = { 60, 20, 5, 1 };
    begin();
    Tensor *x = normal_input(shape(2, 3, 4, 5));
    const Real *values = test_values(x);
    for (int code = 0; code < 256; code++) {
        const int axes[] = { code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 };
        if ((1 << axes[0] | 1 << axes[1] | 1 << axes[2] | 1 << axes[3]) != 15)
            continue;
        Tensor *out = op_permute(tape, x, axes);
        const Real *found = test_values(out);
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(out->shape.size[i], size[axes[i]]);
        for (int64_t e = 0; e < 120; e++) {
            int64_t offset = 0, rest = e;
            for (int i = 3; i >= 0; rest /= size[axes[i--]])
                offset += rest % size[axes[i]] * stride[axes[i]];
            ck_assert(found[e] == values[offset]);
        }
    }
    ck_assert_ptr_eq(op_permute(tape, x, (const int[]){ 0, 1, -2, -1 }), x);
    tape_free(tape);
}

TEST(misuse_of_permute_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3, 4));
    assert_raises("op_permute: x is NULL", op_permute(tape, NULL, (const int[]){ 0 }));
    assert_raises("op_permute: axes is NULL, expected one per axis of x",
                  op_permute(tape, x, NULL));
    assert_raises("op_permute: x is [2,3,4], which has no axis 3",
                  op_permute(tape, x, (const int[]){ 0, 3, 1 }));
    assert_raises("op_permute: x is [2,3,4]: axes[2] is 1 again, expected each axis once",
                  op_permute(tape, x, (const int[]){ 1, 0, 1 }));
    assert_raises("op_permute: x is [2,3,4]: axes[1] is -1 again, expected each axis once",
                  op_permute(tape, x, (const int[]){ 2, -1, 0 }));
    tape_free(tape);
}

TEST(slice_along_each_axis)
{
    begin();
    Tensor *x = one_to_eight();
    assert_values(op_slice(tape, x, 0, 1, 1), shape(1, 2, 2), VALUES(5, 6, 7, 8));
    assert_values(op_slice(tape, x, 1, 1, 1), shape(2, 1, 2), VALUES(3, 4, 7, 8));
    assert_values(op_slice(tape, x, -1, 0, 1), shape(2, 2, 1), VALUES(1, 3, 5, 7));
    assert_values(op_slice(tape, x, 2, 0, 2), x->shape, VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    tape_free(tape);
}

TEST(misuse_of_slice_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    const char *outside = "op_slice: x is [2,3]: its axis 1 has no %lld entries from %lld on; "
                          "expected 0 <= start, 1 <= count, start + count <= 3";
    const int64_t wrong[][2] = { { -1, 2 }, { 0, 0 }, { 0, -1 },        { 0, 4 },
                                 { 3, 1 },  { 2, 2 }, { INT64_MAX, 1 }, { 1, INT64_MAX } };
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        char sentence[256];
        snprintf(sentence, sizeof sentence, outside, (long long)wrong[w][1],
                 (long long)wrong[w][0]);
        assert_raises(sentence, op_slice(tape, x, 1, wrong[w][0], wrong[w][1]));
    }
    assert_raises("op_slice: x is NULL", op_slice(tape, NULL, 0, 0, 1));
    assert_raises("op_slice: x is [2,3], which has no axis 2", op_slice(tape, x, 2, 0, 1));
    assert_raises("op_slice: x is [], which has no axis 0",
                  op_slice(tape, normal_input(shape_scalar()), 0, 0, 1));
    tape_free(tape);
}

TEST(select_along_each_axis)
{
    begin();
    Tensor *x = one_to_eight();
    assert_values(op_select(tape, x, 0, 1), shape(2, 2), VALUES(5, 6, 7, 8));
    assert_values(op_select(tape, x, 1, 0), shape(2, 2), VALUES(1, 2, 5, 6));
    assert_values(op_select(tape, x, -1, 1), shape(2, 2), VALUES(2, 4, 6, 8));
    Tensor *row = op_select(tape, op_select(tape, x, 0, 0), 0, 1);
    assert_values(op_select(tape, row, 0, 0), shape_scalar(), VALUES(3));
    tape_free(tape);
}

TEST(misuse_of_select_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    assert_raises("op_select: x is NULL", op_select(tape, NULL, 0, 0));
    assert_raises("op_select: x is [2,3]: index is 3, expected 0 to 2, the entries of axis 1",
                  op_select(tape, x, 1, 3));
    assert_raises("op_select: x is [2,3]: index is -1, expected 0 to 2, the entries of axis -1",
                  op_select(tape, x, -1, -1));
    assert_raises("op_select: x is [2,3], which has no axis 2", op_select(tape, x, 2, 0));
    tape_free(tape);
}

TEST(split_along_an_axis)
{
    begin();
    Tensor *parts[2];
    op_split(tape, one_to_eight(), -2, 2, parts);
    assert_values(parts[0], shape(2, 1, 2), VALUES(1, 2, 5, 6));
    assert_values(parts[1], shape(2, 1, 2), VALUES(3, 4, 7, 8));
    op_split(tape, op_reshape(tape, one_to_eight(), shape(2, 4)), 1, 2, parts);
    assert_values(parts[0], shape(2, 2), VALUES(1, 2, 5, 6));
    assert_values(parts[1], shape(2, 2), VALUES(3, 4, 7, 8));
    op_split(tape, one_to_eight(), 0, 1, parts);
    assert_values(parts[0], shape(2, 2, 2), VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    tape_free(tape);
}

TEST(misuse_of_split_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 6)), *parts[6];
    const int wrong[] = { 0, -2, 4, 7 };
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        char sentence[256];
        snprintf(sentence, sizeof sentence,
                 "op_split: x is [2,6]: its axis -1 does not split into %d equal parts", wrong[w]);
        assert_raises(sentence, op_split(tape, x, -1, wrong[w], parts));
    }
    assert_raises("op_split: x is NULL", op_split(tape, NULL, 0, 2, parts));
    assert_raises("op_split: x is [2,6], which has no axis 2", op_split(tape, x, 2, 2, parts));
    assert_raises("op_split: parts is NULL, expected an array of 2 tensors",
                  op_split(tape, x, 0, 2, NULL));
    tape_free(tape);
}

TEST(concat_along_each_axis)
{
    begin();
    Tensor *x = one_to_eight(), *half = op_slice(tape, x, 0, 0, 1);
    assert_values(op_concat(tape, (Tensor *[]){ x, half }, 2, 0), shape(3, 2, 2),
                  VALUES(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4));
    half = op_slice(tape, x, 1, 0, 1);
    assert_values(op_concat(tape, (Tensor *[]){ half, x }, 2, 1), shape(2, 3, 2),
                  VALUES(1, 2, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8));
    half = op_slice(tape, x, 2, 1, 1);
    assert_values(op_concat(tape, (Tensor *[]){ x, half }, 2, -1), shape(2, 2, 3),
                  VALUES(1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8));
    assert_values(op_concat(tape, &x, 1, 0), x->shape, VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    tape_free(tape);
}

TEST(stack_along_each_axis)
{
    begin();
    Tensor *x[] = { tape_input(tape, VALUES(1, 2, 3, 4), shape(2, 2)),
                    tape_input(tape, VALUES(5, 6, 7, 8), shape(2, 2)) };
    assert_values(op_stack(tape, x, 2, 0), shape(2, 2, 2), VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    assert_values(op_stack(tape, x, 2, 1), shape(2, 2, 2), VALUES(1, 2, 5, 6, 3, 4, 7, 8));
    assert_values(op_stack(tape, x, 2, -1), shape(2, 2, 2), VALUES(1, 5, 2, 6, 3, 7, 4, 8));
    x[0] = op_sum(tape, x[0], ALL_AXES);
    assert_values(op_stack(tape, x, 1, -1), shape(1), VALUES(10));
    tape_free(tape);
}

/* A recurrence of COUNT steps, each of which costs the same. */
TEST(stacking_many_costs_no_more_per_tensor)
{
    enum { COUNT = 3000 };
    static Tensor *tensors[COUNT];
    begin();
    Tensor *x = tape_variable(tape, test_normal(1, COUNT), shape(COUNT));
    for (int t = 0; t < COUNT; t++)
        tensors[t] = op_reshape(tape, op_slice(tape, x, 0, t, 1), shape_scalar());
    Tensor *out = tensor_keep(op_stack(tape, tensors, COUNT, 0));
    tape_backward_from(tape, out, tape_input(tape, test_normal(2, COUNT), shape(COUNT)));
    assert_close(test_values(out), test_normal(1, COUNT), COUNT, 0);
    assert_close(test_values(tensor_gradient(x)), test_normal(2, COUNT), COUNT, 0);
    tape_free(tape);
}

TEST(misuse_of_concat_raises)
{
    begin();
    Tensor *a = normal_input(shape(2, 3, 4)), *pair[] = { a, NULL };
    assert_raises("op_concat: there are 0 tensors, expected 1 or more",
                  op_concat(tape, pair, 0, 0));
    assert_raises("op_stack: there are 0 tensors, expected 1 or more", op_stack(tape, NULL, 2, 0));
    assert_raises("op_concat: the tape is NULL", op_concat(NULL, pair, 1, 0));
    assert_raises("op_stack: the tape is NULL", op_stack(NULL, NULL, 0, 0));
    assert_raises("op_concat: tensors[1] is NULL", op_concat(tape, pair, 2, 0));
    assert_raises("op_stack: tensors[1] is NULL", op_stack(tape, pair, 2, 0));
    assert_raises("op_concat: tensors[0] is [2,3,4], which has no axis 3",
                  op_concat(tape, pair, 1, 3));
    assert_raises("op_stack: tensors[0] is [2,3,4], whose stack has no axis 4",
                  op_stack(tape, pair, 1, 4));
    const struct {
        Shape shape;
        int axis;
    } wrong[] = { { shape(2, 3, 5), 1 }, { shape(3, 4), 0 },    { shape_scalar(), 2 },
                  { shape(4), 2 },       { shape(3, 3, 4), 1 }, { shape(1, 2, 3, 4), 0 } };
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        char sentence[256];
        pair[1] = normal_input(wrong[w].shape);
        snprintf(sentence, sizeof sentence,
                 "op_concat: tensors[0] is [2,3,4], tensors[1] is %s; expected equal sizes but "
                 "along axis %d",
                 shape_text(wrong[w].shape).text, wrong[w].axis);
        assert_raises(sentence, op_concat(tape, pair, 2, wrong[w].axis));
        snprintf(sentence, sizeof sentence,
                 "op_stack: tensors[0] is [2,3,4], tensors[1] is %s, expected the same",
                 shape_text(wrong[w].shape).text);
        assert_raises(sentence, op_stack(tape, pair, 2, 0));
    }
    pair[0] = normal_input(shape(1, 2, 3, 4));
    assert_raises("op_stack: tensors[0] is [1,2,3,4], expected 3 axes at most: out has one more",
                  op_stack(tape, pair, 1, 0));
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------- scatter-add */
/* out_t = sum over edges (s, t) of x_s / sqrt(degree_s degree_t): the path 0 - 1 - 2 with loops, as
 * a product with its normalized adjacency matrix. */
TEST(a_graph_convolution_is_a_product_with_the_adjacency_matrix)
{
    enum { NODES = 3, EDGES = 7, C = 5 };
    static const int32_t source[EDGES] = { 0, 1, 2, 0, 1, 1, 2 };
    static const int32_t target[EDGES] = { 0, 1, 2, 1, 0, 2, 1 };
    static const double degree[NODES] = { 2, 3, 2 };
    Real weight[EDGES], adjacency[NODES * NODES] = { 0 }, *gradients[2], *outs[2];
    begin();
    for (int e = 0; e < EDGES; e++) {
        weight[e] = (Real)(1 / sqrt(degree[source[e]] * degree[target[e]]));
        adjacency[target[e] * NODES + source[e]] = weight[e];
    }
    for (int dense = 0; dense < 2; dense++, tape_reset(tape)) {
        Tensor *x = tape_variable(tape, test_normal(1, NODES * C), shape(NODES, C)), *out;
        if (dense) {
            out = op_matmul(tape, tape_input(tape, adjacency, shape(NODES, NODES)), x);
        } else {
            out = op_embedding(tape, x, tape_input_i32(tape, source, shape(EDGES)));
            out = op_multiply(tape, out, tape_input(tape, weight, shape(EDGES, 1)));
            out = op_scatter_add(tape, out, tape_input_i32(tape, target, shape(EDGES)), NODES);
        }
        outs[dense] = test_values(out);
        tape_backward(tape, op_sum(tape, op_square(tape, out), ALL_AXES));
        gradients[dense] = test_values(tensor_gradient(x));
    }
    assert_close(outs[0], outs[1], NODES * C, 1e-6);
    assert_close(gradients[0], gradients[1], NODES * C, 1e-6);
    tape_free(tape);
}

TEST(misuse_of_scatter_add_raises)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    Tensor *index = tape_input_i32(tape, (int32_t[]){ 0, 4 }, shape(2));
    assert_values(op_scatter_add(tape, tape_input(tape, VALUES(3, 4), shape(2, 1)), index, 5),
                  shape(5, 1), VALUES(3, 0, 0, 0, 4));
    assert_raises("op_scatter_add: x is NULL", op_scatter_add(tape, NULL, index, 5));
    assert_raises("op_scatter_add: indices has dtype Real, expected int32",
                  op_scatter_add(tape, x, x, 5));
    assert_raises("op_scatter_add: x is [3,2], indices is [2], expected x to have one axis more",
                  op_scatter_add(tape, normal_input(shape(3, 2)), index, 5));
    assert_raises("op_scatter_add: x is [], indices is [2], expected x to have one axis more",
                  op_scatter_add(tape, normal_input(shape_scalar()), index, 5));
    assert_raises("op_scatter_add: rows is 0, expected 1 or more",
                  op_scatter_add(tape, x, index, 0));
    assert_raises("op_scatter_add: indices[1] is 4, expected 0 to 3, the rows of out",
                  op_scatter_add(tape, x, index, 4));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------- integers */
static Tensor *integers(const int32_t *host, Shape of)
{
    return tape_input_i32(tape, host, of);
}

static void assert_integers(const Tensor *tensor, const int32_t *expected)
{
    int32_t found[64];
    tensor_read_i32(tensor, found);
    ck_assert_mem_eq(found, expected, (size_t)tensor_count(tensor) * sizeof *found);
}

/* As Reals these are NaN, -0 and a subnormal number. */
TEST(every_bit_of_integers_is_moved)
{
    begin();
    static const int32_t x[] = { 0x7f800001, INT32_MIN, 1, -1 };
    Tensor *in = integers(x, shape(2, 2)), *column = op_slice(tape, in, 1, 0, 1);
    assert_integers(op_reshape(tape, in, shape(4)), x);
    assert_integers(column, (int32_t[]){ x[0], x[2] });
    assert_integers(op_select(tape, in, 0, 1), x + 2);
    assert_integers(op_transpose(tape, in, 0, 1), (int32_t[]){ x[0], x[2], x[1], x[3] });
    assert_integers(op_concat(tape, (Tensor *[]){ in, column }, 2, 1),
                    (int32_t[]){ x[0], x[1], x[0], x[2], x[3], x[2] });
    assert_integers(op_stack(tape, (Tensor *[]){ column, column }, 2, 2),
                    (int32_t[]){ x[0], x[0], x[2], x[2] });
    assert_integers(op_broadcast_to(tape, column, shape(2, 2)),
                    (int32_t[]){ x[0], x[0], x[2], x[2] });
    tape_free(tape);
}

/* The largest index counts: an operation that knows the bounds of argmax need not look at it. */
TEST(an_argmax_beyond_the_table_raises)
{
    begin();
    Tensor *weight = tape_variable(tape, VALUES(10, 11), shape(2, 1));
    Tensor *last = op_argmax(tape, tape_input(tape, VALUES(1, 2, 3), shape(3)), 0);
    assert_raises("op_embedding: indices[0] is 2, expected 0 to 1, the rows of weight",
                  op_embedding(tape, weight, last));
    tape_free(tape);
}

/* A batch of token ids, split into inputs and targets; a sampled id appended to a prompt. */
TEST(moved_integers_are_indices)
{
    begin();
    Tensor *weight = tape_variable(tape, VALUES(10, 11, 12, 13), shape(4, 1));
    Tensor *tokens = integers((int32_t[]){ 3, 0, 1, 2, 2, 1 }, shape(2, 3));
    Tensor *inputs = op_slice(tape, tokens, 1, 0, 2), *targets = op_slice(tape, tokens, 1, 1, 2);
    Tensor *x = op_embedding(tape, weight, inputs);
    assert_values(x, shape(2, 2, 1), VALUES(13, 10, 12, 12));
    Tensor *next = op_argmax(tape, op_reshape(tape, x, shape(2, 2)), 1);
    Tensor *all[] = { targets, op_reshape(tape, next, shape(2, 1)) };
    assert_values(op_embedding(tape, weight, op_concat(tape, all, 2, 1)), shape(2, 3, 1),
                  VALUES(10, 11, 10, 12, 11, 10));
    Tensor *wrong =
        op_concat(tape, (Tensor *[]){ next, integers((int32_t[]){ 4 }, shape(1)) }, 2, 0);
    assert_raises("op_embedding: indices[2] is 4, expected 0 to 3, the rows of weight",
                  op_embedding(tape, weight, wrong));
    op_embedding(tape, weight, op_slice(tape, wrong, 0, 0, 2)); /* without the wrong one */
    tape_backward(tape, op_sum(tape, x, ALL_AXES));
    assert_values(tensor_gradient(weight), shape(4, 1), VALUES(1, 0, 2, 1));
    tape_free(tape);
}

TEST(integers_and_reals_are_not_joined)
{
    begin();
    Tensor *real = normal_input(shape(2)),
           *pair[] = { integers((int32_t[2]){ 0 }, shape(2)), real };
    assert_raises("op_concat: tensors[1] has dtype Real, expected int32",
                  op_concat(tape, pair, 2, 0));
    pair[1] = pair[0];
    pair[0] = real;
    assert_raises("op_stack: tensors[1] has dtype int32, expected Real",
                  op_stack(tape, pair, 2, 0));
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- stores */
TEST(values_of_store)
{
    begin();
    tape_set_recording(tape, false);
    Tensor *to = tape_persistent_i32(tape, shape(2, 3));
    static const int32_t numbers[] = { 4, -5, 6, 7, 8, 9 };
    ck_assert_ptr_eq(op_store_i32(tape, to, NULL, integers(numbers, shape(2, 3))), to);
    assert_integers(to, numbers);
    op_store_i32(tape, to, integers((int32_t[]){ 2, 0 }, shape(2)),
                 integers((int32_t[]){ 11, 12 }, shape(2)));
    tape_reset(tape);
    assert_integers(to, (int32_t[]){ 4, -5, 11, 12, 8, 9 });
    Tensor *row = tape_persistent_i32(tape, shape(5));
    op_store_i32(tape, row, integers((int32_t[]){ 3 }, shape_scalar()),
                 integers((int32_t[]){ 1 }, shape_scalar()));
    assert_integers(row, (int32_t[]){ 0, 0, 0, 1, 0 });
    tape_free(tape);
}

/* A state that a step begins with and leaves to the next: state <- state + weight. */
TEST(a_stored_state_reaches_the_next_step)
{
    begin();
    Tensor *state = tape_persistent(tape, shape(3));
    for (int step = 0; step < 4; step++) {
        Tensor *weight = tape_variable(tape, (Real[]){ 1, 2, 3 }, shape(3));
        Tensor *next = tensor_keep(op_add(tape, op_multiply(tape, state, weight), weight));
        tape_backward_from(tape, next, tape_input(tape, (Real[]){ 1, 1, 1 }, shape(3)));
        ck_assert_ptr_eq(op_store(tape, state, next), state);
        tape_reset(tape);
    }
    ck_assert_mem_eq(test_values(state), ((Real[]){ 4, 30, 120 }), 3 * sizeof(Real));
    tape_free(tape);
}

TEST(store_converts_between_dtypes)
{
    begin();
    if (!test_has_bf16()) {
        tape_free(tape);
        return;
    }
    tape_set_precision(tape, PRECISION_BF16);
    Tensor *from = tape_input(tape, (Real[]){ (Real)1.00390625, 2 }, shape(2));
    Tensor *narrow = tape_persistent_variable(tape, TENSOR_BF16, shape(2));
    Tensor *wide = tape_persistent(tape, shape(2));
    op_store(tape, wide, op_store(tape, narrow, from));
    ck_assert_mem_eq(test_values(wide), ((Real[]){ 1, 2 }), 2 * sizeof(Real));
    tape_free(tape);
}

TEST(misuse_of_store_of_reals_raises)
{
    begin();
    Tensor *state = tape_persistent(tape, shape(3));
    assert_raises("op_store: to is [3], from is [2], expected the same shape",
                  op_store(tape, state, normal_input(shape(2))));
    assert_raises("op_store: from has dtype int32, expected Real",
                  op_store(tape, state, integers((int32_t[3]){ 0 }, shape(3))));
    Tensor *next = op_multiply(tape, state, tape_variable(tape, (Real[]){ 1, 2, 3 }, shape(3)));
    assert_raises("op_store: operations are recorded whose backward pass might find other values "
                  "than the pass before; store after tape_backward, or without recording",
                  op_store(tape, state, next));
    tape_free(tape);
}

/* Stored integers may be used as indices; later stores must respect the bounds of these uses. */
TEST(store_checks_its_bounds)
{
    begin();
    tape_set_recording(tape, false);
    Tensor *to = tape_persistent_i32(tape, shape(2, 2)), *weight = normal_input(shape(4, 1));
    Tensor *one = integers((int32_t[]){ 1, 1 }, shape(2));
    op_store_i32(tape, to, one, integers((int32_t[]){ 5, 3 }, shape(2)));
    assert_raises("op_embedding: indices[1] is 5, expected 0 to 3, the rows of weight",
                  op_embedding(tape, weight, to));
    op_store_i32(tape, to, one, integers((int32_t[]){ 2, 3 }, shape(2)));
    op_embedding(tape, weight, to);
    assert_raises("op_store_i32: from[1] is 4, expected 0 to 3, as the operations that use to need",
                  op_store_i32(tape, to, one, integers((int32_t[]){ 0, 4 }, shape(2))));
    assert_integers(to, (int32_t[]){ 0, 2, 0, 3 });
    tape_free(tape);
}

TEST(misuse_of_store_raises)
{
    begin();
    tape_set_recording(tape, false);
    Tensor *to = tape_persistent_i32(tape, shape(2, 3)),
           *from = integers((int32_t[2]){ 0 }, shape(2));
    assert_raises("op_store_i32: to is [2,3], from is [2], expected the same shape",
                  op_store_i32(tape, to, NULL, from));
    assert_raises("op_store_i32: columns is [1], from is [2], expected the same shape",
                  op_store_i32(tape, to, integers((int32_t[1]){ 0 }, shape(1)), from));
    assert_raises("op_store_i32: to is [2,3], from is [3], expected to to have one axis more, the "
                  "columns",
                  op_store_i32(tape, to, integers((int32_t[3]){ 0 }, shape(3)),
                               integers((int32_t[3]){ 0 }, shape(3))));
    assert_raises("op_store_i32: to is [], from is [], expected to to have one axis more, the "
                  "columns",
                  op_store_i32(tape, tape_persistent_i32(tape, shape_scalar()),
                               integers((int32_t[1]){ 0 }, shape_scalar()),
                               integers((int32_t[1]){ 0 }, shape_scalar())));
    assert_raises("op_store_i32: columns[1] is 3, expected 0 to 2, the columns of to",
                  op_store_i32(tape, to, integers((int32_t[]){ 2, 3 }, shape(2)), from));
    assert_raises("op_store_i32: from has dtype Real, expected int32",
                  op_store_i32(tape, to, NULL, normal_input(shape(2, 3))));
    Tensor *offsets = tape_persistent_i32(tape, shape(2)), *qkv = normal_input(shape(1, 3, 3, 2));
    tensor_write_i32(offsets, (int32_t[]){ 0, 3 });
    op_causal_linear_attention(tape, qkv, NULL, NULL,
                               (CausalLinearAttentionOptions){ .offsets = offsets }, NULL);
    assert_raises("op_store_i32: the operations that use to need ascending integers; "
                  "only tensor_write_i32 checks their order",
                  op_store_i32(tape, offsets, NULL, from));
    tape_set_recording(tape, true);
    op_exp(tape, tape_variable(tape, (Real[]){ 1 }, shape(1)));
    assert_raises("op_store_i32: operations are recorded whose backward pass might find other "
                  "values than the pass before; store after tape_backward, or without recording",
                  op_store_i32(tape, to, NULL, to));
    tape_free(tape);
}

int main(void)
{
    return test_main("layout", NULL, NULL);
}
