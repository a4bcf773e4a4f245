/* Params: registration, storage, initial values, gradients, files. */
#include "tests/support.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static Device *device;
static Tape *tape;

static char path[] = "/tmp/tapegrad-params-XXXXXX";

static void begin_on(Device *chosen)
{
    tape_free(tape);
    device = chosen;
    tape = tape_new(device);
}

/* Most tests read weights through their data pointers, which must then be host memory. */
static void begin(void)
{
    begin_on(device_open("cpu"));
    const int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    close(descriptor);
}

static void end(void)
{
    tape_free(tape);
    unlink(path);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

/* A backward pass that contributes the given values to the weight's gradient. */
static void contribute(Tensor *weight, const Real *numbers)
{
    tape_backward_from(tape, op_scale(tape, weight, 1), tape_input(tape, numbers, weight->shape));
    tape_reset(tape);
}

static const Initializer uniform = { INITIAL_UNIFORM, 0.25 };
static const Initializer normal = { INITIAL_NORMAL, 2 };
static const char *const three_names[] = { "query", "key", "value" };

TEST(the_debug_mode_reports_freed_params)
{
    setenv("TAPEGRAD_DEBUG", "1", 1);
    Params *params = params_new(device, 1);
    Linear linear = nn_linear(params, "l1", 2, 2);
    const Real zeros[2] = { 0 };
    Tensor *constant = params_constant(params, zeros, shape(2));
    Optimizer *optimizer = optim_sgd(params, optim_sgd_config(0.1));
    contribute(linear.bias, zeros);
    params_free(params);
    Tensor *x = tape_input(tape, zeros, shape(1, 2));
    assert_raises("op_linear: weight l1.weight cannot be used after params_free",
                  nn_linear_forward(tape, &linear, x));
    assert_raises("op_exp: x cannot be used after params_free", op_exp(tape, constant));
    assert_raises("params: the weights cannot be used after params_free", optim_step(optimizer));
    assert_raises("params_free: these params were freed before", params_free(params));
    optim_free(optimizer);
}

/* ------------------------------------------------------------------------------- initial values */
/* Mean 0 and this variance, within four standard errors of at most 2 / sqrt(count) of it. */
static void assert_variance(Tensor *weight, double variance)
{
    const int64_t count = tensor_count(weight);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)weight->data[i];
        square += (double)weight->data[i] * (double)weight->data[i];
    }
    ck_assert_double_eq_tol(sum / (double)count, 0, 4 * sqrt(variance / (double)count));
    ck_assert_double_eq_tol(square / (double)count, variance,
                            4 * variance * sqrt(2 / (double)count));
}

TEST(initial_values_follow_their_kind)
{
    enum { COUNT = 4001 };
    Params *params = params_new(device, 7);
    Tensor *zero = params_add(params, "zero", shape(5), (Initializer){ .kind = INITIAL_ZERO });
    Tensor *one = params_add(params, "one", shape(5), (Initializer){ .kind = INITIAL_ONE });
    Tensor *u = params_add(params, "uniform", shape(COUNT), uniform);
    Tensor *n = params_add(params, "normal", shape(COUNT), normal);
    tape_use(tape, "test: zero", zero);
    for (int i = 0; i < 5; i++) {
        ck_assert(zero->data[i] == 0);
        ck_assert(one->data[i] == 1);
    }
    for (int i = 0; i < COUNT; i++)
        ck_assert(u->data[i] >= (Real)-0.25 && u->data[i] < (Real)0.25);
    assert_variance(u, 0.25 * 0.25 / 3);
    assert_variance(n, 2 * 2);
    params_free(params);
}

TEST(xavier_and_kaiming_scale_by_the_layers_sizes)
{
    const Initializer xavier = { INITIAL_XAVIER, 1 }, kaiming = { INITIAL_KAIMING, 1 };
    const Initializer doubled = { INITIAL_XAVIER, 2 };
    Params *params = params_new(device, 7);
    Tensor *x = params_add(params, "xavier", shape(30, 120), xavier);
    Tensor *k = params_add(params, "kaiming", shape(30, 120), kaiming);
    Tensor *convolution = params_add(params, "convolution", shape(20, 10, 5, 4), xavier);
    Tensor *wide = params_add(params, "wide", shape(20, 10, 5, 4), kaiming);
    Tensor *gain = params_add(params, "gain", shape(30, 120), doubled);
    tape_use(tape, "test: x", x);
    const Real bound = (Real)sqrt(6. / 150);
    for (int i = 0; i < 30 * 120; i++)
        ck_assert(x->data[i] >= -bound && x->data[i] <= bound);
    assert_variance(x, 2. / 150);
    assert_variance(k, 2. / 120);
    assert_variance(convolution, 2. / (50 * (4 + 20))); /* [out, height, width, in] */
    assert_variance(wide, 2. / (20 * 10));
    assert_variance(gain, 8. / 150);
    params_free(params);
}

TEST(initial_values_depend_on_seed_and_name_alone)
{
    Params *a = params_new(device, 7), *b = params_new(device, 7), *c = params_new(device, 8);
    params_add(a, "first", shape(3, 5), uniform);
    params_add(a, "second", shape(7), normal);
    params_add_joined(a, "layer", three_names, 3, "weight", shape(3, 5), uniform);
    params_add(b, "layer.value.weight", shape(3, 5), uniform);
    params_add(b, "second", shape(7), normal);
    params_add(b, "layer.query.weight", shape(3, 5), uniform);
    params_add(b, "first", shape(3, 5), uniform);
    params_add(b, "layer.key.weight", shape(3, 5), uniform);
    params_add(c, "first", shape(3, 5), uniform);
    ck_assert_int_eq(params_count(a), params_count(b));
    for (int i = 0; i < params_count(a); i++) {
        Tensor *weight = params_at(a, i), *other = params_find(b, weight->name);
        assert_identical(test_values(weight), test_values(other), tensor_count(weight));
    }
    const Real *first = test_values(params_find(a, "first"));
    ck_assert_mem_ne(first, test_values(params_find(c, "first")), 15 * sizeof(Real));
    ck_assert_mem_ne(first, test_values(params_find(a, "layer.key.weight")), 15 * sizeof(Real));
    params_free(a);
    params_free(b);
    params_free(c);
}

/* ------------------------------------------------------------------------- registry and storage */
TEST(weights_are_found_by_name_and_index)
{
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(2, 3), uniform);
    Tensor *joined = params_add_joined(params, "", three_names, 3, "bias", shape(5), uniform);
    Tensor *b = params_add(params, "b", shape_scalar(), uniform);
    ck_assert_ptr_eq(params_device(params), device);
    ck_assert_int_eq(params_count(params), 5);
    ck_assert_int_eq(params_elements(params), 6 + 15 + 1);
    ck_assert_ptr_eq(params_find(params, "a"), a);
    ck_assert_ptr_eq(params_find(params, "b"), b);
    ck_assert_ptr_null(params_find(params, "bias"));
    ck_assert_ptr_null(params_find(params, ""));
    static const char *const names[] = { "a", "query.bias", "key.bias", "value.bias", "b" };
    for (int i = 0; i < 5; i++) {
        ck_assert_str_eq(params_at(params, i)->name, names[i]);
        ck_assert_ptr_eq(params_find(params, names[i]), params_at(params, i));
    }
    ck_assert(shape_equal(joined->shape, shape(15)));
    for (int i = 1; i < 4; i++)
        ck_assert_ptr_eq(params_at(params, i)->base, joined);
    assert_raises("params_at: there is no weight 5; there are 5", params_at(params, 5));
    assert_raises("params_at: there is no weight -1; there are 5", params_at(params, -1));
    params_free(params);
}

TEST(the_table_lists_every_weight_and_the_total)
{
    Params *params = params_new(device, 1);
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    params_print(params, file);
    params_add(params, "embedding", shape(1000, 30), uniform);
    params_add_joined(params, "layer", three_names, 3, "bias", shape(5), uniform);
    params_add(params, "s", shape_scalar(), uniform);
    params_set_requires_grad(params, "*.key.*", false);
    params_print(params, file);
    assert_raises("params_print: params is NULL", params_print(NULL, file));
    assert_raises("params_print: the file is NULL", params_print(params, NULL));
    fclose(file);
    ck_assert_str_eq(text, "    elements  shape                 weight\n"
                           "           0  in total\n"
                           "    elements  shape                 weight\n"
                           "       30000  [1000,30]             embedding\n"
                           "           5  [5]                   layer.query.bias\n"
                           "           5  [5]                   layer.key.bias (frozen)\n"
                           "           5  [5]                   layer.value.bias\n"
                           "           1  []                    s\n"
                           "       30016  in total\n");
    free(text);
    params_free(params);
}

TEST(storage_is_allocated_at_the_first_use)
{
    const size_t before = device_memory(device).current;
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(3), uniform);
    Tensor *joined = params_add_joined(params, "j", three_names, 3, "w", shape(3, 2), uniform);
    Tensor *b = params_add(params, "b", shape(17), uniform);
    ck_assert_uint_eq(device_memory(device).current, before);
    ck_assert_ptr_null(a->data);
    tape_use(tape, "test: part", params_find(params, "j.key.w"));
    ck_assert_uint_gt(device_memory(device).current, before);
    ck_assert_uint_eq((uintptr_t)a->data % 64, 0);
    ck_assert_int_eq(joined->data - a->data, 16);
    ck_assert_int_eq(b->data - a->data, 16 + 32);
    ck_assert_int_eq(b->gradient->data - a->gradient->data, 16 + 32);
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_eq(params_at(params, 1 + i)->data, joined->data + 6 * i);
    for (int i = 3; i < 16; i++)
        ck_assert(a->data[i] == 0 && a->gradient->data[i] == 0);
    assert_raises("params_add: c comes too late: storage was allocated at the first use of a "
                  "weight; register all weights before it",
                  params_add(params, "c", shape(2), uniform));
    assert_raises("params_add: k.query.w comes too late: storage was allocated at the first use "
                  "of a weight; register all weights before it",
                  params_add_joined(params, "k", three_names, 3, "w", shape(2), uniform));
    ck_assert_int_eq(params_count(params), 5);
    params_free(params);
}

TEST(bad_registrations_raise_and_change_nothing)
{
    Params *params = params_new(device, 1);
    params_add(params, "a", shape(3), uniform);
    params_add_joined(params, "j", three_names, 3, "w", shape(3), uniform);
    static const char *const twice[] = { "x", "y", "x" };
    static char name[300];
    memset(name, 'n', sizeof name - 1);
    assert_raises("params_add: there is a weight named a already",
                  params_add(params, "a", shape(3), uniform));
    assert_raises("params_add: there is a weight named j.key.w already",
                  params_add(params, "j.key.w", shape(3), uniform));
    assert_raises("params_add: there is a weight named j.query.w already",
                  params_add_joined(params, "j", three_names, 3, "w", shape(3), uniform));
    assert_raises("params_add: the name \"\xc3(\" is not UTF-8",
                  params_add(params, "\xc3(", shape(3), uniform));
    assert_raises("params_add: the name is empty", params_add(params, "", shape(3), uniform));
    assert_raises("params_add: the name is __metadata__, which the file format reserves",
                  params_add(params, "__metadata__", shape(3), uniform));
    assert_raises(
        "params_add: the name optimizer.m.a starts with optimizer., which checkpoints reserve",
        params_add(params, "optimizer.m.a", shape(3), uniform));
    assert_raises("params_add: the name is NULL", params_add(params, NULL, shape(3), uniform));
    assert_raises("params: a name is NULL", nn_linear(params, NULL, 2, 3));
    assert_raises("params: a name is NULL",
                  params_add_joined(params, "k", three_names, 3, NULL, shape(3), uniform));
    assert_raises("params_add_joined: k.w: names is NULL",
                  params_add_joined(params, "k", NULL, 3, "w", shape(3), uniform));
    assert_raises("params_add: params is NULL", params_add(NULL, "b", shape(3), uniform));
    assert_raises("params_constant: host is NULL", params_constant(params, NULL, shape(3)));
    assert_raises("shape: size 0 is 0, expected at least 1",
                  params_add(params, "b", (Shape){ .rank = 1 }, uniform));
    assert_raises(
        "shape: size 0 is -2, expected at least 1",
        params_add_joined(params, "k", three_names, 3, "w", (Shape){ 1, { -2 } }, uniform));
    assert_raises("shape: size 1 is 0, expected at least 1",
                  params_constant(params, (Real[]){ 1 }, (Shape){ 2, { 1 } }));
    assert_raises("params_add_joined: the name k.x.w appears twice",
                  params_add_joined(params, "k", twice, 3, "w", shape(3), uniform));
    assert_raises("params_add_joined: k.w: there are 0 names, expected 1 or more",
                  params_add_joined(params, "k", twice, 0, "w", shape(3), uniform));
    assert_raises("params_add_joined: k.w: scalars have no axis to join along",
                  params_add_joined(params, "k", twice, 2, "w", shape_scalar(), uniform));
    assert_raises("params_add: b of shape [288230376151711744] makes the weights too large to "
                  "address",
                  params_add(params, "b", shape((int64_t)1 << 58), uniform));
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        params_add(params, name, shape(3), uniform);
        ck_abort_msg("a name of %zu bytes was taken", strlen(name));
    }
    tapegrad_on_error(NULL, NULL);
    ck_assert_ptr_nonnull(strstr(tapegrad_error(), "is too long, expected at most 223 bytes"));
    ck_assert_int_eq(params_count(params), 4);
    assert_raises("params_new: the device is NULL", params_new(NULL, 1));
    params_free(params);
    params_free(NULL);
}

/* Weights and constants share the names of a file. */
#ifndef TAPEGRAD_NUCLEUS
TEST(constants_and_weights_have_different_names)
{
    Params *params = params_new(device, 1);
    nn_batchnorm(params, "norm", 2);
    assert_raises("params_add: there is a constant named norm.running_mean already",
                  params_add(params, "norm.running_mean", shape(2), uniform));
    params_add(params, "other.running_variance", shape(2), uniform);
    assert_raises("nn_batchnorm: there is a weight named other.running_variance already",
                  nn_batchnorm(params, "other", 2));
    params_free(params);
}
#endif

TEST(bad_initializers_raise)
{
    Params *params = params_new(device, 1);
    assert_raises("params_add: b: there is no initializer kind 7",
                  params_add(params, "b", shape(3), (Initializer){ .kind = (Initial)7 }));
    assert_raises("params_add: b: there is no initializer kind 0",
                  params_add(params, "b", shape(3), (Initializer){ INITIAL_DEFAULT, 1 }));
    assert_raises("params_add: b: the shape is [3], expected [out, in, ...] for this initializer",
                  params_add(params, "b", shape(3), (Initializer){ INITIAL_XAVIER, 1 }));
    assert_raises("params_add: b: the initializer's scale is -1, expected 0 or more",
                  params_add(params, "b", shape(3), (Initializer){ INITIAL_NORMAL, -1 }));
    for (Initial kind = INITIAL_UNIFORM; kind <= INITIAL_KAIMING; kind++)
        assert_raises(
            "params_add: b: the initializer's scale is 0, expected more than 0; for zeros "
            "use INITIAL_ZERO",
            params_add(params, "b", shape(3, 3), (Initializer){ .kind = kind }));
    ck_assert_int_eq(params_count(params), 0);
    params_free(params);
}

TEST(a_failed_allocation_may_be_repeated)
{
    Params *params = params_new(device, 1), *other = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(30), uniform);
    Tensor *b = params_add(other, "a", shape(30), uniform);
    const size_t before = device_memory(device).current;
    for (int n = 1; n <= 3; n++) {
        test_expect_error();
        device_fail_allocation(n);
        if (!setjmp(test_error_jump)) {
            tape_use(tape, "test: a", a);
            ck_abort_msg("allocation %d did not fail", n);
        }
        tapegrad_on_error(NULL, NULL);
        ck_assert(device_fail_allocation(0));
        const char *start = "test: a a cannot be allocated: memory is exhausted: ";
        assert_ok(strncmp(tapegrad_error(), start, strlen(start)) == 0);
        ck_assert_uint_eq(device_memory(device).current, before);
        ck_assert_ptr_null(a->data);
        tape_reset(tape);
    }
    assert_identical(test_values(a), test_values(b), 30);
    params_free(params);
    params_free(other);
}

TEST(constants_serve_tapes_and_are_no_weights)
{
    const Real numbers[] = { 1, 2, 3 };
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(3), uniform);
    tape_use(tape, "test: a", a);
    Tensor *constant = params_constant(params, numbers, shape(3));
    ck_assert_int_eq(params_count(params), 1);
    tape_backward(tape, test_dot_operation(tape, constant, a));
    assert_identical(tensor_gradient(a)->data, numbers, 3);
    ck_assert(!constant->has_gradient);
    tape_reset(tape);
    assert_identical(test_values(constant), numbers, 3);
    params_free(params);
}

/* ------------------------------------------------------------------------------------ gradients */
static double clip(Params *params, double maximum_norm)
{
    params_clip_gradients(params, maximum_norm);
    return params_gradient_norm(params);
}

static void assert_gradient(Tensor *weight, const Real *numbers)
{
    assert_identical(test_values(tensor_gradient(weight)), numbers, tensor_count(weight));
}

/* Two weights of 3 and 17 elements: padding follows both. */
TEST(flat_tensors_hold_all_weights_and_zeros)
{
    enum { FLAT = 48 };
    begin_on(test_device());
    const Real gradient[] = { 1, 2, 3 }, other[] = { 5, 6, 7 };
    Real expected[FLAT] = { 0 };
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(3), uniform);
    Tensor *b = params_add(params, "b", shape(17), uniform);
    Tensor *values = params_flat_values(params), *gradients = params_flat_gradients(params);
    ck_assert(shape_equal(values->shape, shape(FLAT)) &&
              shape_equal(gradients->shape, shape(FLAT)));
    memcpy(expected, test_values(a), 3 * sizeof(Real));
    memcpy(expected + 16, test_values(b), 17 * sizeof(Real));
    assert_identical(test_values(values), expected, FLAT);

    params_zero_gradients(params);
    contribute(a, gradient); /* none reaches b */
    memset(expected, 0, sizeof expected);
    memcpy(expected, gradient, sizeof gradient);
    assert_identical(test_values(params_flat_gradients(params)), expected, FLAT);
    assert_identical(test_values(tensor_gradient(b)), expected + 16, 17);

    /* Writing them, as an all-reduce does, writes the weights' own. */
    memcpy(expected, other, sizeof other);
    tensor_write(gradients, expected);
    assert_gradient(a, other);
    tensor_write(values, expected);
    assert_identical(test_values(a), other, 3);
    ck_assert(!values->requires_grad);
    ck_assert_ptr_eq(op_dropout(tape, values, 0), values); /* a tape accepts it */
    params_free(params);
}

TEST(gradients_accumulate_until_they_are_emptied)
{
    const Real first[] = { 1, 2, 3 }, second[] = { 10, 20, 30 }, sum[] = { 11, 22, 33 };
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(3), uniform);
    contribute(a, first);
    assert_identical(tensor_gradient(a)->data, first, 3);
    contribute(a, second);
    assert_identical(tensor_gradient(a)->data, sum, 3);
    params_zero_gradients(params);
    ck_assert(!a->has_gradient);
    contribute(a, second);
    assert_identical(tensor_gradient(a)->data, second, 3);
    params_free(params);
}

#ifndef TAPEGRAD_NUCLEUS /* with running statistics */
/* ------------------------------------------------------------------------------------- averages */
typedef struct Averaged {
    Params *params;
    Tensor *joined;
    Linear linear;
    BatchNorm norm;
} Averaged;

static Averaged averaged_new(uint64_t seed)
{
    Averaged a = { .params = params_new(test_device(), seed) };
    a.joined =
        params_add_joined(a.params, "attention", three_names, 3, "weight", shape(3, 5), normal);
    a.linear = nn_linear(a.params, "linear", 5, 7);
    a.norm = nn_batchnorm(a.params, "norm", 7);
    Real statistics[2][7];
    Random random = random_new(seed, 1);
    random_uniform(&random, statistics[0], 14);
    tensor_write(a.norm.running_mean, statistics[0]);
    tensor_write(a.norm.running_variance, statistics[1]);
    return a;
}

/* The flat values, and the running statistics after them. */
static Real *all_values(Averaged a, int64_t *count)
{
    Tensor *parts[] = { params_flat_values(a.params), a.norm.running_mean,
                        a.norm.running_variance };
    const int64_t flat = tensor_count(parts[0]);
    *count = flat + 14;
    Real *values = test_zeros(*count);
    for (int i = 0; i < 3; i++)
        tensor_read(parts[i], values + (i ? flat + 7 * (i - 1) : 0));
    return values;
}

TEST(an_average_is_taken_of_all_weights_and_statistics)
{
    static const double factors[] = { 0.25, 0, 0.001 };
    for (int i = 0; i < 3; i++) {
        Averaged to = averaged_new(1), from = averaged_new(2);
        int64_t count;
        const Real *before = all_values(to, &count), *source = all_values(from, &count);
        params_average(to.params, from.params, factors[i]);
        const Real *after = all_values(to, &count);
        for (int64_t k = 0; k < count; k++) {
            const double p = (double)before[k], expected = p + factors[i] * ((double)source[k] - p);
            ck_assert_double_le(fabs((double)after[k] - expected), 1e-6);
        }
        assert_identical(all_values(from, &count), source, count);
        params_free(to.params);
        params_free(from.params);
    }
}

/* Also a NaN and -0, and although a gradient or a freeze is one Params' own. */
TEST(a_copy_is_bitwise)
{
    Averaged to = averaged_new(1), from = averaged_new(2);
    const Real odd[7] = { (Real)NAN, (Real)-0.0, (Real)INFINITY, (Real)1e-40, 3, 4, 5 };
    tensor_write(from.linear.bias, odd);
    params_set_requires_grad(to.params, "linear.*", false);
    params_average(to.params, from.params, 1);
    int64_t count;
    const Real *copy = all_values(to, &count);
    ck_assert_mem_eq(copy, all_values(from, &count), (size_t)count * sizeof *copy);
    ck_assert(!to.linear.weight->requires_grad && from.linear.weight->requires_grad);
    tensor_write(from.linear.bias, copy); /* the copy has memory of its own */
    ck_assert_mem_eq(copy, all_values(to, &count), (size_t)count * sizeof *copy);
    params_free(to.params);
    params_free(from.params);
}

TEST(products_in_bf16_use_the_averaged_weights)
{
    if (!test_has_bf16())
        return;
    Averaged to = averaged_new(1), from = averaged_new(2);
    begin_on(test_device());
    tape_set_precision(tape, PRECISION_BF16);
    Tensor *x = tape_input(tape, test_normal(1, 10), shape(2, 5));
    nn_linear_forward(tape, &to.linear, x); /* makes the bf16 copy of the weights */
    params_average(to.params, from.params, 1);
    assert_identical(test_values(nn_linear_forward(tape, &to.linear, x)),
                     test_values(nn_linear_forward(tape, &from.linear, x)), 14);
    tape_reset(tape);
    params_free(to.params);
    params_free(from.params);
}

typedef struct Target {
    Averaged online, target;
    Tape *tape;
    Optimizer *optimizer;
    Tensor *x, *loss;
} Target;

static void step_to_target(void *context)
{
    Target *t = context;
    Tensor *out = nn_linear_forward(t->tape, &t->online.linear, t->x);
    Tensor *other = nn_linear_forward(t->tape, &t->target.linear, t->x);
    t->loss = tensor_keep(op_mean_squared_error(t->tape, out, op_scale(t->tape, other, 0.5)));
    tape_backward(t->tape, t->loss);
    optim_step(t->optimizer);
    params_average(t->target.params, t->online.params, 0.125);
}

static Target target_new(void)
{
    Target t = { averaged_new(1), averaged_new(2), tape_new(test_device()), .loss = NULL };
    params_set_requires_grad(t.target.params, "*", false);
    t.optimizer = optim_sgd(t.online.params, optim_sgd_config(0.125));
    t.x = tape_persistent(t.tape, shape(2, 5));
    return t;
}

TEST(an_average_in_a_replayed_step_is_the_same)
{
    Target eager = target_new(), replayed = target_new();
    for (int step = 0; step < 5; step++) {
        tensor_write(eager.x, test_normal((uint64_t)step, 10));
        tensor_write(replayed.x, test_normal((uint64_t)step, 10));
        tape_reset(eager.tape);
        step_to_target(&eager);
        tape_replay(replayed.tape, step_to_target, &replayed);
        ck_assert(tensor_item(eager.loss) == tensor_item(replayed.loss));
        assert_identical_weights(eager.target.params, replayed.target.params);
    }
    Target *const both[] = { &eager, &replayed };
    for (int i = 0; i < 2; i++) {
        optim_free(both[i]->optimizer);
        tape_free(both[i]->tape);
        params_free(both[i]->online.params);
        params_free(both[i]->target.params);
    }
}

#define DIFFERS(to, from)                                                                          \
    "params_average: to has " to " where from has " from "; expected equal names and shapes, "     \
    "registered in one order"

TEST(params_that_differ_are_not_averaged)
{
    Averaged to = averaged_new(1), from = averaged_new(2);
    int64_t count;
    const Real *before = all_values(to, &count);
    assert_raises("params_average: to is NULL", params_average(NULL, from.params, 1));
    assert_raises("params_average: from is NULL", params_average(to.params, NULL, 1));
    assert_raises("params_average: to and from are the same Params, expected two",
                  params_average(to.params, to.params, 1));
    assert_raises("params_average: weight is 1.5, expected 0 to 1",
                  params_average(to.params, from.params, 1.5));
    assert_raises("params_average: weight is nan, expected 0 to 1",
                  params_average(to.params, from.params, NAN));
    Params *other = params_new(test_device(), 1);
    assert_raises(DIFFERS("attention.weight [9,5], joined", "no tensor"),
                  params_average(to.params, other, 1));
    params_add(other, "attention.weight", shape(9, 5), normal);
    assert_raises(DIFFERS("attention.weight [9,5], joined", "attention.weight [9,5]"),
                  params_average(to.params, other, 1));
    params_free(other);
    other = params_new(test_device(), 1);
    params_add_joined(other, "attention", three_names, 3, "weight", shape(3, 5), normal);
    nn_linear(other, "linear", 5, 8);
    assert_raises(DIFFERS("linear.weight [8,5]", "linear.weight [7,5]"),
                  params_average(other, to.params, 1));
    params_free(other);
    other = params_new(test_device(), 1);
    params_add_joined(other, "attention", three_names, 3, "weight", shape(3, 5), normal);
    nn_linear(other, "linear", 5, 7);
    const Initializer one = { .kind = INITIAL_ONE };
    params_add(other, "norm.weight", shape(7), one);
    params_add(other, "norm.bias", shape(7), one);
    assert_raises(DIFFERS("norm.running_variance [7]", "no tensor"),
                  params_average(to.params, other, 1));
    assert_identical(all_values(to, &count), before, count);
    params_free(other);
    Device *plain = device_open("plain");
    if (plain != test_device()) {
        other = params_new(plain, 1);
        char sentence[128];
        snprintf(sentence, sizeof sentence,
                 "params_average: to is on the device %s, from on plain, expected one device",
                 device_name(test_device()));
        assert_raises(sentence, params_average(to.params, other, 1));
        params_free(other);
    }
    params_free(to.params);
    params_free(from.params);
}
#endif

TEST(joined_weights_share_one_gradient)
{
    const Real one[] = { 1, 2 }, whole[] = { 10, 20, 30, 40, 50, 60 };
    const Real part_only[] = { 0, 0, 1, 2, 0, 0 }, both[] = { 10, 20, 31, 42, 50, 60 };
    Params *params = params_new(device, 1);
    Tensor *joined = params_add_joined(params, "j", three_names, 3, "w", shape(1, 2), uniform);
    Tensor *key = params_find(params, "j.key.w");
    contribute(key, one);
    assert_identical(tensor_gradient(joined)->data, part_only, 6);
    assert_identical(tensor_gradient(key)->data, one, 2);
    contribute(joined, whole);
    assert_identical(tensor_gradient(joined)->data, both, 6);
    assert_identical(tensor_gradient(key)->data, both + 2, 2);
    ck_assert(shape_equal(tensor_gradient(key)->shape, shape(1, 2)));
    params_free(params);
}

TEST(an_unused_weight_has_no_part_in_the_norm)
{
    begin_on(test_device());
    const Real numbers[] = { 3, 4 }, zeros[] = { 0, 0 };
    Params *params = params_new(device, 1);
    Tensor *used = params_add(params, "used", shape(2), uniform);
    Tensor *unused = params_add(params, "unused", shape(2), uniform);
    contribute(unused, numbers);
    params_zero_gradients(params);
    contribute(used, numbers);
    assert_raises(
        "tensor_gradient: the tensor unused of shape [2] has no gradient; it must require one "
        "(a tape_variable, a parameter, or a tensor that depends on them, with "
        "tensor_keep), and a backward pass must have reached it",
        tensor_gradient(unused));
    ck_assert(clip(params, 100) == 5);
    assert_gradient(unused, zeros);
    assert_gradient(used, numbers);
    contribute(unused, numbers);
    assert_gradient(unused, numbers);
    params_free(params);
}

TEST(a_frozen_weight_has_no_part_in_the_norm)
{
    begin_on(test_device());
    const Real numbers[] = { 3, 4 }, zeros[] = { 0, 0, 0, 0, 0, 0 };
    const Real whole[] = { 10, 20, 3, 4, 50, 60 }, query_and_value[] = { 0, 0, 3, 4, 0, 0 };
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(2), uniform);
    Tensor *joined = params_add_joined(params, "j", three_names, 3, "w", shape(1, 2), uniform);
    contribute(a, numbers);
    params_set_requires_grad(params, "a", false);
    ck_assert(!a->requires_grad && !a->has_gradient);
    contribute(joined, whole);
    params_set_requires_grad(params, "j.query.w", false);
    params_set_requires_grad(params, "j.value.w", false);
    ck_assert(joined->requires_grad);
    ck_assert(clip(params, 100) == 5);
    assert_gradient(a, zeros);
    assert_gradient(joined, query_and_value);

    params_zero_gradients(params);
    Tensor *sum = op_add(tape, op_scale(tape, a, 1),
                         op_reshape(tape, params_find(params, "j.key.w"), shape(2)));
    tape_backward_from(tape, sum, tape_input(tape, numbers, shape(2)));
    tape_reset(tape);
    ck_assert(!a->has_gradient);
    ck_assert(clip(params, 100) == 5);
    params_set_requires_grad(params, "j.*", false);
    ck_assert(!joined->requires_grad && !joined->has_gradient);
    ck_assert(clip(params, 100) == 0);

    params_set_requires_grad(params, "*", true);
    params_zero_gradients(params);
    contribute(a, numbers);
    contribute(joined, whole);
    assert_gradient(a, numbers);
    assert_gradient(joined, whole);
    assert_raises("params_find: params is NULL", params_find(NULL, "a"));
    assert_raises("params_find: the name is NULL", params_find(params, NULL));
    assert_raises("params_save: params is NULL", (void)!params_save(NULL, "/tmp/none"));
    assert_raises("params_load: params is NULL", (void)!params_load(NULL, "/tmp/none"));
    assert_raises("params_zero_gradients: params is NULL", params_zero_gradients(NULL));
    assert_raises("params_set_requires_grad: params is NULL",
                  params_set_requires_grad(NULL, "*", false));
    assert_raises("params_set_requires_grad: the pattern is NULL",
                  params_set_requires_grad(params, NULL, false));
    assert_raises("params_set_requires_grad: no weight's name matches \"j.w\"",
                  params_set_requires_grad(params, "j.w", false));
    params_free(params);
}

/* Large enough for all threads; the sizes leave padding. */
static Params *large_params(Real *const numbers[2])
{
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(201, 333), uniform);
    Tensor *b = params_add(params, "b", shape(7777), uniform);
    contribute(a, numbers[0]);
    contribute(b, numbers[1]);
    return params;
}

TEST(clipping_agrees_with_a_plain_loop)
{
    begin_on(test_device());
    enum { FIRST = 201 * 333, SECOND = 7777 };
    Real *numbers[] = { test_normal(1, FIRST), test_normal(2, SECOND) };
    double square = 0;
    for (int i = 0; i < FIRST; i++)
        square += (double)numbers[0][i] * (double)numbers[0][i];
    for (int i = 0; i < SECOND; i++)
        square += (double)numbers[1][i] * (double)numbers[1][i];
    const double norm = sqrt(square), tolerance = sizeof(Real) == 4 ? 1e-6 : 1e-14;

    Params *params = large_params(numbers);
    double found = clip(params, norm * 1.01);
    ck_assert_double_eq_tol(found, norm, tolerance * norm);
    assert_gradient(params_at(params, 0), numbers[0]);
    assert_gradient(params_at(params, 1), numbers[1]);

    ck_assert(clip(params, 2) == found);
    const Real *scaled = test_values(tensor_gradient(params_at(params, 1)));
    for (int i = 0; i < SECOND; i++)
        ck_assert_double_eq_tol((double)scaled[i], (double)numbers[1][i] * 2 / norm, tolerance);
    ck_assert_double_eq_tol(clip(params, 100), 2, 1e-5);

    test_set_threads(1);
    Params *alone = large_params(numbers);
    test_set_threads(3);
    Params *together = large_params(numbers);
    ck_assert(clip(together, 2) == found);
    test_set_threads(1);
    ck_assert(clip(alone, 2) == found);
    assert_gradient(params_at(alone, 0), test_values(tensor_gradient(params_at(together, 0))));
    params_free(alone);
    params_free(together);
    params_free(params);
}

/* 3, 4: norm 5; 0.3, 0.4: norm 0.5, below the maximum; a part of a joined weight, by itself */
TEST(each_gradient_is_clipped_by_itself)
{
    begin_on(test_device());
    const Real large[] = { 3, 4 }, small[] = { (Real)0.3, (Real)0.4 };
    const Real clipped[] = { (Real)0.6, (Real)0.8 };
    static const char *const parts[] = { "one", "two" };
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(2), uniform);
    Tensor *b = params_add(params, "b", shape(2), uniform);
    Tensor *joined = params_add_joined(params, "c", parts, 2, "weight", shape(2), uniform);
    const Real both[] = { 3, 4, (Real)0.3, (Real)0.4 };
    contribute(a, large);
    contribute(b, small);
    contribute(joined, both);
    params_clip_each_gradient(params, 1);
    assert_near("large", test_values(tensor_gradient(a)), clipped, 2, 1e-6);
    assert_gradient(b, small);
    assert_near("first part", test_values(tensor_gradient(joined)), clipped, 2, 1e-6);
    assert_identical(test_values(tensor_gradient(joined)) + 2, small, 2);
    ck_assert_double_eq_tol(params_gradient_norm(params), sqrt(2.5), 1e-6);
    assert_raises("params_clip_each_gradient: the maximum norm is 0, expected more than 0",
                  params_clip_each_gradient(params, 0));
    const Real infinite[] = { 1, (Real)INFINITY };
    params_zero_gradients(params);
    contribute(a, infinite);
    params_clip_each_gradient(params, 1);
    assert_gradient(a, infinite);
    ck_assert(isinf(params_gradient_norm(params)));
    params_free(params);
}

TEST(clipping_leaves_values_that_are_not_finite)
{
    begin_on(test_device());
    const Real not_a_number[] = { 1, (Real)NAN, 3 }, infinite[] = { 1, (Real)INFINITY, 3 };
    Params *params = params_new(device, 1);
    Tensor *a = params_add(params, "a", shape(3), uniform);
    assert_raises("params_gradient_norm: there is no norm yet; call params_clip_gradients first",
                  params_gradient_norm(params));
    assert_raises("params_clip_gradients: no weight has a gradient since the last step; call "
                  "tape_backward first",
                  params_clip_gradients(params, 1));
    contribute(a, not_a_number);
    assert_raises("params_gradient_norm: there is no norm yet; call params_clip_gradients first",
                  params_gradient_norm(params));
    ck_assert(isnan(clip(params, 0.5)));
    const Real *left = test_values(tensor_gradient(a));
    ck_assert(left[0] == 1 && isnan(left[1]) && left[2] == 3);
    params_zero_gradients(params);
    contribute(a, infinite);
    ck_assert(isinf(clip(params, 0.5)));
    assert_gradient(a, infinite);
    assert_raises("params_clip_gradients: the maximum norm is 0, expected more than 0",
                  params_clip_gradients(params, 0));
    assert_raises("params_clip_gradients: the maximum norm is nan, expected more than 0",
                  params_clip_gradients(params, NAN));
    params_free(params);
}

TEST(a_step_that_failed_after_its_pass_may_be_repeated)
{
    Params *params = params_new(device, 1);
    Tensor *weight = params_add(params, "weight", shape(2), uniform);
    const Real numbers[] = { 3, -2 };
    tape_backward(tape, test_dot_operation(tape, weight, tape_input(tape, numbers, shape(2))));
    assert_raises("tensor_item: the tensor weight has shape [2], expected one element",
                  tensor_item(weight));
    tape_reset(tape);
    contribute(weight, numbers);
    assert_identical(test_values(tensor_gradient(weight)), numbers, 2);
    params_free(params);
}

TEST(a_pass_that_cannot_begin_leaves_the_gradients)
{
    Params *params = params_new(device, 1);
    Tensor *weight = params_add(params, "weight", shape(1), uniform);
    const Real numbers[] = { 3, 3 };
    contribute(weight, numbers);
    Tensor *column = op_reshape(tape, weight, shape(1, 1));
    assert_raises("tape_backward: the loss is a parameter, expected the result of an operation",
                  tape_backward(tape, column));
    assert_raises("tape_backward: the loss has shape [2], expected one element",
                  tape_backward(tape, op_concat(tape, (Tensor *[]){ weight, weight }, 2, 0)));
    assert_raises(
        "tape_backward_from: out has shape [1], the gradient [2], expected the same",
        tape_backward_from(tape, op_scale(tape, weight, 2), tape_input(tape, numbers, shape(2))));
    tape_reset(tape);
    assert_identical(test_values(tensor_gradient(weight)), numbers, 1);
    params_free(params);
}

/* ---------------------------------------------------------------------------------------- files */
static Params *small_model(uint64_t seed)
{
    Params *params = params_new(device, seed);
    params_add(params, "a", shape(2, 3), uniform);
    params_add_joined(params, "j", three_names, 3, "w", shape(3), uniform);
    params_add(params, "b", shape_scalar(), normal);
    return params;
}

TEST(saved_weights_are_loaded_bitwise)
{
    Params *saved = small_model(1), *loaded = small_model(2), *separate = params_new(device, 3);
    assert_ok(params_save(saved, path));
    assert_ok(params_load(loaded, path));
    assert_identical_weights(saved, loaded);

    /* Joined or not, in any order: only names matter. */
    params_add(separate, "b", shape_scalar(), normal);
    params_add(separate, "j.value.w", shape(3), uniform);
    params_add(separate, "a", shape(2, 3), uniform);
    params_add(separate, "j.query.w", shape(3), uniform);
    params_add(separate, "j.key.w", shape(3), uniform);
    assert_ok(params_load(separate, path));
    assert_identical_weights(saved, separate);

    TensorFile *file = tensor_file_open(path);
    ck_assert_int_eq(tensor_file_count(file), 5);
    tensor_file_close(file);
    params_free(saved);
    params_free(loaded);
    params_free(separate);
}

/* Fails unless loading the other model's file is refused with this sentence, where %s stands for
 * the path, and leaves the weights unchanged. */
__attribute__((format(printf, 2, 0))) static void assert_refused(Params *other, const char *format)
{
    Params *params = small_model(1), *untouched = small_model(1);
    if (other)
        assert_ok(params_save(other, path));
    ck_assert(!params_load(params, path));
    char sentence[512];
    snprintf(sentence, sizeof sentence, format, path);
    ck_assert_str_eq(tapegrad_error(), sentence);
    assert_identical_weights(params, untouched);
    params_free(params);
    params_free(untouched);
    params_free(other);
}

TEST(other_models_are_refused)
{
    Params *missing = params_new(device, 2), *wrong_shape = params_new(device, 2);
    Params *unknown = small_model(2);
    params_add(missing, "a", shape(2, 3), uniform);
    params_add_joined(missing, "j", three_names, 3, "w", shape(3), uniform);
    params_add(wrong_shape, "a", shape(2, 3), uniform);
    params_add_joined(wrong_shape, "j", three_names, 3, "w", shape(3, 1), uniform);
    params_add(wrong_shape, "b", shape_scalar(), uniform);
    params_add(unknown, "c", shape(2), uniform);
    assert_refused(missing, "tensor_file_read: %s: there is no entry \"b\"");
    assert_refused(wrong_shape,
                   "tensor_file_read: %s: entry \"j.query.w\" has shape [3,1], expected "
                   "[3]");
    assert_refused(unknown, "params_load: %s: there is no weight for the entry \"c\"");
}

TEST(damaged_files_are_refused)
{
    Params *whole = small_model(2);
    assert_ok(params_save(whole, path));
    ck_assert_int_eq(truncate(path, 7), 0);
    assert_refused(NULL, "tensor_file_open: %s: the file has 7 bytes; the header's length alone "
                         "takes 8");
    assert_ok(params_save(whole, path));
    ck_assert_int_eq(truncate(path, 200), 0);
    Params *params = small_model(1), *untouched = small_model(1);
    ck_assert(!params_load(params, path));
    assert_identical_weights(params, untouched);
    params_free(params);
    params_free(untouched);
    ck_assert_int_eq(unlink(path), 0);
    assert_refused(NULL, "tensor_file_open: %s: No such file or directory");
    params_free(whole);
}

static char reports[2048];

static void collect(const char *name, const char *sentence, void *context)
{
    ck_assert_ptr_eq(context, reports);
    ck_assert_ptr_nonnull(strstr(sentence, name));
    const char *after = strstr(sentence, path) + strlen(path);
    snprintf(reports + strlen(reports), sizeof reports - strlen(reports), "%s%s\n", name, after);
}

/* As for fine-tuning a model with another head. */
TEST(some_weights_are_loaded)
{
    Params *model = params_new(device, 1), *untouched = params_new(device, 1);
    Params *const both[] = { model, untouched };
    for (int i = 0; i < 2; i++) {
        params_add(both[i], "half", shape(2), uniform);
        params_add(both[i], "head", shape(2, 3), uniform);
        params_add(both[i], "large", shape(2), uniform);
        params_add(both[i], "mask", shape(2), uniform);
        params_add(both[i], "new", shape_scalar(), normal);
        params_add(both[i], "single", shape(3), uniform);
    }
    const uint16_t half[] = { 0x3c00, 0xc000 };
    const double large[] = { 1, 1e300 };
    const float single[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    const unsigned char mask[] = { 1, 0 };
    const FileEntry entries[] = { { "large", FILE_F64, shape(2), large },
                                  { "head", FILE_F32, shape(3, 3), single },
                                  { "old", FILE_F32, shape(1), single },
                                  { "optimizer.m.single", FILE_F32, shape(1), single },
                                  { "single", FILE_F32, shape(3), single },
                                  { "half", FILE_F16, shape(2), half },
                                  { "mask", FILE_OPAQUE, shape(2), mask } };
    assert_ok(tensor_file_save(entries, 7, NULL, 0, path));
    const bool wide = sizeof(Real) == sizeof(double);
    ck_assert_int_eq(params_load_some(model, path, collect, reports), wide ? 3 : 2);
    char expected[1024] = "head: entry \"head\" has shape [3,3], expected [2,3]\n";
    if (!wide)
        strcat(expected, "large: entry \"large\": element 1 is 1e+300, which does not fit a "
                         "float\n");
    strcat(expected, "mask: entry \"mask\" is of type BOOL, expected F16, BF16, F32 or F64\n"
                     "new: there is no entry \"new\"\n"
                     "old: there is no weight for the entry \"old\"\n");
    ck_assert_str_eq(reports, expected);
    const Real *read = test_values(params_find(model, "half"));
    ck_assert(read[0] == 1 && read[1] == -2);
    read = test_values(params_find(model, "single"));
    ck_assert(read[0] == 1 && read[1] == 2 && read[2] == 3);
    static const char *const kept[] = { "head", "mask", "new", "large" };
    for (int i = 0; i < (wide ? 3 : 4); i++) {
        const Tensor *weight = params_find(untouched, kept[i]);
        assert_identical(test_values(params_find(model, kept[i])), test_values(weight),
                         tensor_count(weight));
    }
    ck_assert_int_eq(params_load_some(untouched, path, NULL, NULL), wide ? 3 : 2);
    assert_identical_weights(model, untouched);
    ck_assert(!params_load(model, path));
    ck_assert_int_eq(truncate(path, 100), 0);
    ck_assert_int_eq(params_load_some(model, path, collect, reports), -1);
    assert_identical_weights(model, untouched);
    params_free(model);
    params_free(untouched);
}

/* The n-th call of pread fails from here on; -1: none. */
static int failing_read = -1;

ssize_t pread(int descriptor, void *bytes, size_t count, off_t from)
{
    errno = EIO;
    return failing_read == 0 || (failing_read > 0 && failing_read-- == 0)
               ? -1
               : (ssize_t)syscall(SYS_pread64, descriptor, bytes, count, from);
}

#ifndef TAPEGRAD_NUCLEUS
TEST(a_file_that_cannot_be_read_to_its_end_changes_nothing)
{
    Params *saved = small_model(2), *params = small_model(1), *untouched = small_model(1);
    nn_batchnorm(saved, "norm", 2);
    nn_batchnorm(params, "norm", 2);
    nn_batchnorm(untouched, "norm", 2);
    assert_ok(params_save(saved, path));
    for (int way = 0; way < 2; way++) {
        int n = 0;
        for (bool ok = false; !ok; n++) {
            failing_read = n;
            ok = way ? params_load_some(params, path, NULL, NULL) >= 0 : params_load(params, path);
            failing_read = -1;
            ck_assert(ok || strstr(tapegrad_error(), strerror(EIO)));
            if (!ok)
                assert_identical_weights(params, untouched);
        }
        ck_assert_int_eq(n, 1 + 2 + 9); /* the header's length, the header, and each entry */
        assert_identical_weights(params, saved);
        assert_ok(params_save(untouched, path) && params_load(params, path));
        assert_ok(params_save(saved, path));
    }
    params_free(saved);
    params_free(params);
    params_free(untouched);
}
#endif

/* Exhausted memory is an ordinary error here: the functions return false. */
TEST(files_and_exhausted_memory)
{
    Params *saved = small_model(2), *params = small_model(1), *untouched = small_model(1);
    assert_ok(params_save(saved, path));
    const size_t before = device_memory(device).current;
    int failures = 0;
    for (int way = 0; way < 3; way++)
        for (int n = 1;; n++) {
            device_fail_allocation(n);
            bool good = way == 0   ? params_load(params, path)
                        : way == 1 ? params_save(saved, path)
                                   : params_load_some(params, path, NULL, NULL) == 5;
            if (!device_fail_allocation(0)) {
                assert_ok(good);
                break;
            }
            ck_assert(!good);
            assert_exhausted();
            if (way == 0 && n <= 3)
                ck_assert_uint_eq(device_memory(device).current, before);
            failures++;
        }
    ck_assert_int_gt(failures, 8);
    assert_identical_weights(params, saved);
    ck_assert(params_load(untouched, path));
    assert_identical_weights(untouched, saved);
    params_free(saved);
    params_free(params);
    params_free(untouched);
}

int main(void)
{
    return test_main("params", begin, end);
}
