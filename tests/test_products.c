/* Matrix products: op_matmul and op_linear. */
#include "tests/support.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

static Tensor *variable(uint64_t stream, Shape shape)
{
    return tape_variable(tape, test_normal(stream, shape_count(shape)), shape);
}

/* A backward pass from random values, which are returned. */
static Real *backward(Tensor *out)
{
    Real *upstream = test_normal(99, tensor_count(out));
    tape_backward_from(tape, tensor_keep(out), tape_input(tape, upstream, out->shape));
    return upstream;
}

static Real *gradient(Tensor *x)
{
    return test_values(tensor_gradient(x));
}

/* ---------------------------------------------------------------------------- reference vectors */
static Tensor *matmul_vector(Tape *t, Tensor **in)
{
    return op_matmul(t, in[0], in[1]);
}
static Tensor *linear_vector(Tape *t, Tensor **in)
{
    return op_linear(t, in[0], in[1], in[2]);
}

TEST(reference_vectors)
{
    check_vector("matmul.safetensors", "a b", matmul_vector);
    check_vector("linear.safetensors", "x w b", linear_vector);
}

/* ------------------------------------------------------------------------------ a plain product
 * The same product by three loops in double: out [n, m] (+)= a [n, k] b [k, m]. */
typedef struct Matrix {
    const Real *data;
    int64_t rows, columns; /* as stored */
    bool transposed;
} Matrix;

static double element(Matrix a, int64_t i, int64_t j)
{
    return (double)(a.transposed ? a.data[j * a.columns + i] : a.data[i * a.columns + j]);
}

static int64_t height(Matrix a)
{
    return a.transposed ? a.columns : a.rows;
}
static int64_t width(Matrix a)
{
    return a.transposed ? a.rows : a.columns;
}

static void plain_product(Real *out, bool accumulate, Matrix a, Matrix b)
{
    ck_assert_int_eq(width(a), height(b));
    for (int64_t i = 0; i < height(a); i++)
        for (int64_t j = 0; j < width(b); j++) {
            double sum = accumulate ? (double)out[i * width(b) + j] : 0;
            for (int64_t l = 0; l < width(a); l++)
                sum += element(a, i, l) * element(b, l, j);
            out[i * width(b) + j] = (Real)sum;
        }
}

static Matrix flipped(Matrix a)
{
    a.transposed = !a.transposed;
    return a;
}

#ifdef TAPEGRAD_DOUBLE
static const double TOLERANCE = 1e-13;
#else
static const double TOLERANCE = 5e-6;
#endif

/* by transpose_a + 2 transpose_b */
static Tensor *(*const matmuls[])(Tape *, Tensor *, Tensor *) = { op_matmul, op_matmul_tn,
                                                                  op_matmul_nt };

/* Compares a matmul's result and gradients with the plain product, matrix by matrix. */
static void check_matmul(Shape a_shape, Shape b_shape, bool transpose_a, bool transpose_b)
{
    begin();
    Tensor *a = variable(1, a_shape), *b = variable(2, b_shape);
    Tensor *out = matmuls[transpose_a + 2 * transpose_b](tape, a, b);
    Real *g = backward(out), *outs = test_values(out);
    Real *as = test_values(a), *bs = test_values(b), *da = gradient(a), *db = gradient(b);
    int64_t rows = shape_size(a_shape, -2), columns = shape_size(a_shape, -1);
    int64_t count = tensor_count(a) / (rows * columns);
    int64_t n = transpose_a ? columns : rows, m = shape_size(out->shape, -1);
    int64_t b_step = b_shape.rank == 2 ? 0 : tensor_count(b) / count;
    int64_t a_step = rows * columns;
    ck_assert_int_eq(tensor_count(out), count * n * m);
    Real *expected_out = test_normal(0, tensor_count(out));
    Real *expected_da = test_normal(0, tensor_count(a)),
         *expected_db = test_normal(0, tensor_count(b));
    for (int64_t i = 0; i < count; i++) {
        Matrix ai = { as + i * a_step, rows, columns, transpose_a };
        Matrix bi = { bs + i * b_step, shape_size(b_shape, -2), shape_size(b_shape, -1),
                      transpose_b };
        Matrix gi = { g + i * n * m, n, m, false };
        bool add = b_step == 0 && i > 0;
        plain_product(expected_out + i * n * m, false, ai, bi);
        if (transpose_a)
            plain_product(expected_da + i * a_step, false, bi, flipped(gi));
        else
            plain_product(expected_da + i * a_step, false, gi, flipped(bi));
        if (transpose_b)
            plain_product(expected_db + i * b_step, add, flipped(gi), ai);
        else
            plain_product(expected_db + i * b_step, add, flipped(ai), gi);
    }
    assert_close(outs, expected_out, tensor_count(out), TOLERANCE);
    assert_close(da, expected_da, tensor_count(a), TOLERANCE);
    assert_close(db, expected_db, tensor_count(b), TOLERANCE);
    tape_free(tape);
}

static void check_ragged_sizes(bool ta, bool tb)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 },    { 1, 7, 1 },      { 5, 1, 3 },
                                        { 1, 40, 130 }, { 17, 33, 65 },   { 64, 64, 64 },
                                        { 130, 19, 1 }, { 65, 127, 130 }, { 11, 300, 70 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i][0], k = sizes[i][1], m = sizes[i][2];
        Shape a = ta ? shape(k, n) : shape(n, k), b = tb ? shape(m, k) : shape(k, m);
        check_matmul(a, b, ta, tb);
    }
}

TEST(against_plain_loops)
{
    for (int transposed = 0; transposed < 3; transposed++)
        check_ragged_sizes(transposed & 1, transposed & 2);
}

static void check_batches(bool ta, bool tb)
{
    Shape b = tb ? shape(7, 13) : shape(13, 7);
    check_matmul(ta ? shape(5, 13, 9) : shape(5, 9, 13), b, ta, tb);
    check_matmul(ta ? shape(2, 3, 13, 9) : shape(2, 3, 9, 13), b, ta, tb);
    b = tb ? shape(5, 7, 13) : shape(5, 13, 7);
    check_matmul(ta ? shape(5, 13, 9) : shape(5, 9, 13), b, ta, tb);
    b = tb ? shape(2, 3, 7, 13) : shape(2, 3, 13, 7);
    check_matmul(ta ? shape(2, 3, 13, 9) : shape(2, 3, 9, 13), b, ta, tb);
    check_matmul(ta ? shape(1, 13, 9) : shape(1, 9, 13), tb ? shape(1, 7, 13) : shape(1, 13, 7), ta,
                 tb);
}

TEST(batches)
{
    for (int transposed = 0; transposed < 3; transposed++)
        check_batches(transposed & 1, transposed & 2);
}

TEST(linear_is_a_product_and_a_sum)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 7, 5, 11 }, { 130, 67, 3 }, { 33, 8, 129 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t R = sizes[i][0], I = sizes[i][1], O = sizes[i][2];
        begin();
        Tensor *x = variable(1, shape(R, I)), *weight = variable(2, shape(O, I));
        Tensor *bias = variable(3, shape(O)), *out = op_linear(tape, x, weight, bias);
        Real *g = backward(out), *b = test_values(bias);
        Matrix xs = { test_values(x), R, I, false }, ws = { test_values(weight), O, I, false };
        Matrix gs = { g, R, O, false };
        Real *expected = test_normal(0, R * O), *db = test_normal(0, O);
        memset(db, 0, (size_t)O * sizeof *db);
        for (int64_t r = 0; r < R; r++)
            for (int64_t o = 0; o < O; o++) {
                expected[r * O + o] = b[o];
                db[o] += g[r * O + o];
            }
        plain_product(expected, true, xs, flipped(ws));
        assert_close(test_values(out), expected, R * O, TOLERANCE);
        assert_close(gradient(bias), db, O, TOLERANCE);
        expected = test_normal(0, R * I);
        plain_product(expected, false, gs, ws);
        assert_close(gradient(x), expected, R * I, TOLERANCE);
        expected = test_normal(0, O * I);
        plain_product(expected, false, flipped(gs), xs);
        assert_close(gradient(weight), expected, O * I, TOLERANCE);
        tape_free(tape);
    }
}

/* --------------------------------------------------------------------------- with an activation */
static Tensor *by_parts(Tensor *x, Tensor *weight, Tensor *bias, Activation activation)
{
    Tensor *y = op_linear(tape, x, weight, bias);
    switch (activation) {
    case ACTIVATION_RELU:
        return op_relu(tape, y);
    case ACTIVATION_GELU:
        return op_gelu(tape, y);
    case ACTIVATION_GELU_TANH:
        return op_gelu_tanh(tape, y);
    }
    ck_abort();
}

/* Not bitwise: the gradient of the bias is summed in blocks of rows by one of them. */
static void check_same(const Real *a, const Real *b, int64_t count)
{
    assert_close(a, b, count, TOLERANCE);
}

static void check_linear_activation(Activation activation, int64_t R, int64_t I, int64_t O)
{
    Real *out[2], *dx[2], *dweight[2], *dbias[2];
    for (int fused = 0; fused < 2; fused++) {
        begin();
        Tensor *x = variable(1, shape(R, I)), *weight = variable(2, shape(O, I));
        Tensor *bias = variable(3, shape(O));
        Tensor *result = fused ? op_linear_activation(tape, x, weight, bias, activation)
                               : by_parts(x, weight, bias, activation);
        backward(result);
        out[fused] = test_values(result), dx[fused] = gradient(x);
        dweight[fused] = gradient(weight), dbias[fused] = gradient(bias);
        tape_free(tape);
    }
    check_same(out[1], out[0], R * O);
    check_same(dx[1], dx[0], R * I);
    check_same(dweight[1], dweight[0], O * I);
    check_same(dbias[1], dbias[0], O);
}

TEST(linear_activation_is_both_in_one)
{
    for (Activation activation = ACTIVATION_RELU; activation <= ACTIVATION_GELU_TANH;
         activation++) {
        check_linear_activation(activation, 1, 1, 1);
        check_linear_activation(activation, 7, 5, 11);
        check_linear_activation(activation, 33, 8, 136);
        check_linear_activation(activation, 2100, 3, 67);
        check_linear_activation(activation, 70, 16, 512);
    }
}

TEST(linear_activation_without_recording)
{
    for (Activation activation = ACTIVATION_RELU; activation <= ACTIVATION_GELU_TANH;
         activation++) {
        begin();
        Tensor *x = variable(1, shape(7, 5)), *weight = variable(2, shape(16, 5));
        Tensor *bias = variable(3, shape(16));
        Real *recorded = test_values(op_linear_activation(tape, x, weight, bias, activation));
        tape_set_recording(tape, false);
        check_same(test_values(op_linear_activation(tape, x, weight, bias, activation)), recorded,
                   7 * 16);
        tape_free(tape);
    }
}

/* --------------------------------------------------------------------------- consecutive layers
 * A layer with an activation, and a layer of its result, whose backward pass may apply
 * the derivative. */
enum { C_I = 24, C_O = 136, C_P = 40 };

typedef struct Chain {
    Real *out, *dx, *dweight[2], *dbias[2];
    Real *dhidden; /* or NULL */
} Chain;

typedef struct ChainCase {
    Activation activation;
    Precision precision;
    int64_t rows;
    bool keep, branches;
} ChainCase;

/* parts: the activation is an operation of its own. keep: the hidden layer's gradient is kept.
 * branches: two layers use the hidden layer and contribute to its gradient. */
static Chain chain(ChainCase c, bool parts)
{
    begin();
    tape_set_precision(tape, c.precision);
    Tensor *x = variable(1, shape(c.rows, C_I)), *a = variable(2, shape(C_O, C_I));
    Tensor *a_bias = variable(3, shape(C_O)), *b = variable(4, shape(C_P, C_O));
    Tensor *b_bias = variable(5, shape(C_P));
    Tensor *hidden = parts ? by_parts(x, a, a_bias, c.activation)
                           : op_linear_activation(tape, x, a, a_bias, c.activation);
    if (c.keep)
        tensor_keep(hidden);
    Tensor *out = op_linear(tape, hidden, b, b_bias);
    if (c.branches)
        out = op_add(tape, out, op_linear(tape, hidden, variable(6, shape(C_P, C_O)), b_bias));
    tensor_keep(out);
    Tensor *upstream = tape_input(tape, test_normal(99, c.rows * C_P), out->shape);
    upstream = op_cast(tape, upstream, out->type);
    tape_backward_from(tape, out, upstream);
    Chain result = { test_values(out),
                     gradient(x),
                     { gradient(a), gradient(b) },
                     { gradient(a_bias), gradient(b_bias) },
                     c.keep ? gradient(hidden) : NULL };
    tape_free(tape);
    return result;
}

static void compare_chains(ChainCase c, Chain a, Chain b, double tolerance)
{
    assert_close(a.out, b.out, c.rows * C_P, tolerance);
    assert_close(a.dx, b.dx, c.rows * C_I, tolerance);
    assert_close(a.dweight[0], b.dweight[0], C_O * C_I, tolerance);
    assert_close(a.dweight[1], b.dweight[1], C_P * C_O, tolerance);
    assert_close(a.dbias[0], b.dbias[0], C_O, tolerance);
    assert_close(a.dbias[1], b.dbias[1], C_P, tolerance);
    if (a.dhidden)
        assert_close(a.dhidden, b.dhidden, c.rows * C_O, tolerance);
}

TEST(a_layer_of_an_activation_is_one_of_its_parts)
{
    for (Activation activation = ACTIVATION_RELU; activation <= ACTIVATION_GELU_TANH; activation++)
        for (int how = 0; how < 4; how++) {
            const ChainCase c = { activation, PRECISION_FLOAT32, 70, how & 1, how & 2 };
            compare_chains(c, chain(c, false), chain(c, true), TOLERANCE);
        }
}

#if defined TAPEGRAD_CUDA_ON_HOST && !defined TAPEGRAD_DOUBLE
/* Bits of cublasLt's epilogues: biases, values saved by the forward pass. */
enum { BIASES = 4, SAVES = 128, ALL = 0xfffe };

static int64_t work(void)
{
    return tapegrad_cuda_on_host_counts().work;
}

/* Whichever epilogues the device refuses, the results are the same. */
static void check_refusals(ChainCase c, double tolerance)
{
    static const unsigned refused[] = { 0, SAVES, BIASES, ALL };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        c.rows++; /* new sizes: the heuristic's answers are cached */
        tapegrad_cuda_on_host_refuse_epilogues(refused[i]);
        const Chain found = chain(c, false), parts = chain(c, true);
        tapegrad_cuda_on_host_refuse_epilogues(0);
        compare_chains(c, found, parts, tolerance);
    }
}

TEST(results_do_not_depend_on_epilogues_that_the_device_refuses)
{
    if (!device_is_cuda(test_device()))
        return;
    check_refusals((ChainCase){ ACTIVATION_RELU, PRECISION_FLOAT32, 100, false, false }, TOLERANCE);
    check_refusals((ChainCase){ ACTIVATION_RELU, PRECISION_FLOAT32, 500, true, false }, TOLERANCE);
    check_refusals((ChainCase){ ACTIVATION_GELU_TANH, PRECISION_TF32, 900, false, false }, 2e-3);
    check_refusals((ChainCase){ ACTIVATION_GELU, PRECISION_TF32, 1300, false, false }, 2e-3);
    check_refusals((ChainCase){ ACTIVATION_GELU_TANH, PRECISION_FLOAT32, 1700, false, false },
                   TOLERANCE);
    check_refusals((ChainCase){ ACTIVATION_RELU, PRECISION_BF16, 2100, false, false }, 2e-2);
}

/* A layer with a bias and relu is one kernel; its backward pass two products, one kernel for the
 * derivative and the column sums, and one that adds these. */
TEST(a_layer_launches_one_kernel_forward_and_four_backward)
{
    if (!device_is_cuda(test_device()))
        return;
    begin();
    Tensor *x = variable(1, shape(32, C_I)), *weight = variable(2, shape(C_O, C_I));
    Tensor *bias = variable(3, shape(C_O));
    Tensor *upstream = tape_input(tape, test_normal(99, 32 * C_O), shape(32, C_O));
    int64_t before = work();
    Tensor *out = op_linear_activation(tape, x, weight, bias, ACTIVATION_RELU);
    ck_assert_int_eq(work() - before, 1);
    before = work();
    tape_backward_from(tape, out, upstream);
    ck_assert_int_eq(work() - before, 4);
    tape_free(tape);
}

TEST(the_heuristic_is_asked_once_per_product)
{
    if (!device_is_cuda(test_device()))
        return;
    const ChainCase c = { ACTIVATION_RELU, PRECISION_TF32, 33, false, false };
    int64_t asked[3];
    Chain found[3];
    for (int pass = 0; pass < 3; pass++) {
        const int64_t before = tapegrad_cuda_on_host_counts().heuristics;
        found[pass] = chain(c, false);
        asked[pass] = tapegrad_cuda_on_host_counts().heuristics - before;
    }
    ck_assert_int_eq(asked[0], 2);
    ck_assert_int_eq(asked[1] + asked[2], 0);
    ck_assert_mem_eq(found[0].dx, found[2].dx, (size_t)(c.rows * C_I) * sizeof(Real));
    ck_assert_mem_eq(found[0].dbias[0], found[2].dbias[0], C_O * sizeof(Real));
}
#else
TEST(results_do_not_depend_on_epilogues_that_the_device_refuses) {}
TEST(a_layer_launches_one_kernel_forward_and_four_backward) {}
TEST(the_heuristic_is_asked_once_per_product) {}
#endif

/* ------------------------------------------------------------------------------ gradient checks */
/* ----------------------------------------------------------------------------------- the values */

/* The content of a new tensor is unspecified and may be NaN: no product may let it through. */
TEST(old_content_of_memory_does_not_matter)
{
    for (int pass = 0; pass < 2; pass++) {
        begin();
        for (int i = 0; i < 24; i++) {
            Real *nans = test_normal(1, 64 * 64);
            for (int j = 0; j < 64 * 64; j++)
                nans[j] = (Real)NAN;
            tape_input(tape, nans, i % 2 ? shape(64, 64) : shape(64));
        }
        tape_reset(tape);
        Tensor *x = variable(1, shape(64, 64)), *w = variable(2, shape(64, 64));
        Tensor *out = op_linear(tape, x, w, variable(3, shape(64)));
        out = (pass ? op_matmul_tn : op_matmul_nt)(tape, out, w);
        backward(out);
        for (int i = 0; i < 64 * 64; i++)
            ck_assert(isfinite(test_values(out)[i]) && isfinite(gradient(w)[i]));
        tape_free(tape);
    }
}

TEST(nan_propagates)
{
    begin();
    Real *xs = test_normal(1, 12);
    xs[5] = (Real)NAN;
    Tensor *x = tape_variable(tape, xs, shape(3, 4)), *w = variable(2, shape(2, 4));
    Tensor *out = op_linear(tape, x, w, variable(3, shape(2)));
    backward(out);
    Real *outs = test_values(out), *dw = gradient(w);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(isnan(outs[i]) != 0, i / 2 == 1);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(isnan(dw[i]) != 0, i % 4 == 1);
    tape_reset(tape);
    outs = test_values(op_linear_activation(tape, tape_input(tape, xs, shape(3, 4)),
                                            variable(2, shape(2, 4)), variable(3, shape(2)),
                                            ACTIVATION_RELU));
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(isnan(outs[i]) != 0, i / 2 == 1);
    tape_free(tape);
}

typedef struct Run {
    Real *out, *dx, *dw, *db;
} Run;

enum { ROWS = 2100, IN = 130, OUT = 67 };

TEST(shapes_of_results)
{
    begin();
    Tensor *weight = variable(1, shape(3, 5));
    ck_assert(shape_equal(op_linear(tape, variable(1, shape(5)), weight, NULL)->shape, shape(3)));
    ck_assert(shape_equal(op_linear(tape, variable(1, shape(2, 4, 6, 5)), weight, NULL)->shape,
                          shape(2, 4, 6, 3)));
    Tensor *a = variable(1, shape(2, 4, 6, 5));
    ck_assert(shape_equal(op_matmul_nt(tape, a, weight)->shape, shape(2, 4, 6, 3)));
    ck_assert(shape_equal(op_matmul_tn(tape, a, a)->shape, shape(2, 4, 5, 5)));
    ck_assert(shape_equal(op_matmul_nt(tape, a, a)->shape, shape(2, 4, 6, 6)));
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_of_matmul)
{
    begin();
    Tensor *a = variable(1, shape(32, 128)), *b = variable(2, shape(64, 10));
    Tensor *row = variable(3, shape(128)), *batch = variable(4, shape(3, 128, 2));
    const int32_t one = 1;
    assert_raises("op_matmul: inner sizes differ: a is [32,128], b is [64,10]",
                  op_matmul(tape, a, b));
    assert_raises("op_matmul_tn: inner sizes differ: a is [32,128] transposed, b is [64,10]",
                  op_matmul_tn(tape, a, b));
    assert_raises("op_matmul_nt: inner sizes differ: a is [32,128], b is [64,10] transposed",
                  op_matmul_nt(tape, a, b));
    assert_raises("op_matmul: a is [32,128], b is [128], expected two axes at least",
                  op_matmul(tape, a, row));
    assert_raises("op_matmul: a is [128], b is [64,10], expected two axes at least",
                  op_matmul(tape, row, b));
    assert_raises("op_matmul: leading axes differ: a is [32,128], b is [3,128,2]; make them equal, "
                  "or give b none",
                  op_matmul(tape, a, batch));
    assert_raises(
        "op_matmul: leading axes differ: a is [2,2,128], b is [3,128,2]; make them equal, "
        "or give b none",
        op_matmul(tape, variable(5, shape(2, 2, 128)), batch));
    assert_raises("op_matmul: a is NULL", op_matmul(tape, NULL, b));
    assert_raises("op_matmul: b is NULL", op_matmul(tape, a, NULL));
    assert_raises("op_matmul: b has dtype int32, expected Real",
                  op_matmul(tape, a, tape_input_i32(tape, &one, shape(1))));
    tape_free(tape);
}

TEST(misuse_of_linear)
{
    begin();
    Tensor *x = variable(1, shape(4, 5)), *weight = variable(2, shape(3, 5));
    assert_raises("op_linear: x is [4,5], expected 3 in its last axis: weight is [5,3]",
                  op_linear(tape, x, variable(3, shape(5, 3)), NULL));
    assert_raises("op_linear: x is [], expected 5 in its last axis: weight is [3,5]",
                  op_linear(tape, variable(3, shape_scalar()), weight, NULL));
    assert_raises("op_linear: weight is [5], expected two axes, [out, in]",
                  op_linear(tape, x, variable(3, shape(5)), NULL));
    assert_raises("op_linear: bias is [5], expected [3]: weight is [3,5]",
                  op_linear(tape, x, weight, variable(3, shape(5))));
    assert_raises("op_linear: bias is [1,3], expected [3]: weight is [3,5]",
                  op_linear(tape, x, weight, variable(3, shape(1, 3))));
    assert_raises("op_linear: x is NULL", op_linear(tape, NULL, weight, NULL));
    Params *params = params_new(test_device(), 1);
    Linear layer = nn_linear(params, "layers.0.ff1", 8, 4);
    assert_raises("op_linear: x is [4,5], expected 8 in its last axis: weight layers.0.ff1.weight "
                  "is [4,8]",
                  nn_linear_forward(tape, &layer, x));
    assert_raises("op_matmul: inner sizes differ: a layers.0.ff1.weight is [4,8], b is [4,5]",
                  op_matmul(tape, layer.weight, x));
    assert_raises("op_embedding: indices layers.0.ff1.bias has dtype Real, expected int32",
                  op_embedding(tape, layer.weight, layer.bias));
    assert_raises("tensor_item: the tensor layers.0.ff1.bias has shape [4], expected one element",
                  tensor_item(layer.bias));
    params_free(params);
    assert_raises("op_linear: weight is NULL", op_linear(tape, x, NULL, NULL));
    tape_free(tape);
}

TEST(misuse_of_linear_activation)
{
    begin();
    Tensor *x = variable(1, shape(4, 5)), *weight = variable(2, shape(3, 5));
    Tensor *bias = variable(3, shape(3));
    assert_raises("op_linear_activation: bias is NULL",
                  op_linear_activation(tape, x, weight, NULL, ACTIVATION_RELU));
    assert_raises(
        "op_linear_activation: x is [3,5], expected 3 in its last axis: weight is [4,3]",
        op_linear_activation(tape, weight, variable(3, shape(4, 3)), bias, ACTIVATION_RELU));
    assert_raises("op_linear_activation: there is no activation 3",
                  op_linear_activation(tape, x, weight, bias, (Activation)3));
    tape_free(tape);
}

/* ----------------------------------------------------------------------------------- precisions */
TEST(precisions_that_are_not_to_be_had)
{
    begin();
    ck_assert_int_eq(tape_precision(tape), PRECISION_FLOAT32);
    tape_set_precision(tape, PRECISION_FLOAT32);
    assert_raises("tape_set_precision: there is no precision 3",
                  tape_set_precision(tape, (Precision)3));
#ifdef TAPEGRAD_DOUBLE
    assert_raises("tape_set_precision: tf32 is not available in a double-precision build",
                  tape_set_precision(tape, PRECISION_TF32));
#else
    if (!strcmp(device_name(test_device()), "cpu"))
        assert_raises("tape_set_precision: tf32 needs a CUDA device, the tape is on cpu",
                      tape_set_precision(tape, PRECISION_TF32));
#endif
    variable(1, shape(1));
    assert_raises("tape_set_precision: the tape holds tensors; call tape_reset first",
                  tape_set_precision(tape, PRECISION_FLOAT32));
    tape_free(tape);
}

#ifndef TAPEGRAD_DOUBLE
typedef struct Numbers {
    Real *out, *dx, *dweight, *dbias, *da, *db;
} Numbers;

enum { P_R = 40, P_I = 72, P_O = 24, P_N = 9 };

/* A linear layer with gelu_tanh, another one without an activation, and a batch of products. */
static Numbers in_precision(Precision precision)
{
    begin();
    tape_set_precision(tape, precision);
    Tensor *x = variable(1, shape(P_R, P_I)), *weight = variable(2, shape(P_O, P_I));
    Tensor *bias = variable(3, shape(P_O)), *b = variable(4, shape(2, P_N, P_O));
    Tensor *a = op_linear_activation(tape, x, weight, bias, ACTIVATION_GELU_TANH);
    a = op_add(tape, a, op_linear(tape, x, weight, bias));
    Tensor *out = op_matmul_nt(tape, op_reshape(tape, a, shape(2, P_R / 2, P_O)), b);
    ck_assert_int_eq(out->type, precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL);
    out = op_cast(tape, out, TENSOR_REAL);
    tensor_keep(a);
    backward(out);
    Numbers result = { test_values(out),
                       gradient(x),
                       gradient(weight),
                       gradient(bias),
                       test_values(tensor_gradient(a)),
                       gradient(b) };
    tape_free(tape);
    return result;
}

static double largest_error(Numbers a, Numbers b)
{
    const double errors[] = {
        relative_error(a.out, b.out, P_R * P_N),         relative_error(a.dx, b.dx, P_R * P_I),
        relative_error(a.dweight, b.dweight, P_O * P_I), relative_error(a.dbias, b.dbias, P_O),
        relative_error(a.da, b.da, P_R * P_O),           relative_error(a.db, b.db, 2 * P_N * P_O)
    };
    double largest = 0;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        largest = errors[i] <= largest ? largest : errors[i];
    return largest;
}

/* tf32 rounds operands to 11 bits; bf16 rounds operands and results to 8. */
TEST(precisions_of_products)
{
    if (!test_has_bf16())
        return;
    const Numbers exact = in_precision(PRECISION_FLOAT32);
    const Numbers bf16 = in_precision(PRECISION_BF16), again = in_precision(PRECISION_BF16);
    const double bf16_error = largest_error(bf16, exact);
    ck_assert_msg(bf16_error > 1e-4 && bf16_error < 4e-2, "bf16's error is %g", bf16_error);
    ck_assert(largest_error(bf16, again) == 0);
    if (!device_is_cuda(test_device()))
        return;
    const double tf32_error = largest_error(in_precision(PRECISION_TF32), exact);
    ck_assert_msg(tf32_error > 1e-6 && tf32_error < 4e-3, "tf32's error is %g", tf32_error);
}
#else
TEST(precisions_of_products) {}
#endif

/* The kernel writes a signal's frame below the stack pointer. A signal during a product must find
 * the thread on its own stack, so that the frame overwrites nothing. */
static volatile uintptr_t stack_top;
static volatile sig_atomic_t on_the_stack, elsewhere;

static void look_at_stack(int signal_number)
{
    (void)signal_number;
    if (stack_top - (uintptr_t)__builtin_frame_address(0) < (uintptr_t)8 << 20)
        on_the_stack++;
    else
        elsewhere++;
}

TEST(signals_during_products)
{
    enum { PRODUCTS = 300, ENOUGH = 1000 }; /* an emulated processor is slow, its timer is not */
    stack_top = (uintptr_t)__builtin_frame_address(0) + 4096;
    test_set_threads(1); /* so that this thread gets all signals */
    sigaction(SIGALRM, &(struct sigaction){ .sa_handler = look_at_stack, .sa_flags = SA_RESTART },
              NULL);
    struct itimerval often = { { 0, 200 }, { 0, 200 } };
    setitimer(ITIMER_REAL, &often, NULL);
    begin();
    for (int i = 0; i < PRODUCTS && on_the_stack < ENOUGH; i++) {
        if (test_has_bf16() &&
            !device_is_cuda(test_device())) /* emulated kernels have other stacks */
            tape_set_precision(tape, i % 2 ? PRECISION_BF16 : PRECISION_FLOAT32);
        op_matmul(tape, variable(1, shape(448, 512)), variable(2, shape(512, 128)));
        tape_reset(tape);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
    ck_assert_int_eq(elsewhere, 0);
    ck_assert_int_gt(on_the_stack, 0);
}

int main(void)
{
    return test_main("products", NULL, NULL);
}
