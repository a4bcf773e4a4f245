/* bf16 copies of weights: however the weights change, bf16 products use the new values. */
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 6, WIDTH = 8, HIDDEN = 3 * WIDTH, OUT = 5 };

typedef struct Model {
    Params *params;
    Linear joined, last;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *x, *out;
} Model;

/* The kind of optimizer that has groups too. */
enum { GROUPED = OPTIMIZERS, MAKERS };

static Optimizer *make(int kind, Params *params)
{
    if (kind < GROUPED)
        return test_optimizer((TestOptimizer)kind, params,
                              optim_adam_config(kind < ADAM ? 1e-4 : 0.05));
    Optimizer *optimizer = make(RADAM, params);
    optim_set_group(optimizer, "*.q.*", 0.5, 0);
    optim_set_group(optimizer, "last.bias", 0, 1);
    return optimizer;
}

static Model model_new(int kind, uint64_t seed)
{
    static const char *const names[] = { "q", "k", "v" };
    const Initializer normal = { INITIAL_NORMAL, 0.3 };
    Model m = { .params = params_new(test_device(), seed), .tape = tape_new(test_device()) };
    m.joined =
        (Linear){ params_add_joined(m.params, "a", names, 3, "weight", shape(WIDTH, WIDTH), normal),
                  params_add_joined(m.params, "a", names, 3, "bias", shape(WIDTH), normal) };
    m.last = nn_linear(m.params, "last", HIDDEN, OUT);
    m.optimizer = make(kind, m.params);
    tape_set_precision(m.tape, PRECISION_BF16);
    m.x = tape_persistent(m.tape, shape(ROWS, WIDTH));
    tensor_write(m.x, test_normal(1, ROWS * WIDTH));
    return m;
}

static void model_free(Model *m)
{
    optim_free(m->optimizer);
    tape_free(m->tape);
    params_free(m->params);
}

/* The first layer has an activation, so that every path of op_linear runs. */
static void forward(void *context)
{
    Model *m = context;
    Tensor *h =
        op_linear_activation(m->tape, m->x, m->joined.weight, m->joined.bias, ACTIVATION_RELU);
    m->out = tensor_keep(nn_linear_forward(m->tape, &m->last, h));
}

static void train(void *context)
{
    Model *m = context;
    forward(m);
    tape_backward(m->tape, op_sum(m->tape, op_multiply(m->tape, m->out, m->out), ALL_AXES));
    optim_step(m->optimizer);
}

static Real *results(Model *m)
{
    tape_reset(m->tape);
    forward(m);
    return test_values(m->out);
}

/* The results of a new Params that holds the same weights. */
static Real *fresh_results(const Model *m)
{
    Model fresh = model_new(SGD, 77);
    for (int i = 0; i < params_count(m->params); i++)
        tensor_write(params_at(fresh.params, i), test_values(params_at(m->params, i)));
    Real *fresh_values = results(&fresh);
    model_free(&fresh);
    return fresh_values;
}

/* Fails unless the weights have changed and the model's results are those of the new ones. */
static void check_results(const Model *m, const Real *found, Real *before)
{
    const size_t bytes = ROWS * OUT * sizeof(Real);
    ck_assert_mem_ne(found, before, bytes);
    ck_assert_mem_eq(found, fresh_results(m), bytes);
    memcpy(before, found, bytes);
}

static void check(Model *m, Real *before)
{
    check_results(m, results(m), before);
}

TEST(steps_of_every_optimizer)
{
    for (int kind = 0; kind < MAKERS && test_has_bf16(); kind++) {
        Model m = model_new(kind, 3);
        Real *before = results(&m);
        for (int step = 0; step < 8; step++) { /* radam is rectified from the sixth on */
            tape_reset(m.tape);
            train(&m);
            check(&m, before);
        }
        model_free(&m);
        ck_assert_uint_eq(device_memory(test_device()).current, 0);
    }
}

TEST(steps_that_are_replayed)
{
    for (int kind = 0; kind < MAKERS && test_has_bf16(); kind++) {
        Model replayed = model_new(kind, 3), eager = model_new(kind, 3);
        Real *before = results(&replayed);
        tape_reset(replayed.tape);
        for (int step = 0; step < 8; step++) {
            tape_replay(replayed.tape, train, &replayed);
            tape_reset(eager.tape);
            train(&eager);
            ck_assert_mem_eq(test_values(eager.out), test_values(replayed.out),
                             ROWS * OUT * sizeof(Real));
        }
        check(&replayed, before);
        model_free(&replayed);
        model_free(&eager);
    }
}

/* A recorded float32 step and a recorded bf16 evaluation of the same weights do not disturb each
 * other. When the step was recorded there was no bf16 copy yet. */
TEST(recordings_that_take_turns)
{
    if (!test_has_bf16())
        return;
    Model m = model_new(ADAM, 3), evaluation = m;
    m.tape = tape_new(test_device());
    m.x = tape_persistent(m.tape, shape(ROWS, WIDTH));
    tensor_write(m.x, test_normal(1, ROWS * WIDTH));
    for (int step = 0; step < 3; step++)
        tape_replay(m.tape, train, &m);
    tape_set_recording(evaluation.tape, false);
    Real *before = test_zeros(ROWS * OUT);
    for (int step = 0; step < 5; step++) {
        tape_replay(m.tape, train, &m);
        tape_replay(evaluation.tape, forward, &evaluation);
        check_results(&evaluation, test_values(evaluation.out), before);
    }
    tape_free(evaluation.tape);
    model_free(&m);
}

TEST(weights_that_are_written)
{
    if (!test_has_bf16())
        return;
    Model m = model_new(SGD, 3);
    Real *before = results(&m);
    tensor_write(m.joined.weight, test_normal(5, HIDDEN * WIDTH));
    check(&m, before);
    tensor_write(params_find(m.params, "a.k.weight"), test_normal(6, WIDTH * WIDTH));
    check(&m, before);
    tensor_write(m.last.bias, test_normal(7, OUT));
    check(&m, before);
    tape_reset(m.tape);
    Tensor *view = op_reshape(m.tape, m.last.weight, shape(HIDDEN * OUT));
    tensor_write(view, test_normal(8, HIDDEN * OUT));
    check(&m, before);
    forward(&m); /* also between two uses in one step */
    tensor_write(m.last.weight, test_normal(9, HIDDEN * OUT));
    forward(&m);
    check_results(&m, test_values(m.out), before);
    model_free(&m);
}

static void write_by_hand(Model *m)
{
    for (int64_t i = 0; i < tensor_count(m->last.weight); i++)
        m->last.weight->data[i] += 1;
    tensor_written(m->last.weight);
}

/* The memory of the CPU and of the emulation is host memory, so this does what a program's own
 * kernel could do. */
TEST(weights_that_a_programs_own_kernel_writes)
{
#ifdef TAPEGRAD_CUDA_ON_HOST
    const bool on_host = true;
#else
    const bool on_host = !device_is_cuda(test_device());
#endif
    if (!test_has_bf16() || !on_host)
        return;
    Model m = model_new(SGD, 3);
    Real *before = results(&m);
    for (int step = 0; step < 3; step++) {
        write_by_hand(&m);
        check(&m, before);
    }
    model_free(&m);
}

TEST(weights_that_are_loaded)
{
    if (!test_has_bf16())
        return;
    char path[] = "/tmp/tapegrad-bf16-XXXXXX";
    ck_assert_int_ge(mkstemp(path), 0);
    Model m = model_new(RADAM, 3), other = model_new(RADAM, 4);
    Real *before = results(&m);
    ck_assert(params_save(other.params, path) && params_load(m.params, path));
    check(&m, before);
    tape_reset(other.tape);
    train(&other);
    ck_assert(optim_save(other.optimizer, NULL, NULL, 0, path));
    ck_assert(optim_load(m.optimizer, NULL, path));
    check(&m, before);
    unlink(path);
    model_free(&m);
    model_free(&other);
}

/* Without memory for the shared copies every layer makes a copy of its own, as layers do for
 * tensors that are not weights. */
TEST(without_memory_for_the_copies)
{
    if (!test_has_bf16())
        return;
    Model m = model_new(SGD, 3);
    Real *expected = fresh_results(&m);
    for (int64_t failing = 1;; failing++) {
        tape_reset(m.tape);
        test_expect_error();
        if (!setjmp(test_error_jump)) {
            device_fail_allocation(failing);
            forward(&m);
            ck_assert_mem_eq(test_values(m.out), expected, ROWS * OUT * sizeof(Real));
        }
        const bool happened = device_fail_allocation(0);
        tapegrad_on_error(NULL, NULL);
        if (!happened)
            break;
        model_free(&m);
        m = model_new(SGD, 3);
        ck_assert_int_lt(failing, 50);
    }
    model_free(&m);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

#ifdef TAPEGRAD_CUDA_ON_HOST
static int64_t work_of_a_forward_pass(Model *m)
{
    tape_reset(m->tape);
    const int64_t before = tapegrad_cuda_on_host_counts().work;
    forward(m);
    return tapegrad_cuda_on_host_counts().work - before;
}

/* A cast of x and two products; the first pass also converts the weights. */
TEST(weights_are_converted_once)
{
    if (!test_has_bf16() || !device_is_cuda(test_device()))
        return;
    Model m = model_new(SGD, 3);
    ck_assert_int_eq(work_of_a_forward_pass(&m), 4);
    ck_assert_int_eq(work_of_a_forward_pass(&m), 3);
    tape_reset(m.tape);
    train(&m);
    ck_assert_int_eq(work_of_a_forward_pass(&m), 3);
    model_free(&m);
}
#endif

int main(void)
{
    return test_main("bf16_copies", NULL, NULL);
}
