/* tape_profile: names, calls, times and bytes by operation, the peak, misuse, errors within. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

static Tape *tape;

/* The row of this name; fails if there is none. */
static const ProfileOperation *row_of(const TapeProfile *profile, const char *name)
{
    for (int i = 0; i < profile->operation_count; i++)
        if (!strcmp(profile->operations[i].name, name))
            return &profile->operations[i];
    ck_abort_msg("the profile has no %s", name);
    return NULL;
}

/* Fails unless the rows are these, "op_add 2 1, op_sum 1 1": calls, and calls backward, by name. */
static void assert_calls(const TapeProfile *profile, const char *expected)
{
    int count = 0;
    for (const char *rest = expected; rest;
         rest = strchr(rest, ',') ? strchr(rest, ',') + 2 : NULL) {
        char name[48];
        int calls, backward;
        ck_assert_int_eq(sscanf(rest, "%47s %d %d", name, &calls, &backward), 3);
        const ProfileOperation *row = row_of(profile, name);
        ck_assert_msg(row->calls == calls && row->backward_calls == backward,
                      "%s has %lld calls and %lld backward, expected %d and %d", name,
                      (long long)row->calls, (long long)row->backward_calls, calls, backward);
        count++;
    }
    ck_assert_int_eq(profile->operation_count, count);
}

static Tensor *variable(int64_t rows, int64_t columns)
{
    return test_variable(tape, 1, shape(rows, columns));
}

/* ------------------------------------------------------------------------------ names and calls */
/* op_variance is made of others; op_cast of a tensor of its type returns it; the gradient of x + x
 * alone reaches one node of each kind. */
TEST(operations_are_counted_by_name)
{
    tape = tape_new(test_device());
    TapeProfile *profile = tape_profile_begin(tape);
    Tensor *x = variable(3, 4);
    op_exp(tape, x);
    op_variance(tape, x, -1);
    Tensor *y = op_cast(tape, op_add(tape, x, x), TENSOR_REAL);
    tape_backward(tape, op_sum(tape, op_reshape(tape, y, shape(12)), 0));
    tape_profile_end(profile);
    const ProfileOperation *add = row_of(profile, "op_add");
    ck_assert_int_eq(add->calls, 1);
    ck_assert_int_eq(add->backward_calls, 1);
    ck_assert_int_eq(row_of(profile, "op_exp")->calls, 1);
    ck_assert_int_eq(row_of(profile, "op_exp")->backward_calls, 0);
    ck_assert_int_eq(row_of(profile, "op_sum")->calls, 1);
    ck_assert_int_eq(row_of(profile, "op_reshape")->backward_calls, 0);
    for (int i = 0; i < profile->operation_count; i++) {
        ck_assert_str_ne(profile->operations[i].name, "op_variance");
        ck_assert_str_ne(profile->operations[i].name, "op_cast");
    }
    tape_profile_free(profile);
    tape_free(tape);
}

static Tensor *twice_exp(Tape *t, Tensor *x, const void *context)
{
    (void)context;
    return op_exp(t, op_tanh(t, x));
}

/* What tape_recompute runs again has two calls; a step without recording has no backward pass;
 * integers' operations, which keep no node, are there too. */
TEST(operations_of_recomputation_and_without_recording)
{
    tape = tape_new(test_device());
    TapeProfile *profile = tape_profile_begin(tape);
    Tensor *y = tape_recompute(tape, twice_exp, variable(3, 4), NULL, 0);
    tape_backward(tape, op_sum(tape, op_reshape(tape, y, shape(12)), 0));
    tape_profile_end(profile);
    assert_calls(profile,
                 "tape_recompute 0 1, op_tanh 2 1, op_exp 2 1, op_reshape 1 0, op_sum 1 1");
    tape_profile_free(profile);
    tape_reset(tape);

    profile = tape_profile_begin(tape);
    tape_set_recording(tape, false);
    Tensor *index = op_argmax(tape, op_layernorm(tape, variable(3, 4), NULL, NULL, 1e-5), 1);
    op_slice(tape, op_one_hot(tape, index, 4), 0, 1, 2);
    op_slice(tape, index, 0, 1, 2);
    tape_profile_end(profile);
    assert_calls(profile, "op_layernorm 1 0, op_argmax 1 0, op_one_hot 1 0, op_slice 2 0");
    ck_assert_int_eq(row_of(profile, "op_layernorm")->saved_bytes, 0);
    tape_profile_free(profile);
    tape_free(tape);
}

static void replayed_step(void *context)
{
    Tensor *x = context;
    tape_backward(tape, op_sum(tape, op_exp(tape, x), 0));
}

/* A captured step, too, has its operations in a profile, and is captured again after it. */
TEST(steps_of_tape_replay_show_their_operations)
{
    tape = tape_new(test_device());
    Tensor *x = tape_persistent_variable(tape, TENSOR_REAL, shape(5));
    for (int step = 0; step < 3; step++)
        tape_replay(tape, replayed_step, x);
    const int64_t kernels = tape_replay_kernels(tape);
    TapeProfile *profile = tape_profile_begin(tape);
    for (int step = 0; step < 3; step++)
        tape_replay(tape, replayed_step, x);
    tape_profile_end(profile);
    assert_calls(profile, "op_exp 3 3, op_sum 3 3");
    tape_profile_free(profile);
    for (int step = 0; step < 3; step++)
        tape_replay(tape, replayed_step, x);
    ck_assert_int_eq(tape_replay_kernels(tape), kernels);
    tape_free(tape);
}

/* ----------------------------------------------------------------------------------------- time */
static double all_ms(const TapeProfile *profile)
{
    double sum = profile->outside_ms;
    for (int i = 0; i < profile->operation_count; i++)
        sum += profile->operations[i].forward_ms + profile->operations[i].backward_ms;
    return sum;
}

static void wait_ms(int milliseconds)
{
    device_wait(test_device());
    nanosleep(&(struct timespec){ .tv_nsec = milliseconds * 1000000L }, NULL);
}

/* A sleep after an operation is the program's time. */
TEST(times_of_operations_are_theirs)
{
    enum { N = SLOW ? 64 : 512 };
    tape = tape_new(test_device());
    Tensor *a = variable(N, N);
    TapeProfile *profile = tape_profile_begin(tape);
    Tensor *product = op_matmul(tape, a, a);
    wait_ms(20);
    Tensor *out = op_cast(tape, product, TENSOR_REAL); /* returns at once */
    wait_ms(20);
    tape_profile_enter(profile, "outer");
    wait_ms(20);
    tape_profile_enter(profile, "inner");
    wait_ms(20);
    tape_profile_leave(profile);
    tape_backward_from(tape, out, variable(N, N));
    tape_profile_leave(profile);
    tape_profile_end(profile);
    ck_assert_double_le(fabs(all_ms(profile) - profile->milliseconds), 0.1);
    ck_assert_double_ge(profile->outside_ms, 39);
    ck_assert_double_ge(row_of(profile, "outer")->forward_ms, 19.5);
    ck_assert_double_ge(row_of(profile, "inner")->forward_ms, 19.5);
    ck_assert(row_of(profile, "inner")->section && row_of(profile, "inner")->calls == 1);
    const ProfileOperation *row = row_of(profile, "op_matmul");
    ck_assert(row->forward_ms > 0 && row->backward_ms > 0);
    ck_assert_double_le(row->forward_ms + row->backward_ms, profile->milliseconds - 79);
    tape_profile_free(profile);
    tape_free(tape);
}

/* Has operations within and records nothing itself, as op_cast to the same dtype. */
static void made_of_others(Tensor *x)
{
    tape_use(tape, "made_of_others: x", x);
    op_exp(tape, x);
    wait_ms(20);
    op_cast(tape, op_exp(tape, x), TENSOR_REAL);
    wait_ms(20);
}

/* The next call ends such an operation, and all its time is the section's. */
TEST(a_section_has_the_time_of_what_is_made_of_others)
{
    tape = tape_new(test_device());
    Tensor *x = variable(2, 3);
    TapeProfile *profile = tape_profile_begin(tape);
    tape_profile_enter(profile, "section");
    made_of_others(x);
    made_of_others(x);
    tape_profile_leave(profile);
    tape_profile_end(profile);
    assert_calls(profile, "section 1 0, op_exp 4 0");
    ck_assert_double_ge(row_of(profile, "section")->forward_ms, 79);
    ck_assert_double_le(fabs(all_ms(profile) - profile->milliseconds), 0.1);
    tape_profile_free(profile);
    tape_free(tape);
}

/* A large product alone has nearly all of the time. */
TEST(a_large_product_has_most_of_the_time)
{
    enum { N = SLOW ? 96 : 512, STEPS = SLOW ? 2 : 10 };
    tape = tape_new(test_device());
    Real *values = test_normal(1, (int64_t)N * N);
    TapeProfile *profile = tape_profile_begin(tape);
    for (int step = 0; step < STEPS; step++) {
        Tensor *a = tape_variable(tape, values, shape(N, N));
        tape_backward_from(tape, op_matmul(tape, a, a), a);
        tape_reset(tape);
    }
    tape_profile_end(profile);
    const ProfileOperation *row = row_of(profile, "op_matmul");
    ck_assert_int_eq(row->calls, STEPS);
    ck_assert_double_le(row->forward_ms + row->backward_ms, profile->milliseconds);
    ck_assert_double_ge(row->forward_ms + row->backward_ms,
                        (SLOW ? 0.2 : 0.7) * profile->milliseconds);
    ck_assert_str_eq(profile->operations[0].name, "op_matmul");
    tape_profile_free(profile);
    tape_free(tape);
}

/* More events than stamps, and more open frames than a stack has, lose no call and no time. */
TEST(long_profiles_and_deep_ones)
{
    enum { COUNT = 3000, DEPTH = 100 };
    tape = tape_new(test_device());
    tape_set_recording(tape, false);
    Tensor *x = variable(1, 2);
    TapeProfile *profile = tape_profile_begin(tape);
    tape_profile_enter(profile, "section");
    wait_ms(20);
    for (int i = 0; i < COUNT; i++)
        op_exp(tape, x);
    tape_profile_leave(profile);
    for (int i = 0; i < DEPTH; i++)
        tape_profile_enter(profile, i % 2 ? "odd" : "even");
    tape_profile_end(profile);
    assert_calls(profile, "section 1 0, op_exp 3000 0");
    ck_assert_double_ge(row_of(profile, "section")->forward_ms, 19.5);
    ck_assert_double_le(fabs(all_ms(profile) - profile->milliseconds), 0.1);
    tape_profile_free(profile);
    tape_free(tape);
}

/* A profile has 256 rows: the last is that of all other names. */
TEST(many_names_are_counted)
{
    enum { NAMES = 300, ROWS = 256 };
    tape = tape_new(test_device());
    TapeProfile *profile = tape_profile_begin(tape);
    for (int i = 0; i < NAMES; i++) {
        char name[32];
        snprintf(name, sizeof name, "section %d", i);
        tape_profile_enter(profile, name);
        tape_profile_leave(profile);
    }
    tape_profile_end(profile);
    ck_assert_int_eq(profile->operation_count, ROWS);
    ck_assert_int_eq(row_of(profile, "(others)")->calls, NAMES - ROWS + 1);
    ck_assert_int_eq(row_of(profile, "section 254")->calls, 1);
    tape_profile_free(profile);
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- memory */
/* By hand, with sizes of the pool, so that bytes are those of the elements: y = exp(x), z = y +
 * sin(w). In exp's backward function x, w, y, sin(w), z, which was the pass's start, dz, dy and dx
 * are alive. */
TEST(the_peak_is_exact)
{
    enum { N = 16, BYTES = N * N * sizeof(Real) };
    tape = tape_new(test_device());
    const Real *values = test_normal(1, N * N);
    const int64_t before = (int64_t)device_memory(test_device()).current;
    TapeProfile *profile = tape_profile_begin(tape);
    Tensor *x = tape_variable(tape, values, shape(N, N)),
           *w = tape_input(tape, values, shape(N, N));
    Tensor *y = op_exp(tape, x), *z = op_add(tape, y, op_sin(tape, w));
    Tensor *dz = tape_input(tape, values, shape(N, N));
    tape_backward_from(tape, z, dz);
    tape_profile_end(profile);
    ck_assert_int_eq(row_of(profile, "op_exp")->result_bytes, BYTES);
    ck_assert_int_eq(row_of(profile, "op_exp")->saved_bytes, 0);
    ck_assert_int_eq(profile->peak_bytes, before + 8 * BYTES);
    ck_assert_int_eq(profile->live_bytes, 8 * BYTES);
    ck_assert_str_eq(profile->peak_operation, "op_exp");
    ck_assert(profile->peak_backward);
    static const struct {
        const char *operation;
        bool gradient;
        int count;
    } expected[] = { { "tape_input", false, 2 },  { "op_add", false, 1 },
                     { "op_exp", false, 1 },      { "op_exp", true, 1 },
                     { "op_sin", false, 1 },      { "tape_variable", false, 1 },
                     { "tape_variable", true, 1 } };
    ck_assert_int_eq(profile->tensor_count, 7);
    for (int i = 0; i < 7; i++) {
        int found = 0;
        for (int j = 0; j < 7; j++) {
            const ProfileTensors *group = &profile->tensors[j];
            if (strcmp(group->operation, expected[i].operation) ||
                group->gradient != expected[i].gradient)
                continue;
            found++;
            ck_assert_int_eq(group->count, expected[i].count);
            ck_assert_int_eq(group->bytes, expected[i].count * (int64_t)BYTES);
            ck_assert(shape_equal(group->shape, shape(N, N)));
        }
        ck_assert_msg(found == 1, "%s is listed %d times", expected[i].operation, found);
    }
    tape_profile_free(profile);
    tape_free(tape);
}

/* The peak of a step that was reset stays listed, and that of tensors which were alive before. */
TEST(the_peak_survives_the_step)
{
    tape = tape_new(test_device());
    Tensor *old = tape_persistent(tape, shape(1024));
    TapeProfile *profile = tape_profile_begin(tape);
    for (int step = 1; step <= 3; step++) {
        op_exp(tape, tape_input(tape, test_zeros(4096), shape(step == 2 ? 4096 : 16)));
        tape_reset(tape);
    }
    tape_profile_end(profile);
    ck_assert_str_eq(profile->peak_operation, "op_exp");
    ck_assert(!profile->peak_backward);
    ck_assert_int_eq(profile->tensor_count, 3);
    ck_assert_int_eq(shape_count(profile->tensors[0].shape), 4096);
    ck_assert_str_eq(profile->tensors[2].operation, "tape_persistent");
    ck_assert_int_eq(profile->live_bytes, (2 * 4096 + 1024) * (int64_t)sizeof(Real));
    ck_assert(old->data != NULL);
    tape_profile_free(profile);
    tape_free(tape);
}

/* Memory that the program took between two operations was not the second one's. */
TEST(the_peak_may_be_between_operations)
{
    enum { LARGE = 1 << 20 };
    tape = tape_new(test_device());
    Tape *other = tape_new(test_device());
    Tensor *x = variable(2, 3);
    TapeProfile *profile = tape_profile_begin(tape);
    op_exp(tape, x);
    tape_persistent(other, shape(LARGE));
    tape_free(other);
    op_exp(tape, x);
    tape_profile_end(profile);
    ck_assert_int_ge(profile->peak_bytes, LARGE);
    ck_assert_str_eq(profile->peak_operation, "");
    tape_profile_free(profile);
    tape_free(tape);
}

/* ---------------------------------------------------------------------------- errors and misuse */
TEST(misuse_of_profiles_raises)
{
    char text[8];
    tape = tape_new(test_device());
    assert_raises("tape_profile_begin: the tape is NULL", tape_profile_begin(NULL));
    assert_raises("tape_profile_end: the profile is NULL", tape_profile_end(NULL));
    TapeProfile *profile = tape_profile_begin(tape);
    assert_raises("tape_profile_begin: the tape has a profile already, expected one at a time",
                  tape_profile_begin(tape));
    assert_raises("tape_profile_print: the profile has not ended; call tape_profile_end before",
                  tape_profile_print(profile, stdout));
    assert_raises("tape_profile_text: the profile has not ended; call tape_profile_end before",
                  tape_profile_text(profile, text, sizeof text));
    assert_raises("tape_profile_leave: no section was entered; see tape_profile_enter",
                  tape_profile_leave(profile));
    assert_raises("tape_profile_enter: the name is NULL", tape_profile_enter(profile, NULL));
    tape_profile_end(profile);
    assert_raises("tape_profile_end: the profile has ended already", tape_profile_end(profile));
    assert_raises("tape_profile_print: the file is NULL", tape_profile_print(profile, NULL));
    tape_profile_leave(profile);
    tape_profile_enter(NULL, "a");
    tape_profile_free(profile);
    tape_profile_free(NULL);
    tape_profile_free(tape_profile_begin(tape)); /* ends it */
    profile = tape_profile_begin(tape);
    tape_free(tape);
    assert_raises("tape_profile_end: the tape was freed before its profile ended",
                  tape_profile_end(profile));
    tape_profile_free(profile);
}

static Tensor *raising(Tape *t, Tensor *x, const void *context)
{
    (void)context;
    return op_matmul(t, op_exp(t, x), x);
}

/* The operation that raised is not counted, forward, within a section, in the first or the second
 * run of tape_recompute; the next step is. */
TEST(errors_leave_the_profile_usable)
{
    tape = tape_new(test_device());
    TapeProfile *profile = tape_profile_begin(tape);
    tape_profile_enter(profile, "section");
    Tensor *x = variable(2, 3);
    assert_raises("op_matmul: inner sizes differ: a is [2,3], b is [2,3]",
                  tape_recompute(tape, raising, x, NULL, 0));
    tape_reset(tape);
    assert_raises("tape_profile_leave: no section was entered; see tape_profile_enter",
                  tape_profile_leave(profile));
    x = variable(2, 3);
    tape_backward_from(tape, op_exp(tape, x), variable(2, 3));
    tape_profile_end(profile);
    assert_calls(profile, "op_exp 2 1");
    tape_profile_free(profile);
    tape_free(tape);
}

/* Every allocation of a profile may fail. */
TEST(exhausted_memory_leaves_the_tape_usable)
{
    tape = tape_new(test_device());
    Tensor *x = tape_persistent_variable(tape, TENSOR_REAL, shape(3));
    for (int64_t fails = 1;; fails++) {
        TapeProfile *volatile profile = NULL;
        device_fail_allocation(fails);
        test_expect_error();
        if (!setjmp(test_error_jump)) {
            profile = tape_profile_begin(tape);
            tape_backward_from(tape, op_exp(tape, x), tape_input(tape, test_zeros(3), shape(3)));
            tape_profile_end(profile);
        }
        tapegrad_on_error(NULL, NULL);
        const bool failed = device_fail_allocation(0);
        tape_profile_free(profile);
        tape_reset(tape);
        if (!failed) {
            ck_assert_int_gt(fails, 3);
            break;
        }
        assert_exhausted();
    }
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------------- table */
/* Of at most 100 columns, and the same to a file and to memory, where it ends in time. */
TEST(the_table_is_printed)
{
    static char text[8192], file[8192];
    char little[21];
    memset(little, 'x', sizeof little);
    tape = tape_new(test_device());
    TapeProfile *profile = tape_profile_begin(tape);
    tape_profile_enter(profile, "a section of the program with a name beyond the column");
    Tensor *x = variable(3, 4);
    tape_profile_leave(profile);
    tape_backward(tape, op_mean_squared_error(tape, op_exp(tape, x), x));
    tape_profile_end(profile);
    const size_t length = tape_profile_text(profile, text, sizeof text);
    ck_assert_uint_eq(length, strlen(text));
    ck_assert_uint_eq(tape_profile_text(profile, NULL, 0), length);
    ck_assert_uint_eq(tape_profile_text(profile, little, sizeof little), length);
    ck_assert_uint_eq(strlen(little), sizeof little - 1);
    ck_assert_int_eq(strncmp(text, little, sizeof little - 1), 0);
    char *exact = malloc(length); /* the last character gives way to the 0 */
    ck_assert_ptr_nonnull(exact);
    ck_assert_uint_eq(tape_profile_text(profile, exact, length), length);
    ck_assert_uint_eq(strlen(exact), length - 1);
    free(exact);
    FILE *printed = tmpfile();
    tape_profile_print(profile, printed);
    rewind(printed);
    ck_assert_uint_eq(fread(file, 1, sizeof file, printed), length);
    ck_assert_str_eq(file, text);
    fclose(printed);
    ck_assert_ptr_nonnull(strstr(text, "op_exp                                 1 "));
    ck_assert_ptr_nonnull(strstr(text, "peak memory "));
    ck_assert_ptr_nonnull(strstr(text, "[3,4]"));
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        ck_assert_uint_le(strcspn(line, "\n"), 100);
    tape_profile_free(profile);
    tape_free(tape);
}

/* The tensors that are not listed are one line: their number, bytes and share. */
TEST(the_last_line_sums_what_is_not_listed)
{
    enum { LISTED = 12, SHAPES = 20 };
    static char text[8192];
    tape = tape_new(test_device());
    TapeProfile *profile = tape_profile_begin(tape);
    for (int i = 0; i < SHAPES; i++)
        variable(64 + i, 64);
    tape_profile_end(profile);
    int64_t count = 0, bytes = 0;
    for (int i = LISTED; i < profile->tensor_count; i++) {
        count += profile->tensors[i].count;
        bytes += profile->tensors[i].bytes;
    }
    tape_profile_text(profile, text, sizeof text);
    const char *last = strstr(text, "smaller ones");
    ck_assert_ptr_nonnull(last);
    long long printed_count = 0;
    double share = 0;
    ck_assert_int_eq(sscanf(last, "smaller ones %lld %*s %*s %lf %%", &printed_count, &share), 2);
    ck_assert_int_ge(count, SHAPES - LISTED);
    ck_assert_int_eq(printed_count, count);
    ck_assert_double_eq_tol(share, 100 * (double)bytes / (double)profile->peak_bytes, 0.06);
    tape_profile_free(profile);
    tape_free(tape);
}

static void assert_text(const TapeProfile *profile, const char *expected)
{
    char text[4096];
    memset(text, 'x', sizeof text);
    ck_assert_uint_eq(tape_profile_text(profile, text, sizeof text), strlen(expected));
    ck_assert_str_eq(text, expected);
}

TEST(given_numbers_stand_in_their_columns)
{
    const ProfileOperation operations[] = {
        { "op_linear", false, 12, 11, 1.5, 2.25, 999949, 999950 },
        { "optim_step", true, 3, 0, 3.125, 0, 0, 0 },
        { "op_relu", false, 1234567, 1, 0.5, 0.625, 4600, 1234567890123456 },
    };
    const ProfileTensors tensors[] = {
        { "op_linear", true, TENSOR_REAL, shape(16, 128, 512), 9, 3000000 },
        { "", false, TENSOR_INT32, shape(7), 2, 500000 },
        { "op_cast", false, TENSOR_BF16, { 0 }, 1, 999 },
    };
    TapeProfile profile = { 10, 2, operations, 3, 5000000, 4000000, tensors, 3, "op_relu", true };
    assert_text(&profile,
                "operation                          calls  forward ms backward ms   share     "
                "results       saved\n"
                "op_linear                             12       1.500       2.250  37.5 %    999.9 "
                "KB      1.0 MB\n"
                "optim_step                             3       3.125              31.2 %\n"
                "op_relu                          1234567       0.500       0.625  11.2 %      4.6 "
                "KB   1234.6 TB\n"
                "outside of operations                          2.000              20.0 %\n"
                "10.000 ms, 2.000 of them forward, 2.875 backward\n\n"
                "peak memory 5.0 MB, in op_relu backward\n"
                "4.0 MB of the tape's tensors, 1.0 MB of weights, workspaces and others\n"
                "alive at the peak, made by                shape                      tensors      "
                " bytes   share\n"
                "op_linear                        gradient [16,128,512]                     9      "
                "3.0 MB  60.0 %\n"
                "(the program)                             [7] int32                        2    "
                "500.0 KB  10.0 %\n"
                "op_cast                                   [] bf16                          1      "
                " 999 B   0.0 %\n");
    profile.tensor_count = 0;
    profile.peak_backward = false;
    profile.operation_count = 1;
    profile.milliseconds = 0;
    profile.peak_bytes = profile.live_bytes;
    assert_text(&profile,
                "operation                          calls  forward ms backward ms   share     "
                "results       saved\n"
                "op_linear                             12       1.500       2.250   0.0 %    999.9 "
                "KB      1.0 MB\n"
                "outside of operations                          2.000               0.0 %\n"
                "0.000 ms, 1.500 of them forward, 2.250 backward\n\n"
                "peak memory 4.0 MB, in op_relu forward\n"
                "4.0 MB of the tape's tensors, 0 B of weights, workspaces and others\n");
    profile.peak_operation = "";
    char text[4096];
    tape_profile_text(&profile, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "\npeak memory 4.0 MB\n"));
}

int main(void)
{
    return test_main("profile", NULL, NULL);
}
