/* Elementwise operations: values, gradients, broadcasting, misuse. */
#include "tests/operation_table.h"
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

/* ------------------------------------------------------------------------ one input, one output */
/* The largest relative error in float32, scaled down for double precision. */
static double tolerance_of(double float32)
{
    return sizeof(Real) == 4 ? float32 : float32 * 2.5e-9;
}

static void check_unary(const char *what, const Unary *unary, const Real *x, const Real *actual,
                        double (*exact)(double x), int count, double float32)
{
    const double tolerance = tolerance_of(float32);
    Worst worst = { 0 };
    for (int i = 0; i < count; i++) {
        const double expected = exact((double)x[i]);
        test_worst(&worst, fabs((double)actual[i] - expected) / fmax(1, fabs(expected)), i);
    }
    if (!(worst.error <= tolerance))
        ck_abort_msg("%s: %s at %.9g is %.9g, expected %.9g: error %.2g, tolerance %.2g",
                     unary->name, what, (double)x[worst.at], (double)actual[worst.at],
                     exact((double)x[worst.at]), worst.error, tolerance);
}

TEST(unary_values_and_derivatives_are_exact)
{
    enum { COUNT = 40001 }; /* enough for several threads, with a ragged end */
    static Real x[COUNT], ones[COUNT];
    begin();
    for (int u = 0; u < UNARIES; u++) {
        for (int i = 0; i < COUNT; i++) {
            x[i] =
                unaries[u].domain == POSITIVE ? (Real)(i + 1) / 1000 : (Real)(i - COUNT / 2) / 2500;
            ones[i] = 1;
        }
        Tensor *variable = tape_variable(tape, x, shape(COUNT));
        Tensor *out = tensor_keep(unaries[u].operation(tape, variable));
        tape_backward_from(tape, out, tape_input(tape, ones, shape(COUNT)));
        check_unary("the value", &unaries[u], x, test_values(out), unaries[u].exact, COUNT, 4e-7);
        check_unary("the derivative", &unaries[u], x, test_values(tensor_gradient(variable)),
                    unaries[u].derivative, COUNT, unaries[u].tolerance);
        tape_reset(tape);
    }
    tape_free(tape);
}

TEST(misuse_of_unary_raises)
{
    begin();
    Tape *other = tape_new(test_device());
    const int32_t integer = 1;
    const Real one = 1;
    for (int u = 0; u < UNARIES; u++) {
        char sentence[128];
        snprintf(sentence, sizeof sentence, "%s: x is NULL", unaries[u].name);
        assert_raises(sentence, unaries[u].operation(tape, NULL));
        snprintf(sentence, sizeof sentence, "%s: x has dtype int32, expected Real",
                 unaries[u].name);
        assert_raises(sentence,
                      unaries[u].operation(tape, tape_input_i32(tape, &integer, shape(1))));
        snprintf(sentence, sizeof sentence, "%s: x belongs to another tape", unaries[u].name);
        assert_raises(sentence, unaries[u].operation(tape, tape_input(other, &one, shape(1))));
    }
    tape_free(other);
    tape_free(tape);
}

/* A NaN in dL/dout does not vanish in dL/dx. */
TEST(nan_upstream_reaches_its_element_alone)
{
    const Real x[] = { 1, 2, 3 }, upstream[] = { 1, NAN, 1 };
    begin();
    for (int u = 0; u < UNARIES; u++) {
        Tensor *variable = tape_variable(tape, x, shape(3));
        tape_backward_from(tape, unaries[u].operation(tape, variable),
                           tape_input(tape, upstream, shape(3)));
        Real *dx = test_values(tensor_gradient(variable));
        ck_assert_msg(!isnan(dx[0]) && isnan(dx[1]) && !isnan(dx[2]), "%s", unaries[u].name);
        tape_reset(tape);
    }
    tape_free(tape);
}

TEST(infinite_arguments_have_their_limits)
{
    const Real x[] = { -INFINITY, -1000, 0, 1000, INFINITY };
    const struct {
        Tensor *(*operation)(Tape *tape, Tensor *x);
        Real out[5];
    } cases[] = {
        { op_exp, { 0, 0, 1, INFINITY, INFINITY } },
        { op_tanh, { -1, -1, 0, 1, 1 } },
        { op_sigmoid, { 0, 0, (Real)0.5, 1, 1 } },
        { op_relu, { 0, 0, 0, 1000, INFINITY } },
        { op_elu, { -1, -1, 0, 1000, INFINITY } },
        { op_elu_plus_one, { 0, 0, 1, 1001, INFINITY } },
        { op_softplus, { 0, 0, (Real)0.69314718055994531, 1000, INFINITY } },
        { op_squared_relu, { 0, 0, 0, 1000000, INFINITY } },
        { op_log_sigmoid, { -INFINITY, -1000, (Real)-0.69314718055994531, 0, 0 } },
    };
    begin();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Tensor *variable = tape_variable(tape, x, shape(5));
        Tensor *result = tensor_keep(cases[c].operation(tape, variable));
        const Real upstream[] = { 1, 1, 1, 1, 1 };
        tape_backward_from(tape, result, tape_input(tape, upstream, shape(5)));
        Real *out = test_values(result), *dx = test_values(tensor_gradient(variable));
        for (int i = 0; i < 5; i++)
            ck_assert_msg(out[i] == cases[c].out[i], "case %zu of %g: %.9g, expected %.9g", c,
                          (double)x[i], (double)out[i], (double)cases[c].out[i]);
        for (int i = 0; i < 4; i++)
            ck_assert_msg(dx[i] >= 0, "case %zu: the derivative at %g is %g", c, (double)x[i],
                          (double)dx[i]);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* Whether the numbers are equal or both are NaN. */
static bool same_value(Real a, Real b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* The gradient of a maximum and of a minimum goes to one of two equal elements, and a NaN shows. */
TEST(maximum_and_minimum_of_equal_elements_and_of_nan)
{
    Tensor *(*const functions[])(Tape *, Tensor *, Tensor *) = { op_maximum, op_minimum };
    begin();
    for (int f = 0; f < 2; f++) {
        Tensor *a = tape_variable(tape, (Real[]){ 2, NAN, 2 }, shape(3));
        Tensor *b = tape_variable(tape, (Real[]){ 2, 2, NAN }, shape(3));
        Tensor *out = tensor_keep(functions[f](tape, a, b));
        tape_backward_from(tape, out, tape_input(tape, (Real[]){ 1, 1, 1 }, shape(3)));
        const Real *values = test_values(out);
        ck_assert(values[0] == 2 && isnan(values[1]) && isnan(values[2]));
        assert_values(tensor_gradient(a), shape(3), VALUES(1, 1, 0));
        assert_values(tensor_gradient(b), shape(3), VALUES(0, 0, 1));
        tape_reset(tape);
    }
    tape_free(tape);
}

/* A comparison of a NaN does not hold; no node is recorded, so no gradient flows. */
TEST(comparisons_of_equal_elements_and_of_nan)
{
    const struct {
        Tensor *(*operation)(Tape *tape, Tensor *a, Tensor *b);
        Real out[6];
    } cases[] = {
        { op_equal, { 0, 1, 0, 0, 0, 0 } },
        { op_less, { 1, 0, 0, 0, 0, 0 } },
        { op_less_equal, { 1, 1, 0, 0, 0, 0 } },
    };
    begin();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Tensor *a = tape_variable(tape, (Real[]){ 1, 2, 3, NAN, 2, NAN }, shape(6));
        Tensor *b = tape_variable(tape, (Real[]){ 2, 2, 2, 2, NAN, NAN }, shape(6));
        Tensor *out = cases[c].operation(tape, a, b);
        ck_assert_mem_eq(test_values(out), cases[c].out, sizeof cases[c].out);
        ck_assert(!tape_has_recorded(tape) && !out->requires_grad);
        tape_reset(tape);
    }
    tape_free(tape);
}

static const Unary *unary_named(const char *name)
{
    int u = 0;
    while (strcmp(unaries[u].name, name) != 0)
        u++;
    return &unaries[u];
}

/* Here errors are relative to the value, not to 1: 1 + erf or 1 + tanh leaves few digits. */
TEST(gelus_keep_their_digits_in_the_negative_tail)
{
    enum { COUNT = 64 };
    const struct {
        const Unary *gelu;
        double tolerance; /* gelu_tanh rounds x^3 */
    } cases[] = { { unary_named("op_gelu"), 1e-6 }, { unary_named("op_gelu_tanh"), 4e-6 } };
    Real x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = -2 - (Real)i / 16;
    begin();
    for (int g = 0; g < 2; g++) {
        const double tolerance = cases[g].tolerance * (sizeof(Real) == 4 ? 1 : 1e-8);
        Tensor *input = tape_variable(tape, x, shape(COUNT));
        Tensor *out = tensor_keep(cases[g].gelu->operation(tape, input));
        tape_backward(tape, op_sum(tape, out, ALL_AXES));
        const Real *values = test_values(out), *dx = test_values(tensor_gradient(input));
        for (int i = 0; i < COUNT; i++) {
            const double at = (double)x[i];
            const double value = (double)values[i] / cases[g].gelu->exact(at) - 1;
            const double derivative = (double)dx[i] / cases[g].gelu->derivative(at) - 1;
            ck_assert_msg(fabs(value) <= tolerance && fabs(derivative) <= tolerance,
                          "%s at %g: relative errors %g, derivative %g", cases[g].gelu->name, at,
                          value, derivative);
        }
        tape_reset(tape);
    }
    tape_free(tape);
}

/* e^x, not the rounded e^x - 1 plus 1 */
TEST(the_derivative_of_elu_keeps_its_digits)
{
    enum { COUNT = 80 };
    Real x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = -(Real)(i + 1);
    begin();
    Tensor *input = tape_variable(tape, x, shape(COUNT));
    tape_backward(tape, op_sum(tape, op_elu(tape, input), ALL_AXES));
    const Real *dx = test_values(tensor_gradient(input));
    for (int i = 0; i < COUNT; i++)
        ck_assert_double_eq_tol((double)dx[i] / exp((double)x[i]), 1, tolerance_of(4e-7));
    tape_free(tape);
}

TEST(the_absolute_value_of_minus_zero_is_zero)
{
    const Real x[] = { (Real)-0.0, 0 };
    begin();
    const Real *out = test_values(op_pow(tape, op_abs(tape, tape_input(tape, x, shape(2))), -1));
    ck_assert(out[0] == INFINITY && out[1] == INFINITY);
    tape_free(tape);
}

/* Gelus and silu are exactly x or 0 for large |x|, also where the powers of x overflow. */
TEST(gelus_and_silu_far_out_are_x_or_0)
{
    const Real x[] = { (Real)-3e38, (Real)-1e20, -1000, 1000, (Real)1e20, (Real)3e38 };
    Tensor *(*const gelus[])(Tape * tape, Tensor * x) = { op_gelu, op_gelu_tanh, op_silu };
    begin();
    for (int g = 0; g < 3; g++) {
        Tensor *input = tape_variable(tape, x, shape(6));
        Tensor *out = tensor_keep(gelus[g](tape, input));
        tape_backward(tape, op_sum(tape, out, ALL_AXES));
        const Real *values = test_values(out), *derivatives = test_values(tensor_gradient(input));
        for (int i = 0; i < 6; i++) {
            ck_assert_msg(values[i] == (x[i] < 0 ? 0 : x[i]), "gelu %d of %g is %g", g,
                          (double)x[i], (double)values[i]);
            ck_assert_msg(derivatives[i] == (x[i] < 0 ? 0 : 1),
                          "the derivative of gelu %d at %g is %g", g, (double)x[i],
                          (double)derivatives[i]);
        }
        tape_reset(tape);
    }
    tape_free(tape);
}

TEST(relu_at_zero_has_derivative_zero)
{
    const Real x[] = { -0.0, 0, -1, 1 }, upstream[] = { 3, 3, 3, 3 };
    begin();
    Tensor *variable = tape_variable(tape, x, shape(4));
    tape_backward_from(tape, op_relu(tape, variable), tape_input(tape, upstream, shape(4)));
    Real *dx = test_values(tensor_gradient(variable));
    ck_assert(dx[0] == 0 && dx[1] == 0 && dx[2] == 0 && dx[3] == 3);
    tape_free(tape);
}

TEST(clamp_keeps_its_bounds)
{
    const Real x[] = { -INFINITY, -3, -2, 0, 1, (Real)1.5, NAN },
               upstream[] = { 1, 1, 1, 1, 1, 1, 1 };
    const Real expected[] = { -2, -2, -2, 0, 1, 1 }, derivative[] = { 0, 0, 1, 1, 1, 0, 1 };
    begin();
    Tensor *variable = tape_variable(tape, x, shape(7));
    Tensor *out = tensor_keep(op_clamp(tape, variable, -2, 1));
    tape_backward_from(tape, out, tape_input(tape, upstream, shape(7)));
    ck_assert_mem_eq(test_values(out), expected, sizeof expected);
    ck_assert(isnan(test_values(out)[6]));
    ck_assert_mem_eq(test_values(tensor_gradient(variable)), derivative, sizeof derivative);
    tape_reset(tape);
    variable = tape_variable(tape, x, shape(7));
    ck_assert(test_values(op_clamp(tape, variable, -INFINITY, 0))[1] == -3);
    assert_raises("op_clamp: low is 2, high is 1, expected low <= high",
                  op_clamp(tape, variable, 2, 1));
    assert_raises("op_clamp: low is 2, high is nan, expected low <= high",
                  op_clamp(tape, variable, 2, (double)NAN));
    tape_free(tape);
}

/* The derivative at 0 is the limit; a NaN shows unless the exponent is 0. */
TEST(pow_by_sign_and_exponent)
{
    const Real x[] = { -2, 0, 4, NAN, -INFINITY }, upstream[] = { 1, 1, 1, 1, 1 };
    const struct {
        double exponent;
        Real out[5], derivative[5];
    } cases[] = {
        { 0, { 1, 1, 1, 1, 1 }, { 0, 0, 0, 0, 0 } },
        { 1, { -2, 0, 4, NAN, -INFINITY }, { 1, 1, 1, 1, 1 } },
        { 2, { 4, 0, 16, NAN, INFINITY }, { -4, 0, 8, NAN, -INFINITY } },
        { 3, { -8, 0, 64, NAN, -INFINITY }, { 12, 0, 48, NAN, INFINITY } },
        { 0.5, { NAN, 0, 2, NAN, INFINITY }, { NAN, INFINITY, 0.25, NAN, 0 } },
        { 1.5, { NAN, 0, 8, NAN, INFINITY }, { NAN, 0, 3, NAN, INFINITY } },
        { -1, { -0.5, INFINITY, 0.25, NAN, 0 }, { -0.25, -INFINITY, -0.0625, NAN, 0 } },
    };
    begin();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Tensor *variable = tape_variable(tape, x, shape(5));
        Tensor *out = tensor_keep(op_pow(tape, variable, cases[c].exponent));
        tape_backward_from(tape, out, tape_input(tape, upstream, shape(5)));
        const Real *values = test_values(out), *dx = test_values(tensor_gradient(variable));
        for (int i = 0; i < 5; i++)
            ck_assert_msg(same_value(values[i], cases[c].out[i]) &&
                              same_value(dx[i], cases[c].derivative[i]),
                          "%g^%g is %g, its derivative %g", (double)x[i], cases[c].exponent,
                          (double)values[i], (double)dx[i]);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* ------------------------------------------------------------------------ two inputs, broadcast */
/* The offset in x of element i of a tensor of shape out to which x is broadcast, as in NumPy. */
static int64_t broadcast_offset(Shape x, Shape out, int64_t i)
{
    int64_t offset = 0, stride = 1;
    for (int axis = 1; axis <= x.rank; axis++) {
        const int64_t size = out.size[out.rank - axis], own = x.size[x.rank - axis];
        offset += own == 1 ? 0 : i % size * stride;
        stride *= own;
        i /= size;
    }
    return offset;
}

static void check_binary_values(Shape a_shape, Shape b_shape, Shape expected)
{
    const int64_t n = shape_count(expected);
    Real *a = test_normal(1, shape_count(a_shape)), *b = test_normal(2, shape_count(b_shape));
    for (int o = 0; o < BINARIES; o++) {
        Tensor *out =
            binaries[o].operation(tape, tape_input(tape, a, a_shape), tape_input(tape, b, b_shape));
        ck_assert(shape_equal(out->shape, expected));
        Real *values = test_values(out);
        for (int64_t i = 0; i < n; i++)
            if (values[i] !=
                (Real)binaries[o].exact((double)a[broadcast_offset(a_shape, expected, i)],
                                        (double)b[broadcast_offset(b_shape, expected, i)]))
                ck_abort_msg("%s of %s and %s: element %lld is %.9g", binaries[o].name,
                             shape_text(a_shape).text, shape_text(b_shape).text, (long long)i,
                             (double)values[i]);
        tape_reset(tape);
    }
}

/* Axes of size 1 and missing axes, in every pattern; repeated parts shorter and longer than a
 * kernel's block, multiples of it and not. */
TEST(values_of_binary)
{
    const Shape shapes[][3] = {
        { shape_scalar(), shape_scalar(), shape_scalar() },
        { shape(7), shape(7), shape(7) },
        { shape(2, 3, 4, 5), shape(2, 3, 4, 5), shape(2, 3, 4, 5) },
        { shape(2, 3, 4, 5), shape(4, 5), shape(2, 3, 4, 5) },
        { shape(2, 3, 4, 5), shape_scalar(), shape(2, 3, 4, 5) },
        { shape(4, 1), shape(1), shape(4, 1) },
        { shape(33, 1023), shape(1023), shape(33, 1023) },
        { shape(33, 1024), shape(1024), shape(33, 1024) },
        { shape(33, 1025), shape(1025), shape(33, 1025) },
        { shape(11, 2, 1500), shape(2, 1500), shape(11, 2, 1500) },
        { shape(7001, 3), shape(3), shape(7001, 3) },
        { shape(33333), shape_scalar(), shape(33333) },
        { shape(33333), shape(33333), shape(33333) },
        { shape(5, 1), shape(5, 3), shape(5, 3) },
        { shape(5, 1), shape(3), shape(5, 3) },
        { shape(1, 5, 1), shape(4, 1, 3), shape(4, 5, 3) },
        { shape(2, 1, 4, 1), shape(3, 1, 5), shape(2, 3, 4, 5) },
        { shape(1, 3, 1, 5), shape(2, 1, 4, 1), shape(2, 3, 4, 5) },
        { shape(2, 1, 1, 5), shape(2, 3, 4, 1), shape(2, 3, 4, 5) },
        { shape(3, 4, 1), shape(2, 1, 1, 5), shape(2, 3, 4, 5) },
        { shape(1, 1, 1, 1), shape(2, 3), shape(1, 1, 2, 3) },
        { shape(33, 1), shape(33, 1025), shape(33, 1025) },
        { shape(3, 1, 700), shape(3, 11, 1), shape(3, 11, 700) },
        { shape(9, 1, 1030), shape(1, 5, 1030), shape(9, 5, 1030) },
    };
    begin();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        check_binary_values(shapes[s][0], shapes[s][1], shapes[s][2]);
        check_binary_values(shapes[s][1], shapes[s][0], shapes[s][2]);
    }
    tape_free(tape);
}

TEST(misuse_of_binary_raises)
{
    begin();
    const Real values[24] = { 0 };
    const int32_t integers[2] = { 0 };
    for (int o = 0; o < BINARIES; o++) {
        Tensor *a = tape_input(tape, values, shape(2, 3));
        char sentence[256];
        snprintf(sentence, sizeof sentence, "%s: a is NULL", binaries[o].name);
        assert_raises(sentence, binaries[o].operation(tape, NULL, a));
        snprintf(sentence, sizeof sentence, "%s: b is NULL", binaries[o].name);
        assert_raises(sentence, binaries[o].operation(tape, a, NULL));
        snprintf(sentence, sizeof sentence, "%s: b has dtype int32, expected Real",
                 binaries[o].name);
        assert_raises(sentence,
                      binaries[o].operation(tape, a, tape_input_i32(tape, integers, shape(2))));
        const Shape wrong[] = { shape(2), shape(3, 3), shape(3, 1), shape(2, 2, 2) };
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            snprintf(
                sentence, sizeof sentence,
                "%s: the shapes do not fit: a is [2,3], b is %s; expected sizes that are equal "
                "or 1, aligned at the last axis",
                binaries[o].name, shape_text(wrong[w]).text);
            assert_raises(sentence,
                          binaries[o].operation(tape, a, tape_input(tape, values, wrong[w])));
        }
    }
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------------- where */
TEST(where_keeps_out_what_is_not_chosen)
{
    begin();
    Tensor *condition = tape_input(tape, (Real[]){ 1, 0, -2, -0.0, NAN }, shape(5));
    Tensor *a = tape_variable(tape, (Real[]){ 1, NAN, 3, INFINITY, 5 }, shape(5));
    Tensor *b = tape_variable(tape, (Real[]){ NAN, 20, NAN, 40, NAN }, shape(5));
    Tensor *out = tensor_keep(op_where(tape, condition, a, b));
    ck_assert_mem_eq(test_values(out), ((Real[]){ 1, 20, 3, 40, 5 }), 5 * sizeof(Real));
    /* a NaN upstream reaches the gradient of the chosen element alone */
    tape_backward_from(tape, out, tape_input(tape, (Real[]){ 1, 2, NAN, NAN, 5 }, shape(5)));
    const Real *da = test_values(tensor_gradient(a)), *db = test_values(tensor_gradient(b));
    const Real da_expected[] = { 1, 0, NAN, 0, 5 }, db_expected[] = { 0, 2, 0, NAN, 0 };
    for (int i = 0; i < 5; i++)
        ck_assert_msg(same_value(da[i], da_expected[i]) && same_value(db[i], db_expected[i]),
                      "element %d: da is %g, db %g", i, (double)da[i], (double)db[i]);
    tape_free(tape);
}

TEST(values_of_where_broadcast)
{
    const Shape shapes[][3] = {
        { shape_scalar(), shape_scalar(), shape_scalar() },
        { shape(7), shape_scalar(), shape(7) },
        { shape(3, 1), shape(5), shape(2, 1, 1) },
        { shape(33, 1), shape(33, 1025), shape(1025) },
        { shape(1030), shape(9, 1, 1), shape(1, 5, 1) },
        { shape(2, 1, 4, 1), shape(3, 1, 5), shape(5) },
    };
    begin();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        Real *values[3];
        Tensor *x[3];
        for (int i = 0; i < 3; i++) {
            values[i] = test_normal((uint64_t)i + 1, shape_count(shapes[s][i]));
            for (int64_t j = 0; i == 0 && j < shape_count(shapes[s][0]); j++)
                values[0][j] = (Real)(values[0][j] > 0);
            x[i] = tape_input(tape, values[i], shapes[s][i]);
        }
        Tensor *out = op_where(tape, x[0], x[1], x[2]);
        const Shape expected = op_add(tape, op_add(tape, x[0], x[1]), x[2])->shape;
        ck_assert(shape_equal(out->shape, expected));
        const Real *found = test_values(out);
        for (int64_t i = 0; i < tensor_count(out); i++) {
            const int chosen = values[0][broadcast_offset(shapes[s][0], expected, i)] != 0 ? 1 : 2;
            ck_assert_msg(found[i] ==
                              values[chosen][broadcast_offset(shapes[s][chosen], expected, i)],
                          "shapes %zu, element %lld", s, (long long)i);
        }
    }
    tape_free(tape);
}

/* Of a comparison: out is max(a, b). */
TEST(where_of_less_is_the_maximum)
{
    enum { COUNT = 5000 };
    begin();
    Tensor *a = tape_variable(tape, test_normal(1, COUNT), shape(COUNT));
    Tensor *b = tape_variable(tape, test_normal(2, COUNT), shape(COUNT));
    Tensor *out = tensor_keep(op_where(tape, op_less(tape, a, b), b, a));
    assert_identical(test_values(out), test_values(op_maximum(tape, a, b)), COUNT);
    tape_backward(tape, op_sum(tape, out, ALL_AXES));
    const Real *da = test_values(tensor_gradient(a)), *db = test_values(tensor_gradient(b));
    const Real *values = test_values(a), *others = test_values(b);
    for (int i = 0; i < COUNT; i++)
        ck_assert(da[i] == (values[i] >= others[i]) && db[i] == (values[i] < others[i]));
    tape_free(tape);
}

TEST(misuse_of_where_raises)
{
    const Real values[12] = { 0 };
    begin();
    Tensor *c = tape_input(tape, values, shape(2, 3)), *x = tape_input(tape, values, shape(3));
    Tensor *integers = tape_input_i32(tape, (const int32_t[]){ 1, 0, 1 }, shape(3));
    assert_raises("op_where: condition is NULL", op_where(tape, NULL, x, x));
    assert_raises("op_where: a is NULL", op_where(tape, c, NULL, x));
    assert_raises("op_where: b is NULL", op_where(tape, c, x, NULL));
    assert_raises("op_where: condition has dtype int32, expected Real",
                  op_where(tape, integers, x, x));
    assert_raises("op_where: the shapes do not fit: condition is [2,3], a is [3], b is [2,2]; "
                  "expected sizes that are equal or 1, aligned at the last axis",
                  op_where(tape, c, x, tape_input(tape, values, shape(2, 2))));
    assert_raises("op_where: the shapes do not fit: condition is [2,3], a is [4,3], b is [3]; "
                  "expected sizes that are equal or 1, aligned at the last axis",
                  op_where(tape, c, tape_input(tape, values, shape(4, 3)), x));
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ broadcast */
TEST(values_of_broadcast_to)
{
    const Shape shapes[][2] = {
        { shape_scalar(), shape(2, 3) },      { shape(5), shape(2, 3, 5) },
        { shape(3, 1), shape(3, 1) },         { shape(3, 1), shape(2, 3, 4) },
        { shape(2, 1, 5), shape(2, 700, 5) }, { shape(2, 1, 4, 1), shape(2, 3, 4, 500) },
    };
    begin();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const Shape of = shapes[s][0], to = shapes[s][1];
        Real *x = test_normal(1, shape_count(of));
        Tensor *out = op_broadcast_to(tape, tape_input(tape, x, of), to);
        ck_assert(shape_equal(out->shape, to));
        Real *values = test_values(out);
        for (int64_t i = 0; i < shape_count(to); i++)
            ck_assert_msg(values[i] == x[broadcast_offset(of, to, i)], "%s to %s, element %lld",
                          shape_text(of).text, shape_text(to).text, (long long)i);
    }
    tape_free(tape);
}

TEST(misuse_of_broadcast_to_raises)
{
    const Real values[6] = { 0 };
    begin();
    Tensor *x = tape_input(tape, values, shape(2, 3));
    assert_raises("op_broadcast_to: x is NULL", op_broadcast_to(tape, NULL, shape(2)));
    const Shape wrong[] = { shape_scalar(), shape(3), shape(2, 6), shape(2, 3, 1), shape(4, 3) };
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        char sentence[256];
        snprintf(sentence, sizeof sentence,
                 "op_broadcast_to: x is [2,3], which does not fit %s; expected sizes that are "
                 "equal or 1, aligned at the last axis",
                 shape_text(wrong[w]).text);
        assert_raises(sentence, op_broadcast_to(tape, x, wrong[w]));
    }
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------- all of them */
/* The gradient of an element that is repeated 100000 times keeps its last digits. */
TEST(gradients_of_repeats_are_accurate)
{
    enum { ROWS = 100000, COLUMNS = 3 };
    begin();
    for (int columns = 1; columns <= COLUMNS; columns += COLUMNS - 1) {
        int64_t n = (int64_t)ROWS * columns;
        Real *upstream = test_normal(5, n);
        Tensor *a = tape_input(tape, test_normal(6, n), shape(ROWS, columns));
        Tensor *b = tape_variable(tape, test_normal(7, columns), shape(columns));
        tape_backward_from(tape, op_add(tape, a, b), tape_input(tape, upstream, a->shape));
        Real *db = test_values(tensor_gradient(b));
        for (int c = 0; c < columns; c++) {
            double exact = 0;
            for (int64_t r = 0; r < ROWS; r++)
                exact += (double)upstream[r * columns + c];
            ck_assert_double_eq_tol((double)db[c], exact,
                                    (sizeof(Real) == 4 ? 1e-7 : 1e-11) * fabs(exact));
        }
        tape_reset(tape);
    }
    tape_free(tape);
}

int main(void)
{
    return test_main("elementwise", NULL, NULL);
}
