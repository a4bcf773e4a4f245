/* Reductions, cumulative sums and operations that move elements: values against plain loops,
 * gradients, misuse. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

static const Shape *all_ranks(void)
{
    static Shape shapes[5];
    shapes[0] = shape_scalar();
    shapes[1] = shape(7);
    shapes[2] = shape(3, 5);
    shapes[3] = shape(2, 3, 5);
    shapes[4] = shape(2, 3, 1, 5);
    return shapes;
}

/* Large enough for several threads, with ragged ends. */
static Shape large(void)
{
    return shape(3, 67, 5, 83);
}

static Tensor *normal_input(Shape of)
{
    return tape_input(tape, test_normal(1, shape_count(of)), of);
}

/* The row-major offset of the element at index. */
static int64_t position(Shape of, const int64_t *index)
{
    int64_t result = 0;
    for (int i = 0; i < of.rank; i++)
        result = result * of.size[i] + index[i];
    return result;
}

/* The index of the element at a row-major offset. */
static void index_of(Shape of, int64_t at, int64_t *index)
{
    for (int i = of.rank - 1; i >= 0; i--) {
        index[i] = at % of.size[i];
        at /= of.size[i];
    }
}

/* ----------------------------------------------------------------------------------------- sums */
typedef Tensor *Reducer(Tape *tape, Tensor *x, int axis);

/* The shape `of` viewed from the axis as [outer, size, inner]. */
typedef struct View {
    int64_t outer, size, inner;
} View;

static View view_of(Shape of, int axis)
{
    if (axis == ALL_AXES)
        return (View){ 1, shape_count(of), 1 };
    axis = axis < 0 ? of.rank + axis : axis;
    View view = { 1, of.size[axis], 1 };
    for (int i = 0; i < of.rank; i++)
        view.outer *= i < axis ? of.size[i] : 1, view.inner *= i > axis ? of.size[i] : 1;
    return view;
}

/* Checks the shape of a reduction's result. */
static void check_reduced_shape(const Tensor *out, Shape of, int axis)
{
    if (axis == ALL_AXES) {
        ck_assert_int_eq(out->shape.rank, 0);
        return;
    }
    axis = axis < 0 ? of.rank + axis : axis;
    ck_assert_int_eq(out->shape.rank, of.rank - 1);
    for (int i = 0; i < out->shape.rank; i++)
        ck_assert_int_eq(out->shape.size[i], of.size[i + (i >= axis)]);
}

static void check_reduction(Shape of, int axis, bool mean)
{
    Tensor *x = normal_input(of);
    Tensor *out = mean ? op_mean(tape, x, axis) : op_sum(tape, x, axis);
    check_reduced_shape(out, of, axis);
    const View view = view_of(of, axis);
    const Real *values = test_values(out), *numbers = test_values(x);
    for (int64_t k = 0; k < view.outer * view.inner; k++) {
        const Real *column = numbers + k / view.inner * view.size * view.inner + k % view.inner;
        double exact = 0, magnitude = 0, count = mean ? (double)view.size : 1;
        for (int64_t j = 0; j < view.size; j++) {
            exact += (double)column[j * view.inner] / count;
            magnitude += fabs((double)column[j * view.inner]) / count;
        }
        double rounding = (sizeof(Real) == 4 ? 2e-7 : 1e-15) * fabs(exact);
        if (!(fabs((double)values[k] - exact) <= rounding + 1e-14 * magnitude))
            ck_abort_msg("axis %d of %s: element %lld is %.9g, expected %.9g", axis,
                         shape_text(of).text, (long long)k, (double)values[k], exact);
    }
    tape_reset(tape);
}

TEST(values_of_sum)
{
    begin();
    for (int mean = 0; mean < 2; mean++) {
        for (int rank = 0; rank <= 4; rank++) {
            check_reduction(all_ranks()[rank], ALL_AXES, mean);
            for (int axis = -rank; axis < rank; axis++)
                check_reduction(all_ranks()[rank], axis, mean);
        }
        check_reduction(large(), ALL_AXES, mean);
        for (int axis = 0; axis < 4; axis++)
            check_reduction(large(), axis, mean);
        check_reduction(shape(2, 40001), -1, mean);
        check_reduction(shape(40001, 1), -1, mean);
        check_reduction(shape(40001, 2), 0, mean);
        check_reduction(shape(2, 4001, 70), 1, mean);
    }
    tape_free(tape);
}

typedef struct Reduce {
    Reducer *operation;
    int axis;
} Reduce;

/* x is squared so that its gradients differ, and summed twice so that they accumulate. */
static Tensor *reduce_function(Tape *on, Tensor *const *inputs, void *context)
{
    const Reduce *reduce = context;
    Tensor *once = reduce->operation(on, inputs[0], reduce->axis);
    Tensor *square = op_multiply(on, inputs[0], inputs[0]);
    return op_add(on, op_multiply(on, once, once), reduce->operation(on, square, reduce->axis));
}

static void check_reduction_gradients(Reducer *operation)
{
    for (int rank = 0; rank <= 4; rank++) {
        check_gradient(reduce_function, (&(Reduce){ operation, ALL_AXES }), all_ranks()[rank]);
        for (int axis = 0; axis < rank; axis++)
            check_gradient(reduce_function, (&(Reduce){ operation, axis }), all_ranks()[rank]);
    }
}

TEST(gradients_of_sum)
{
    check_reduction_gradients(op_sum);
    check_reduction_gradients(op_mean);
}

/* The gradient reaches all elements: all pieces and threads of the kernel. */
TEST(gradient_of_a_sum_reaches_every_element)
{
    const int axes[] = { ALL_AXES, -1, 0 };
    begin();
    for (int a = 0; a < 3; a++) {
        Tensor *x = tape_variable(tape, test_normal(1, 40002), shape(2, 20001));
        tape_backward(tape, op_sum(tape, op_sum(tape, x, axes[a]), ALL_AXES));
        Real *dx = test_values(tensor_gradient(x));
        for (int i = 0; i < 40002; i++)
            if (dx[i] != 1)
                ck_abort_msg("element %d is %g", i, (double)dx[i]);
        tape_reset(tape);
    }
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

TEST(misuse_of_sum_is_reported)
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

/* Values of few different sizes, so that there are equal maxima. */
static Tensor *rounded_input(Shape of)
{
    Real *numbers = test_normal(1, shape_count(of));
    for (int64_t i = 0; i < shape_count(of); i++)
        numbers[i] = (Real)(int)(2 * numbers[i]);
    return tape_variable(tape, numbers, of);
}

static void check_max(Shape of, int axis)
{
    Tensor *x = rounded_input(of), *index = op_argmax(tape, x, axis);
    Tensor *out = tensor_keep(op_max(tape, x, axis));
    check_reduced_shape(out, of, axis);
    check_reduced_shape(index, of, axis);
    const View view = view_of(of, axis);
    const int64_t count = view.outer * view.inner;
    const int32_t *indices = test_integers(index);
    Real *upstream = test_normal(2, count), *expected = test_zeros(shape_count(of));
    const Real *values = test_values(out), *numbers = test_values(x);
    for (int64_t k = 0; k < count; k++) {
        const int64_t start = k / view.inner * view.size * view.inner + k % view.inner;
        int64_t first = 0;
        for (int64_t j = 0; j < view.size; j++)
            first =
                numbers[start + j * view.inner] > numbers[start + first * view.inner] ? j : first;
        if (indices[k] != first || values[k] != numbers[start + first * view.inner])
            ck_abort_msg("axis %d of %s: maximum %lld is %g at %d, expected at %lld", axis,
                         shape_text(of).text, (long long)k, (double)values[k], (int)indices[k],
                         (long long)first);
        expected[start + first * view.inner] = upstream[k];
    }
    tape_backward_from(tape, out, tape_input(tape, upstream, out->shape));
    ck_assert_mem_eq(test_values(tensor_gradient(x)), expected,
                     (size_t)shape_count(of) * sizeof(Real));
    tape_reset(tape);
}

TEST(the_first_maximum_gets_the_gradient)
{
    begin();
    for (int rank = 0; rank <= 4; rank++) {
        check_max(all_ranks()[rank], ALL_AXES);
        for (int axis = -rank; axis < rank; axis++)
            check_max(all_ranks()[rank], axis);
    }
    check_max(large(), ALL_AXES);
    for (int axis = 0; axis < 4; axis++)
        check_max(large(), axis);
    tape_free(tape);
}

TEST(gradients_of_max)
{
    check_reduction_gradients(op_max);
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

/* --------------------------------------------------------------------------------------- gather */
static Tensor *gather_function(Tape *on, Tensor *const *inputs, void *context)
{
    const Shape *of = context;
    int32_t indices[64];
    for (int64_t i = 0; i < shape_count(*of); i++)
        indices[i] = (int32_t)(i * i % shape_size(inputs[0]->shape, -1)); /* some occur twice */
    Tensor *index = tape_input_i32(on, indices, *of);
    return op_multiply(on, op_gather(on, inputs[0], index),
                       op_gather(on, op_tanh(on, inputs[0]), index));
}

TEST(gradients_of_gather)
{
    Shape shapes[][2] = { { shape(7), shape(9) },
                          { shape(3, 5), shape(3, 1) },
                          { shape(2, 3, 2, 5), shape(2, 3, 2, 4) } };
    for (int s = 0; s < 3; s++)
        check_gradient(gather_function, &shapes[s][1], shapes[s][0]);
}

TEST(values_of_gather)
{
    enum { R = 700, C = 31, K = 40 };
    begin();
    static int32_t indices[R * K];
    Random random = random_new(1, 2);
    for (int i = 0; i < R * K; i++)
        indices[i] = (int32_t)random_integer(&random, 0, C);
    Tensor *x = tape_variable(tape, test_normal(1, R * C), shape(R, C));
    Tensor *out = tensor_keep(op_gather(tape, x, tape_input_i32(tape, indices, shape(R, K))));
    Real *values = test_values(out), *numbers = test_values(x), *upstream = test_normal(2, R * K);
    Real *expected = test_zeros(R * C);
    for (int i = 0; i < R * K; i++) {
        ck_assert(values[i] == numbers[i / K * C + indices[i]]);
        expected[i / K * C + indices[i]] += upstream[i];
    }
    tape_backward_from(tape, out, tape_input(tape, upstream, out->shape));
    assert_close(test_values(tensor_gradient(x)), expected, R * C, 1e-6);
    tape_free(tape);
}

/* If each addition were rounded to bf16, the sum would stay at 256. CUDA rounds each. */
TEST(gather_rounds_a_bf16_gradient_once)
{
    enum { K = 300 };
    begin();
    if (!device_is_cuda(test_device()) && sizeof(Real) == sizeof(float)) {
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
    if (sizeof(Real) != sizeof(float)) {
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

TEST(misuse_of_gather_is_reported)
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

/* --------------------------------------------------------------------------------------- unfold */
static void check_unfold(Shape of, Window window)
{
    Tensor *x = normal_input(of), *result = op_unfold(tape, x, window);
    const int64_t s = window.stride ? window.stride : 1, *size = result->shape.size;
    ck_assert_int_eq(size[1], (of.size[1] + 2 * window.padding - window.height) / s + 1);
    ck_assert_int_eq(size[2], (of.size[2] + 2 * window.padding - window.width) / s + 1);
    ck_assert_int_eq(size[3], window.height * window.width * of.size[3]);
    const Real *out = test_values(result), *numbers = test_values(x);
    for (int64_t i = 0; i < tensor_count(result); i++) {
        int64_t index[MAX_RANK];
        index_of(result->shape, i, index);
        const int64_t pixel = index[3] / of.size[3];
        index[1] = index[1] * s + pixel / window.width - window.padding;
        index[2] = index[2] * s + pixel % window.width - window.padding;
        index[3] %= of.size[3];
        const bool inside =
            index[1] >= 0 && index[1] < of.size[1] && index[2] >= 0 && index[2] < of.size[2];
        if (out[i] != (inside ? numbers[position(of, index)] : 0))
            ck_abort_msg("%s: element %lld is wrong", shape_text(of).text, (long long)i);
    }
    tape_reset(tape);
}

static const Window windows[] = { { 1, 1, 0, 0 }, { 3, 3, 0, 1 }, { 2, 2, 2, 0 }, { 3, 2, 2, 1 },
                                  { 5, 1, 3, 2 }, { 1, 2, 1, 4 }, { 2, 5, 7, 0 } };
enum { WINDOWS = sizeof windows / sizeof *windows };

TEST(values_of_unfold)
{
    begin();
    for (int w = 0; w < WINDOWS; w++) {
        check_unfold(shape(2, 5, 6, 3), windows[w]);
        check_unfold(shape(1, 3, 5, 1), windows[w].height > 3 ? windows[0] : windows[w]);
        check_unfold(shape(3, 29, 31, 8), windows[w]);
    }
    tape_free(tape);
}

/* Unfolded twice, so that the second gradient adds. */
static Tensor *unfold_function(Tape *on, Tensor *const *inputs, void *context)
{
    const Window *window = context;
    Tensor *once = op_unfold(on, inputs[0], *window);
    return op_multiply(on, op_exp(on, once), op_unfold(on, inputs[0], *window));
}

TEST(gradients_of_unfold)
{
    for (int w = 0; w < WINDOWS; w++) {
        Window window = windows[w];
        check_gradient(unfold_function, &window, shape(2, 5, 6, 2));
    }
}

/* Windows of 2 x 2 without overlap: the maximum of each, per channel. */
TEST(unfold_and_max_are_max_pooling)
{
    const Real x[] = { 1, 10, 2, 20, 5, 50, 4, 90, 3, 30, 4, 0, 7, 60, 6, 80 }; /* [1, 2, 4, 2] */
    const Real expected[] = { 4, 30, 7, 90 };
    begin();
    Tensor *out = op_unfold(tape, tape_input(tape, x, shape(1, 2, 4, 2)), (Window){ 2, 2, 2, 0 });
    out = op_max(tape, op_reshape(tape, out, shape(1, 2, 4, 2)), 2);
    ck_assert_mem_eq(test_values(out), expected, sizeof expected);
    tape_free(tape);
}

TEST(misuse_of_unfold_is_reported)
{
    begin();
    Tensor *x = normal_input(shape(1, 3, 4, 2));
    assert_raises("op_unfold: x is NULL", op_unfold(tape, NULL, windows[0]));
    assert_raises("op_unfold: x is [3,4], expected four axes, [B, H, W, C]",
                  op_unfold(tape, normal_input(shape(3, 4)), windows[0]));
    assert_raises("op_unfold: the window is 2 x 0, stride 0, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for 1), 0 or more",
                  op_unfold(tape, x, (Window){ .height = 2 }));
    assert_raises("op_unfold: the window is 2 x 2, stride -1, padding 0; expected 1 or more, 1 or "
                  "more (or 0 for 1), 0 or more",
                  op_unfold(tape, x, (Window){ 2, 2, -1, 0 }));
    assert_raises("op_unfold: a window of 6 x 2 does not fit into x, [1,3,4,2], with padding 1",
                  op_unfold(tape, x, (Window){ 6, 2, 1, 1 }));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------ cumulative sums */
static Tensor *cumulative_sum(Tape *on, Tensor *x, int axis, bool reverse)
{
    return (reverse ? op_reverse_cumulative_sum : op_cumulative_sum)(on, x, axis);
}

static void check_cumulative_sum(Shape of, int axis, bool reverse)
{
    Tensor *x = normal_input(of);
    Tensor *result = cumulative_sum(tape, x, axis, reverse);
    ck_assert(shape_equal(result->shape, of));
    Real *out = test_values(result), *numbers = test_values(x);
    int at_axis = axis < 0 ? of.rank + axis : axis;
    for (int64_t i = 0; i < shape_count(of); i++) {
        int64_t index[MAX_RANK];
        index_of(of, i, index);
        int64_t last = index[at_axis];
        double exact = 0;
        for (int64_t j = reverse ? last : 0; reverse ? j < of.size[at_axis] : j <= last; j++) {
            index[at_axis] = j;
            exact += (double)numbers[position(of, index)];
        }
        if (!(fabs((double)out[i] - exact) <=
              (sizeof(Real) == 4 ? 1e-7 : 1e-13) * fmax(1, fabs(exact))))
            ck_abort_msg("%s, axis %d: element %lld is %.9g, expected %.9g", shape_text(of).text,
                         axis, (long long)i, (double)out[i], exact);
    }
    tape_reset(tape);
}

TEST(values_of_cumulative_sum)
{
    begin();
    for (int reverse = 0; reverse < 2; reverse++) {
        for (int rank = 1; rank <= 4; rank++)
            for (int axis = -rank; axis < rank; axis++)
                check_cumulative_sum(all_ranks()[rank], axis, reverse);
        for (int axis = 0; axis < 4; axis++)
            check_cumulative_sum(large(), axis, reverse);
    }
    tape_free(tape);
}

typedef struct Along {
    int axis;
    bool reverse;
} Along;

static Tensor *cumulative_function(Tape *on, Tensor *const *inputs, void *context)
{
    const Along *along = context;
    Tensor *once = cumulative_sum(on, inputs[0], along->axis, along->reverse);
    return op_multiply(on, once, cumulative_sum(on, inputs[0], along->axis, !along->reverse));
}

TEST(gradients_of_cumulative_sum)
{
    for (int reverse = 0; reverse < 2; reverse++)
        for (int rank = 1; rank <= 4; rank++)
            for (int axis = 0; axis < rank; axis++)
                check_gradient(cumulative_function, (&(Along){ axis, reverse }), all_ranks()[rank]);
}

TEST(misuse_of_cumulative_sum_is_reported)
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

static Tensor *vector_cumulative_sum(Tape *on, Tensor **inputs)
{
    return op_cumulative_sum(on, inputs[0], 1);
}

TEST(cumulative_sum_reference_vectors)
{
    check_vectors("cumsum_dim1", "x", vector_cumulative_sum);
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

/* A view of a view of a result, used beside the result itself. */
static Tensor *reshape_function(Tape *on, Tensor *const *inputs, void *context)
{
    (void)context;
    Tensor *x = op_multiply(on, inputs[0], inputs[0]);
    Tensor *view = op_reshape(on, op_reshape(on, x, shape(24)), shape(4, 6));
    Tensor *direct = op_sum(on, op_multiply(on, x, x), ALL_AXES);
    Tensor *input_view = op_reshape(on, inputs[0], shape(4, 6));
    return op_add(on, op_multiply(on, op_exp(on, view), input_view), direct);
}

static Tensor *reshape_last(Tape *on, Tensor *const *inputs, void *context)
{
    (void)context;
    return op_reshape(on, op_tanh(on, inputs[0]), shape(12, 2));
}

TEST(gradients_of_reshape)
{
    check_gradient(reshape_function, NULL, shape(2, 3, 4));
    check_gradient(reshape_last, NULL, shape(2, 3, 4));
}

TEST(misuse_of_reshape_is_reported)
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
static void check_transpose(Shape of, int a, int b)
{
    Tensor *x = normal_input(of);
    Tensor *result = op_transpose(tape, x, a, b);
    a = a < 0 ? of.rank + a : a;
    b = b < 0 ? of.rank + b : b;
    for (int i = 0; i < of.rank; i++)
        ck_assert_int_eq(result->shape.size[i], of.size[i == a ? b : i == b ? a : i]);
    Real *out = test_values(result), *numbers = test_values(x);
    for (int64_t i = 0; i < shape_count(of); i++) {
        int64_t index[MAX_RANK];
        index_of(of, i, index);
        int64_t kept = index[a];
        index[a] = index[b];
        index[b] = kept;
        if (out[position(result->shape, index)] != numbers[i])
            ck_abort_msg("%s, axes %d and %d: element %lld is not in its place",
                         shape_text(of).text, a, b, (long long)i);
    }
    tape_reset(tape);
}

TEST(values_of_transpose)
{
    begin();
    for (int rank = 1; rank <= 4; rank++)
        for (int a = -rank; a < rank; a++)
            for (int b = -rank; b < rank; b++)
                check_transpose(all_ranks()[rank], a, b);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            check_transpose(large(), a, b);
    check_transpose(shape(129, 257), 0, 1);
    check_transpose(shape(20000, 3), 0, 1);
    check_transpose(shape(3, 20000), 0, 1);
    tape_free(tape);
}

static Tensor *transpose_function(Tape *on, Tensor *const *inputs, void *context)
{
    const int *axes = context;
    Tensor *once = op_transpose(on, op_exp(on, inputs[0]), axes[0], axes[1]);
    Tensor *twice = op_transpose(on, inputs[0], axes[1], axes[0]);
    return op_multiply(on, once,
                       op_multiply(on, twice, op_transpose(on, inputs[0], axes[0], axes[1])));
}

TEST(gradients_of_transpose)
{
    for (int rank = 1; rank <= 4; rank++)
        for (int a = 0; a < rank; a++)
            for (int b = 0; b < rank; b++)
                check_gradient(transpose_function, ((int[]){ a, b }), all_ranks()[rank]);
    check_gradient(transpose_function, ((int[]){ 0, -1 }), shape(18, 3));
}

TEST(misuse_of_transpose_is_reported)
{
    begin();
    Tensor *x = normal_input(shape(2, 3));
    assert_raises("op_transpose: x is NULL", op_transpose(tape, NULL, 0, 1));
    assert_raises("op_transpose: x is [2,3], which has no axis 2", op_transpose(tape, x, 0, 2));
    assert_raises("op_transpose: x is [2,3], which has no axis -3", op_transpose(tape, x, -3, 0));
    tape_free(tape);
}

/* ---------------------------------------------------------------------------- slices and concat */
static void check_slice(Shape of, int axis, int64_t start, int64_t count)
{
    Tensor *x = normal_input(of);
    Tensor *result = op_slice(tape, x, axis, start, count);
    axis = axis < 0 ? of.rank + axis : axis;
    for (int i = 0; i < of.rank; i++)
        ck_assert_int_eq(result->shape.size[i], i == axis ? count : of.size[i]);
    Real *out = test_values(result), *numbers = test_values(x);
    for (int64_t i = 0; i < tensor_count(result); i++) {
        int64_t index[MAX_RANK];
        index_of(result->shape, i, index);
        index[axis] += start;
        if (out[i] != numbers[position(of, index)])
            ck_abort_msg("%s, axis %d: element %lld is wrong", shape_text(of).text, axis,
                         (long long)i);
    }
    tape_reset(tape);
}

TEST(values_of_slice)
{
    begin();
    for (int rank = 1; rank <= 4; rank++)
        for (int axis = -rank; axis < rank; axis++) {
            int64_t size = shape_size(all_ranks()[rank], axis);
            for (int64_t start = 0; start < size; start++)
                for (int64_t count = 1; start + count <= size; count++)
                    check_slice(all_ranks()[rank], axis, start, count);
        }
    check_slice(large(), 0, 1, 2);
    check_slice(large(), 1, 13, 50);
    check_slice(large(), 2, 0, 4);
    check_slice(large(), 3, 1, 82);
    tape_free(tape);
}

typedef struct Cut {
    int axis;
    int64_t start, count;
} Cut;

/* Overlapping slices: their gradients add up; elements outside both get none. */
static Tensor *slice_function(Tape *on, Tensor *const *inputs, void *context)
{
    const Cut *cut = context;
    Tensor *a = op_slice(on, inputs[0], cut->axis, cut->start, cut->count);
    Tensor *b = op_slice(on, inputs[0], cut->axis, 0, cut->count);
    return op_multiply(on, a, op_exp(on, b));
}

TEST(gradients_of_slice)
{
    for (int rank = 1; rank <= 4; rank++)
        for (int axis = 0; axis < rank; axis++) {
            int64_t size = shape_size(all_ranks()[rank], axis);
            Cut cut = { axis, size / 3, size - size / 3 };
            check_gradient(slice_function, &cut, all_ranks()[rank]);
        }
}

TEST(misuse_of_slice_is_reported)
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

/* Part i of n is the i-th slice; the parts joined are x. */
TEST(split_equals_slices)
{
    begin();
    for (int rank = 1; rank <= 4; rank++)
        for (int axis = -rank; axis < rank; axis++) {
            Tensor *x = normal_input(all_ranks()[rank]), *parts[100];
            const int64_t size = shape_size(x->shape, axis);
            for (int count = 1; count <= size; count++) {
                if (size % count != 0)
                    continue;
                op_split(tape, x, axis, count, parts);
                for (int i = 0; i < count; i++) {
                    Tensor *slice = op_slice(tape, x, axis, i * size / count, size / count);
                    ck_assert(shape_equal(parts[i]->shape, slice->shape));
                    ck_assert_mem_eq(test_values(parts[i]), test_values(slice),
                                     (size_t)tensor_count(slice) * sizeof(Real));
                }
                ck_assert_mem_eq(test_values(op_concat(tape, parts, count, axis)), test_values(x),
                                 (size_t)tensor_count(x) * sizeof(Real));
            }
        }
    tape_free(tape);
}

/* Uses the first and the last of the parts: the others get no gradient. */
static Tensor *split_function(Tape *on, Tensor *const *inputs, void *context)
{
    Tensor *parts[4];
    op_split(on, inputs[0], *(const int *)context, 4, parts);
    return op_multiply(on, parts[0], op_exp(on, parts[3]));
}

TEST(gradients_of_split)
{
    for (int axis = 0; axis < 3; axis++) {
        Shape of = shape(3, 2, 5);
        of.size[axis] = 8;
        check_gradient(split_function, &axis, of);
    }
}

TEST(misuse_of_split_is_reported)
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

/* Three tensors of the shape `of`, with these sizes along the axis (0: the tensor is absent). */
static void check_concat(Shape of, int axis, const int64_t sizes[3])
{
    const int at_axis = axis < 0 ? of.rank + axis : axis;
    Tensor *tensors[3];
    const Real *numbers[3];
    int count = 0;
    int64_t total = 0;
    for (int t = 0; t < 3 && sizes[t] > 0; t++, count++) {
        of.size[at_axis] = sizes[t];
        numbers[t] = test_normal((uint64_t)t, shape_count(of));
        tensors[t] = tape_input(tape, numbers[t], of);
        total += sizes[t];
    }
    Tensor *result = op_concat(tape, tensors, count, axis);
    of.size[at_axis] = total;
    ck_assert(shape_equal(result->shape, of));
    Real *out = test_values(result);
    for (int64_t i = 0; i < tensor_count(result); i++) {
        int64_t index[MAX_RANK];
        index_of(of, i, index);
        int t = 0;
        while (index[at_axis] >= sizes[t])
            index[at_axis] -= sizes[t++];
        if (out[i] != numbers[t][position(tensors[t]->shape, index)])
            ck_abort_msg("%s, axis %d: element %lld is wrong", shape_text(of).text, axis,
                         (long long)i);
    }
    tape_reset(tape);
}

TEST(values_of_concat)
{
    begin();
    for (int rank = 1; rank <= 4; rank++)
        for (int axis = -rank; axis < rank; axis++) {
            check_concat(all_ranks()[rank], axis, (int64_t[]){ 3, 1, 4 });
            check_concat(all_ranks()[rank], axis, (int64_t[]){ 2, 5, 0 });
            check_concat(all_ranks()[rank], axis, (int64_t[]){ 2, 0, 0 });
        }
    for (int axis = 0; axis < 4; axis++)
        check_concat(large(), axis, (int64_t[]){ 2, 67, 9 });
    tape_free(tape);
}

/* op_stack is op_concat of tensors with one more axis, of size 1. */
TEST(values_of_stack)
{
    begin();
    for (int rank = 0; rank <= 3; rank++)
        for (int axis = -rank - 1; axis <= rank; axis++) {
            const Shape of = all_ranks()[rank];
            Shape longer = { of.rank + 1, { 0 } };
            const int index = axis < 0 ? axis + rank + 1 : axis;
            for (int i = 0; i <= rank; i++)
                longer.size[i] = i == index ? 1 : of.size[i - (i > index)];
            Tensor *tensors[3], *longer_tensors[3];
            for (uint64_t t = 0; t < 3; t++) {
                tensors[t] = tape_input(tape, test_normal(t, shape_count(of)), of);
                longer_tensors[t] = op_reshape(tape, tensors[t], longer);
            }
            Tensor *stacked = op_stack(tape, tensors, 3, axis);
            Tensor *joined = op_concat(tape, longer_tensors, 3, index);
            ck_assert(shape_equal(stacked->shape, joined->shape));
            ck_assert_mem_eq(test_values(stacked), test_values(joined),
                             (size_t)tensor_count(joined) * sizeof(Real));
        }
    tape_free(tape);
}

static Tensor *concat_function(Tape *on, Tensor *const *inputs, void *context)
{
    const int *axis = context;
    Tensor *once = op_concat(on, inputs, 2, *axis);
    return op_multiply(on, once,
                       op_concat(on, (Tensor *[]){ inputs[0], op_exp(on, inputs[1]) }, 2, *axis));
}

static Tensor *concat_with_itself(Tape *on, Tensor *const *inputs, void *context)
{
    const int *axis = context;
    return op_concat(on, (Tensor *[]){ inputs[0], inputs[0] }, 2, *axis);
}

/* More tensors than a node has fields for, some of them repeated. */
static Tensor *stack_function(Tape *on, Tensor *const *inputs, void *context)
{
    const int *axis = context;
    enum { COUNT = NODE_INPUTS + 3 };
    Tensor *tensors[COUNT];
    for (int t = 0; t < COUNT; t++)
        tensors[t] = t % 3 ? op_scale(on, inputs[t % 2], (Real)t) : inputs[t % 2];
    Tensor *once = op_stack(on, tensors, COUNT, *axis);
    return op_multiply(on, once, op_tanh(on, once));
}

TEST(gradients_of_concat)
{
    for (int axis = 0; axis < 4; axis++) {
        Shape b = shape(2, 3, 1, 5);
        b.size[axis] = 2;
        check_gradient(concat_function, &axis, shape(2, 3, 1, 5), b);
        check_gradient(concat_with_itself, &axis, b);
        check_gradient(stack_function, &axis, shape(2, 3, 4), shape(2, 3, 4));
    }
    int last = -1;
    check_gradient(concat_function, &last, shape(3), shape(2));
    check_gradient(stack_function, &last, shape_scalar(), shape_scalar());
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

TEST(misuse_of_concat_is_reported)
{
    begin();
    Tensor *a = normal_input(shape(2, 3, 4)), *pair[] = { a, NULL };
    assert_raises("op_concat: there are 0 tensors, expected 1 or more",
                  op_concat(tape, pair, 0, 0));
    assert_raises("op_stack: there are 0 tensors, expected 1 or more", op_stack(tape, NULL, 2, 0));
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

/* Slices of a concatenation are its parts. */
TEST(a_slice_of_a_concat_is_the_part)
{
    begin();
    Tensor *a = normal_input(shape(3, 4, 5)), *b = normal_input(shape(3, 2, 5));
    Tensor *both = op_concat(tape, (Tensor *[]){ a, b }, 2, 1);
    assert_close(test_values(op_slice(tape, both, 1, 0, 4)), test_values(a), 60, 0);
    assert_close(test_values(op_slice(tape, both, 1, 4, 2)), test_values(b), 30, 0);
    tape_free(tape);
}

/* The gradient and the loss, bitwise the same with any number of threads. */
static Real *all_with_threads(int threads, int64_t *count)
{
    test_set_threads(threads);
    Tensor *x = tape_variable(tape, test_normal(1, shape_count(large())), large());
    Tensor *y = op_reverse_cumulative_sum(tape, op_transpose(tape, x, 1, 3), 2);
    y = op_slice(tape, y, 1, 3, 60);
    y = op_concat(tape,
                  (Tensor *[]){ y, op_broadcast_to(tape, op_mean(tape, y, ALL_AXES), y->shape), y },
                  3, -1);
    Tensor *loss =
        op_sum(tape, op_multiply(tape, y, op_exp(tape, op_scale(tape, y, 0.1))), ALL_AXES);
    tape_backward(tape, loss);
    *count = tensor_count(x);
    Real *values = test_values(tensor_gradient(x));
    values[0] += (Real)tensor_item(loss);
    tape_reset(tape);
    return values;
}

/* --------------------------------------------------------------------------------------- stores */
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

TEST(misuse_of_store_is_reported)
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
    assert_raises("op_store_i32: the tape is recording, and a backward pass might find other "
                  "integers than the pass before; call tape_set_recording(tape, false) first",
                  op_store_i32(tape, to, NULL, to));
    tape_free(tape);
}

TEST(threads_change_nothing)
{
    begin();
    int64_t count;
    Real *one = all_with_threads(1, &count);
    for (int threads = 2; threads <= 3; threads++)
        ck_assert(!memcmp(one, all_with_threads(threads, &count), (size_t)count * sizeof(Real)));
    tape_free(tape);
}

int main(void)
{
    return test_main("layout", NULL, NULL);
}
