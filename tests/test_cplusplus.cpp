/* The public headers as C++17: a C++ program trains, and adds an operation of its own. */
#include "support.h"

TEST(shapes_have_one_to_four_sizes)
{
    const int64_t sizes[] = { 2, 3, 4, 5 };
    ck_assert(shape_equal(shape(2), shape_new(1, sizes)));
    ck_assert(shape_equal(shape(2, 3), shape_new(2, sizes)));
    ck_assert(shape_equal(shape(2, 3, 4), shape_new(3, sizes)));
    ck_assert(shape_equal(shape(2, 3, 4, 5), shape_new(4, sizes)));
}

/* A member named shape, as arrays of other libraries have it. */
struct Array {
    int rows, columns;
    int shape(int axis) const
    {
        return axis == 0 ? rows : columns;
    }
};

TEST(a_class_may_have_a_shape_of_its_own)
{
    const Array array = { 2, 3 };
    ck_assert_int_eq(array.shape(0), 2);
    ck_assert_int_eq(array.shape(1), 3);
}

TEST(the_version_is_that_of_the_headers)
{
    ck_assert_str_eq(tapegrad_version(), TAPEGRAD_VERSION);
}

/* out = x^2, dx = 2 x dout */
static void square_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Gradient dx = tape_contribution(node, x);
    const Real *dout = tape_upstream(node, 0);
    for (int64_t i = 0; i < tensor_count(x); i++)
        gradient_add(dx, i, 2 * x->data[i] * dout[i]);
}

static Tensor *square(Tape *tape, Tensor *x)
{
    tape_use(tape, "square: x", x);
    Tensor *out = tape_tensor(tape, x->shape);
    for (int64_t i = 0; i < tensor_count(x); i++)
        out->data[i] = x->data[i] * x->data[i];
    Node node = {};
    node.name = "square";
    node.backward = square_backward;
    node.inputs[0] = x;
    node.outputs[0] = out;
    tape_record(tape, node);
    return out;
}

TEST(an_operation_in_cplusplus_has_a_gradient)
{
    Tape *tape = tape_new(device_open("cpu"));
    const Real values[] = { 1, -2, 3 };
    Tensor *x = tape_variable(tape, values, shape(3));
    tape_backward(tape, op_sum(tape, square(tape, x), ALL_AXES));
    Real gradient[3];
    tensor_read(tensor_gradient(x), gradient);
    for (int i = 0; i < 3; i++)
        ck_assert(gradient[i] == 2 * values[i]);
    tape_free(tape);
}

/* y = 2 x_0 - x_1 + 1 is learned exactly by a linear layer. */
TEST(a_linear_layer_learns)
{
    enum { ROWS = 16 };
    Device *device = test_device();
    Params *params = params_new(device, /*seed*/ 1);
    const Linear layer = nn_linear(params, "layer", 2, 1);
    Optimizer *optimizer = optim_sgd(params, optim_sgd_config(0.1));
    Tape *tape = tape_new(device);
    Random random = random_new(1, random_stream("data"));
    Real x[ROWS][2], y[ROWS];
    double loss_value = 0;
    random_normal(&random, x[0], 2 * ROWS);
    for (int i = 0; i < ROWS; i++)
        y[i] = 2 * x[i][0] - x[i][1] + 1;
    for (int step = 0; step < 200; step++) {
        Tensor *out = nn_linear_forward(tape, &layer, tape_input(tape, x[0], shape(ROWS, 2)));
        Tensor *loss = op_mean_squared_error(tape, out, tape_input(tape, y, shape(ROWS, 1)));
        tape_backward(tape, loss);
        optim_step(optimizer);
        loss_value = tensor_item(loss);
        tape_reset(tape);
    }
    ck_assert_msg(loss_value < 1e-4, "the loss is %g", loss_value);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
}

int main()
{
    return test_main("cplusplus", nullptr, nullptr);
}
