/* The questions of the grader, in the order in which they are asked. */
#include "grade.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifndef _WIN32
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

enum { GUARD = 8 }; /* elements before and after each result, which must not change */
static const double GUARD_VALUE = 12345;

/* The results of one call, between guards. */
typedef struct Results {
    Real memory[OUTPUTS][GUARD + ELEMENTS + GUARD];
} Results;

static int output_count(const Exercise *e)
{
    int n = 0;
    while (n < OUTPUTS && e->outputs[n])
        n++;
    return n;
}

/* "dx, dw and db" */
static const char *names(const Exercise *e)
{
    static char text[64];
    const int n = output_count(e);
    for (int k = 0, end = 0; k < n; k++)
        end += snprintf(text + end, sizeof text - (size_t)end, "%s%s", e->outputs[k],
                        k + 2 < n    ? ", "
                        : k + 2 == n ? " and "
                                     : "");
    return text;
}

static Real *result(Results *r, int output)
{
    return r->memory[output] + GUARD;
}

static int result_count(const Case *c, int output)
{
    return c->rows[output] * c->columns[output];
}

/* "dx[1][4]", or "dx[4]" of a single row */
static const char *element(const Exercise *e, const Case *c, int output, int i)
{
    static char text[64];
    if (c->rows[output] > 1)
        snprintf(text, sizeof text, "%s[%d][%d]", e->outputs[output], i / c->columns[output],
                 i % c->columns[output]);
    else
        snprintf(text, sizeof text, "%s[%d]", e->outputs[output], i);
    return text;
}

/* Subtracts what results held before. Of one that is still the same, no element is written; in
 * others an element that is the same is a sum of no terms. */
static void subtract(const Case *c, Results *r, int output, double before)
{
    bool changed = false;
    for (int i = 0; i < result_count(c, output); i++)
        changed |= result(r, output)[i] != before;
    for (int i = 0; i < result_count(c, output) && changed; i++)
        result(r, output)[i] -= before;
}

/* Calls the answer with results that hold `before`. Returns the number of a result whose guards
 * have changed, or -1. */
static int call(const Exercise *e, Answer *answer, const Case *c, bool accumulate, double before,
                Results *r)
{
    Gradient out[OUTPUTS] = { { NULL, false } };
    for (int k = 0; k < output_count(e); k++) {
        const int n = result_count(c, k);
        for (int i = 0; i < GUARD + n + GUARD; i++)
            r->memory[k][i] = i < GUARD || i >= GUARD + n ? GUARD_VALUE : before;
        out[k] = (Gradient){ result(r, k), accumulate };
    }
    const Case copy = *c;
    answer(&copy, out);
    for (int k = 0; k < output_count(e) && e->adds; k++)
        subtract(c, r, k, before);
    for (int k = 0; k < output_count(e); k++)
        for (int i = 0; i < GUARD; i++)
            if (r->memory[k][i] != GUARD_VALUE ||
                r->memory[k][GUARD + result_count(c, k) + i] != GUARD_VALUE)
                return k;
    return -1;
}

static double tolerance_of(const Exercise *e, const Case *c, int output)
{
    double largest = 1;
    for (int i = 0; i < result_count(c, output); i++)
        if (isfinite(c->right[output][i]))
            largest = fmax(largest, fabs(c->right[output][i]));
    return largest * (e->tolerance > 0 ? e->tolerance : 1e-9);
}

/* NaN is the same as NaN. */
static bool same(double a, double b, double tolerance)
{
    return a == b || fabs(a - b) < tolerance || (isnan(a) && isnan(b));
}

/* Whether all results are factor times those of right, plus what they held before. */
static bool equal(const Exercise *e, const Case *c, Results *mine, Results *right, double factor,
                  double before)
{
    for (int k = 0; k < output_count(e); k++)
        for (int i = 0; i < result_count(c, k); i++) {
            const double expected = factor * (right ? result(right, k)[i] : c->right[k][i]);
            if (!same(result(mine, k)[i], before + expected, tolerance_of(e, c, k)))
                return false;
        }
    return true;
}

static bool is_transposed(const Exercise *e, const Case *c, Results *mine, int output)
{
    const int rows = c->rows[output], columns = c->columns[output];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            if (!same(result(mine, output)[j * rows + i], c->right[output][i * columns + j],
                      tolerance_of(e, c, output)))
                return false;
    return rows > 1 && columns > 1;
}

/* Whether the elements that are written are those of row 0: the row's offset is missing. */
static bool only_row_0_is_written(const Case *c, Results *mine, int output, double before)
{
    for (int i = 0; i < result_count(c, output); i++)
        if ((result(mine, output)[i] != before) != (i < c->columns[output]))
            return false;
    return c->rows[output] > 1;
}

/* Elements that keep two different old contents were not written: prints how many. */
static bool all_are_written(const Exercise *e, const Case *c, Results *mine, Results *other,
                            const double *before)
{
    int written = 0, all = 0, output = 0, last = 0, unwritten[OUTPUTS] = { 0 };
    for (int k = 0; k < output_count(e); k++)
        for (int i = 0; i < result_count(c, k); i++, all++)
            if (result(mine, k)[i] == before[0] && result(other, k)[i] == before[1]) {
                unwritten[k]++;
                output = k;
                last = i;
            } else {
                written++;
            }
    if (written == 0)
        printf("no element of %s is written: the body is still empty\n", e->outputs[0]);
    else if (unwritten[output] == result_count(c, output))
        printf("no element of %s is written\n", e->outputs[output]);
    else if (written < all && only_row_0_is_written(c, mine, output, before[0]))
        printf("only row 0 of %s is written: element c of row r is number r C + c\n",
               e->outputs[output]);
    else if (written < all)
        printf("%d of %d elements are not written, for example %s: check the loops' ends\n",
               all - written, all, element(e, c, output, last));
    return written == all;
}

/* Of an answer that is right where accumulate is false. */
static bool adds_where_it_should(const Exercise *e, const Case *c)
{
    static Results mine;
    call(e, e->student, c, true, 10, &mine);
    if (equal(e, c, &mine, NULL, 1, 0))
        printf("the values are right, but they replace what %s held. The tensor may have been used "
               "before: add, by gradient_add\n",
               e->outputs[0]);
    else if (!equal(e, c, &mine, NULL, 1, 10))
        printf("right for an empty %s, wrong for one that holds an earlier contribution: call "
               "gradient_add once per element, and keep nothing of an earlier call\n",
               e->outputs[0]);
    else
        return true;
    return false;
}

/* Whether the wrong answer leads to these results, from `before`. Prints its sentence. */
static bool has_results(const Exercise *e, Answer *answer, const Case *c, Results *mine,
                        double before, const char *sentence)
{
    static Results wrong;
    call(e, answer, c, false, before, &wrong);
    if (equal(e, c, &wrong, NULL, 1, 0) || !equal(e, c, mine, &wrong, 1, 0))
        return false;
    printf("%s\n", sentence);
    return true;
}

static bool is_usual_mistake(const Exercise *e, const Case *c, Results *mine, double before)
{
    for (int m = 0; m < MISTAKES && e->mistakes[m].answer; m++)
        if (has_results(e, e->mistakes[m].answer, c, mine, before, e->mistakes[m].sentence))
            return true;
    Case copy = *c;
    for (copy.fault = 0; copy.fault < MISTAKES; copy.fault++)
        if (e->faults[copy.fault] &&
            has_results(e, e->faulty, &copy, mine, before, e->faults[copy.fault]))
            return true;
    return false;
}

/* Whether all results are wrong in the same way, which it prints. */
static bool is_wrong_throughout(const Exercise *e, const Case *c, Results *mine)
{
    static const struct {
        double factor;
        const char *text;
    } factors[] = { { -1, "minus the right ones" },
                    { 2, "twice the right ones" },
                    { 0.5, "half of the right ones" },
                    { 0, "0" } };
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++)
        if (equal(e, c, mine, NULL, factors[i].factor, 0)) {
            printf("all elements are %s\n", factors[i].text);
            return true;
        }
    for (int k = 0; k < output_count(e); k++)
        if (is_transposed(e, c, mine, k)) {
            printf("%s is the transposed of the right one: rows and columns are exchanged\n",
                   e->outputs[k]);
            return true;
        }
    return false;
}

/* Prints the result that is most wrong. */
static void describe(const Exercise *e, const Case *c, Results *mine)
{
    int right = 0, all = 0, output = 0, worst = 0;
    double error = -1;
    for (int k = 0; k < output_count(e); k++)
        for (int i = 0; i < result_count(c, k); i++, all++) {
            if (same(result(mine, k)[i], c->right[k][i], tolerance_of(e, c, k))) {
                right++;
                continue;
            }
            const double difference = fabs(result(mine, k)[i] - c->right[k][i]);
            if (difference > error || (!isfinite(difference) && isfinite(error))) {
                error = difference;
                output = k;
                worst = i;
            }
        }
    const double value = result(mine, output)[worst];
    if (!isfinite(value))
        printf("%s is %s, expected %.6f: infinity - infinity and 0 times infinity are NaN, and "
               "e^x overflows from x = 710 on\n",
               element(e, c, output, worst), isnan(value) ? "NaN" : "infinite",
               c->right[output][worst]);
    else
        printf("%d of %d elements are right; %s is %.6f, expected %.6f. This is none of the usual "
               "mistakes\n",
               right, all, element(e, c, output, worst), value, c->right[output][worst]);
}

static char said[300];

void say(const char *format, ...)
{
    if (said[0])
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
}

/* Whether the answer is right in this case; else prints its mistake. */
static bool grade_case(const Exercise *e, const Case *c)
{
    static Results mine, other;
    static const double before[2] = { 10, -7 };
    said[0] = '\0';
    const int outside = call(e, e->student, c, false, before[0], &mine);
    if (said[0]) {
        printf("%s\n", said);
        return false;
    }
    if (outside >= 0) {
        printf("it writes outside %s, which has %d elements: check the loops' ends\n",
               e->outputs[outside], result_count(c, outside));
        return false;
    }
    call(e, e->student, c, false, before[1], &other);
    if (!all_are_written(e, c, &mine, &other, before))
        return false;
    if (equal(e, c, &mine, NULL, 1, 0))
        return e->fills || e->adds || adds_where_it_should(e, c);
    if (equal(e, c, &mine, NULL, 1, before[0]))
        printf(e->fills ? "the values are right, but they are added to what %s held: begin with 0\n"
                        : "the values are right, but they are added to what %s held although "
                          "accumulate is false: gradient_add decides it\n",
               e->outputs[0]);
    else if (is_usual_mistake(e, c, &mine, before[0]))
        return false;
    else if (e->adds && equal(e, c, &mine, NULL, 1, -before[0]))
        printf("the sums are right, but they replace what %s held: add them, by +=\n", names(e));
    else if (!is_wrong_throughout(e, c, &mine))
        describe(e, c, &mine);
    return false;
}

static double seconds_of(void (*run)(int n), int n)
{
    const clock_t start = clock();
    run(n);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* Eight times the positions take 8 times as long in O(n), 64 times in O(n^2). */
static bool takes_quadratic_time(void (*run)(int n))
{
    const double seconds = seconds_of(run, 8000);
    return seconds > 0.02 && seconds > 20 * seconds_of(run, 1000);
}

static int grade_here(const Exercise *exercise)
{
    printf("%s: ", exercise->name);
    for (int index = 0; index < CASES; index++) {
        static Case c;
        memset(&c, 0, sizeof c);
        exercise->make(&c, index);
        if (!grade_case(exercise, &c))
            return 1;
    }
    if (exercise->run && takes_quadratic_time(exercise->run)) {
        printf("%s\n", exercise->slow);
        return 1;
    }
    printf("right, in %d cases%s\n", CASES,
           exercise->fills || exercise->adds ? "" : ", stored and added");
    return 0;
}

int grade(const Exercise *exercise)
{
    setvbuf(stdout, NULL, _IONBF, 0);
#ifdef _WIN32
    return grade_here(exercise);
#else
    const pid_t child = fork(); /* an answer may crash, or never end */
    if (child == 0) {
        alarm(10);
        exit(grade_here(exercise));
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        perror("grade");
        return 2;
    }
    if (!WIFSIGNALED(status))
        return WEXITSTATUS(status);
    if (WTERMSIG(status) == SIGALRM)
        printf("your function does not end within 10 seconds\n");
    else
        printf("your function crashed (%s): it reads or writes outside its arrays\n",
               strsignal(WTERMSIG(status)));
    return 1;
#endif
}

void case_normal(Case *c, int index, int input, int n)
{
    Random random = random_new((uint64_t)index + 1, (uint64_t)input);
    random_normal(&random, c->in[input], n);
}

void case_right(Case *c, int output, const Real *values, int rows, int columns)
{
    c->rows[output] = rows;
    c->columns[output] = columns;
    memcpy(c->right[output], values, (size_t)(rows * columns) * sizeof *values);
}
