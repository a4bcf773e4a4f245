#include "tests/support.h"

#include <dirent.h>
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

jmp_buf test_error_jump;

static void jump(const char *sentence, void *context)
{
    (void)sentence;
    (void)context;
    longjmp(test_error_jump, 1);
}

void test_expect_error(void)
{
    tapegrad_on_error(jump, NULL);
}

Device *test_device(void)
{
    const char *name = getenv("DEVICE");
    return device_open(name ? name : "cpu");
}

bool test_has_bf16(void)
{
    return sizeof(Real) == sizeof(float) && strcmp(device_name(test_device()), "plain") != 0;
}

void test_set_threads(int count)
{
    device_set_threads(count);
    device_force_threads(count > 1);
}

bool test_chosen(const char *patterns, const char *name)
{
    char *list = strdup(patterns), *rest = NULL;
    bool found = false;
    for (char *pattern = strtok_r(list, ",", &rest); pattern; pattern = strtok_r(NULL, ",", &rest))
        found = found || fnmatch(pattern, name, 0) == 0;
    free(list);
    return found;
}

static TCase *registered;
static int registered_count; /* tests */

void test_register(const TTest *test)
{
    if (!registered)
        registered = tcase_create("tests");
    const char *chosen = getenv("TEST"); /* TEST=name[,name...] runs these tests only */
    if (chosen && !test_chosen(chosen, test->name))
        return;
    tcase_add_test(registered, test);
    registered_count++;
}

/* In seconds of processor time, which a busy machine does not lengthen; of wall time; and of wall
 * time without processor time, which is a hang. */
enum { PROCESSOR_LIMIT = 600, WALL_LIMIT = 3600, IDLE_LIMIT = 90, WATCH_EVERY = 30 };

/* The processor time, in ticks, of the other processes of this group; -1 if there are none. */
static long long ticks_of_group(void)
{
    DIR *processes = opendir("/proc");
    bool found = false;
    long long sum = 0;
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file =
            atoi(entry->d_name) > 0 && atoi(entry->d_name) != getpid() ? fopen(path, "r") : NULL;
        int group = 0;
        long long user, kernel, of_children, kernel_of_children;
        if (file &&
            fscanf(file,
                   "%*d (%*[^)]) %*c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %lld %lld",
                   &group, &user, &kernel, &of_children, &kernel_of_children) == 5 &&
            group == getpgrp()) {
            found = true;
            sum += user + kernel + of_children + kernel_of_children;
        }
        if (file)
            fclose(file);
    }
    if (processes)
        closedir(processes);
    return found ? sum : -1;
}

/* Ends the test when all its processes are idle for IDLE_LIMIT seconds: Check's handler of SIGALRM
 * kills them and reports a timeout with the test's name. When the test ends, Check kills what is
 * left of its group, this process too. */
static void watch(pid_t runner)
{
    enum { FEW_TICKS = 10 };
    long long last = 0;
    for (int idle = 0; last >= 0 && idle < IDLE_LIMIT; idle += WATCH_EVERY) {
        sleep(WATCH_EVERY);
        const long long now = ticks_of_group();
        if (now < 0 || llabs(now - last) > FEW_TICKS) {
            last = now;
            idle = -WATCH_EVERY;
        }
    }
    if (last >= 0)
        kill(runner, SIGALRM);
    _exit(0);
}

static SRunner *runner;

static void limit_time(void)
{
    setrlimit(RLIMIT_CPU, &(struct rlimit){ PROCESSOR_LIMIT, RLIM_INFINITY });
    const pid_t parent = getppid();
    const pid_t child = srunner_fork_status(runner) == CK_FORK ? fork() : -1;
    if (child == 0) {
        if (fork() == 0) /* a grandchild: the test's wait() does not see it */
            watch(parent);
        _exit(0);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
}

int test_main(const char *name, void (*setup)(void), void (*teardown)(void))
{
    if (registered_count == 0) {
        fprintf(stderr, "%s: TEST=%s: no test has this name\n", name, getenv("TEST"));
        return EXIT_FAILURE;
    }
    Suite *suite = suite_create(name);
    tcase_set_timeout(registered, WALL_LIMIT);
    tcase_add_checked_fixture(registered, limit_time, NULL);
    tcase_add_checked_fixture(registered, setup, teardown);
    suite_add_tcase(suite, registered);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Memory that lives until the process ends or test_forget, and stays reachable so that leak
 * checkers do not report it. */
typedef struct Lasting {
    struct Lasting *next;
    _Alignas(max_align_t) char bytes[];
} Lasting;
static Lasting *all_lasting;

static void *lasting(size_t bytes)
{
    Lasting *memory = malloc(sizeof *memory + bytes);
    if (!memory)
        abort(); /* ck_assert works only in tests */
    memory->next = __atomic_load_n(&all_lasting, __ATOMIC_RELAXED); /* tests may have threads */
    while (!__atomic_compare_exchange_n(&all_lasting, &memory->next, memory, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    return memory->bytes;
}

void test_forget(void)
{
    while (all_lasting) {
        Lasting *memory = all_lasting;
        all_lasting = memory->next;
        free(memory);
    }
}

Real *test_normal(uint64_t stream, int64_t count)
{
    Real *values = lasting((size_t)count * sizeof(Real));
    Random random = random_new(20200629, stream);
    random_normal(&random, values, count);
    return values;
}

Tensor *test_variable(Tape *tape, uint64_t stream, Shape shape)
{
    return tape_variable(tape, test_normal(stream, shape_count(shape)), shape);
}

Real test_rounded_to_bf16(Real x)
{
    int exponent;
    const double mantissa = frexp((double)x, &exponent); /* in [0.5, 1) */
    return (Real)ldexp(nearbyint(ldexp(mantissa, 8)), exponent - 8);
}

Real *test_values(const Tensor *tensor)
{
    Real *values = lasting((size_t)tensor_count(tensor) * sizeof(Real));
    tensor_read(tensor, values);
    return values;
}

int32_t *test_integers(const Tensor *tensor)
{
    int32_t *values = lasting((size_t)tensor_count(tensor) * sizeof *values);
    tensor_read_i32(tensor, values);
    return values;
}

Real *test_zeros(int64_t count)
{
    Real *values = test_normal(99, count);
    memset(values, 0, (size_t)count * sizeof *values);
    return values;
}

double test_dot(const Real *a, const Real *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void dot_backward(Node *node)
{
    const Real upstream = tape_upstream(node, 0)[0];
    for (int side = 0; side < 2; side++) {
        Gradient gradient = tape_contribution(node, node->inputs[side]);
        const Tensor *other = node->inputs[1 - side];
        for (int64_t i = 0; gradient.data && i < tensor_count(other); i++)
            gradient_add(gradient, i, upstream * other->data[i]);
    }
}

Tensor *test_dot_operation(Tape *tape, Tensor *a, Tensor *b)
{
    tape_use(tape, "dot: a", a);
    tape_use(tape, "dot: b", b);
    Tensor *out = tape_tensor(tape, shape_scalar());
    out->data[0] = 0;
    for (int64_t i = 0; i < tensor_count(a); i++)
        out->data[0] += a->data[i] * b->data[i];
    tape_record(
        tape,
        (Node){ .name = "dot", .backward = dot_backward, .inputs = { a, b }, .outputs = { out } });
    return out;
}

void test_worst(Worst *worst, double error, int64_t at)
{
    if (!(error <= worst->error) && !isnan(worst->error))
        *worst = (Worst){ error, at };
}

Worst test_difference(const Real *a, const Real *b, int64_t count)
{
    Worst worst = { 0 };
    for (int64_t i = 0; i < count; i++)
        test_worst(&worst, fabs((double)a[i] - (double)b[i]), i);
    return worst;
}

double test_largest(const Real *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

void assert_near(const char *what, const Real *a, const Real *b, int64_t count, double tolerance)
{
    const double largest = fmax(1, test_largest(b, count));
    const Worst worst = test_difference(a, b, count);
    ck_assert_msg(worst.error <= tolerance * largest,
                  "%s[%lld] is %.9g, expected %.9g: error %.2g, tolerance %.2g", what,
                  (long long)worst.at, (double)a[worst.at], (double)b[worst.at], worst.error,
                  tolerance * largest);
}

void assert_values(const Tensor *tensor, Shape of, const Real *expected)
{
    ck_assert_msg(shape_equal(tensor->shape, of), "the shape is %s, expected %s",
                  shape_text(tensor->shape).text, shape_text(of).text);
    ck_assert_mem_eq(test_values(tensor), expected, (size_t)shape_count(of) * sizeof(Real));
}
void assert_identical(const Real *a, const Real *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(memcmp(&a[i], &b[i], sizeof *a) == 0, "element %lld is %.9g, expected %.9g",
                      (long long)i, (double)a[i], (double)b[i]);
}

void assert_identical_weights(const Params *a, const Params *b)
{
    for (int i = 0; i < params_count(a); i++) {
        const Tensor *weight = params_at(a, i);
        assert_identical(test_values(weight), test_values(params_find(b, weight->name)),
                         tensor_count(weight));
    }
}

#ifdef TAPEGRAD_MUON_H
static Optimizer *muon(Params *params, AdamConfig config)
{
    AdamConfig rest = config;
    rest.schedule = optim_constant();
    return optim_muon(params, (MuonConfig){ .learning_rate = config.learning_rate,
                                            .momentum = config.beta1,
                                            .nesterov = true,
                                            .iterations = 5,
                                            .weight_decay = config.weight_decay,
                                            .rest = rest,
                                            .schedule = config.schedule });
}
#endif

Optimizer *test_optimizer(TestOptimizer kind, Params *params, AdamConfig config)
{
    static Optimizer *(*const make[OPTIMIZERS])(Params *, AdamConfig) = {
        [ADAM] = optim_adam,
        [ADAMW] = optim_adamw,
        [RADAM] = optim_radam,
#ifdef TAPEGRAD_MUON_H
        [MUON] = muon,
#endif
#ifdef TAPEGRAD_SCHEDULE_FREE_H
        [SCHEDULE_FREE] = optim_schedule_free_adamw,
#endif
    };
    if (make[kind])
        return make[kind](params, config);
    return optim_sgd(params, (SGDConfig){ .learning_rate = config.learning_rate,
                                          .momentum = kind == SGD ? 0 : config.beta1,
                                          .nesterov = kind == NESTEROV,
                                          .weight_decay = config.weight_decay,
                                          .schedule = config.schedule });
}

void assert_counts(const int64_t *counts, const double *probability, int classes, int64_t all)
{
    double square = 0, rest = 0, rest_expected = 0;
    int n = -1;
    for (int c = 0; c < classes; c++) {
        const double expected = probability[c] * (double)all;
        if (expected < 5) {
            rest += (double)counts[c];
            rest_expected += expected;
            continue;
        }
        square += pow((double)counts[c] - expected, 2) / expected;
        n++;
    }
    if (rest_expected >= 5) {
        square += pow(rest - rest_expected, 2) / rest_expected;
        n++;
    }
    const double normal = (cbrt(square / n) - (1 - 2 / (9.0 * n))) / sqrt(2 / (9.0 * n));
    ck_assert_msg(normal < 4.3, "chi square is %g with %d degrees of freedom", square, n);
    ck_assert_double_le(rest, 5 * rest_expected + 10);
}

void assert_exhausted(void)
{
    ck_assert_msg(strstr(tapegrad_error(), "memory is exhausted") != NULL, "%s", tapegrad_error());
}

void assert_draws_recover(Tensor *(*draw)(Tape *tape), uint64_t counters)
{
    Tape *tape = tape_new(test_device());
    int32_t *expected = NULL;
    volatile int64_t failures = 0;
    for (volatile bool failed = true; failed; tape_reset(tape)) {
        tape_seed(tape, 4);
        device_release_cached(test_device());
        test_expect_error();
        if (setjmp(test_error_jump))
            tape_reset(tape);
        else
            device_fail_allocation(failures + 1);
        Tensor *out = draw(tape);
        failed = device_fail_allocation(0);
        failures += failed;
        tapegrad_on_error(NULL, NULL);
        ck_assert_uint_eq(tape_random(tape).counter, counters);
        if (expected)
            ck_assert_mem_eq(expected, test_integers(out),
                             (size_t)tensor_count(out) * sizeof *expected);
        expected = test_integers(out);
        ck_assert_int_lt(failures, 50);
    }
    ck_assert_int_gt(failures, 2);
    tape_free(tape);
}

void test_note(Outcome *outcome, const Tensor *tensor)
{
    ck_assert_int_lt(outcome->count, OUTCOME_MAX);
    outcome->counts[outcome->count] = tensor ? tensor_count(tensor) : 0;
    outcome->values[outcome->count++] = tensor ? test_values(tensor) : NULL;
}

Outcome test_outcome(const char *device, uint64_t seed, CheckedFunction *function, void *context,
                     const CheckInput *inputs, int count)
{
    Tape *tape = tape_new(device ? device_open(device) : test_device());
    tape_seed(tape, seed);
    Tensor *x[NODE_INPUTS];
    for (int i = 0; i < count; i++)
        x[i] = tape_variable(tape, inputs[i].values, inputs[i].shape);
    Tensor *out = tensor_keep(function(tape, x, context));
    const Real *upstream = test_normal(TEST_UPSTREAM, tensor_count(out));
    tape_backward_from(tape, out, tape_input(tape, upstream, out->shape));
    Outcome outcome = { 0 };
    test_note(&outcome, out);
    for (int i = 0; i < count; i++)
        test_note(&outcome, tensor_gradient(x[i]));
    tape_free(tape);
    return outcome;
}

void assert_outcomes_near(const char *what, const Outcome *a, const Outcome *b, double tolerance)
{
    ck_assert_int_eq(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s, %s %d", what, i ? "gradient" : "result", i);
        ck_assert_int_eq(a->counts[i], b->counts[i]);
        assert_near(name, a->values[i], b->values[i], a->counts[i], tolerance);
    }
}

double relative_error(const Real *a, const Real *b, int64_t count)
{
    const double error = test_difference(a, b, count).error;
    return error == 0 ? 0 : error / test_largest(b, count);
}

/* ---------------------------------------------------------------------------- reference vectors */
const char *test_vector_directory(void)
{
    const char *directory = getenv("TAPEGRAD_VECTORS");
    return directory ? directory : "tests/data";
}

TensorFile *test_vector_file(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_vector_directory(), name);
    TensorFile *file = tensor_file_open(path);
    assert_ok(file != NULL);
    return file;
}

Real *test_entry(const TensorFile *file, const char *prefix, const char *name, Shape *entry_shape)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const FileEntry *entry = tensor_file_find(file, full);
    ck_assert_msg(entry != NULL, "no entry %s", full);
    const Shape found = entry->shape;
    Real *values = lasting((size_t)shape_count(found) * sizeof(Real));
    assert_ok(tensor_file_read(file, full, found, values));
    if (entry_shape)
        *entry_shape = found;
    return values;
}

/* ------------------------------------------------------------------------------ gradient checks */
void check_gradient_shapes(const char *name, CheckedFunction *function, void *context,
                           const Shape *shapes, int count, double tolerance)
{
    CheckInput inputs[NODE_INPUTS];
    ck_assert_int_le(count, NODE_INPUTS);
    for (int i = 0; i < count; i++)
        inputs[i] = (CheckInput){ shapes[i], test_normal((uint64_t)i + 1, shape_count(shapes[i])) };
    /* On CUDA in float the products of linear attention have an error of 1e-5, and so differences
     * one of 1e-5 |L| / h. */
    if (sizeof(Real) == sizeof(float) && device_is_cuda(test_device()))
        tolerance *= 10;
    GradientCheck check = gradient_check(test_device(), function, context, inputs, count);
    ck_assert_msg(check.error >= 0 && check.error <= tolerance,
                  "%s: input %d of shape %s, element %lld: the tape says %.9g, differences %.9g: "
                  "error %.2g, tolerance %.2g%s%s",
                  name, check.input, shape_text(shapes[check.input]).text, (long long)check.element,
                  check.analytic, check.numeric, check.error, tolerance,
                  check.pattern[0] ? "; the gradient of this input is " : "", check.pattern);
}
