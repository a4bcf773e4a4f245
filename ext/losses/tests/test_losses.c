/* The losses of ext/losses against formulas in double, each other, and op_cross_entropy. */
#include "tests/support.h"

#include <math.h>

enum { R = 5, C = 4 };

static Tape *tape;

/* The gradient of a loss of x, which must be finite. */
static const Real *gradient_of(Tensor *loss, Tensor *x)
{
    tensor_keep(loss);
    tape_backward(tape, loss);
    ck_assert(isfinite(tensor_item(loss)));
    return test_values(tensor_gradient(x));
}

/* -------------------------------------------------------------------------------- special cases */
static const int32_t classes[R] = { 2, 0, 3, 3, 1 };
static const Real weights[R] = { 1, 0, 2, (Real)0.5, 3 };

TEST(soft_targets_of_one_class_give_cross_entropy)
{
    tape = tape_new(test_device());
    for (int weighted = 0; weighted < 2; weighted++, tape_reset(tape)) {
        Tensor *w = weighted ? tape_input(tape, weights, shape(R)) : NULL;
        Tensor *targets = tape_input_i32(tape, classes, shape(R));
        Tensor *x = test_variable(tape, 1, shape(R, C)), *y = test_variable(tape, 1, shape(R, C));
        Tensor *hard = op_cross_entropy(tape, x, targets, w);
        Tensor *soft = op_soft_cross_entropy(tape, y, op_one_hot(tape, targets, C), w);
        const double expected = tensor_item(hard);
        ck_assert_double_eq_tol(tensor_item(soft), expected, 1e-6);
        tape_backward(tape, op_add(tape, hard, soft));
        assert_close(test_values(tensor_gradient(y)), test_values(tensor_gradient(x)), R * C, 1e-5);
    }
    tape_free(tape);
}

/* q_c = (1 - e) [c = t] + e / C */
static Tensor *smoothed_targets(double e)
{
    Real q[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            q[r][c] = (Real)((1 - e) * (c == classes[r]) + e / C);
    return tape_input(tape, q[0], shape(R, C));
}

TEST(smoothing_is_a_mixture_with_uniform_targets)
{
    static const double smoothing[] = { 0.1, 0.5, 1 };
    tape = tape_new(test_device());
    for (int i = 0; i < 3; i++, tape_reset(tape)) {
        Tensor *w = tape_input(tape, weights, shape(R));
        Tensor *targets = tape_input_i32(tape, classes, shape(R));
        Tensor *x = test_variable(tape, 1, shape(R, C)), *y = test_variable(tape, 1, shape(R, C));
        Tensor *smoothed = op_smoothed_cross_entropy(tape, x, targets, smoothing[i], w);
        Tensor *soft = op_soft_cross_entropy(tape, y, smoothed_targets(smoothing[i]), w);
        ck_assert_double_eq_tol(tensor_item(smoothed), tensor_item(soft), 1e-6);
        tape_backward(tape, op_add(tape, smoothed, soft));
        assert_close(test_values(tensor_gradient(x)), test_values(tensor_gradient(y)), R * C, 1e-5);
    }
    tape_free(tape);
}

TEST(no_smoothing_is_bitwise_cross_entropy)
{
    tape = tape_new(test_device());
    Tensor *targets = tape_input_i32(tape, classes, shape(R)),
           *x = test_variable(tape, 1, shape(R, C));
    ck_assert(tensor_item(op_smoothed_cross_entropy(tape, x, targets, 0, NULL)) ==
              tensor_item(op_cross_entropy(tape, x, targets, NULL)));
    tape_free(tape);
}

/* The probability of yes is that of the first of the classes with logits x and 0. */
TEST(a_binary_target_is_one_of_two_classes)
{
    tape = tape_new(test_device());
    static const Real yes[R] = { 1, 0, 0, 1, 1 };
    Tensor *x = test_variable(tape, 2, shape(R)), *w = tape_input(tape, weights, shape(R));
    int32_t class[R];
    for (int r = 0; r < R; r++)
        class[r] = yes[r] == 0;
    Tensor *binary = op_binary_cross_entropy(tape, x, tape_input(tape, yes, shape(R)),
                                             (BinaryCrossEntropyOptions){ .weights = w });
    Tensor *both[] = { x, op_scale(tape, x, 0) };
    Tensor *two = op_cross_entropy(tape, op_stack(tape, both, 2, 1),
                                   tape_input_i32(tape, class, shape(R)), w);
    ck_assert_double_eq_tol(tensor_item(binary), tensor_item(two), 1e-6);
    tape_free(tape);
}

TEST(rank_0_is_one_logit_or_one_row)
{
    tape = tape_new(test_device());
    static const int32_t class = 1;
    const Real half = (Real)0.5;
    Tensor *x = test_variable(tape, 3, shape_scalar()), *row = test_variable(tape, 3, shape(C));
    Tensor *t = tape_input(tape, &half, shape_scalar());
    Tensor *target = tape_input_i32(tape, &class, shape_scalar());
    const double value = (double)test_values(x)[0];
    const double expected = (log1p(exp(-value)) + log1p(exp(value))) / 2;
    BinaryCrossEntropyOptions options = { .weights = t, .positive_weights = NULL };
    ck_assert_double_eq_tol(tensor_item(op_binary_cross_entropy(tape, x, t, options)), expected,
                            1e-6);
    ck_assert_double_eq_tol(tensor_item(op_smoothed_cross_entropy(tape, row, target, 1e-9, t)),
                            tensor_item(op_cross_entropy(tape, row, target, NULL)), 1e-6);
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ stability */

/* Of logits far from 0 a wrong answer costs |x|, and a right one e^-|x|, with a relative error. */
TEST(large_logits_keep_their_digits)
{
    static const Real x[] = { 80, -80, 80, -80, 12, -12, 0 }, t[] = { 1, 0, 0, 1, 1, 0, 1 };
    const double expected[] = {
        exp(-80), exp(-80), 80, 80, log1p(exp(-12)), log1p(exp(-12)), log(2)
    };
    const double derivatives[] = { -exp(-80),          exp(-80),          1,   -1,
                                   -1 / (1 + exp(12)), 1 / (1 + exp(12)), -0.5 };
    tape = tape_new(test_device());
    for (int i = 0; i < 7; i++, tape_reset(tape)) {
        Tensor *logit = tape_variable(tape, &x[i], shape(1));
        Tensor *target = tape_input(tape, &t[i], shape(1));
        Tensor *loss =
            op_binary_cross_entropy(tape, logit, target, (BinaryCrossEntropyOptions){ NULL, NULL });
        const double gradient = (double)gradient_of(loss, logit)[0];
        ck_assert_double_le(fabs(tensor_item(loss) - expected[i]), 1e-6 * expected[i] + 1e-37);
        ck_assert_double_le(fabs(gradient - derivatives[i]), 1e-6 * fabs(derivatives[i]) + 1e-37);
    }
    static const Real rows[2][3] = { { 1000, 0, -1000 }, { -1000, -1000, -1001 } };
    static const Real targets[2][3] = { { (Real)0.5, (Real)0.25, (Real)0.25 }, { 0, 1, 0 } };
    Tensor *logits = tape_variable(tape, rows[0], shape(2, 3));
    Tensor *loss =
        op_soft_cross_entropy(tape, logits, tape_input(tape, targets[0], shape(2, 3)), NULL);
    gradient_of(loss, logits);
    const double second = log(2 + exp(-1));
    ck_assert_double_eq_tol(tensor_item(loss), (0.25 * 1000 + 0.25 * 2000 + second) / 2, 1e-4);
    tape_free(tape);
}

/* A row of weight 0 may hold anything. */
static Tensor *loss_with(int which, const Real *x, const Real *t, Tensor **logits, Tensor **targets)
{
    Tensor *w = tape_input(tape, weights, shape(R));
    *logits = tape_variable(tape, x, shape(R, C));
    *targets = tape_variable(tape, t, shape(R, C));
    if (which == 0)
        return op_soft_cross_entropy(tape, *logits, *targets, w);
    if (which == 1)
        return op_add(tape, op_scale(tape, op_mean(tape, *targets, ALL_AXES), 0),
                      op_smoothed_cross_entropy(tape, *logits,
                                                tape_input_i32(tape, classes, shape(R)), 0.25, w));
    Tensor *all = op_broadcast_to(tape, op_reshape(tape, w, shape(R, 1)), shape(R, C));
    return op_binary_cross_entropy(tape, *logits, *targets,
                                   (BinaryCrossEntropyOptions){ .weights = all });
}

TEST(rows_of_weight_0_are_ignored)
{
    static const Real hostile[] = { (Real)NAN, (Real)INFINITY, -(Real)INFINITY };
    tape = tape_new(test_device());
    for (int which = 0; which < 3; which++)
        for (int bad = 0; bad < 3; bad++) {
            Real *x = test_normal(1, R * C), *t = test_normal(2, R * C);
            Tensor *logits, *targets;
            Tensor *loss = loss_with(which, x, t, &logits, &targets);
            const Real *expected = gradient_of(loss, logits);
            const double value = tensor_item(loss);
            tape_reset(tape);
            for (int c = 0; c < C; c++) {
                x[C + c] = hostile[bad];
                if (which != 1)
                    t[C + c] = hostile[bad];
            }
            loss = loss_with(which, x, t, &logits, &targets);
            const Real *gradient = gradient_of(loss, logits);
            ck_assert(tensor_item(loss) == value);
            assert_identical(gradient, expected, R * C);
            for (int c = 0; c < C; c++) {
                ck_assert(gradient[C + c] == 0);
                ck_assert(test_values(tensor_gradient(targets))[C + c] == 0);
            }
            tape_reset(tape);
        }
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ replaying */
typedef struct Step {
    Tape *tape;
    Tensor *x, *t, *w, *classes, *losses[3];
} Step;

static Step step_new(void)
{
    Step s = { .tape = tape_new(test_device()) };
    s.x = tape_persistent_variable(s.tape, TENSOR_REAL, shape(R, C));
    s.t = tape_persistent(s.tape, shape(R, C));
    s.w = tape_persistent(s.tape, shape(R));
    s.classes = tape_persistent_i32(s.tape, shape(R));
    tensor_write(s.w, weights);
    tensor_write_i32(s.classes, classes);
    return s;
}

static void loss_step(void *context)
{
    Step *s = context;
    s->losses[0] = op_soft_cross_entropy(s->tape, s->x, s->t, s->w);
    s->losses[1] = op_smoothed_cross_entropy(s->tape, s->x, s->classes, 0.1, s->w);
    s->losses[2] =
        op_binary_cross_entropy(s->tape, s->x, s->t, (BinaryCrossEntropyOptions){ NULL, NULL });
    for (int i = 0; i < 3; i++)
        tensor_keep(s->losses[i]);
    Tensor *sum = op_add(s->tape, s->losses[0], s->losses[1]);
    tape_backward(s->tape, op_add(s->tape, sum, s->losses[2]));
}

TEST(replayed_steps_are_the_same)
{
    Step eager = step_new(), replayed = step_new();
    for (int i = 0; i < 4; i++) {
        Step *const steps[] = { &eager, &replayed };
        for (int k = 0; k < 2; k++) {
            tensor_write(steps[k]->x, test_normal((uint64_t)i, R * C));
            tensor_write(steps[k]->t, test_normal((uint64_t)i + 9, R * C));
        }
        tape_reset(eager.tape);
        loss_step(&eager);
        tape_replay(replayed.tape, loss_step, &replayed);
        for (int k = 0; k < 3; k++)
            ck_assert(tensor_item(eager.losses[k]) == tensor_item(replayed.losses[k]));
        assert_identical(test_values(tensor_gradient(replayed.x)),
                         test_values(tensor_gradient(eager.x)), R * C);
    }
    tape_free(eager.tape);
    tape_free(replayed.tape);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_of_soft_and_smoothed_raises)
{
    tape = tape_new(test_device());
    static const Real zeros[R] = { 0 }, negative[R] = { 1, -1, 0, 0, 0 };
    Tensor *x = test_variable(tape, 1, shape(R, C)), *t = test_variable(tape, 2, shape(R, C));
    Tensor *scalar = test_variable(tape, 3, shape_scalar()),
           *row = test_variable(tape, 3, shape(C));
    Tensor *integers = tape_input_i32(tape, classes, shape(R));
    Tensor *none = tape_input(tape, zeros, shape(R)), *bad = tape_input(tape, negative, shape(R));
    assert_raises("op_soft_cross_entropy: logits is NULL",
                  op_soft_cross_entropy(tape, NULL, t, NULL));
    assert_raises("op_soft_cross_entropy: targets has dtype int32, expected Real",
                  op_soft_cross_entropy(tape, x, integers, NULL));
    assert_raises("op_soft_cross_entropy: logits is a scalar, expected one axis at least",
                  op_soft_cross_entropy(tape, scalar, scalar, NULL));
    assert_raises("op_soft_cross_entropy: shapes differ: logits is [5,4], targets is [4]",
                  op_soft_cross_entropy(tape, x, row, NULL));
    assert_raises("op_soft_cross_entropy: weights is [4], expected [5]: logits is [5,4]",
                  op_soft_cross_entropy(tape, x, t, tape_input(tape, weights, shape(C))));
    assert_raises(
        "op_soft_cross_entropy: weights requires a gradient, which it does not get; "
        "compute it without recording",
        op_soft_cross_entropy(tape, x, t, op_exp(tape, test_variable(tape, 1, shape(R)))));
    assert_raises("op_smoothed_cross_entropy: weights requires a gradient, which it does not get; "
                  "compute it without recording",
                  op_smoothed_cross_entropy(tape, x, integers, 0.1,
                                            op_exp(tape, test_variable(tape, 1, shape(R)))));
    assert_raises("op_soft_cross_entropy: weights[1] is -1, expected 0 or more",
                  op_soft_cross_entropy(tape, x, t, bad));
    assert_raises("op_soft_cross_entropy: weights: all are 0, expected one above",
                  op_soft_cross_entropy(tape, x, t, none));
    assert_raises("op_smoothed_cross_entropy: weights: all are 0, expected one above",
                  op_smoothed_cross_entropy(tape, x, integers, 0, none));
    assert_raises(
        "op_smoothed_cross_entropy: targets[2] is 3, expected 0 to 2, the classes of "
        "logits",
        op_smoothed_cross_entropy(tape, test_variable(tape, 1, shape(R, 3)), integers, 0.1, NULL));
    assert_raises("op_smoothed_cross_entropy: smoothing is 1.5, expected 0 to 1",
                  op_smoothed_cross_entropy(tape, x, integers, 1.5, NULL));
    assert_raises("op_smoothed_cross_entropy: smoothing is -0.1, expected 0 to 1",
                  op_smoothed_cross_entropy(tape, x, integers, -0.1, NULL));
    assert_raises("op_smoothed_cross_entropy: smoothing is nan, expected 0 to 1",
                  op_smoothed_cross_entropy(tape, x, integers, NAN, NULL));
    tape_free(tape);
}

TEST(misuse_of_binary_cross_entropy_raises)
{
    tape = tape_new(test_device());
    static const Real zeros[R] = { 0 }, negative[R] = { 1, -1, 0, 0, 0 };
    const BinaryCrossEntropyOptions defaults = { NULL, NULL };
    Tensor *x = test_variable(tape, 1, shape(R)), *ones = op_exp(tape, op_scale(tape, x, 0));
    const Real many[2 * R] = { 1 };
    Tensor *two = tape_input(tape, weights, shape(2));
    Tensor *wide = tape_input(tape, many, shape(2, R));
    BinaryCrossEntropyOptions none = { .weights = tape_input(tape, zeros, shape(R)) };
    BinaryCrossEntropyOptions bad = { .positive_weights = tape_input(tape, negative, shape(R)) };
    assert_raises("op_binary_cross_entropy: targets is NULL",
                  op_binary_cross_entropy(tape, x, NULL, defaults));
    assert_raises(
        "op_binary_cross_entropy: targets has dtype int32, expected Real",
        op_binary_cross_entropy(tape, x, tape_input_i32(tape, classes, shape(R)), defaults));
    assert_raises("op_binary_cross_entropy: shapes differ: logits is [5], targets is [2]",
                  op_binary_cross_entropy(tape, x, two, defaults));
    assert_raises(
        "op_binary_cross_entropy: weights is [2], expected [5]: logits is [5]",
        op_binary_cross_entropy(tape, x, ones, (BinaryCrossEntropyOptions){ .weights = two }));
    assert_raises(
        "op_binary_cross_entropy: weights requires a gradient, which it does not get; "
        "compute it without recording",
        op_binary_cross_entropy(tape, x, ones, (BinaryCrossEntropyOptions){ .weights = ones }));
    assert_raises("op_binary_cross_entropy: positive_weights requires a gradient, which it does "
                  "not get; compute it without recording",
                  op_binary_cross_entropy(tape, x, ones,
                                          (BinaryCrossEntropyOptions){ .positive_weights = ones }));
    assert_raises("op_binary_cross_entropy: weights: all are 0, expected one above",
                  op_binary_cross_entropy(tape, x, ones, none));
    assert_raises("op_binary_cross_entropy: positive_weights[1] is -1, expected 0 or more",
                  op_binary_cross_entropy(tape, x, ones, bad));
    assert_raises("op_binary_cross_entropy: positive_weights is [2,5], logits is [5], expected a "
                  "shape that broadcasts to that of logits",
                  op_binary_cross_entropy(tape, x, ones,
                                          (BinaryCrossEntropyOptions){ .positive_weights = wide }));
    tape_free(tape);
}

int main(void)
{
    return test_main("losses", NULL, NULL);
}
