/* gradient_check finds wrong backward functions and names their pattern; right ones pass. */
#include "tests/support.h"

#include <math.h>

/* An operation of rows x [R, C]: softmax, or x minus its row's mean, whose backward function has
 * one fault. */
typedef enum Fault {
    NONE,
    TIMES,        /* multiplied by a factor */
    TRANSPOSED,   /* stored column by column */
    FORGETS_LAST, /* leaves the last column unwritten */
    FORGETS_END,  /* leaves the last two elements unwritten */
    SKIPS_ZEROED, /* skips the first row of a zeroed buffer */
    NO_SUM,       /* lacks the sum, or mean, over the row */
} Fault;

typedef struct Rows {
    bool is_softmax;
    Fault fault;
    double factor;
} Rows;

/* dL/dx_c of a row: out_c (g_c - sum g out), or g_c - mean g */
static double derivative(const Rows *rows, const Real *g, const Real *out, int64_t C, int64_t c)
{
    double sum = 0;
    for (int64_t k = 0; k < C && rows->fault != NO_SUM; k++)
        sum += (double)g[k] * (rows->is_softmax ? (double)out[k] : 1 / (double)C);
    return ((double)g[c] - sum) * (rows->is_softmax ? (double)out[c] : 1);
}

static void rows_backward(Node *node)
{
    const Rows *rows = node->attributes;
    Tensor *x = node->inputs[0];
    const Fault fault = rows->fault;
    const int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    const Real *g = tape_upstream(node, 0), *out = node->outputs[0]->data;
    Gradient dx =
        fault == SKIPS_ZEROED ? tape_scattered_contribution(node, x) : tape_contribution(node, x);
    for (int64_t i = 0; i < R * C; i++) {
        const int64_t r = i / C, c = i % C;
        if ((fault == FORGETS_LAST && c == C - 1) || (fault == FORGETS_END && i >= R * C - 2) ||
            (fault == SKIPS_ZEROED && r == 0))
            continue;
        const double value = derivative(rows, g + r * C, out + r * C, C, c);
        gradient_add(dx, fault == TRANSPOSED ? c * R + r : i,
                     (Real)(fault == TIMES ? rows->factor * value : value));
    }
}

static Tensor *of_rows(Tape *tape, Tensor *const *inputs, void *context)
{
    const Rows *rows = context;
    Tensor *x = inputs[0];
    tape_use_cpu(tape, "rows: x", x);
    const int64_t C = shape_columns(x->shape);
    Tensor *out = tape_tensor(tape, x->shape);
    for (int64_t i = 0; i < tensor_count(x); i++) {
        const Real *row = x->data + i / C * C;
        double sum = 0;
        for (int64_t c = 0; c < C; c++)
            sum += rows->is_softmax ? exp((double)row[c]) : (double)row[c] / (double)C;
        out->data[i] =
            (Real)(rows->is_softmax ? exp((double)x->data[i]) / sum : (double)x->data[i] - sum);
    }
    tape_record(tape, (Node){ .name = "rows",
                              .backward = rows_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .attributes = tape_save(tape, rows, sizeof *rows) });
    return out;
}

static GradientCheck check_rows(bool is_softmax, Fault fault, double factor)
{
    Rows rows = { is_softmax, fault, factor };
    const CheckInput input = { shape(3, 5), test_normal(1, 15) };
    return gradient_check(device_open("cpu"), of_rows, &rows, &input, 1);
}

static void assert_pattern(bool is_softmax, Fault fault, double factor, const char *pattern)
{
    const GradientCheck found = check_rows(is_softmax, fault, factor);
    ck_assert_msg(!(found.error <= GRADIENT_TOLERANCE), "fault %d: the error is %g", fault,
                  found.error);
    ck_assert_str_eq(found.pattern, pattern);
}

TEST(a_right_gradient_passes_and_has_no_pattern)
{
    for (int is_softmax = 0; is_softmax < 2; is_softmax++) {
        const GradientCheck right = check_rows(is_softmax, NONE, 0);
        ck_assert_msg(right.error >= 0 && right.error <= GRADIENT_TOLERANCE, "%g", right.error);
        ck_assert_str_eq(right.pattern, "");
    }
}

TEST(a_constant_ratio_is_named)
{
    for (int is_softmax = 0; is_softmax < 2; is_softmax++) {
        assert_pattern(is_softmax, TIMES, -1, "-1 times the differences");
        assert_pattern(is_softmax, TIMES, 2, "2 times the differences");
        assert_pattern(is_softmax, TIMES, 0.5, "0.5 times the differences");
        assert_pattern(is_softmax, TIMES, 5, "5 times the differences");
        assert_pattern(is_softmax, TIMES, 0.98, "0.98 times the differences");
    }
}

TEST(a_transposed_gradient_is_named)
{
    assert_pattern(true, TRANSPOSED, 0, "the transpose of the differences");
    assert_pattern(false, TRANSPOSED, 0, "the transpose of the differences");
}

/* The memory holds the right gradient, of the same operation before: the pool reuses it. */
TEST(elements_never_written_are_found_on_recycled_memory)
{
    for (int is_softmax = 0; is_softmax < 2; is_softmax++) {
        check_rows(is_softmax, NONE, 0);
        assert_pattern(is_softmax, FORGETS_LAST, 0, "3 of 15 elements are NaN: never written?");
        assert_pattern(is_softmax, FORGETS_END, 0,
                       "the last 2 of 15 elements are NaN: never written?");
        assert_pattern(is_softmax, SKIPS_ZEROED, 0, "5 of 15 elements are 0: never written?");
    }
}

TEST(a_missing_sum_over_a_row_is_named)
{
    assert_pattern(true, NO_SUM, 0, "off by a multiple of out in each row");
    assert_pattern(false, NO_SUM, 0, "off by a constant in each row");
}

/* A difference that resembles none of these */
TEST(another_fault_has_no_pattern)
{
    Rows rows = { true, NO_SUM, 0 };
    const CheckInput input = { shape(3, 2), test_normal(1, 6) };
    const GradientCheck found = gradient_check(device_open("cpu"), of_rows, &rows, &input, 1);
    ck_assert(found.error > GRADIENT_TOLERANCE);
    ck_assert_str_eq(found.pattern, "");
}

/* 30 a, whose gradient is right, plus a wrong softmax of b */
static Tensor *beside_a_large_one(Tape *tape, Tensor *const *inputs, void *context)
{
    return op_add(tape, op_scale(tape, inputs[0], 30), of_rows(tape, inputs + 1, context));
}

TEST(a_small_gradient_beside_a_large_one_is_checked)
{
    Rows rows = { false, TIMES, 0.97 };
    const CheckInput inputs[] = { { shape(3, 5), test_normal(1, 15) },
                                  { shape(3, 5), test_normal(2, 15) } };
    GradientCheck found = gradient_check(device_open("cpu"), beside_a_large_one, &rows, inputs, 2);
    ck_assert_msg(found.error > 3 * GRADIENT_TOLERANCE, "%g", found.error);
    ck_assert_int_eq(found.input, 1);
    rows.factor = 1;
    found = gradient_check(device_open("cpu"), beside_a_large_one, &rows, inputs, 2);
    ck_assert_msg(found.error <= GRADIENT_TOLERANCE, "%g", found.error);
}

/* Gradients of 0 and rounding errors: softmax of one column is 1. */
TEST(a_gradient_of_zero_passes)
{
    Rows rows = { true, NONE, 0 };
    const CheckInput input = { shape(4, 1), test_normal(1, 4) };
    GradientCheck found = gradient_check(device_open("cpu"), of_rows, &rows, &input, 1);
    ck_assert_msg(found.error >= 0 && found.error <= GRADIENT_TOLERANCE, "%g", found.error);
    rows.is_softmax = false; /* out is 0 too */
    found = gradient_check(device_open("cpu"), of_rows, &rows, &input, 1);
    ck_assert_msg(found.error >= 0 && found.error <= GRADIENT_TOLERANCE, "%g", found.error);
}

int main(void)
{
    return test_main("gradient_check", NULL, NULL);
}
