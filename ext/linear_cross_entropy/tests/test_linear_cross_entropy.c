/* op_linear_cross_entropy beside op_linear and op_cross_entropy. */
#include "tests/support.h"

#include <math.h>
#include <string.h>

enum { D = 24, V = 70, FEW = 40, MANY = 1300 /* three blocks */ };

/* Inputs x [R, D], weight [V, D], bias [V] with the targets r^2 % V; every third row has the weight
 * 0, others 1 and 2. */
typedef struct Rows {
    int64_t R;
    bool one_operation, recomputed;
} Rows;

static Tensor *loss_of(Tape *tape, Tensor *x, Tensor *const *inputs, const Rows *rows)
{
    static int32_t targets[MANY];
    static Real weights[MANY];
    for (int64_t r = 0; r < rows->R; r++) {
        targets[r] = (int32_t)(r * r % V);
        weights[r] = (Real)(r % 3);
    }
    Tensor *t = tape_input_i32(tape, targets, shape(rows->R));
    Tensor *w = tape_input(tape, weights, shape(rows->R));
    if (rows->one_operation)
        return op_linear_cross_entropy(tape, x, inputs[1], inputs[2], t, w);
    return op_cross_entropy(tape, op_linear(tape, x, inputs[1], inputs[2]), t, w);
}

typedef struct Recomputed {
    Tensor *const *inputs;
    Rows rows;
} Recomputed;

static Tensor *loss_again(Tape *tape, Tensor *x, const void *context)
{
    const Recomputed *recomputed = context;
    return loss_of(tape, x, recomputed->inputs, &recomputed->rows);
}

static Tensor *checked(Tape *tape, Tensor *const *inputs, void *context)
{
    const Rows *rows = context;
    if (!rows->recomputed)
        return loss_of(tape, inputs[0], inputs, rows);
    const Recomputed recomputed = { inputs, *rows };
    return tape_recompute(tape, loss_again, inputs[0], &recomputed, sizeof recomputed);
}

static Outcome outcome_of(Rows rows)
{
    const CheckInput inputs[] = { { shape(rows.R, D), test_normal(1, rows.R * D) },
                                  { shape(V, D), test_normal(2, (int64_t)V * D) },
                                  { shape(V), test_normal(3, V) } };
    return test_outcome(NULL, 1, checked, &rows, inputs, 3);
}

TEST(loss_and_gradients_equal_those_of_the_two_operations)
{
    for (int many = 0; many < 2; many++) {
        const int64_t R = many ? MANY : FEW;
        const Outcome one = outcome_of((Rows){ .R = R, .one_operation = true });
        const Outcome two = outcome_of((Rows){ .R = R });
        assert_outcomes_near("one operation", &one, &two, VALUE_TOLERANCE);
    }
}

TEST(recomputed_gradients_are_bitwise_equal)
{
    for (int many = 0; many < 2; many++) {
        const int64_t R = many ? MANY : FEW;
        const Outcome a = outcome_of((Rows){ .R = R, .one_operation = true });
        const Outcome b = outcome_of((Rows){ .R = R, .one_operation = true, .recomputed = true });
        ck_assert_int_eq(a.count, b.count);
        for (int i = 0; i < a.count; i++)
            assert_identical(a.values[i], b.values[i], a.counts[i]);
    }
}

/* In a language model whose input embedding is the output layer's weight. */
TEST(a_tied_weight_gets_both_gradients)
{
    Real *gradients[2];
    for (int one = 0; one < 2; one++) {
        Params *params = params_new(test_device(), 1);
        const Embedding tokens = nn_embedding(params, "tokens", V, D);
        Tape *tape = tape_new(test_device());
        int32_t ids[MANY];
        for (int r = 0; r < MANY; r++)
            ids[r] = r * 7 % V;
        Tensor *targets = tape_input_i32(tape, ids, shape(MANY));
        Tensor *x = op_tanh(tape, nn_embedding_forward(tape, &tokens, targets));
        Tensor *loss =
            one ? op_linear_cross_entropy(tape, x, tokens.weight, NULL, targets, NULL)
                : op_cross_entropy(tape, op_linear(tape, x, tokens.weight, NULL), targets, NULL);
        tape_backward(tape, loss);
        gradients[one] = test_values(tensor_gradient(tokens.weight));
        tape_free(tape);
        params_free(params);
    }
    assert_close(gradients[1], gradients[0], (int64_t)V * D, VECTOR_TOLERANCE);
}

/* Each argument alone requires a gradient; then none does, and nothing is recorded. */
TEST(arguments_without_gradients_are_constants)
{
    Tape *tape = tape_new(test_device());
    for (int alone = 0; alone <= 3; alone++) {
        Real *const values[] = { test_normal(1, (int64_t)MANY * D), test_normal(2, (int64_t)V * D),
                                 test_normal(3, V) };
        const Shape shapes[] = { shape(MANY, D), shape(V, D), shape(V) };
        Real *found = NULL;
        for (int one = 0; one < 2; one++) {
            Tensor *inputs[3];
            for (int i = 0; i < 3; i++)
                inputs[i] = i == alone ? tape_variable(tape, values[i], shapes[i])
                                       : tape_input(tape, values[i], shapes[i]);
            const Rows rows = { .R = MANY, .one_operation = one };
            Tensor *loss = loss_of(tape, inputs[0], inputs, &rows);
            ck_assert_int_eq(tape_has_recorded(tape), alone < 3);
            if (alone < 3) {
                tape_backward(tape, loss);
                Real *gradient = test_values(tensor_gradient(inputs[alone]));
                if (one)
                    assert_close(gradient, found, shape_count(shapes[alone]), VALUE_TOLERANCE);
                found = gradient;
            }
            tape_reset(tape);
        }
    }
    tape_free(tape);
}

/* All logits and their gradient, 2 R C Reals, would be 14 times the limit. */
TEST(memory_does_not_grow_with_the_logits)
{
    enum { R = 8192, C = 600, WIDTH = 4 };
    Tape *tape = tape_new(test_device());
    Tensor *x = test_variable(tape, 1, shape(R, WIDTH));
    Tensor *weight = test_variable(tape, 2, shape(C, WIDTH));
    Tensor *targets =
        tape_input_i32(tape, (const int32_t *)test_zeros(R), shape(R)); /* class 0: 0 bits */
    device_reset_peak(test_device());
    const size_t before = device_memory(test_device()).current;
    tape_backward(tape, op_linear_cross_entropy(tape, x, weight, NULL, targets, NULL));
    const size_t bytes = device_memory(test_device()).peak - before;
    ck_assert_uint_le(bytes, (size_t)R * C * 2 / 14 * sizeof(Real));
    tape_free(tape);
}

/* As in op_cross_entropy, one row of weight 0 may have any finite x; all of a block may be 0. */
TEST(rows_of_weight_0_are_ignored)
{
    Tape *tape = tape_new(test_device());
    Real *xs = test_normal(1, (int64_t)MANY * D), *weights = test_zeros(MANY);
    double losses[2];
    for (int changed = 0; changed < 2; changed++) {
        for (int r = MANY - 20; r < MANY; r++)
            weights[r] = 1;
        for (int i = 0; changed && i < (MANY - 20) * D; i++)
            xs[i] = (Real)1e4;
        Tensor *x = tape_variable(tape, xs, shape(MANY, D));
        Tensor *loss = op_linear_cross_entropy(
            tape, x, test_variable(tape, 2, shape(V, D)), NULL,
            tape_input_i32(tape, (const int32_t *)test_zeros(MANY), shape(MANY)),
            tape_input(tape, weights, shape(MANY)));
        losses[changed] = tensor_item(loss);
        tape_backward(tape, loss);
        const Real *dx = test_values(tensor_gradient(x));
        for (int i = 0; i < (MANY - 20) * D; i++)
            ck_assert(dx[i] == 0);
        tape_reset(tape);
    }
    ck_assert(losses[0] == losses[1] && losses[0] > 0);
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_raises)
{
    Tape *tape = tape_new(test_device());
    const int32_t high[] = { 0, 1, 7 };
    const Real zeros[] = { 0, 0, 0 }, negative[] = { 1, -1, 0 };
    Tensor *x = test_variable(tape, 1, shape(3, 5)), *w = test_variable(tape, 2, shape(7, 5));
    Tensor *t = tape_input_i32(tape, (const int32_t *)test_zeros(3), shape(3));
#define CALL(...) op_linear_cross_entropy(tape, __VA_ARGS__)
    assert_raises("op_linear_cross_entropy: x is NULL", CALL(NULL, w, NULL, t, NULL));
    assert_raises("op_linear_cross_entropy: weight is NULL", CALL(x, NULL, NULL, t, NULL));
    assert_raises("op_linear_cross_entropy: targets is NULL", CALL(x, w, NULL, NULL, NULL));
    assert_raises("op_linear_cross_entropy: weight is [7], expected two axes, [V, D]",
                  CALL(x, test_variable(tape, 2, shape(7)), NULL, t, NULL));
    assert_raises("op_linear_cross_entropy: x is [3,5], expected 4 in its last axis: weight is "
                  "[7,4]",
                  CALL(x, test_variable(tape, 2, shape(7, 4)), NULL, t, NULL));
    assert_raises("op_linear_cross_entropy: bias is [5], expected [7]: weight is [7,5]",
                  CALL(x, w, test_variable(tape, 2, shape(5)), t, NULL));
    assert_raises("op_linear_cross_entropy: targets is [1,3], expected [3]: x is [3,5]",
                  CALL(x, w, NULL, op_reshape(tape, t, shape(1, 3)), NULL));
    assert_raises("op_linear_cross_entropy: targets[2] is 7, expected 0 to 6, the rows of weight",
                  CALL(x, w, NULL, tape_input_i32(tape, high, shape(3)), NULL));
    assert_raises("op_linear_cross_entropy: weights is [1], expected [3]: x is [3,5]",
                  CALL(x, w, NULL, t, tape_input(tape, zeros, shape(1))));
    assert_raises("op_linear_cross_entropy: weights[1] is -1, expected 0 or more",
                  CALL(x, w, NULL, t, tape_input(tape, negative, shape(3))));
    assert_raises("op_linear_cross_entropy: the weights of all 3 rows are 0, expected one above",
                  CALL(x, w, NULL, t, tape_input(tape, zeros, shape(3))));
    tape_free(tape);
}

int main(void)
{
    return test_main("linear_cross_entropy", NULL, NULL);
}
