/* Products in bf16 against loops in double: with the processor's instructions, and by conversion.
 * Operands are exact in bf16, so a result differs from the exact one only by the rounding of its
 * float32 sum and, if it is bf16, by one rounding to bf16. */
#include "tests/support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef TAPEGRAD_DOUBLE

#ifdef TAPEGRAD_ONEDNN
#include <dnnl.h>
#endif

/* count matrices, step elements apart, of elements row and column elements apart. */
typedef struct View {
    const Real *data;
    int64_t step, row, column;
} View;

static View transposed(View x)
{
    return (View){ x.data, x.step, x.column, x.row };
}

/* found [n, m], before (or 0) + sum_t sum_l a_til b_tlj over `terms` pairs of matrices, and bf16
 * or float32. The slack covers the rounding of the float32 sum. */
static void check_sums(const Real *found, const Real *before, bool bf16, View a, View b,
                       int64_t terms, int64_t n, int64_t k, int64_t m)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = before ? (double)before[i * m + j] : 0, magnitude = fabs(sum);
            for (int64_t t = 0; t < terms; t++)
                for (int64_t l = 0; l < k; l++) {
                    const double product = (double)a.data[t * a.step + i * a.row + l * a.column] *
                                           (double)b.data[t * b.step + l * b.row + j * b.column];
                    sum += product;
                    magnitude += fabs(product);
                }
            const double slack = magnitude * (double)(terms * k + 2) * (double)FLT_EPSILON;
            Real low = (Real)(sum - slack), high = (Real)(sum + slack);
            if (bf16) {
                low = test_rounded_to_bf16(low);
                high = test_rounded_to_bf16(high);
            }
            const Real value = found[i * m + j];
            ck_assert_msg(value >= low && value <= high,
                          "[%lld,%lld] of %lldx%lldx%lld, %lld terms: %.9g, expected %.9g to %.9g",
                          (long long)i, (long long)j, (long long)n, (long long)k, (long long)m,
                          (long long)terms, (double)value, (double)low, (double)high);
        }
}

static const Real *rounded_normal(uint64_t stream, int64_t count)
{
    Real *values = test_normal(stream, count);
    for (int64_t i = 0; i < count; i++)
        values[i] = test_rounded_to_bf16(values[i]);
    return values;
}

/* out and the gradients of both operands. */
typedef struct Results {
    Real *out, *da, *db;
} Results;

typedef struct Operation {
    Tensor *(*of)(Tape *tape, Tensor *a, Tensor *b);
    bool transpose_a, transpose_b;
} Operation;

static Tensor *linear(Tape *tape, Tensor *x, Tensor *weight)
{
    return op_linear(tape, x, weight, NULL);
}

/* Runs the operation `uses` times and the backward pass: later uses add to da and db. */
static Results run(Operation operation, Tensor *given_a, Tensor *given_b, int uses)
{
    Tape *tape = tape_new(test_device());
    tape_set_precision(tape, PRECISION_BF16);
    Tensor *a = tape_variable(tape, test_values(given_a), given_a->shape);
    Tensor *b = tape_variable(tape, test_values(given_b), given_b->shape);
    Tensor *a_bf16 = op_cast(tape, a, TENSOR_BF16);
    Tensor *b_bf16 = operation.of == linear ? b : op_cast(tape, b, TENSOR_BF16);
    Tensor *out = tensor_keep(operation.of(tape, a_bf16, b_bf16)), *total = out;
    for (int i = 1; i < uses; i++)
        total = op_add(tape, total, operation.of(tape, a_bf16, b_bf16));
    ck_assert_int_eq(out->type, TENSOR_BF16);
    total = op_cast(tape, total, TENSOR_REAL);
    tape_backward_from(tape, total,
                       tape_input(tape, rounded_normal(9, tensor_count(total)), total->shape));
    const Results results = { test_values(out), test_values(tensor_gradient(a)),
                              test_values(tensor_gradient(b)) };
    tape_free(tape);
    return results;
}

/* count products of a [n, k] and b [k, m], or of all a with one b. before: the gradients of one use
 * less, or NULL. */
typedef struct Sizes {
    int64_t n, k, m, count;
    bool shared;
} Sizes;

static void check_results(Operation operation, Sizes s, const Real *a, const Real *b, Results found,
                          const Results *before)
{
    const bool ta = operation.transpose_a, tb = operation.transpose_b;
    const int64_t a_size = s.n * s.k, b_size = s.k * s.m, out_size = s.n * s.m;
    const View a_view = { a, a_size, ta ? 1 : s.k, ta ? s.n : 1 };
    const View b_view = { b, s.shared ? 0 : b_size, tb ? 1 : s.m, tb ? s.k : 1 };
    const View g = { rounded_normal(9, s.count * out_size), out_size, s.m, 1 };
    const bool db_is_bf16 = operation.of != linear;
    for (int64_t i = 0; i < s.count; i++) {
        const View ai = { a_view.data + i * a_view.step, 0, a_view.row, a_view.column };
        const View bi = { b_view.data + i * b_view.step, 0, b_view.row, b_view.column };
        const View gi = { g.data + i * out_size, 0, s.m, 1 };
        check_sums(found.out + i * out_size, NULL, true, ai, bi, 1, s.n, s.k, s.m);
        Real *da = found.da + i * a_size, *db = found.db + i * b_size;
        const Real *da_before = before ? before->da + i * a_size : NULL;
        const Real *db_before = before ? before->db + i * b_size : NULL;
        if (ta) /* da = b g^T */
            check_sums(da, da_before, true, bi, transposed(gi), 1, s.k, s.m, s.n);
        else /* da = g b^T */
            check_sums(da, da_before, true, gi, transposed(bi), 1, s.n, s.m, s.k);
        if (!s.shared && tb) /* db = g^T a */
            check_sums(db, db_before, db_is_bf16, transposed(gi), ai, 1, s.m, s.n, s.k);
        else if (!s.shared) /* db = a^T g */
            check_sums(db, db_before, db_is_bf16, transposed(ai), gi, 1, s.k, s.n, s.m);
    }
    const Real *db_before = before ? before->db : NULL;
    if (!s.shared || (s.count > 1 && db_is_bf16 && device_is_cuda(test_device())))
        return; /* on CUDA each product of a sum is rounded */
    if (tb)
        check_sums(found.db, db_before, db_is_bf16, transposed(g), a_view, s.count, s.m, s.n, s.k);
    else
        check_sums(found.db, db_before, db_is_bf16, transposed(a_view), g, s.count, s.k, s.n, s.m);
}

static void check_product(Operation operation, Sizes s)
{
    const bool ta = operation.transpose_a, tb = operation.transpose_b;
    const Real *a = rounded_normal(1, s.count * s.n * s.k);
    const Real *b = rounded_normal(2, (s.shared ? 1 : s.count) * s.k * s.m);
    Tape *inputs = tape_new(test_device());
    Tensor *a_input = tape_input(inputs, a, shape(s.count, ta ? s.k : s.n, ta ? s.n : s.k));
    const int64_t b_rows = tb ? s.m : s.k, b_columns = tb ? s.k : s.m;
    Tensor *b_input = tape_input(
        inputs, b, s.shared ? shape(b_rows, b_columns) : shape(s.count, b_rows, b_columns));
    const Results once = run(operation, a_input, b_input, 1);
    const Results again = run(operation, a_input, b_input, 1);
    const Results twice = run(operation, a_input, b_input, 2);
    tape_free(inputs);
    ck_assert_mem_eq(once.out, again.out, sizeof(Real) * (size_t)(s.count * s.n * s.m));
    ck_assert_mem_eq(once.da, again.da, sizeof(Real) * (size_t)(s.count * s.n * s.k));
    ck_assert_mem_eq(once.db, again.db,
                     sizeof(Real) * (size_t)((s.shared ? 1 : s.count) * s.k * s.m));
    check_results(operation, s, a, b, once, NULL);
    check_results(operation, s, a, b, twice, &once);
    test_forget();
}

static const Operation operations[] = { { op_matmul, false, false },
                                        { op_matmul_tn, true, false },
                                        { op_matmul_nt, false, true },
                                        { linear, false, true } };
static const Sizes ragged[] = {
    { 1, 1, 1, 1, true },    { 1, 7, 1, 1, true },    { 5, 1, 3, 1, true },
    { 1, 40, 130, 1, true }, { 17, 33, 65, 1, true }, { 64, 64, 64, 1, true },
    { 130, 19, 1, 1, true }, { 2, 300, 70, 1, true },
};
/* More products than threads and fewer. */
static const Sizes batches[] = {
    { 9, 13, 7, 5, false }, { 9, 13, 7, 5, true }, { 1, 16, 33, 16, false },
    { 33, 1, 1, 3, false }, { 1, 70, 1, 3, true }, { 32, 32, 32, 2, false },
};

static void check_all(void)
{
    if (!test_has_bf16())
        return;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        for (size_t j = 0; j < sizeof ragged / sizeof *ragged; j++)
            check_product(operations[i], ragged[j]);
        for (size_t j = 0; j < sizeof batches / sizeof *batches; j++)
            if (batches[j].shared || operations[i].of != linear) /* a linear layer has one weight */
                check_product(operations[i], batches[j]);
    }
}

TEST(against_loops_in_double)
{
    check_all();
}

TEST(against_loops_in_double_with_three_threads)
{
    device_set_threads(3);
    check_all();
}

#ifdef TAPEGRAD_ONEDNN
/* oneDNN takes the limit before the first device is opened. */
static void check_limited_to(dnnl_cpu_isa_t isa)
{
    ck_assert_int_eq(dnnl_set_max_cpu_isa(isa), dnnl_success);
    if (device_is_cuda(test_device()))
        return;
    ck_assert(!device_has_bf16(test_device()));
    check_all();
}

TEST(by_conversion_without_the_instructions)
{
    check_limited_to(dnnl_cpu_isa_avx512_core);
}

TEST(by_conversion_with_avx2)
{
    check_limited_to(dnnl_cpu_isa_avx2);
}

/* Within the limit that the environment sets for oneDNN. */
TEST(the_processor_decides)
{
    const char *limit = getenv("ONEDNN_MAX_CPU_ISA");
    limit = limit ? limit : getenv("DNNL_MAX_CPU_ISA");
    const bool allowed = !limit || strstr(limit, "16") || strstr(limit, "AMX") ||
                         !strcmp(limit, "ALL") || !strcmp(limit, "DEFAULT");
    if (!strcmp(device_name(test_device()), "cpu"))
        ck_assert_int_eq(device_has_bf16(test_device()),
                         allowed && __builtin_cpu_supports("avx512bf16"));
}
#else
TEST(without_oneDNN_bf16_is_converted)
{
    if (!device_is_cuda(test_device()))
        ck_assert(!device_has_bf16(test_device()));
}
#endif

#else /* bf16 needs a float build */

TEST(a_double_precision_build_has_no_bf16)
{
    ck_assert(!device_has_bf16(test_device()));
}

#endif

int main(void)
{
    return test_main("products in bf16", NULL, NULL);
}
