/* Every operation of tests/operations.h and tests/operation_table.h: what all operations have in
 * common. */
#include "tests/operations.h"
#include "tests/random_shapes.h"
#include "tests/support.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>

/* ---------------------------------------------------------------------------------------- cases */

typedef struct Case {
    const char *name;
    const Operation *operation; /* or */
    const Unary *unary;         /* or */
    const Binary *binary;
    Input inputs[MAX_INPUTS];
} Case;

static Case *cases;
static int case_count;

static const Input unary_inputs[] = { S(37, 41), S(1), S(3, 5, 7), S(3, 1000), S(2, 1, 3, 5) };
/* clang-format off */
static const Input binary_inputs[][2] = {
    { S(5, 7, 11), S(5, 7, 11) }, { S(5, 7, 11), S(11) }, { S(11), S(5, 7, 11) },
    { S(5, 7, 11), S(7, 11) }, { S(300, 7), S(7) }, { S(70, 11), S(5, 70, 11) },
    { S(7, 300), S(5, 7, 300) }, { S(5), S(5) }, { S(3, 7), S(7) }, { S(7), S(3, 7) },
    { S(2, 3, 4), S(3, 4) }, { S(300, 7), S(300, 1) }, { S(5, 7, 16), S(5, 1, 16) },
    { S(5, 7, 1), S(5, 1, 16) }, { S(2, 1, 4, 1), S(3, 1, 5) }, { S(3, 7), S(3, 1) },
    { S(1, 5, 1), S(4, 1, 3) }, { S(2, 1, 1, 5), S(2, 3, 4, 1) },
    /* Sums that are split into chunks or parts. */
    { S(31, 701), S(701) }, { S(7, 3, 300), S(7, 1, 300) }, { S(1), S(9000) },
    { S(300, 7, 3), S(300, 1, 1) },
};
/* clang-format on */

static void add_case(Case added)
{
    const char *chosen = getenv("OPERATION"); /* OPERATION=name[,name...]: only their cases */
    if (chosen && !test_chosen(chosen, added.name))
        return;
    cases = realloc(cases, (size_t)(case_count + 1) * sizeof *cases);
    if (!cases)
        abort(); /* ck_assert works only in tests */
    cases[case_count++] = added;
}

/* Random shapes in place of the tables' cases: tests/random_shapes.h. */
static bool random_cases;

/* A row's cases depend on its name alone, not on its place in the table. */
static void add_random_case(Case added, DrawShapes *draw, int i)
{
    const char *seed = getenv("SEED");
    Random random = random_new(seed ? (uint64_t)atoll(seed) : 1, random_stream(added.name));
    random.counter = (uint64_t)i << 32;
    draw_shapes(&random, draw, added.inputs);
    add_case(added);
}

static void fill_random_cases(int count)
{
    int found = 0;
    random_cases = true;
    for (int i = 0; i < count; i++) {
        for (int u = 0; u < UNARIES; u++)
            add_random_case((Case){ .name = unaries[u].name, .unary = &unaries[u] }, draw_unary, i);
        for (int b = 0; b < BINARIES; b++)
            add_random_case((Case){ .name = binaries[b].name, .binary = &binaries[b] }, draw_binary,
                            i);
        for (int o = 0; o < OPERATION_COUNT; o++) {
            DrawShapes *draw = draw_of(operations[o].name);
            if (!draw)
                continue;
            found++;
            add_random_case((Case){ .name = operations[o].name, .operation = &operations[o] }, draw,
                            i);
        }
    }
    if (found != count * RANDOM_ROW_COUNT)
        abort();
}

static void fill_cases(void)
{
    if (getenv("RANDOM_SHAPES")) {
        fill_random_cases(atoi(getenv("RANDOM_SHAPES")));
        return;
    }
    for (int u = 0; u < UNARIES; u++)
        for (size_t s = 0; s < sizeof unary_inputs / sizeof *unary_inputs; s++)
            add_case((Case){ unaries[u].name, NULL, &unaries[u], NULL, { unary_inputs[s] } });
    for (int b = 0; b < BINARIES; b++)
        for (size_t s = 0; s < sizeof binary_inputs / sizeof *binary_inputs; s++)
            add_case((Case){ binaries[b].name,
                             NULL,
                             NULL,
                             &binaries[b],
                             { binary_inputs[s][0], binary_inputs[s][1] } });
    for (int o = 0; o < OPERATION_COUNT; o++) {
        const bool measured =
            operations[o].cost.flops + operations[o].cost.passes > 0 && !getenv("MEASURED");
        for (int i = measured; i < operations[o].count; i++) {
            Case added = { .name = operations[o].name, .operation = &operations[o] };
            memcpy(added.inputs, operations[o].cases[i], sizeof added.inputs);
            add_case(added);
        }
    }
}

/* (a - b)^2 */
static Tensor *square_distance(Tape *tape, Tensor *a, Tensor *b)
{
    return op_square(tape, op_subtract(tape, a, b));
}

/* A comparison, which passes no gradient, plus a term that has one: of clamped inputs, many of them
 * equal, or, smooth, times (a - b)^2. */
static Tensor *apply_stepped(const Binary *stepped, Tape *tape, Tensor **x, bool smooth)
{
    Tensor *distance = square_distance(tape, x[0], x[1]), *step;
    if (smooth)
        step = op_multiply(tape, stepped->operation(tape, x[0], x[1]), distance);
    else
        step =
            stepped->operation(tape, op_clamp(tape, x[0], 0, 1000), op_clamp(tape, x[1], 0, 1000));
    return op_add(tape, step, distance);
}

/* An elementwise operation of positive inputs gets exponentials. If the derivatives are to exist
 * everywhere, one with a kink at 0 gets cubes, linear_relu is squared, and one with a kink at a = b
 * is multiplied by (a - b)^2; these have none. */
static Tensor *apply(const Case *c, Tape *tape, Tensor **x, bool smooth)
{
    if (c->operation) {
        Tensor *out = c->operation->apply(tape, x);
        return smooth && !strcmp(c->name, "linear_relu") ? op_square(tape, out) : out;
    }
    if (c->binary && c->binary->domain == STEPPED)
        return apply_stepped(c->binary, tape, x, smooth);
    if (c->binary) {
        Tensor *b = c->binary->domain == POSITIVE ? op_exp(tape, x[1]) : x[1];
        Tensor *out = c->binary->operation(tape, x[0], b);
        if (!smooth || c->binary->domain != KINKED)
            return out;
        return op_multiply(tape, out, square_distance(tape, x[0], b));
    }
    Tensor *argument = c->unary->domain == POSITIVE ? op_exp(tape, x[0]) : x[0];
    if (smooth && c->unary->domain == KINKED)
        argument = op_multiply(tape, argument, op_multiply(tape, argument, argument));
    return c->unary->operation(tape, argument);
}

static bool is_real(const Input *input)
{
    return input->shape.rank > 0 && input->below == 0 && !input->weights;
}

/* The number of elements of the inputs that require gradients. */
static int64_t real_elements(const Case *c)
{
    int64_t count = 0;
    for (int i = 0; i < MAX_INPUTS; i++)
        count += is_real(&c->inputs[i]) ? shape_count(c->inputs[i].shape) : 0;
    return count;
}

/* Input i if it is integers or weights; NULL for real values. */
static Tensor *constant_input(const Case *c, Tape *tape, int i)
{
    const Input *input = &c->inputs[i];
    if (input->shape.rank == 0 || is_real(input))
        return NULL;
    const int64_t count = shape_count(input->shape);
    if (input->weights) {
        Real *weights = test_zeros(count);
        for (int64_t j = 0; j < count; j++)
            weights[j] = (Real)(j % 3);
        return tape_input(tape, weights, input->shape);
    }
    int32_t *integers = (int32_t *)test_zeros(count);
    Random random = random_new(4, (uint64_t)input->below);
    for (int64_t j = 0; j < count; j++)
        integers[j] = (int32_t)random_integer(&random, 0, input->below);
    return tape_input_i32(tape, integers, input->shape);
}

/* ----------------------------------------------------------------------------------------- runs */

enum { EVERY_INPUT = -1 };

/* Activations: real inputs that are not parameters. */
typedef enum Activations {
    REAL,
    ROUNDED, /* to values of bf16, stored as Real */
    STORED_IN_BF16,
} Activations;

static Real *rounded_normal(uint64_t stream, int64_t count, Activations activations)
{
    Real *values = test_normal(stream, count);
    for (int64_t i = 0; i < count && activations != REAL; i++)
        values[i] = test_rounded_to_bf16(values[i]);
    return values;
}

/* Real input i, before its conversion to bf16. */
static Tensor *real_input(const Case *c, Tape *tape, int i, bool variable, Activations activations)
{
    const Input *input = &c->inputs[i];
    const Real *values = rounded_normal((uint64_t)i, shape_count(input->shape),
                                        input->parameter ? REAL : activations);
    return (variable ? tape_variable : tape_input)(tape, values, input->shape);
}

/* All inputs, none of which requires a gradient. */
static void make_inputs(const Case *c, Tape *tape, Tensor **x)
{
    for (int i = 0; i < MAX_INPUTS; i++)
        x[i] = is_real(&c->inputs[i]) ? real_input(c, tape, i, false, REAL)
                                      : constant_input(c, tape, i);
}

/* An operation's result and the gradients of its real inputs: those of sum_i r_i out_i with random
 * r; out is the sum of `uses` results. only: the one input that requires a gradient, or
 * EVERY_INPUT. */
static Outcome run_uses(const Case *c, Tape *tape, int uses, int only, Activations activations)
{
    Tensor *x[MAX_INPUTS], *arguments[MAX_INPUTS];
    tape_seed(tape, 9);
    for (int i = 0; i < MAX_INPUTS; i++) {
        const bool real = is_real(&c->inputs[i]), variable = only == EVERY_INPUT || only == i;
        x[i] = real ? real_input(c, tape, i, variable, activations) : constant_input(c, tape, i);
        arguments[i] = real && activations == STORED_IN_BF16 && !c->inputs[i].parameter
                           ? op_cast(tape, x[i], TENSOR_BF16)
                           : x[i];
    }
    Tensor *out = op_cast(tape, apply(c, tape, arguments, false), TENSOR_REAL);
    for (int use = 1; use < uses; use++)
        out = op_add(tape, out, op_cast(tape, apply(c, tape, arguments, false), TENSOR_REAL));
    tensor_keep(out);
    Outcome outcome = { 0 };
    if (tape_is_recording(tape)) {
        const Real *r = rounded_normal(77, tensor_count(out), activations);
        tape_backward_from(tape, out, tape_input(tape, r, out->shape));
    }
    test_note(&outcome, out);
    for (int i = 0; i < MAX_INPUTS && tape_is_recording(tape); i++)
        test_note(&outcome, is_real(&c->inputs[i]) && x[i]->requires_grad && x[i]->has_gradient
                                ? tensor_gradient(x[i])
                                : NULL);
    return outcome;
}

static Outcome run_on(const Case *c, Tape *tape, int only, Activations activations)
{
    return run_uses(c, tape, 1, only, activations);
}

static Outcome run_several(const Case *c, int uses, Device *device, Precision precision,
                           Activations activations)
{
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    Outcome outcome = run_uses(c, tape, uses, EVERY_INPUT, activations);
    tape_free(tape);
    return outcome;
}

static Outcome run(const Case *c, Device *device, Precision precision, Activations activations)
{
    return run_several(c, 1, device, precision, activations);
}

static Outcome run_on_device(const Case *c)
{
    return run(c, test_device(), PRECISION_FLOAT32, REAL);
}

/* The device of this kind whose bits do not depend on the number of threads; NULL: a GPU. */
static Device *repeatable_device(void)
{
    if (device_is_cuda(test_device()))
        return NULL;
    const bool plain = strcmp(device_name(test_device()), "plain") == 0;
    return plain ? test_device() : device_open("cpu:repeatable");
}

static void assert_same(const Case *c, const char *what, Outcome a, Outcome b)
{
    for (int j = 0; j < a.count && j < b.count; j++)
        ck_assert_msg(a.counts[j] == b.counts[j] &&
                          (a.counts[j] == 0 || memcmp(a.values[j], b.values[j],
                                                      (size_t)a.counts[j] * sizeof(Real)) == 0),
                      "%s of %s: %s %d is not bitwise the same %s", c->name,
                      shape_text(c->inputs[0].shape).text, j ? "gradient" : "result", j, what);
}

/* --------------------------------------------------------------------------- finite differences */
enum { MAX_ELEMENTS = 260 }; /* of a case that is checked by them */

typedef enum Use {
    ONCE,
    TWICE,  /* the product of two results: every gradient gets two contributions */
    SHARED, /* one tensor as all inputs of its shape: it gets a contribution from each */
    USES
} Use;

typedef struct Checked {
    const Case *c;
    Use use;
} Checked;

/* The input whose tensor is input i: an earlier one of the same shape if it is shared, else i. */
static int source_of(const Checked *checked, int i)
{
    const Input *inputs = checked->c->inputs;
    for (int j = 0; j < i && checked->use == SHARED; j++)
        if (is_real(&inputs[j]) && shape_equal(inputs[j].shape, inputs[i].shape))
            return j;
    return i;
}

static Tensor *checked_function(Tape *tape, Tensor *const *variables, void *context)
{
    const Checked *checked = context;
    Tensor *x[MAX_INPUTS];
    tape_seed(tape, 9);
    for (int i = 0; i < MAX_INPUTS; i++) {
        x[i] = constant_input(checked->c, tape, i);
        if (is_real(&checked->c->inputs[i]))
            x[i] = source_of(checked, i) == i ? *variables++ : x[source_of(checked, i)];
    }
    Tensor *out = apply(checked->c, tape, x, true);
    return checked->use == TWICE ? op_multiply(tape, out, apply(checked->c, tape, x, true)) : out;
}

/* In float, differences of some rows have errors above GRADIENT_TOLERANCE. */
static double difference_tolerance(const char *name)
{
    static const struct {
        const char *names;
        double tolerance;
    } exceptions[] = {
        { "layernorm", 2e-2 },       /* a row of three nearly equal values: curvature within h */
        { "op_squared_relu", 1e-2 }, /* used twice, x^12 at x = 0.3: curvature within h */
        { "*lsh_attention", 5e-3 },  /* the input is scaled by 0.05: gradients small beside out */
        { "decay_chunk_parallel", 5e-3 }, /* the log decay is scaled by 0.02 */
        { "ctc_long", 5e-3 },             /* out, the sum of 81 frames, is 100 times a gradient */
    };
    /* Among 10^5 cases some lie so near a zero of f that f is curved within h; one element of
     * linear_relu, which is squared, 1e-8 from its kink. */
    if (random_cases && sizeof(Real) == 8)
        return strcmp(name, "linear_relu") == 0 ? 1e-3 : 1e-5;
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions && sizeof(Real) < 8; i++)
        if (test_chosen(exceptions[i].names, name))
            return exceptions[i].tolerance;
    return GRADIENT_TOLERANCE;
}

/* On CUDA differences in float32 are coarse, and the emulation is slow: there the comparison with
 * the plain kernels, a thousand times finer, holds kernels of float32; double checks all uses. */
TEST(gradients_equal_finite_differences)
{
    static const char *const uses[USES] = { "once", "twice", "as each input of its shape" };
    if (sizeof(Real) == sizeof(float) && device_is_cuda(test_device()))
        return;
    for (int i = 0; i < case_count; i++)
        for (Use use = ONCE; use < USES && real_elements(&cases[i]) <= MAX_ELEMENTS; use++) {
            Checked checked = { &cases[i], use };
            Shape shapes[MAX_INPUTS];
            int count = 0;
            for (int j = 0; j < MAX_INPUTS; j++)
                if (is_real(&cases[i].inputs[j]) && source_of(&checked, j) == j)
                    shapes[count++] = cases[i].inputs[j].shape;
            char name[128];
            snprintf(name, sizeof name, "%s, used %s", cases[i].name, uses[use]);
            check_gradient_shapes(name, checked_function, &checked, shapes, count,
                                  difference_tolerance(cases[i].name));
        }
}

TEST(every_operation_is_checked_by_finite_differences)
{
    for (int i = 0; i < case_count && !random_cases; i++) {
        bool found = false;
        for (int j = 0; j < case_count; j++)
            found |=
                !strcmp(cases[i].name, cases[j].name) && real_elements(&cases[j]) <= MAX_ELEMENTS;
        ck_assert_msg(found, "%s: no case has at most %d elements", cases[i].name, MAX_ELEMENTS);
    }
}

/* The file's text, in memory that lives until the process ends. */
static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot read %s", path);
    enum { MAX_BYTES = 1 << 20 };
    char *text = (char *)test_zeros(MAX_BYTES / sizeof(Real));
    const size_t bytes = fread(text, 1, MAX_BYTES - 1, file);
    fclose(file);
    ck_assert_uint_lt(bytes, MAX_BYTES - 1);
    return text;
}

/* The number of operations of a header, after checking that a row calls each. */
static int check_operations(const char *header, const char *rows, const char *table)
{
    int count = 0;
    for (char *at = text_of(header); (at = strstr(at, "op_")) != NULL;) {
        const bool is_prototype = at[-1] == '*' || !strncmp(at - 5, "void ", 5);
        char name[64] = "";
        sscanf(at, "%62[a-z0-9_]", name);
        at += strlen(name);
        if (!is_prototype) /* in a comment */
            continue;
        if (!strncmp(name, "op_store", 8)) /* it raises after a recorded operation */
            continue;
        count++;
        char call[66], entry[66];
        snprintf(call, sizeof call, "%s(", name);
        snprintf(entry, sizeof entry, " %s,", name);
        ck_assert_msg(strstr(rows, call) || strstr(table, call) || strstr(table, entry),
                      "%s of %s is in no row of its operations.h", name, header);
    }
    return count;
}

/* Every row has random shapes, and every operation of the public headers is called by a row. */
TEST(random_shapes_cover_every_operation)
{
    for (int o = 0; o < OPERATION_COUNT; o++) /* broadcast_rows: to the benchmark's shape alone */
        ck_assert_msg(draw_of(operations[o].name) || !strcmp(operations[o].name, "broadcast_rows"),
                      "%s has no row in tests/random_shapes.h", operations[o].name);
    const char *table = text_of("tests/operation_table.h");
    int count = check_operations("ops/ops.h", text_of("tests/operations.h"), table);
    glob_t rows;
    if (glob("ext/*/tests/operations.h", 0, NULL, &rows) != 0)
        rows.gl_pathc = 0; /* the nucleus alone */
    for (size_t i = 0; i < rows.gl_pathc; i++) {
        char directory[64] = "", header[160];
        sscanf(rows.gl_pathv[i], "ext/%63[a-z_]", directory);
        snprintf(header, sizeof header, "ext/%s/%s.h", directory, directory);
        const int of_extension = check_operations(header, text_of(rows.gl_pathv[i]), table);
        ck_assert_msg(of_extension > 0, "%s declares no operation", header);
        count += of_extension;
    }
    if (rows.gl_pathc > 0)
        globfree(&rows);
    ck_assert_int_gt(count, 60);
    if (random_cases)
        printf("random shapes: %d cases of %d rows, which call %d operations\n", case_count,
               UNARIES + BINARIES + RANDOM_ROW_COUNT, count);
}

/* A backward function that forgets an input leaves it without a gradient, and training without an
 * error. */
TEST(every_input_receives_a_gradient)
{
    for (int i = 0; i < case_count; i++) {
        const Case *c = &cases[i];
        Tape *tape = tape_new(test_device());
        Tensor *x[MAX_INPUTS];
        for (int j = 0; j < MAX_INPUTS; j++)
            x[j] = is_real(&c->inputs[j]) ? real_input(c, tape, j, true, REAL)
                                          : constant_input(c, tape, j);
        Tensor *out = apply(c, tape, x, false);
        tape_backward_from(tape, out,
                           tape_input(tape, test_normal(77, tensor_count(out)), out->shape));
        for (int j = 0; j < MAX_INPUTS; j++)
            ck_assert_msg(!is_real(&c->inputs[j]) || x[j]->has_gradient,
                          "%s: input %d requires a gradient and receives none", c->name, j);
        tape_free(tape);
    }
}

/* Of a case's gradients one may cancel, as a query's does over one position; it has no digits of
 * its own. */
static double largest_gradient(const Outcome *outcome)
{
    double largest = 0;
    for (int i = 1; i < outcome->count; i++)
        largest = fmax(largest, test_largest(outcome->values[i], outcome->counts[i]));
    return largest;
}

/* A gradient is the same when the other inputs require none; at random shapes, where it may cancel,
 * beside the largest. */
TEST(gradients_of_one_input_alone)
{
    for (int i = 0; i < case_count; i++) {
        const Outcome all = run_on_device(&cases[i]);
        for (int only = 0; only < MAX_INPUTS; only++) {
            if (!is_real(&cases[i].inputs[only]))
                continue;
            Tape *tape = tape_new(test_device());
            const Outcome one = run_on(&cases[i], tape, only, REAL);
            tape_free(tape);
            const Real *expected = all.values[1 + only];
            const int64_t count = all.counts[1 + only];
            const double error = test_difference(one.values[1 + only], expected, count).error;
            const double tolerance =
                VECTOR_TOLERANCE *
                (random_cases ? largest_gradient(&all) : test_largest(expected, count));
            ck_assert_msg(error <= tolerance,
                          "%s: the gradient of input %d alone differs by %g, expected at most %g",
                          cases[i].name, only, error, tolerance);
        }
    }
}

/* --------------------------------------------------------------------------------- other claims */

#ifdef TAPEGRAD_PROFILE_H
/* The labels of tape_use begin with the name of the node, without which an operation has calls and
 * no time. */
TEST(a_profile_has_the_time_of_every_operation)
{
    const bool coarse = device_is_cuda(test_device()); /* half a microsecond */
    for (int i = 0; i < case_count; i++) {
        Tape *tape = tape_new(test_device());
        TapeProfile *profile = tape_profile_begin(tape);
        run_on(&cases[i], tape, EVERY_INPUT, REAL);
        tape_profile_end(profile);
        for (int j = 0; j < profile->operation_count; j++) {
            const ProfileOperation *row = &profile->operations[j];
            ck_assert_msg(row->forward_ms > 0 || coarse, "%s: the forward pass of %s has no time",
                          cases[i].name, row->name);
            ck_assert_msg((row->backward_ms > 0) == (row->backward_calls > 0) || coarse,
                          "%s: the backward pass of %s has %g ms", cases[i].name, row->name,
                          row->backward_ms);
        }
        tape_profile_free(profile);
        tape_free(tape);
    }
}
#endif

/* On "cpu" oneDNN's blocks and the form of linear attention depend on the number of threads, by a
 * rounding error. */
TEST(runs_repeat_bit_for_bit)
{
    for (int i = 0; i < case_count; i++) {
        test_set_threads(2);
        const Outcome first = run_on_device(&cases[i]);
        assert_same(&cases[i], "in a second run", run_on_device(&cases[i]), first);
        for (int threads = 1; threads <= 3 && !device_is_cuda(test_device()); threads += 2) {
            test_set_threads(threads);
            const Outcome again = run_on_device(&cases[i]);
            assert_outcomes_near(cases[i].name, &again, &first, VECTOR_TOLERANCE);
        }
    }
}

/* MEASURED=1 adds the benchmark's cases, whose work is worth several threads. */
TEST(no_bit_depends_on_the_number_of_threads)
{
    static const int counts[] = { 2, 3, 8 };
    Device *device = repeatable_device();
    for (int i = 0; i < case_count && device; i++)
        for (int bf16 = 0; bf16 <= test_has_bf16(); bf16++) {
            const Precision precision = bf16 ? PRECISION_BF16 : PRECISION_FLOAT32;
            const Activations inputs = bf16 ? STORED_IN_BF16 : REAL;
            test_set_threads(1);
            const Outcome one = run(&cases[i], device, precision, inputs);
            for (int t = 0; t < 3; t++) {
                char what[64];
                snprintf(what, sizeof what, "on %d threads%s", counts[t], bf16 ? ", in bf16" : "");
                test_set_threads(counts[t]);
                assert_same(&cases[i], what, run(&cases[i], device, precision, inputs), one);
            }
            test_forget();
        }
}

/* One thread computes all parts of each result, though the work is split for several. */
static Outcome run_on_one_thread(const Case *c, Precision precision, Activations inputs)
{
    Outcome result;
#pragma omp parallel num_threads(2)
#pragma omp master
    result = run(c, test_device(), precision, inputs);
    return result;
}

/* tensor/threads.c decides by time who computes. */
TEST(no_bit_depends_on_who_computes)
{
    for (int i = 0; i < case_count; i++)
        for (int threads = 2; threads <= 3 && !device_is_cuda(test_device()); threads++) {
            const Case *c = &cases[i];
            test_set_threads(threads);
            assert_same(c, "on one thread", run_on_one_thread(c, PRECISION_FLOAT32, REAL),
                        run_on_device(c));
            if (test_has_bf16())
                assert_same(c, "in bf16 on one thread",
                            run_on_one_thread(c, PRECISION_BF16, STORED_IN_BF16),
                            run(c, test_device(), PRECISION_BF16, STORED_IN_BF16));
        }
}

TEST(results_without_recording_are_the_same)
{
    for (int i = 0; i < case_count; i++) {
        Tape *tape = tape_new(test_device());
        tape_set_recording(tape, false);
        const Outcome result = run_on(&cases[i], tape, EVERY_INPUT, REAL);
        tape_free(tape);
        assert_same(&cases[i], "without recording", result, run_on_device(&cases[i]));
    }
}

/* An input of NaN makes some element of the result NaN. */
TEST(nan_reaches_the_result)
{
    Tape *tape = tape_new(test_device());
    for (int i = 0; i < case_count; i++)
        for (int bad = 0; bad < MAX_INPUTS; bad++) {
            const Case *c = &cases[i];
            if (!is_real(&c->inputs[bad]))
                continue;
            Tensor *x[MAX_INPUTS];
            make_inputs(c, tape, x);
            x[bad] = op_scale(tape, x[bad], NAN);
            Tensor *out = apply(c, tape, x, false);
            const Real *values = test_values(out);
            bool found = false;
            for (int64_t j = 0; j < tensor_count(out); j++)
                found |= isnan(values[j]);
            ck_assert_msg(found, "%s: input %d is NaN, but no element of the result", c->name, bad);
            tape_reset(tape);
        }
    tape_free(tape);
}

/* Runs the operation with x[bad] replaced; fails unless it raises an error of an operation that
 * contains the words. */
static void assert_refused(const Case *c, Tape *tape, int bad, Tensor *replaced, const char *words)
{
    Tensor *x[MAX_INPUTS];
    make_inputs(c, tape, x);
    x[bad] = replaced;
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        apply(c, tape, x, false);
        ck_abort_msg("%s accepts input %d, expected \"%s\"", c->name, bad, words);
    }
    tapegrad_on_error(NULL, NULL);
    ck_assert_msg(strncmp(tapegrad_error(), "op_", 3) == 0 && strstr(tapegrad_error(), words),
                  "%s: \"%s\", expected \"op_... %s\"", c->name, tapegrad_error(), words);
    tape_reset(tape);
}

/* Rows of operations that take int32 tensors as they take Reals. */
static bool takes_integers(const Case *c)
{
    return test_chosen("broadcast_to,broadcast_rows,transpose*,permute,concat*,stack,"
                       "slice*,select",
                       c->name);
}

TEST(inputs_of_another_dtype_or_tape_are_refused)
{
    Tape *tape = tape_new(test_device()), *other = tape_new(test_device());
    for (int i = 0; i < case_count; i++)
        for (int bad = 0; bad < MAX_INPUTS; bad++) {
            const Case *c = &cases[i];
            const Shape of = c->inputs[bad].shape;
            if (of.rank == 0)
                continue;
            const Real *zeros = test_zeros(shape_count(of));
            if (c->inputs[bad].below)
                assert_refused(c, tape, bad, tape_input(tape, zeros, of), "expected int32");
            else if (!takes_integers(c))
                assert_refused(c, tape, bad, tape_input_i32(tape, (const int32_t *)zeros, of),
                               "has dtype int32");
            if (!c->inputs[bad].below)
                assert_refused(c, tape, bad, tape_input(other, zeros, of),
                               "belongs to another tape");
            tape_reset(other);
        }
    tape_free(other);
    tape_free(tape);
}

TEST(integers_are_moved_as_reals_are)
{
    Tape *tape = tape_new(test_device());
    for (int i = 0; i < case_count; i++) {
        const Case *c = &cases[i];
        if (!takes_integers(c))
            continue;
        Tensor *reals[MAX_INPUTS] = { NULL }, *integers[MAX_INPUTS] = { NULL };
        for (int j = 0; j < MAX_INPUTS && c->inputs[j].shape.rank; j++) {
            const int64_t count = shape_count(c->inputs[j].shape);
            Real *values = test_zeros(count);
            int32_t *numbers = (int32_t *)test_zeros(count);
            for (int64_t k = 0; k < count; k++)
                values[k] = (Real)(numbers[k] = (int32_t)(k * 7919 % 100003 - 50000));
            reals[j] = tape_input(tape, values, c->inputs[j].shape);
            integers[j] = tape_input_i32(tape, numbers, c->inputs[j].shape);
        }
        const Tensor *expected = apply(c, tape, reals, false);
        const Tensor *found = apply(c, tape, integers, false);
        ck_assert_int_eq(found->type, TENSOR_INT32);
        ck_assert_str_eq(shape_text(found->shape).text, shape_text(expected->shape).text);
        const Real *values = test_values(expected);
        const int32_t *numbers = test_integers(found);
        for (int64_t k = 0; k < tensor_count(found); k++)
            ck_assert_msg((Real)numbers[k] == values[k], "%s: element %lld is %d, expected %g",
                          c->name, (long long)k, (int)numbers[k], (double)values[k]);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* Every allocation of every operation fails once. */
TEST(recovery_from_exhausted_memory)
{
    for (int i = 0; i < case_count; i++) {
        if (real_elements(&cases[i]) > MAX_ELEMENTS)
            continue;
        const Outcome expected = run_on_device(&cases[i]);
        bool failed = true;
        for (int64_t failing = 1; failed; failing++) {
            Tape *volatile tape = tape_new(test_device());
            test_expect_error();
            if (!setjmp(test_error_jump)) {
                device_fail_allocation(failing);
                run_on(&cases[i], tape, EVERY_INPUT, REAL);
            }
            failed = device_fail_allocation(0);
            tapegrad_on_error(NULL, NULL);
            if (failed)
                assert_exhausted();
            else
                ck_assert_int_gt(failing, 1);
            tape_reset(tape);
            assert_same(&cases[i], "after an error", run_on(&cases[i], tape, EVERY_INPUT, REAL),
                        expected);
            tape_free(tape);
            ck_assert_uint_eq(device_memory(test_device()).current, 0);
            ck_assert_int_lt(failing, 200);
        }
    }
}

/* ----------------------------------------------------------------------------------------- CUDA */

static void compare(const char *name, Outcome expected, Outcome actual, double tolerance)
{
    /* Where a case at random is one element near a zero of f or f', of terms near 1, no gradient
     * has digits of its own. */
    const double least = random_cases ? 0.01 : 0, largest = largest_gradient(&expected);
    for (int i = 0; i < expected.count; i++) {
        const Real *a = actual.values[i], *b = expected.values[i];
        const Worst worst = test_difference(a, b, expected.counts[i]);
        const double scale = fmax(i > 0 ? largest : test_largest(b, expected.counts[i]), least);
        if (!(worst.error <= tolerance * scale))
            ck_abort_msg("%s, %s %d: element %lld is %.9g, expected %.9g: error %g of %g, expected "
                         "at most %g",
                         name, i ? "gradient" : "result", i, (long long)worst.at,
                         (double)a[worst.at], (double)b[worst.at], worst.error, scale,
                         tolerance * scale);
    }
}

static void compare_devices(Device *a, Device *b, Precision precision, double tolerance)
{
    for (int i = 0; i < case_count; i++) {
        compare(cases[i].name, run(&cases[i], a, PRECISION_FLOAT32, REAL),
                run(&cases[i], b, precision, REAL), tolerance);
        test_forget();
    }
}

/* The plain kernels are the definition. The tolerance of float32 is that of three bf16 products on
 * CUDA, and elsewhere of sums in another order. */
TEST(results_equal_those_of_plain_kernels)
{
    const double of_float = random_cases ? 3e-5 : 5e-6;
    const double cpu = sizeof(Real) == sizeof(float) ? of_float : 1e-12;
    compare_devices(device_open("plain"), test_device(), PRECISION_FLOAT32,
                    device_is_cuda(test_device()) ? 4 * cpu : cpu);
}

#ifndef TAPEGRAD_DOUBLE
TEST(cuda_in_tf32)
{
    if (device_is_cuda(test_device()))
        compare_devices(device_open("plain"), test_device(), PRECISION_TF32, 2e-3);
}

/* Products and attention round their operands or results; most others compute in float32. */
TEST(bf16_of_real_inputs)
{
    if (!test_has_bf16())
        return;
    compare_devices(device_open("cpu"), test_device(), PRECISION_BF16, 4e-2);
}

/* In float32 the CPU gets the same rounded values. Rounding to 8 bits of mantissa has a relative
 * error of at most u = 2^-9; out and a gradient are rounded, and in some rows an argument, a saved
 * result or a product of two gradients before. */
TEST(bf16_inputs)
{
    for (int i = 0; i < case_count && test_has_bf16(); i++) {
        const Case *c = &cases[i];
        test_set_threads(3);
        const Outcome found = run(c, test_device(), PRECISION_BF16, STORED_IN_BF16);
        compare(c->name, run(c, device_open("cpu"), PRECISION_FLOAT32, ROUNDED), found, 6 * 0x1p-9);
        assert_same(c, "in a second run in bf16",
                    run(c, test_device(), PRECISION_BF16, STORED_IN_BF16), found);
    }
}

/* Every gradient gets two contributions, and both the first and the sum are rounded. */
TEST(bf16_gradients_accumulate)
{
    for (int i = 0; i < case_count && test_has_bf16(); i++) {
        const Case *c = &cases[i];
        if (real_elements(c) <= 4000)
            compare(c->name, run_several(c, 2, device_open("cpu"), PRECISION_FLOAT32, ROUNDED),
                    run_several(c, 2, test_device(), PRECISION_BF16, STORED_IN_BF16), 8 * 0x1p-9);
    }
}
#endif

TEST(two_devices_at_once)
{
    if (!device_is_cuda(test_device()))
        return;
#ifndef TAPEGRAD_CUDA_ON_HOST
    test_expect_error();
    if (setjmp(test_error_jump)) {
        tapegrad_on_error(NULL, NULL);
        ck_assert_ptr_nonnull(strstr(tapegrad_error(), "this machine has 1 of that kind"));
        return;
    }
#endif
    Device *second = device_open("cuda:1");
    tapegrad_on_error(NULL, NULL);
    ck_assert_str_eq(device_name(second), "cuda:1");
    for (int i = 0; i < case_count; i++)
        if (real_elements(&cases[i]) <= 4000) /* the emulation is slow */
            compare(cases[i].name, run_on_device(&cases[i]),
                    run(&cases[i], second, PRECISION_FLOAT32, REAL), 0);
    Tape *one = tape_new(test_device()), *two = tape_new(second);
    const Real number = 1;
    Tensor *x = tape_input(one, &number, shape(1));
    assert_raises("op_exp: x is on cuda:0, the tape on cuda:1", op_exp(two, x));
    tape_free(one);
    tape_free(two);
}

int main(void)
{
    fill_cases();
    if (case_count == 0) {
        fprintf(stderr,
                "test_operations: OPERATION=%s: no case of tests/operations.h or "
                "tests/operation_table.h has this name\n",
                getenv("OPERATION"));
        return EXIT_FAILURE;
    }
    return test_main("operations", NULL, NULL);
}
