/* Exercise 2.2. exercise.h has six operations, function(tape, k, x) for k from 0 to 5. A backward
 * function is RIGHT or has one fault: SIGN, FACTOR, SUM, UNWRITTEN, STORED. Find out by
 * gradient_check, with other values, other n, and x used twice; then read the formula. Fill in
 * `faults` below. In the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. five_faults/[se]*.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <stdio.h>

/* What gradient_check differentiates. To use x twice, return op_add of two calls. */
static Tensor *checked(Tape *tape, Tensor *const *inputs, void *context)
{
    const int k = *(const int *)context;
    return function(tape, k, inputs[0]);
}

void check(int k, const Real *values, int n)
{
    const CheckInput x = { shape(n), values };
    const GradientCheck c = gradient_check(device_open("plain"), checked, &k, &x, 1);
    printf("function %d: error %.1e, at x[%d]: tape %.6f, differences %.6f\n", k, c.error,
           (int)c.element, c.analytic, c.numeric);
    printf("            %s\n", c.pattern);
}

/* Runs before the answer is graded. */
void look(void)
{
    /* your lines, as: check(0, (const Real[]){ 1, 2 }, 2); */
}

Fault faults[FUNCTIONS] = { UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN };
