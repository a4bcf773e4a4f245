/* Shared by the test programs. A test program is tests and one line of main. */
#ifndef TAPEGRAD_TESTS_SUPPORT_H
#define TAPEGRAD_TESTS_SUPPORT_H

#include <check.h>
#include <setjmp.h>
#include <tapegrad.h>

#ifdef TAPEGRAD_CUDA_ON_HOST
#include <cuda_on_host.h> /* counts of what the library does on the emulated device */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The accuracy required of double-precision and float builds: against the reference vectors,
 * relative to the largest magnitude; in a gradient check; and of values near 1 of one operation. */
#ifdef TAPEGRAD_DOUBLE
#define VECTOR_TOLERANCE 1e-10
#define GRADIENT_TOLERANCE 1e-7
#define VALUE_TOLERANCE 1e-12
#else
#define VECTOR_TOLERANCE 1e-5
#define GRADIENT_TOLERANCE 2e-3
#define VALUE_TOLERANCE 2e-6
#endif

/* Under sanitizers, or on the emulated device, programs are ten times as slow: what trains to show
 * that it learns then takes a few steps. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_IS_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_IS_SANITIZED
#endif
#if defined(TAPEGRAD_CUDA_ON_HOST) || defined(TEST_IS_SANITIZED)
enum { SLOW = true };
#else
enum { SLOW = false };
#endif

/* The device under test: DEVICE of the environment, or the CPU. */
Device *test_device(void);

/* Whether the device has PRECISION_BF16 in this build. */
bool test_has_bf16(void);

/* device_set_threads; with several threads, all of them share work of any size. */
void test_set_threads(int count);

/* TEST(claim) { ... } defines a test of this program. */
#define TEST(claim)                                                                                \
    static void claim##_fn(int);                                                                   \
    __attribute__((constructor)) static void register_##claim(void)                                \
    {                                                                                              \
        static const TTest test = { #claim, claim##_fn, __FILE__, __LINE__ };                      \
        test_register(&test);                                                                      \
    }                                                                                              \
    static void claim##_fn(__attribute__((unused)) int _i)
void test_register(const TTest *test);

/* Whether a pattern of a list "a*,b" matches the name; * stands for any characters. */
bool test_chosen(const char *patterns, const char *name);

/* Runs the program's tests in their order, each in its own process; returns main's result. setup,
 * or NULL, runs first in each test's process: only there may a CUDA device be opened, because a
 * device does not survive a fork. teardown, or NULL, runs after each test that succeeds. */
int test_main(const char *name, void (*setup)(void), void (*teardown)(void));

/* Normal random values in memory that lives until the process ends. */
Real *test_normal(uint64_t stream, int64_t count);
Tensor *test_variable(Tape *tape, uint64_t stream, Shape shape);

/* Frees all such memory now. */
void test_forget(void);

/* Zeros, likewise. */
Real *test_zeros(int64_t count);

/* The nearest value with 8 bits of mantissa; of two, that with an even last bit. */
Real test_rounded_to_bf16(Real x);

/* A copy of the tensor's elements in memory that lives until the process ends. */
Real *test_values(const Tensor *tensor);
int32_t *test_integers(const Tensor *tensor);

/* a.b in double */
double test_dot(const Real *a, const Real *b, int64_t count);

/* out = sum_i a_i b_i of tensors in host memory: an operation, "dot", as programs write their
 * own. */
Tensor *test_dot_operation(Tape *tape, Tensor *a, Tensor *b);

/* The largest of several errors and its element; NaN, the first one, is larger than all. */
typedef struct Worst {
    double error;
    int64_t at;
} Worst;
void test_worst(Worst *worst, double error, int64_t at);
Worst test_difference(const Real *a, const Real *b, int64_t count); /* |a - b| */
double test_largest(const Real *values, int64_t count);             /* max |values|; 0 if none */

/* Fails unless a is b up to an error relative to max(1, max |b|): where the gradient of scores is
 * 0, as with one key, the rounding errors of values near 1 remain. */
void assert_near(const char *what, const Real *a, const Real *b, int64_t count, double tolerance);

/* Results and gradients of a run, in memory that lives until the process ends. */
enum { OUTCOME_MAX = 10 };
typedef struct Outcome {
    int count;
    int64_t counts[OUTCOME_MAX];
    Real *values[OUTCOME_MAX];
} Outcome;
/* Appends a copy of the tensor; NULL appends an entry of no elements. */
void test_note(Outcome *outcome, const Tensor *tensor);

/* The function's result, then the gradient of each input, on a tape of its own with this seed: from
 * test_normal(TEST_UPSTREAM) as the gradient of the result. device: NULL for test_device(). */
enum { TEST_UPSTREAM = 4 };
Outcome test_outcome(const char *device, uint64_t seed, CheckedFunction *function, void *context,
                     const CheckInput *inputs, int count);

/* assert_near of every entry; what names them. */
void assert_outcomes_near(const char *what, const Outcome *a, const Outcome *b, double tolerance);

/* max |a - b| / max |b|; NaN if an element is NaN. */
double relative_error(const Real *a, const Real *b, int64_t count);

/* Fails the test unless relative_error(a, b) <= tolerance. */
#define assert_close(a, b, count, tolerance)                                                       \
    do {                                                                                           \
        double error_ = relative_error(a, b, count);                                               \
        ck_assert_msg(error_ <= (tolerance), "relative error %g, expected at most %g", error_,     \
                      (double)(tolerance));                                                        \
    } while (0)

/* Fails unless the tensor has this shape and these values, bit by bit. */
void assert_values(const Tensor *tensor, Shape of, const Real *expected);
#define VALUES(...) ((const Real[]){ __VA_ARGS__ })

/* Fails unless the elements are equal bit by bit; the same for all weights, by name. */
void assert_identical(const Real *a, const Real *b, int64_t count);
void assert_identical_weights(const Params *a, const Params *b);

/* Fails unless the result is true, with the sentence of the error. */
#define assert_ok(result) ck_assert_msg(result, "%s", tapegrad_error())

/* An optimizer of each kind; from OPTIMIZERS on, of deleted extensions. For SGD and Muon,
 * config.beta1 is the momentum. */
typedef enum {
    SGD,
    MOMENTUM,
    NESTEROV,
    ADAM,
    ADAMW,
    RADAM,
#ifdef TAPEGRAD_SCHEDULE_FREE_H
    SCHEDULE_FREE,
#endif
#ifdef TAPEGRAD_MUON_H
    MUON,
#endif
    OPTIMIZERS,
#ifndef TAPEGRAD_SCHEDULE_FREE_H
    SCHEDULE_FREE,
#endif
#ifndef TAPEGRAD_MUON_H
    MUON,
#endif
} TestOptimizer;
Optimizer *test_optimizer(TestOptimizer kind, Params *params, AdamConfig config);

/* Fails unless the counts fit the probabilities. Chi square over the classes with an expectation of
 * at least 5, and one class of all others, must stay below the value that chance exceeds once in
 * 1e5 times (Wilson and Hilferty 1931: the cube root of chi square / n is normal). */
void assert_counts(const int64_t *counts, const double *probability, int classes, int64_t all);

/* Fails unless the last error is exhausted memory. */
void assert_exhausted(void);

/* Fails unless draw, which returns integers and advances the Philox counter by `counters`, draws
 * the same after the failure of any of its allocations: the counter is that of the step's start. */
void assert_draws_recover(Tensor *(*draw)(Tape *tape), uint64_t counters);

/* gcc warns of locals around setjmp; those of the tests do not change between it and longjmp. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wclobbered"
#endif

/* Fails the test unless the statement raises an error with exactly this sentence. */
#define assert_raises(sentence, statement)                                                         \
    do {                                                                                           \
        test_expect_error();                                                                       \
        if (!setjmp(test_error_jump)) {                                                            \
            statement;                                                                             \
            ck_abort_msg("no error, expected \"%s\"", sentence);                                   \
        }                                                                                          \
        tapegrad_on_error(NULL, NULL);                                                             \
        ck_assert_str_eq(tapegrad_error(), sentence);                                              \
    } while (0)
extern jmp_buf test_error_jump;
void test_expect_error(void);

/* tests/data or $TAPEGRAD_VECTORS, and a file of it. */
const char *test_vector_directory(void);
TensorFile *test_vector_file(const char *name);

/* Its entry PREFIX NAME, in memory that lives until the process ends; sets *entry_shape unless that
 * is NULL. */
Real *test_entry(const TensorFile *file, const char *prefix, const char *name, Shape *entry_shape);

/* A gradient check on normal random inputs of the given shapes; fails above the tolerance, or
 * GRADIENT_TOLERANCE. */
#define check_gradient(function, context, ...)                                                     \
    check_gradient_shapes(#function, function, context, (const Shape[]){ __VA_ARGS__ },            \
                          (int)(sizeof((const Shape[]){ __VA_ARGS__ }) / sizeof(Shape)),           \
                          GRADIENT_TOLERANCE)
void check_gradient_shapes(const char *name, CheckedFunction *function, void *context,
                           const Shape *shapes, int count, double tolerance);

#ifdef __cplusplus
}
#endif
#endif
