/* The tape alone, with operations defined here from public functions. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

static void square_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    const Real *dout = tape_upstream(node, 0);
    for (int64_t i = 0; dx.data && i < tensor_count(x); i++)
        gradient_add(dx, i, 2 * x->data[i] * dout[i]);
}

static Tensor *square(Tape *tape, Tensor *x)
{
    tape_use_cpu(tape, "square: x", x);
    Tensor *out = tape_tensor(tape, x->shape);
    for (int64_t i = 0; i < tensor_count(x); i++)
        out->data[i] = x->data[i] * x->data[i];
    tape_record(tape, (Node){ .name = "square",
                              .backward = square_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}

#define GIVEN_BACK                                                                                 \
    "was released already: by the backward pass (tensor_keep prevents that), by tape_release or "  \
    "by tape_reset"

static const Real three[] = { 1, -2, 3 };
static Tape *tape;
static Device *device;

static void begin(void)
{
    device = device_open("cpu");
    tape = tape_new(device);
}

static void end(void)
{
    tape_free(tape);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

TEST(gradients_flow_and_accumulate)
{
    Tensor *x = tape_variable(tape, three, shape(3));
    Tensor *loss = test_dot_operation(tape, square(tape, x), x); /* sum x^3 */
    tape_backward(tape, loss);
    ck_assert(tensor_item(loss) == 1 - 8 + 27);
    Tensor *dx = tensor_gradient(x);
    for (int i = 0; i < 3; i++)
        ck_assert(dx->data[i] == 3 * three[i] * three[i]);
}

TEST(backward_from_a_given_gradient)
{
    const Real upstream[] = { 5, 7, -1 };
    Tensor *x = tape_variable(tape, three, shape(3));
    tape_backward_from(tape, square(tape, x), tape_input(tape, upstream, shape(3)));
    for (int i = 0; i < 3; i++)
        ck_assert(tensor_gradient(x)->data[i] == 2 * three[i] * upstream[i]);
}

TEST(views_share_storage_and_gradient)
{
    const Real six[] = { 1, 2, 3, 4, 5, 6 };
    Tensor *x = tape_variable(tape, six, shape(2, 3));
    Tensor *view = tape_view(tape, tape_view(tape, x, shape(6)), shape(3, 2));
    ck_assert_ptr_eq(view->data, x->data);
    ck_assert_ptr_eq(view->base, x);
    tape_backward(tape, test_dot_operation(tape, square(tape, view), x));
    ck_assert_ptr_eq(tensor_gradient(view)->data, tensor_gradient(x)->data);
    ck_assert(shape_equal(tensor_gradient(view)->shape, shape(3, 2)));
    for (int i = 0; i < 6; i++)
        ck_assert(tensor_gradient(x)->data[i] == 3 * six[i] * six[i]);
    tape_reset(tape);
    x = tape_input(tape, six, shape(2, 3));
    assert_raises("tape_view: cannot view [2,3] as [4]: the element counts differ",
                  tape_view(tape, x, shape(4)));
}

TEST(views_are_of_tensors_that_the_tape_can_use)
{
    Params *params = params_new(device, 1);
    Tensor *weight = params_add(params, "w", shape(2, 3), (Initializer){ .kind = INITIAL_ZERO });
    Tensor *view = tape_view(tape, weight, shape(6)); /* allocates the weight */
    ck_assert(view->data && view->data == weight->data);
    ck_assert_int_eq(tape_view(tape, tape_persistent_i32(tape, shape(3)), shape(1, 3))->type,
                     TENSOR_INT32);
    assert_raises("tape_view: the tensor is NULL", tape_view(tape, NULL, shape(1)));
    assert_raises("tape_view: the tape is NULL", tape_view(NULL, view, shape(1)));
    Tape *other = tape_new(device);
    Tensor *x = tape_input(other, three, shape(3));
    assert_raises("tape_view: the tensor belongs to another tape", tape_view(tape, x, shape(3, 1)));
    tape_free(other);
    params_free(params);
}

TEST(the_gradient_of_a_view_ends_with_the_step)
{
    Tensor *x = tape_variable(tape, three, shape(3)), *view = tape_view(tape, x, shape(3, 1));
    tape_backward(tape, test_dot_operation(tape, view, x));
    Tensor *gradient = tensor_gradient(view);
    Real host[3];
    tensor_read(gradient, host);
    ck_assert(host[1] == 2 * three[1]);
    tape_reset(tape);
    tape_variable(tape, three, shape(3));
    assert_raises("tensor_read: the tensor of shape [3,1] " GIVEN_BACK,
                  tensor_read(gradient, host));
}

TEST(backward_releases_what_is_not_kept)
{
    Tensor *x = tape_variable(tape, three, shape(3));
    Tensor *released = square(tape, x);
    Tensor *kept = tensor_keep(square(tape, released));
    tape_backward(tape, test_dot_operation(tape, kept, x));
    ck_assert(kept->data[1] == 16);
    ck_assert(tensor_gradient(kept)->data[1] == -2);
    Real host[3];
    assert_raises("tensor_read: the tensor of shape [3] " GIVEN_BACK, tensor_read(released, host));
    assert_raises("square: x " GIVEN_BACK, square(tape, released));
}

/* op_max saves indices; after either pass x and its gradient are left. */
TEST(backward_releases_what_nodes_saved)
{
    size_t left[2];
    for (int saves = 0; saves < 2; saves++) {
        Tensor *x = tape_variable(tape, test_normal(1, 6000), shape(2000, 3));
        tape_backward(tape, op_sum(tape, saves ? op_max(tape, x, 1) : x, ALL_AXES));
        left[saves] = device_memory(test_device()).current;
        tape_reset(tape);
    }
    ck_assert_uint_eq(left[1], left[0]);
}

static Tensor *nothing(Tape *own, Tensor *const *inputs, void *context)
{
    (void)own, (void)inputs, (void)context;
    return NULL;
}

TEST(missing_arguments_and_shapes_made_by_hand_raise)
{
    Tensor *x = tape_variable(tape, three, shape(3));
    Tensor *integers = tape_persistent_i32(tape, shape(3));
    assert_raises("tape_input: host is NULL", tape_input(tape, NULL, shape(3)));
    assert_raises("tape_input_i32: host is NULL", tape_input_i32(tape, NULL, shape(3)));
    assert_raises("tape_variable: host is NULL", tape_variable(tape, NULL, shape(3)));
    assert_raises("tensor_read: host is NULL", tensor_read(x, NULL));
    assert_raises("tensor_read_i32: host is NULL", tensor_read_i32(integers, NULL));
    assert_raises("tensor_write: host is NULL", tensor_write(x, NULL));
    assert_raises("tensor_write_i32: host is NULL", tensor_write_i32(integers, NULL));
    assert_raises("square: the tape is NULL", square(NULL, x));
    assert_raises("tape_input: the tape is NULL", tape_input(NULL, three, shape(3)));
    assert_raises("tape_backward: the tape is NULL", tape_backward(NULL, x));
    assert_raises("shape: 9 sizes were given, expected at most 4",
                  tape_input(tape, three, (Shape){ .rank = 9 }));
    assert_raises("shape: size 1 is 0, expected at least 1",
                  tape_persistent(tape, (Shape){ 2, { 3 } }));
    assert_raises("shape: size 0 is -1, expected at least 1; no size is inferred",
                  tape_view(tape, x, (Shape){ 2, { -1, -3 } }));
    const CheckInput input = { shape(3), three };
    assert_raises("gradient_check: the function returned NULL, expected a tensor",
                  gradient_check(test_device(), nothing, NULL, &input, 1));
    assert_raises("gradient_check: function is NULL",
                  gradient_check(test_device(), NULL, NULL, &input, 1));
    assert_raises("gradient_check: inputs[0].values is NULL",
                  gradient_check(test_device(), nothing, NULL, &(CheckInput){ shape(3), NULL }, 1));
    const CheckInput deep = { { .rank = 6 }, three }, negative = { { 2, { -1, -3 } }, three };
    assert_raises("shape: 6 sizes were given, expected at most 4",
                  gradient_check(test_device(), nothing, NULL, &deep, 1));
    assert_raises("shape: size 0 is -1, expected at least 1; no size is inferred",
                  gradient_check(test_device(), nothing, NULL, &negative, 1));
}

TEST(an_error_may_quote_the_last_one)
{
    assert_raises("square: x is NULL", square(tape, NULL));
    assert_raises("once more: square: x is NULL",
                  tape_error(tape, "once more: %s", tapegrad_error()));
}

TEST(misuse_of_backward_raises)
{
    Tensor *x = tape_variable(tape, three, shape(3));
    assert_raises("tape_backward: the loss has shape [3], expected one element",
                  tape_backward(tape, square(tape, x)));
    tape_reset(tape);
    Tensor *constant = tape_input(tape, three, shape(3));
    Tensor *loss = test_dot_operation(tape, constant, constant);
    assert_raises("tape_backward: the loss depends on nothing that requires a gradient (or the "
                  "tape was not recording)",
                  tape_backward(tape, loss));
    tape_reset(tape);
    x = tape_variable(tape, three, shape(3));
    loss = test_dot_operation(tape, x, x);
    tape_backward(tape, loss);
    assert_raises("tape_backward: the backward pass of this tape has run already and released its "
                  "tensors; call tape_reset between passes",
                  tape_backward(tape, loss));
    tape_reset(tape);
    x = tape_variable(tape, three, shape(3));
    Tensor *released = test_dot_operation(tape, x, x);
    tape_backward(tape, test_dot_operation(tape, x, x));
    assert_raises("tape_backward_from: the backward pass of this tape has run already and released "
                  "its tensors; call tape_reset between passes",
                  tape_backward_from(tape, released, released));
    tape_reset(tape);
    x = tape_variable(tape, three, shape(3));
    Tensor *wrong = tape_input(tape, three, shape(1, 3));
    Tensor *out = square(tape, x);
    assert_raises("tape_backward_from: out has shape [3], the gradient [1,3], expected the same",
                  tape_backward_from(tape, out, wrong));
    assert_raises("tape_backward: the loss is NULL", tape_backward(tape, NULL));
    tape_reset(tape);
    x = tape_variable(tape, three, shape(3));
    Tensor *unreached = square(tape, x);
    assert_raises("tensor_gradient: the tensor of shape [3] has no gradient; it must require one "
                  "(a tape_variable, a parameter, or a tensor that depends on them, with "
                  "tensor_keep), and a backward pass must have reached it",
                  tensor_gradient(unreached));
}

TEST(misuse_of_tensors_raises)
{
    const int32_t integers[] = { 1, 2, 3 };
    Real host[3];
    int32_t integer_host[3];
    Tensor *x = tape_input(tape, three, shape(3));
    Tensor *i = tape_input_i32(tape, integers, shape(3));
    assert_raises("tensor_read: the tensor of shape [3] has dtype int32, expected Real",
                  tensor_read(i, host));
    assert_raises("tensor_read_i32: the tensor of shape [3] has dtype Real, expected int32",
                  tensor_read_i32(x, integer_host));
    assert_raises("tensor_write: the tensor of shape [3] has dtype int32, expected Real",
                  tensor_write(i, host));
    assert_raises("tensor_item: the tensor has shape [3], expected one element", tensor_item(x));
    assert_raises("square: x has dtype int32, expected Real", square(tape, i));
    assert_raises("square: x is NULL", square(tape, NULL));
    assert_raises("tensor_keep: the tensor is NULL", tensor_keep(NULL));
    assert_raises("tensor_gradient: the tensor is NULL", tensor_gradient(NULL));
    assert_raises("tensor_read: the tensor is NULL", tensor_read(NULL, host));
    Tape *other = tape_new(device);
    assert_raises("square: x belongs to another tape", square(other, x));
    tensor_read_i32(i, integer_host);
    ck_assert_mem_eq(integers, integer_host, sizeof integers);
    tape_free(other);
    assert_raises("tape_new: the device is NULL", tape_new(NULL));
#ifdef TAPEGRAD_CUDA
    assert_raises("device_open: there is no device \"gpu\"; this library has \"cpu\", "
                  "\"cpu:repeatable\", \"plain\", \"cuda\" (\"cuda:0\"), \"cuda:1\", ...",
                  device_open("gpu"));
#else
    assert_raises("device_open: there is no device \"gpu\"; this library has \"cpu\", "
                  "\"cpu:repeatable\", \"plain\"; "
                  "it was built without CUDA",
                  device_open("gpu"));
#endif
    assert_raises("device_set_threads: count is 0, expected at least 1", device_set_threads(0));
}

TEST(shapes)
{
    ck_assert_str_eq(shape_text(shape(2, 3, 4, 5)).text, "[2,3,4,5]");
    ck_assert_str_eq(shape_text(shape_scalar()).text, "[]");
    ck_assert_int_eq(shape_count(shape(2, 3, 4)), 24);
    ck_assert_int_eq(shape_count(shape_scalar()), 1);
    ck_assert_int_eq(shape_rows(shape(2, 3, 4)), 6);
    ck_assert_int_eq(shape_columns(shape(2, 3, 4)), 4);
    ck_assert_int_eq(shape_columns(shape_scalar()), 1);
    ck_assert_int_eq(shape_size(shape(2, 3, 4), -1), 4);
    ck_assert_int_eq(shape_size(shape(2, 3, 4), 0), 2);
    ck_assert(!shape_equal(shape(2, 3), shape(3, 2)));
    ck_assert(!shape_equal(shape(2), shape(2, 1)));
    assert_raises("shape: 5 sizes were given, expected at most 4", shape(1, 2, 3, 4, 5));
    assert_raises("shape: size 1 is 0, expected at least 1", shape(3, 0));
    assert_raises("shape: size 1 is -1, expected at least 1; no size is inferred", shape(5, -1));
    assert_raises("shape: size 1 is -2, expected at least 1", shape(5, -2));
    assert_raises("shape: a tensor of these 3 sizes would take 2^63 bytes or more",
                  shape((int64_t)1 << 40, (int64_t)1 << 20, 8));
    assert_raises("shape: a tensor of these 1 sizes would take 2^63 bytes or more",
                  shape((int64_t)((1ull << 63) / sizeof(Real))));
    assert_raises("shape_size: [2,3] has no axis 2", shape_size(shape(2, 3), 2));
    assert_raises("shape_size: [2,3] has no axis -3", shape_size(shape(2, 3), -3));
}

TEST(recording_off_records_nothing)
{
    ck_assert(tape_set_recording(tape, false));
    Tensor *x = tape_variable(tape, three, shape(3));
    Tensor *loss = test_dot_operation(tape, x, x);
    ck_assert(!tape_set_recording(tape, true));
    ck_assert(!loss->requires_grad);
}

TEST(a_mark_gives_intermediates_back)
{
    Real *values = test_normal(1, 1000);
    Tensor *x = tape_input(tape, values, shape(1000));
    assert_raises("tape_release: the tape is recording, and a backward pass would need the "
                  "released tensors; call tape_set_recording(tape, false) before",
                  tape_release(tape, tape_mark(tape), x));
    tape_set_recording(tape, false);
    const size_t one = device_memory(device).current;
    for (int layer = 0; layer < 10; layer++) {
        TapeMark mark = tape_mark(tape);
        Tensor *view = tape_view(tape, square(tape, square(tape, x)), shape(10, 100));
        Tensor *result = tape_view(tape, view, shape(1000));
        tape_release(tape, mark, result);
        ck_assert_uint_eq(device_memory(device).current, 2 * one);
        Real squared = values[3] * values[3];
        ck_assert(result->data[3] == squared * squared);
        TapeMark empty = tape_mark(tape);
        tape_release(tape, empty, NULL);
        tape_release(tape, mark, NULL);
        ck_assert_uint_eq(device_memory(device).current, one);
    }
}

TEST(a_mark_keeps_what_a_pass_needs)
{
    TapeMark mark = tape_mark(tape);
    Tensor *x = tape_variable(tape, three, shape(3)), *loss = test_dot_operation(tape, x, x);
    tape_set_recording(tape, false);
    assert_raises("tape_release: a node was recorded since the mark, and a backward pass would "
                  "need the released tensors; call tape_set_recording(tape, false) before",
                  tape_release(tape, mark, loss));
    tape_backward(tape, loss);
    ck_assert(tensor_gradient(x)->data[1] == -4);
    tape_reset(tape);
    mark = tape_mark(tape);
    tape_backward(tape, tape_variable(tape, three, shape_scalar())); /* records nothing */
    tape_release(tape, mark, NULL);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

TEST(every_step_gets_the_same_addresses)
{
    Real *values = test_normal(1, 5000);
    const void *first[3] = { NULL };
    for (int step = 0; step < 4; step++) {
        Tensor *x = tape_variable(tape, values, shape(5000));
        Tensor *y = square(tape, x), *loss = test_dot_operation(tape, square(tape, y), y);
        const void *now[3] = { x->data, y->data, loss->data };
        tape_backward(tape, loss);
        if (step == 1)
            memcpy(first, now, sizeof first);
        if (step > 1)
            ck_assert_mem_eq(first, now, sizeof first);
        tape_reset(tape);
    }
    ck_assert_uint_eq(device_memory(device).current, 0);
    ck_assert_uint_gt(device_memory(device).peak, 5000 * 4 * sizeof(Real));
    device_release_cached(device);
    ck_assert_uint_eq(device_memory(device).reserved, 0);
    device_reset_peak(device);
    ck_assert_uint_eq(device_memory(device).peak, 0);
}

/* Seconds of steps with n small tensors each, all of which the backward pass frees. */
static double seconds_of_wide_steps(int steps, int n)
{
    const Real number = 1;
    struct timespec start, end;
    Tensor **x = malloc((size_t)n * sizeof(Tensor *));
    ck_assert_ptr_nonnull(x);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int step = 0; step < steps; step++) {
        Tensor *one = tape_variable(tape, &number, shape(1));
        for (int i = 0; i < n; i++)
            x[i] = op_scale(tape, one, 2);
        tape_backward(tape, op_sum(tape, op_concat(tape, x, n, 0), ALL_AXES));
        ck_assert(test_values(tensor_gradient(one))[0] == (Real)(2 * n));
        tape_reset(tape);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    free(x);
    return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

/* A step with 32 times the blocks takes as long as 32 steps, or a few times that outside of the
 * caches; a search of all free blocks takes 32 times as long. The best of some rounds, since other
 * processes share the processor. */
TEST(time_to_free_a_block_hardly_grows_with_the_free_blocks)
{
    double few = 1e9, many = 1e9;
    for (int round = 0; round < 10 && !(round > 0 && many < 12 * few); round++) {
        few = fmin(few, seconds_of_wide_steps(32, 1000));
        many = fmin(many, seconds_of_wide_steps(1, 32000));
    }
    ck_assert_msg(many < 12 * few, "1000 tensors take %g s, 32000 %g s", few / 32, many);
}

TEST(pool_wastes_an_eighth_at_most)
{
    for (int64_t count = 1; count < 100000000; count = count * 5 / 4 + 1) {
        Tensor *x = tape_tensor(tape, shape(count));
        const size_t wanted = (size_t)count * sizeof(Real), got = device_memory(device).current;
        ck_assert_msg(got >= wanted && got <= wanted + wanted / 8 + 64, "%zu for %zu", got, wanted);
        ck_assert_uint_eq((uintptr_t)x->data % 64, 0);
        tape_reset(tape);
        device_release_cached(device);
    }
}

TEST(random_draws_rewind_after_an_error_only)
{
    tape_seed(tape, 7);
    Random first = tape_draw(tape, 5);
    ck_assert_uint_eq(tape_random(tape).counter, first.counter + 5);
    tape_reset(tape);
    ck_assert_uint_eq(tape_random(tape).counter, first.counter + 5);
    tape_draw(tape, 8);
    assert_raises("own: no", tape_error(tape, "own: %s", "no"));
    tape_reset(tape);
    ck_assert_uint_eq(tape_random(tape).counter, first.counter + 5);
    Tensor *x = tape_input(tape, three, shape(3));
    tape_draw(tape, 8);
    assert_raises("tensor_item: the tensor has shape [3], expected one element", tensor_item(x));
    assert_raises("shape: size 0 is 0, expected at least 1", shape(0));
    tape_reset(tape);
    ck_assert_uint_eq(tape_random(tape).counter, first.counter + 5);
    assert_raises("shape: size 0 is 0, expected at least 1", shape(0)); /* before the step */
    tape_input(tape, three, shape(3));
    tape_draw(tape, 8);
    tape_reset(tape);
    ck_assert_uint_eq(tape_random(tape).counter, first.counter + 13);
    tape_set_random(tape, first);
    ck_assert_uint_eq(tape_random(tape).counter, first.counter);
}

TEST(exhausted_memory_raises)
{
    assert_raises(
        "tape_input: memory is exhausted: 4611686018427387904 bytes requested, 0 in use on "
        "cpu, 0 cached",
        tape_input(tape, three, shape((int64_t)((1ull << 62) / sizeof(Real)))));
}

/* out = rows of table at two indices, an operation with a scattered gradient. */
static void rows_backward(Node *node)
{
    Tensor *table = node->inputs[0];
    const int32_t *index = node->inputs[1]->integers;
    const Real *dout = tape_upstream(node, 0);
    const int64_t width = shape_columns(table->shape);
    Gradient dtable = tape_scattered_contribution(node, table);
    for (int64_t i = 0; dtable.data && i < tensor_count(node->outputs[0]); i++)
        gradient_add(dtable, index[i / width] * width + i % width, dout[i]);
}

static Tensor *rows(Tape *own, Tensor *const *inputs, void *context)
{
    Tensor *table = inputs[0], *index = context;
    const int64_t width = shape_columns(table->shape);
    tape_use_cpu(own, "rows: table", table);
    index = tape_input_i32(own, index->integers, index->shape);
    Tensor *out = tape_tensor(own, shape(tensor_count(index), width));
    for (int64_t i = 0; i < tensor_count(out); i++)
        out->data[i] = table->data[index->integers[i / width] * width + i % width];
    tape_record(own,
                (Node){ "rows", rows_backward, .inputs = { table, index }, .outputs = { out } });
    return out;
}

TEST(scattered_gradients_add_up)
{
    const int32_t chosen[] = { 2, 0, 2, 2 }; /* row 1 gets no contribution, row 2 three */
    Tensor *index = tape_persistent_i32(tape, shape(4));
    tensor_write_i32(index, chosen);
    const CheckInput input = { shape(3, 2), test_normal(1, 6) };
    GradientCheck check = gradient_check(device, rows, index, &input, 1);
    ck_assert_msg(check.error <= GRADIENT_TOLERANCE, "%g", check.error);
    Tensor *x = tape_variable(tape, test_normal(1, 6), shape(3, 2));
    Tensor *constant = tape_input(tape, test_normal(1, 6), shape(3, 2));
    Tensor *ones = tape_input(tape, (const Real[]){ 1, 1, 1, 1, 1, 1, 1, 1 }, shape(4, 2));
    Tensor *loss =
        test_dot_operation(tape, rows(tape, &x, index), ones); /* twice: contributions accumulate */
    loss = test_dot_operation(tape, loss,
                              test_dot_operation(tape, rows(tape, &constant, index), ones));
    loss = test_dot_operation(tape, tape_view(tape, loss, shape(1)),
                              test_dot_operation(tape, rows(tape, &x, index), ones));
    tape_backward(tape, loss);
    const Real *dx = tensor_gradient(x)->data;
    ck_assert(dx[2] == 0 && dx[3] == 0 && dx[0] != 0 && dx[0] == dx[1]);
    assert_near("dx of row 2", (const Real[]){ dx[4] }, (const Real[]){ 3 * dx[0] }, 1, 1e-6);
}

TEST(traps_of_own_operations_raise)
{
    Tensor *x = tape_variable(tape, three, shape(3)), *out = tape_tensor(tape, shape(3));
    const Node node = { .name = "own", .inputs = { x }, .outputs = { out } };
    assert_raises("own: the node has no backward function, but an input requires a gradient; set "
                  ".backward, or do not record an operation without a gradient",
                  tape_record(tape, node));
    assert_raises("tape_record: the node has no backward function, but an input requires a "
                  "gradient; set .backward, or do not record an operation without a gradient",
                  tape_record(tape, (Node){ .inputs = { x }, .outputs = { out } }));
    tape_set_recording(tape, false);
    tape_record(tape, node);
    ck_assert(!out->requires_grad);
#ifdef TAPEGRAD_CUDA
    Tape *cuda = tape_new(device_open("cuda"));
    x = tape_input(cuda, three, shape(3));
    assert_raises("square: x is on cuda:0, expected the CPU: this operation reads data as host "
                  "memory",
                  square(cuda, x));
    tape_free(cuda);
#endif
}

/* Four steps use a tensor of the step before. */
TEST(the_debug_mode_reports_stale_pointers)
{
    end();
    setenv("TAPEGRAD_DEBUG", "1", 1);
    begin();
    Tensor *stale = NULL, *x = NULL;
    for (int step = 0; step < 4; step++, stale = x) {
        x = square(tape, tape_variable(tape, three, shape(3)));
        for (int i = 0; i < 1000; i++) /* beyond one chunk of the arena */
            tape_view(tape, x, shape(3, 1));
        Tensor *loss = test_dot_operation(tape, x, x);
        if (stale)
            assert_raises("square: x " GIVEN_BACK, square(tape, stale));
        tape_backward(tape, loss);
        tape_reset(tape);
        tape_reset(tape); /* of no step */
    }
}

TEST(the_debug_mode_reports_a_freed_tape)
{
    setenv("TAPEGRAD_DEBUG", "1", 1);
    Tape *freed = tape_new(tape_device(tape));
    tape_free(freed);
    assert_raises("tape_free: the tape cannot be used after tape_free", tape_free(freed));
    assert_raises("tape_reset: the tape cannot be used after tape_free", tape_reset(freed));
    assert_raises("tape_variable: the tape cannot be used after tape_free",
                  tape_variable(freed, three, shape(3)));
}

TEST(the_upstream_gradient_of_no_output_raises)
{
    assert_raises("tape_upstream: index 7 of 4 outputs", tape_upstream(&(Node){ .tape = tape }, 7));
}

/* A tensor made once before the loop: the commonest mistake. */
TEST(the_first_steps_report_stale_pointers)
{
    Tensor *stale = tape_variable(tape, three, shape(3));
    for (int step = 2; step <= 3; step++) {
        tape_reset(tape);
        tape_variable(tape, three, shape(3));
        assert_raises("square: x " GIVEN_BACK, square(tape, stale));
        stale = tape_variable(tape, three, shape(3));
    }
    tape_reset(tape);
    stale = tape_variable(tape, three, shape(3));
    tape_reset(tape);
    tape_variable(tape, three, shape(3));
    square(tape, stale); /* its handle is another tensor's */
}

/* An evaluation that leaves recording on and never resets. */
TEST(a_record_does_not_grow_in_silence)
{
    char path[] = "/tmp/tapegrad_test_XXXXXX", said[400] = "";
    const int file = mkstemp(path);
    ck_assert(file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    for (int round = 0; round < 2; round++) {
        Tensor *x = tape_variable(tape, three, shape(3));
        for (int i = 0; i < 49999; i++)
            square(tape, x);
        ck_assert_int_eq(lseek(file, 0, SEEK_CUR), (off_t)strlen(said));
        for (int i = 0; i < 50001; i++)
            square(tape, x);
        ck_assert_int_gt(pread(file, said, sizeof said - 1, 0), 0);
        tape_reset(tape);
    }
    unlink(path);
    ck_assert_str_eq(said, "tapegrad: a tape has recorded 50000 operations since tape_reset, which "
                           "holds all their tensors; for an evaluation turn tape_set_recording off "
                           "and call tape_reset\n");
}

TEST(the_default_handler_aborts)
{
    pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stderr);
        signal(SIGABRT, SIG_DFL);
        square(tape, NULL);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(a_check_names_the_element_of_a_joined_weight)
{
    static const char *const names[] = { "q", "k" };
    Params *params = params_new(device, 1);
    params_add_joined(params, "", names, 2, "weight", shape(2, 3),
                      (Initializer){ .kind = INITIAL_ZERO });
    tape_check_finite(tape, true);
    Tensor *roots = op_sqrt(tape, params_find(params, "k.weight"));
    assert_raises("op_sqrt: the gradient of input 0 k.weight is [2,3], and its element 0 is inf",
                  tape_backward(tape, op_sum(tape, roots, ALL_AXES)));
    tape_reset(tape);
    params_free(params);
}

static Real wrong_factor; /* replaces the factor 2 of element 4 */

static void wrong_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    for (int64_t i = 0; i < tensor_count(x); i++)
        gradient_add(dx, i, (i == 4 ? wrong_factor : 2) * x->data[i] * tape_upstream(node, 0)[i]);
}

static Tensor *checked_square(Tape *on, Tensor *const *inputs, void *context)
{
    Tensor *out = square(on, inputs[1]);
    if (context) {
        Tensor *other = tape_tensor(on, out->shape);
        memcpy(other->data, out->data, sizeof(Real) * (size_t)tensor_count(out));
        tape_record(on, (Node){ .name = "wrong",
                                .backward = wrong_backward,
                                .inputs = { inputs[1] },
                                .outputs = { other } });
        return other;
    }
    return out;
}

TEST(gradient_check_finds_a_wrong_element)
{
    const Real unused[] = { 1 };
    CheckInput inputs[] = { { shape(1), unused }, { shape(7), test_normal(1, 7) } };
    GradientCheck right = gradient_check(device, checked_square, NULL, inputs, 2);
    ck_assert_msg(right.error >= 0 && right.error <= GRADIENT_TOLERANCE, "%g", right.error);
    wrong_factor = 3;
    GradientCheck wrong = gradient_check(device, checked_square, &wrong, inputs, 2);
    ck_assert_msg(wrong.error > 2 * GRADIENT_TOLERANCE, "%g", wrong.error);
    ck_assert_int_eq(wrong.input, 1);
    ck_assert_int_eq(wrong.element, 4);
    wrong_factor = NAN;
    wrong = gradient_check(device, checked_square, &wrong, inputs, 2);
    ck_assert(isnan(wrong.error));
    ck_assert_int_eq(wrong.input, 1);
    ck_assert_int_eq(wrong.element, 4);
    assert_raises("gradient_check: 0 inputs, expected 1 to 8",
                  gradient_check(device, checked_square, NULL, inputs, 0));
}

/* What tape_print_dot prints; the caller frees it. */
static char *graph(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    tape_print_dot(tape, file);
    fclose(file);
    return text;
}

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        count++;
    return count;
}

TEST(the_graph_has_operations_shapes_values_and_gradients)
{
    Tensor *x = tape_variable(tape, three, shape(3));
    Tensor *squares = square(tape, x);
    Tensor *sum = test_dot_operation(tape, squares, x); /* of x^3 */
    char *before = graph(), *again = graph();
    ck_assert_str_eq(before, again);
    ck_assert_int_eq(count_of(before, "shape=box, label=\"square\""), 1);
    ck_assert_int_eq(count_of(before, "shape=box, label=\"dot\""), 1);
    ck_assert_int_eq(count_of(before, "fillcolor=lightgrey, label=\"[3]\\n1, -2, 3\""), 1);
    ck_assert_int_eq(count_of(before, "shape=ellipse, label=\"[3]\\n1, 4, 9\""), 1);
    ck_assert_int_eq(count_of(before, "shape=ellipse, label=\"[]\\n20\""), 1);
    ck_assert_int_eq(count_of(before, "shape=ellipse"), 3);
    ck_assert_int_eq(count_of(before, "->"), 5);
    ck_assert_int_eq(count_of(before, "gradient"), 0);

    tape_backward(tape, sum);
    char *after = graph();
    ck_assert_int_eq(count_of(after, "label=\"[3]\\n1, -2, 3\\ngradient 3, 12, 27\""), 1);
    ck_assert_int_eq(count_of(after, "label=\"[]\\n20\\ngradient 1\""), 1);
    ck_assert_int_eq(count_of(after, "shape=ellipse, label=\"[3]\""), 1); /* freed */
    assert_raises("tape_print_dot: the file is NULL", tape_print_dot(tape, NULL));
    assert_raises("tape_print_dot: the tape is NULL", tape_print_dot(NULL, stdout));
    free(before);
    free(again);
    free(after);
}

int main(void)
{
    return test_main("tape", begin, end);
}
