/* Threads: who computes (tensor/threads.c), device_set_threads, fork, tapes in several threads. */
#include "tests/support.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------ a model's steps */
enum { BATCH = 8, LENGTH = 16, WIDTH = 16, ELEMENTS = BATCH * LENGTH * WIDTH };

typedef struct Model {
    Params *params;
    Transformer transformer;
} Model;

static Model model_new(Device *device)
{
    Model model = { .params = params_new(device, 1) };
    const TransformerConfig config = { .layers = 2, .heads = 2, .head_dim = WIDTH / 2 };
    model.transformer = nn_transformer(model.params, "transformer", config);
    return model;
}

static Tensor *input(Tape *tape, const Real *host)
{
    return tape_input(tape, host, shape(BATCH, LENGTH, WIDTH));
}

static void evaluate(Real *out, Tape *tape, const Model *model, const Real *x)
{
    tensor_read(
        nn_transformer_forward(tape, &model->transformer, input(tape, x), (AttentionOptions){ 0 }),
        out);
}

static void train(Device *device, int steps)
{
    const Model model = model_new(device);
    Optimizer *optimizer = optim_sgd(model.params, optim_sgd_config(0.1));
    Tape *tape = tape_new(device);
    for (int step = 0; step < steps; step++) {
        Tensor *x = input(tape, test_normal(1, ELEMENTS));
        tape_backward(tape, op_mean(tape,
                                    nn_transformer_forward(tape, &model.transformer, x,
                                                           (AttentionOptions){ 0 }),
                                    ALL_AXES));
        optim_step(optimizer);
        tape_reset(tape);
    }
    tape_free(tape);
    optim_free(optimizer);
    params_free(model.params);
}

enum { SIDE = 512 };

/* Large enough for all threads. */
static void multiply(Device *device, Real *out)
{
    Tape *tape = tape_new(device);
    Tensor *a = tape_input(tape, test_normal(1, SIDE * SIDE), shape(SIDE, SIDE));
    Tensor *b = tape_input(tape, test_normal(2, SIDE * SIDE), shape(SIDE, SIDE));
    tensor_read(op_matmul(tape, a, b), out);
    tape_free(tape);
}

/* --------------------------------------------------------------------------------- who computes */

/* How often this process' threads other than the caller, which is the first, have gone to sleep. */
static int64_t sleeps_of_others(void)
{
    int64_t sleeps = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[128];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file =
            atoi(task->d_name) > 0 && atoi(task->d_name) != getpid() ? fopen(path, "r") : NULL;
        long count;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
                sleeps += count;
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return sleeps;
}

/* Waits until they sleep. */
static int64_t resting(void)
{
    int64_t before = -1, now = sleeps_of_others();
    for (; before != now; now = sleeps_of_others()) {
        before = now;
        /* libomp's threads spin for 200 ms; a halt of the machine takes one of these waits */
        for (int i = 0; i < 6; i++)
            usleep(50000);
    }
    return now;
}

TEST(small_work_wakes_no_thread)
{
    if (device_is_cuda(test_device()))
        return;
    device_set_threads(2);
    static Real product[SIDE * SIDE];
    multiply(test_device(), product); /* a team of two */
    const int64_t before = resting();
    ck_assert_int_gt(before, 0);
    train(test_device(), 20);
    ck_assert_int_eq(resting(), before);
    device_force_threads(true); /* a busy machine would leave it to this thread */
    multiply(test_device(), product);
    ck_assert_int_gt(resting(), before);
}

TEST(parts_of_a_product_equal_the_whole)
{
    if (device_is_cuda(test_device()))
        return;
    const struct {
        int64_t n, m, k;
    } sizes[] = { { 257, 131, 129 }, { 131, 257, 129 }, { 3, 1021, 1500 }, { 1021, 1, 4001 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i].n, m = sizes[i].m, k = sizes[i].k;
        Real *values[3];
        for (int threads = 1; threads <= 3; threads++) {
            test_set_threads(threads);
            Tape *tape = tape_new(test_device());
            Tensor *a = tape_input(tape, test_normal(1, n * k), shape(n, k));
            Tensor *b = tape_input(tape, test_normal(2, k * m), shape(k, m));
            values[threads - 1] = test_values(op_matmul(tape, a, b));
            tape_free(tape);
        }
        const double tolerance = (sizeof(Real) == 4 ? 1e-6 : 1e-14) * (double)k;
        for (int64_t j = 0; j < n * m; j++)
            for (int other = 1; other < 3; other++)
                ck_assert_double_eq_tol((double)values[other][j], (double)values[0][j], tolerance);
    }
}

/* ----------------------------------------------------------------------------- one process */
static void *in_a_thread(void *(*function)(void *), void *context)
{
    pthread_t thread;
    void *result;
    ck_assert_int_eq(pthread_create(&thread, NULL, function, context), 0);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    return result;
}

static void *set_three(void *unused)
{
    device_set_threads(3);
    return unused;
}

static void *read_count(void *count)
{
    *(int *)count = device_threads();
    return count;
}

TEST(the_number_of_threads_is_the_process_own)
{
    int count = 0;
    device_set_threads(2);
    in_a_thread(read_count, &count);
    ck_assert_int_eq(count, 2);
    in_a_thread(set_three, NULL);
    ck_assert_int_eq(device_threads(), 3);
}

/* Evaluates the shared model many times. */
typedef struct Reader {
    const Model *model;
    Device *device;
    const Real *x;
    Real out[ELEMENTS];
    int differing;
} Reader;

static void *read_weights(void *context)
{
    Reader *reader = context;
    Tape *tape = tape_new(reader->device);
    tape_set_recording(tape, false);
    Real again[ELEMENTS];
    evaluate(reader->out, tape, reader->model, reader->x);
    for (int i = 0; i < 50; i++) {
        tape_reset(tape);
        evaluate(again, tape, reader->model, reader->x);
        reader->differing += memcmp(again, reader->out, sizeof again) != 0;
    }
    tape_free(tape);
    return NULL;
}

TEST(two_threads_read_the_same_weights)
{
    Device *device = test_device();
    if (device_is_cuda(device)) /* which one thread at a time may use */
        return;
    test_set_threads(2);
    const Model model = model_new(device);
    const Real *x[] = { test_normal(1, ELEMENTS), test_normal(2, ELEMENTS) };
    Real expected[2][ELEMENTS];
    Tape *tape = tape_new(device);
    for (int i = 0; i < 2; i++)
        evaluate(expected[i], tape, &model, x[i]);
    tape_free(tape);

    Reader readers[] = { { &model, device, .x = x[0] }, { &model, device, .x = x[1] } };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_weights, &readers[i]), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(readers[i].differing, 0);
        ck_assert_int_eq(memcmp(readers[i].out, expected[i], sizeof expected[i]), 0);
    }
    params_free(model.params);
}

/* ------------------------------------------------------------------------ one tape, two threads */
typedef struct Recorder {
    Tape *tape;
    Tensor *x;
    _Atomic int entered;
} Recorder;

static void wait_in_backward(Node *node)
{
    Recorder *recorder = *(Recorder *const *)node->attributes;
    recorder->entered = 1;
    while (recorder->entered == 1)
        usleep(1000);
}

static void *pass(void *context)
{
    Recorder *recorder = context;
    Tape *tape = recorder->tape;
    tape_use(tape, "wait: x", recorder->x);
    Tensor *out = tape_tensor(tape, shape(1));
    tape_record(tape, (Node){ .name = "wait",
                              .backward = wait_in_backward,
                              .outputs = { out },
                              .inputs = { recorder->x },
                              .attributes = tape_save(tape, &recorder, sizeof recorder) });
    tape_backward(tape, out);
    return NULL;
}

TEST(a_tape_used_by_two_threads_at_once_raises)
{
    const Real one = 1;
    Tape *tape = tape_new(test_device());
    Recorder recorder = { tape, tape_variable(tape, &one, shape(1)), 0 };
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, pass, &recorder), 0);
    while (!recorder.entered)
        usleep(1000);
    assert_raises("op_exp: another thread is using the tape, expected one thread at a time",
                  op_exp(tape, recorder.x));
    assert_raises("tape_reset: another thread is using the tape, expected one thread at a time",
                  tape_reset(tape));
    recorder.entered = 2;
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    op_exp(tape, recorder.x); /* the other thread has finished */
    tape_reset(tape);
    tape_free(tape);
}

/* An error ends a thread's work: another one may reset the tape and go on. */
static void *fail_in_backward(void *context)
{
    Recorder *recorder = context;
    Tape *tape = recorder->tape;
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        Tensor *out = op_exp(tape, recorder->x);
        device_fail_allocation(2); /* after dL/dout, dx: within the pass */
        tape_backward(tape, out);
        ck_abort_msg("no error");
    }
    device_fail_allocation(0);
    tapegrad_on_error(NULL, NULL);
    return NULL;
}

TEST(after_an_error_in_one_thread_another_uses_the_tape)
{
    const Real one = 1;
    Tape *tape = tape_new(test_device());
    Recorder recorder = { tape, tape_variable(tape, &one, shape(1)), 0 };
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_in_backward, &recorder), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    tape_reset(tape);
    op_exp(tape, tape_variable(tape, &one, shape(1)));
    tape_free(tape);
}

/* ------------------------------------------------------------------------ settings of a process */
static _Atomic bool settled;
static jmp_buf raised;
static int mismatches; /* of this thread, which alone raises */

static void first_handler(const char *sentence, void *context)
{
    (void)sentence;
    mismatches += context != &raised;
    longjmp(raised, 1);
}

static void second_handler(const char *sentence, void *context)
{
    (void)sentence;
    mismatches += context != &mismatches;
    longjmp(raised, 1);
}

static void *install_handlers(void *unused)
{
    while (!settled) {
        tapegrad_on_error(first_handler, &raised);
        tapegrad_on_error(second_handler, &mismatches);
    }
    return unused;
}

TEST(an_error_reaches_one_handler_and_its_context)
{
    pthread_t thread;
    tapegrad_on_error(first_handler, &raised);
    ck_assert_int_eq(pthread_create(&thread, NULL, install_handlers, NULL), 0);
    for (volatile int i = 0; i < 200000; i++)
        if (!setjmp(raised))
            shape(0);
    settled = true;
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    tapegrad_on_error(NULL, NULL);
    ck_assert_int_eq(mismatches, 0);
}

/* It should not happen, since results depend on the number; it must not write past a workspace. */
static void *change_threads(void *unused)
{
    for (int i = 0; !settled; i++)
        device_set_threads(1 + i % 4);
    return unused;
}

TEST(a_recurrent_pass_survives_another_number_of_threads)
{
    enum { B = 24, N = 5, H = 112 };
    if (device_is_cuda(test_device()))
        return;
    pthread_t thread;
    test_set_threads(2);
    ck_assert_int_eq(pthread_create(&thread, NULL, change_threads, NULL), 0);
    const Real *x = test_normal(1, B * N * H);
    Real *first = NULL;
    Params *params = params_new(test_device(), 1);
    const Lstm lstm = nn_lstm(params, "lstm", (RecurrentConfig){ .input = H, .hidden = H });
    Tape *tape = tape_new(test_device());
    for (int i = 0; i < 100; i++) {
        Tensor *out = nn_lstm_forward(tape, &lstm, tape_input(tape, x, shape(B, N, H)), NULL, NULL);
        Real *values = test_values(tensor_keep(out));
        first = first ? first : values;
        assert_near("out", values, first, B * N * H, VECTOR_TOLERANCE);
        tape_backward(tape, op_sum(tape, out, ALL_AXES));
        params_zero_gradients(params);
        tape_reset(tape);
    }
    settled = true;
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    tape_free(tape);
    params_free(params);
}

/* ----------------------------------------------------------------------------------------- fork */
static Real in_parent[SIDE * SIDE], in_child[SIDE * SIDE];

static void *multiply_in_child(void *device)
{
    multiply(device, in_child);
    return memcmp(in_child, in_parent, sizeof in_parent) == 0 ? device : NULL;
}

/* Its status: 0 if its results, here and in a thread of its own, are those of the parent. */
static int child(Device *device)
{
    alarm(60); /* against a wait for threads that do not exist */
    bool same = multiply_in_child(device) != NULL;
    pthread_t thread;
    void *result = NULL;
    if (pthread_create(&thread, NULL, multiply_in_child, device) == 0)
        pthread_join(thread, &result);
    return same && result ? EXIT_SUCCESS : EXIT_FAILURE;
}

TEST(a_child_process_computes)
{
    Device *device = test_device();
    if (device_is_cuda(device))
        return;
    test_set_threads(2);
    for (int i = 0; i < 2; i++) { /* the parent's team stays */
        multiply(device, in_parent);
        const pid_t process = fork();
        ck_assert_int_ge(process, 0);
        if (process == 0)
            _exit(child(device));
        int status;
        ck_assert_int_eq(waitpid(process, &status, 0), process);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    }
}

int main(void)
{
    return test_main("threads", NULL, NULL);
}
