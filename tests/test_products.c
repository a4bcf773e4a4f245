/* Matrix products: op_matmul and op_linear. */
#include "tests/support.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
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

#ifdef TAPEGRAD_DOUBLE
static const double TOLERANCE = 1e-13;
#else
static const double TOLERANCE = 5e-6;
#endif

/* --------------------------------------------------------------------------------- exact values
 * Of all shapes and backends, tests/operations.h compares values with plain and gradients with
 * finite differences: here plain's own values. */

/* leading, then the axes of a matrix */
static Shape joined(Shape leading, Shape matrix)
{
    leading.size[leading.rank++] = matrix.size[0];
    leading.size[leading.rank++] = matrix.size[1];
    return leading;
}

/* Against op_transpose, op_multiply and op_sum: a matrix, a batch with one b or with one b each,
 * and two leading axes. */
TEST(values_of_matmul_are_sums_of_products)
{
    static Tensor *(*const matmuls[])(Tape *, Tensor *, Tensor *) = { op_matmul, op_matmul_tn,
                                                                      op_matmul_nt };
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 9, 13, 7 }, { 17, 33, 65 }, { 130, 19, 1 } };
    begin();
    for (int i = 0; i < 3 * 4 * 4; i++) {
        const int form = i % 3, batch = i / 3 % 4;
        const int64_t *nkm = sizes[i / 12], n = nkm[0], k = nkm[1], m = nkm[2];
        const Shape a = form == 1 ? shape(k, n) : shape(n, k);
        const Shape b = form == 2 ? shape(m, k) : shape(k, m);
        const Shape leading[] = { shape_scalar(), shape(5), shape(5), shape(2, 3) };
        const Shape a_shape = joined(leading[batch], a);
        const Shape b_shape = batch == 1 ? b : joined(leading[batch], b);
        Tensor *x = test_variable(tape, 1, a_shape), *y = test_variable(tape, 2, b_shape);
        Tensor *out = matmuls[form](tape, x, y);
        ck_assert(shape_equal(out->shape, joined(leading[batch], shape(n, m))));
        const int64_t count = shape_count(leading[batch]);
        x = form == 1 ? op_transpose(tape, x, -1, -2) : x;
        y = form == 2 ? y : op_transpose(tape, y, -1, -2);
        Tensor *products =
            op_multiply(tape, op_reshape(tape, x, shape(count, n, 1, k)),
                        op_reshape(tape, y, shape(tensor_count(y) / (k * m), 1, m, k)));
        assert_close(test_values(out), test_values(op_sum(tape, products, -1)), count * n * m,
                     TOLERANCE);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* out = x y with x = y: the gradients of both inputs are added to the same memory. */
TEST(gradients_of_one_matrix_as_both_inputs_are_added)
{
    enum { N = 19 };
    begin();
    Tensor *x = test_variable(tape, 1, shape(N, N)), *a = test_variable(tape, 1, shape(N, N));
    Tensor *b = test_variable(tape, 1, shape(N, N));
    backward(op_add(tape, op_matmul(tape, x, x), op_matmul(tape, a, b)));
    Real *sum = gradient(a), *db = gradient(b);
    for (int i = 0; i < N * N; i++)
        sum[i] += db[i];
    assert_close(gradient(x), sum, N * N, TOLERANCE);
    tape_free(tape);
}

/* --------------------------------------------------------------------------- with an activation */
static Tensor *composed(Tensor *x, Tensor *weight, Tensor *bias, Activation activation)
{
    Tensor *y = op_linear(tape, x, weight, bias);
    switch (activation) {
    case ACTIVATION_RELU:
        return op_relu(tape, y);
    case ACTIVATION_GELU:
        return op_gelu(tape, y);
    case ACTIVATION_GELU_TANH:
        return op_gelu_tanh(tape, y);
    case ACTIVATION_SILU:
        return op_silu(tape, y);
    case ACTIVATION_NONE:
        return y;
    }
    ck_abort();
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

/* separate: the activation is an operation of its own. keep: the hidden layer's gradient is kept.
 * branches: two layers use the hidden layer and contribute to its gradient. */
static Chain chain(ChainCase c, bool separate)
{
    begin();
    tape_set_precision(tape, c.precision);
    Tensor *x = test_variable(tape, 1, shape(c.rows, C_I)),
           *a = test_variable(tape, 2, shape(C_O, C_I));
    Tensor *a_bias = test_variable(tape, 3, shape(C_O)),
           *b = test_variable(tape, 4, shape(C_P, C_O));
    Tensor *b_bias = test_variable(tape, 5, shape(C_P));
    Tensor *hidden = separate ? composed(x, a, a_bias, c.activation)
                              : op_linear_activation(tape, x, a, a_bias, c.activation);
    if (c.keep)
        tensor_keep(hidden);
    Tensor *out = op_linear(tape, hidden, b, b_bias);
    if (c.branches)
        out = op_add(tape, out,
                     op_linear(tape, hidden, test_variable(tape, 6, shape(C_P, C_O)), b_bias));
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

TEST(layers_after_an_activation_equal_their_composition)
{
    for (Activation activation = ACTIVATION_RELU; activation <= ACTIVATION_NONE; activation++)
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
        const Chain found = chain(c, false), expected = chain(c, true);
        tapegrad_cuda_on_host_refuse_epilogues(0);
        compare_chains(c, found, expected, tolerance);
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
    Tensor *x = test_variable(tape, 1, shape(32, C_I)),
           *weight = test_variable(tape, 2, shape(C_O, C_I));
    Tensor *bias = test_variable(tape, 3, shape(C_O));
    Tensor *upstream = tape_input(tape, test_normal(99, 32 * C_O), shape(32, C_O));
    int64_t before = work();
    Tensor *out = op_linear_activation(tape, x, weight, bias, ACTIVATION_RELU);
    ck_assert_int_eq(work() - before, 1);
    before = work();
    tape_backward_from(tape, out, upstream);
    ck_assert_int_eq(work() - before, 4);
    tape_free(tape);
}

TEST(the_heuristic_is_cached_per_product)
{
    if (!device_is_cuda(test_device()))
        return;
    const ChainCase c = { ACTIVATION_RELU, PRECISION_TF32, 33, false, false };
    int64_t calls[3];
    Chain found[3];
    for (int pass = 0; pass < 3; pass++) {
        const int64_t before = tapegrad_cuda_on_host_counts().heuristics;
        found[pass] = chain(c, false);
        calls[pass] = tapegrad_cuda_on_host_counts().heuristics - before;
    }
    ck_assert_int_eq(calls[0], 2);
    ck_assert_int_eq(calls[1] + calls[2], 0);
    ck_assert_mem_eq(found[0].dx, found[2].dx, (size_t)(c.rows * C_I) * sizeof(Real));
    ck_assert_mem_eq(found[0].dbias[0], found[2].dbias[0], C_O * sizeof(Real));
}
/* Products without kernels of the library, which the emulation runs for one thread at a time. */
enum { SIZES = 200, SHARED_IN = 8, SHARED_OUT = 16 };

typedef struct SharedCache {
    pthread_barrier_t *together; /* before each product */
    const Real *ones;
    bool equal[SIZES]; /* of the cached algorithm's second result */
} SharedCache;

static void *multiply_all_sizes(void *context)
{
    SharedCache *shared = context;
    Tape *of_thread = tape_new(test_device());
    tape_set_recording(of_thread, false);
    tape_set_precision(of_thread, PRECISION_TF32);
    for (int i = 0; i < SIZES; i++) {
        Real first[SIZES * SHARED_OUT], second[SIZES * SHARED_OUT];
        Tensor *x = tape_input(of_thread, shared->ones, shape(i + 1, SHARED_IN));
        Tensor *weight = tape_input(of_thread, shared->ones, shape(SHARED_OUT, SHARED_IN));
        Tensor *bias = tape_input(of_thread, shared->ones, shape(SHARED_OUT));
        pthread_barrier_wait(shared->together);
        tensor_read(op_linear(of_thread, x, weight, bias), first);
        tensor_read(op_linear(of_thread, x, weight, bias), second);
        shared->equal[i] = first[i * SHARED_OUT] == SHARED_IN + 1 &&
                           !memcmp(first, second, (size_t)(i + 1) * SHARED_OUT * sizeof(Real));
        tape_reset(of_thread);
    }
    tape_free(of_thread);
    return NULL;
}

/* Without the lock, both threads miss the same entry and add it. */
TEST(two_threads_share_the_cache_of_algorithms)
{
    if (!device_is_cuda(test_device()))
        return;
    pthread_barrier_t together;
    ck_assert_int_eq(pthread_barrier_init(&together, NULL, 2), 0);
    Real ones[SIZES * SHARED_OUT];
    for (int i = 0; i < SIZES * SHARED_OUT; i++)
        ones[i] = 1;
    SharedCache shared[2] = { { &together, ones, { false } }, { &together, ones, { false } } };
    pthread_t threads[2];
    const int64_t before = tapegrad_cuda_on_host_counts().heuristics;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, multiply_all_sizes, &shared[i]), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_int_eq(tapegrad_cuda_on_host_counts().heuristics - before, SIZES);
    for (int i = 0; i < SIZES; i++)
        ck_assert(shared[0].equal[i] && shared[1].equal[i]);
    pthread_barrier_destroy(&together);
}
#else
TEST(two_threads_share_the_cache_of_algorithms) {}
TEST(results_do_not_depend_on_epilogues_that_the_device_refuses) {}
TEST(a_layer_launches_one_kernel_forward_and_four_backward) {}
TEST(the_heuristic_is_cached_per_product) {}
#endif

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
        Tensor *x = test_variable(tape, 1, shape(64, 64)),
               *w = test_variable(tape, 2, shape(64, 64));
        Tensor *out = op_linear(tape, x, w, test_variable(tape, 3, shape(64)));
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
    Tensor *x = tape_variable(tape, xs, shape(3, 4)), *w = test_variable(tape, 2, shape(2, 4));
    Tensor *out = op_linear(tape, x, w, test_variable(tape, 3, shape(2)));
    backward(out);
    Real *outs = test_values(out), *dw = gradient(w);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(isnan(outs[i]) != 0, i / 2 == 1);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(isnan(dw[i]) != 0, i % 4 == 1);
    tape_reset(tape);
    outs = test_values(op_linear_activation(tape, tape_input(tape, xs, shape(3, 4)),
                                            test_variable(tape, 2, shape(2, 4)),
                                            test_variable(tape, 3, shape(2)), ACTIVATION_RELU));
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(isnan(outs[i]) != 0, i / 2 == 1);
    tape_free(tape);
}

TEST(shapes_of_results)
{
    begin();
    Tensor *weight = test_variable(tape, 1, shape(3, 5));
    ck_assert(shape_equal(op_linear(tape, test_variable(tape, 1, shape(5)), weight, NULL)->shape,
                          shape(3)));
    ck_assert(
        shape_equal(op_linear(tape, test_variable(tape, 1, shape(2, 4, 6, 5)), weight, NULL)->shape,
                    shape(2, 4, 6, 3)));
    Tensor *a = test_variable(tape, 1, shape(2, 4, 6, 5));
    ck_assert(shape_equal(op_matmul_nt(tape, a, weight)->shape, shape(2, 4, 6, 3)));
    ck_assert(shape_equal(op_matmul_tn(tape, a, a)->shape, shape(2, 4, 5, 5)));
    ck_assert(shape_equal(op_matmul_nt(tape, a, a)->shape, shape(2, 4, 6, 6)));
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_of_matmul_raises)
{
    begin();
    Tensor *a = test_variable(tape, 1, shape(32, 128)), *b = test_variable(tape, 2, shape(64, 10));
    Tensor *row = test_variable(tape, 3, shape(128)),
           *batch = test_variable(tape, 4, shape(3, 128, 2));
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
        op_matmul(tape, test_variable(tape, 5, shape(2, 2, 128)), batch));
    assert_raises("op_matmul: a is NULL", op_matmul(tape, NULL, b));
    assert_raises("op_matmul: b is NULL", op_matmul(tape, a, NULL));
    assert_raises("op_matmul: b has dtype int32, expected Real",
                  op_matmul(tape, a, tape_input_i32(tape, &one, shape(1))));
    tape_free(tape);
}

TEST(misuse_of_linear_raises)
{
    begin();
    Tensor *x = test_variable(tape, 1, shape(4, 5)), *weight = test_variable(tape, 2, shape(3, 5));
    assert_raises("op_linear: x is [4,5], expected 3 in its last axis: weight is [5,3]",
                  op_linear(tape, x, test_variable(tape, 3, shape(5, 3)), NULL));
    assert_raises("op_linear: x is [], expected 5 in its last axis: weight is [3,5]",
                  op_linear(tape, test_variable(tape, 3, shape_scalar()), weight, NULL));
    assert_raises("op_linear: weight is [5], expected two axes, [out, in]",
                  op_linear(tape, x, test_variable(tape, 3, shape(5)), NULL));
    assert_raises("op_linear: bias is [5], expected [3]: weight is [3,5]",
                  op_linear(tape, x, weight, test_variable(tape, 3, shape(5))));
    assert_raises("op_linear: bias is [1,3], expected [3]: weight is [3,5]",
                  op_linear(tape, x, weight, test_variable(tape, 3, shape(1, 3))));
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

TEST(misuse_of_linear_activation_raises)
{
    begin();
    Tensor *x = test_variable(tape, 1, shape(4, 5)), *weight = test_variable(tape, 2, shape(3, 5));
    Tensor *bias = test_variable(tape, 3, shape(3));
    assert_raises("op_linear_activation: bias is NULL",
                  op_linear_activation(tape, x, weight, NULL, ACTIVATION_RELU));
    assert_raises("op_linear_activation: x is [3,5], expected 3 in its last axis: weight is [4,3]",
                  op_linear_activation(tape, weight, test_variable(tape, 3, shape(4, 3)), bias,
                                       ACTIVATION_RELU));
    assert_raises("op_linear_activation: there is no activation 5",
                  op_linear_activation(tape, x, weight, bias, (Activation)5));
    tape_free(tape);
}

/* ----------------------------------------------------------------------------------- precisions */
TEST(unavailable_precisions_raise)
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
    test_variable(tape, 1, shape(1));
    assert_raises("tape_set_precision: the tape holds tensors; call tape_reset first",
                  tape_set_precision(tape, PRECISION_FLOAT32));
    tape_free(tape);
}

/* tests/test_operations.c bounds the errors of tf32 and bf16; both must round. */
TEST(precisions_round_products)
{
    enum { SIDE = 40 };
    const Real *exact = NULL;
    for (Precision p = PRECISION_FLOAT32; p <= PRECISION_BF16 && test_has_bf16(); p++) {
        if (p == PRECISION_TF32 && !device_is_cuda(test_device()))
            continue;
        begin();
        tape_set_precision(tape, p);
        Tensor *x = test_variable(tape, 1, shape(SIDE, SIDE)),
               *weight = test_variable(tape, 2, shape(SIDE, SIDE));
        Tensor *out = op_linear_activation(tape, x, weight, test_variable(tape, 3, shape(SIDE)),
                                           ACTIVATION_GELU_TANH);
        ck_assert_int_eq(out->type, p == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL);
        const Real *values =
            test_values(op_cast(tape, op_matmul_nt(tape, out, weight), TENSOR_REAL));
        exact = p == PRECISION_FLOAT32 ? values : exact;
        const double error = relative_error(values, exact, SIDE * SIDE);
        ck_assert_msg(p == PRECISION_FLOAT32 || error > (p == PRECISION_TF32 ? 1e-6 : 1e-4),
                      "precision %d: the error is %g", p, error);
        tape_free(tape);
    }
}

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
        op_matmul(tape, test_variable(tape, 1, shape(448, 512)),
                  test_variable(tape, 2, shape(512, 128)));
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
