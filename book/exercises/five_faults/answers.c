/* Answers to exercise 2.2, compiled with -Dright, -Dsum1, ...; expected.txt has the sentences. look
 * also proves the exercise: it is silent if gradient_check reports what the faults should show. */
#include "exercise.h"

#include <stdio.h>
#include <string.h>

static int uses;

static Tensor *checked(Tape *tape, Tensor *const *inputs, void *context)
{
    const int k = *(const int *)context;
    Tensor *out = function(tape, k, inputs[0]);
    return uses == 1 ? out : op_add(tape, out, function(tape, k, inputs[0]));
}

/* Expects an error above 1e-3 with this pattern, or, if it is NULL, one below 1e-8. */
static void expect(int k, int n, int times, const char *pattern)
{
    static const Real values[5] = { 0.7, -1.2, 0.4, 1.5, -0.3 };
    const CheckInput x = { shape(n), values };
    uses = times;
    const GradientCheck c = gradient_check(device_open("plain"), checked, &k, &x, 1);
    if (pattern ? c.error < 1e-3 || strcmp(c.pattern, pattern) != 0 : !(c.error < 1e-8))
        printf("function %d, n %d, %d uses: error %g, %s\n", k, n, times, c.error, c.pattern);
}

void look(void)
{
    for (int times = 1; times <= 2; times++)
        for (int n = 4; n <= 5; n++) {
            expect(0, n, times, "");
            expect(1, n, times, "off by a multiple of out in each row");
            expect(2, n, times, times == 1 ? NULL : "0.5 times the differences");
            expect(3, n, times, n == 4 ? NULL : "the last 1 of 5 elements are NaN: never written?");
            expect(4, n, times, "off by a constant in each row");
            expect(5, n, times, NULL);
        }
}

/* One wrong answer */
#ifdef unknown3
#define F3 UNKNOWN
#elif defined right0
#define F0 RIGHT
#elif defined sign0
#define F0 SIGN
#elif defined sum0
#define F0 SUM
#elif defined stored0
#define F0 STORED
#elif defined right1
#define F1 RIGHT
#elif defined sum1
#define F1 SUM
#elif defined factor1
#define F1 FACTOR
#elif defined right2
#define F2 RIGHT
#elif defined factor2
#define F2 FACTOR
#elif defined sum2
#define F2 SUM
#elif defined sign2
#define F2 SIGN
#elif defined unwritten2
#define F2 UNWRITTEN
#elif defined right3
#define F3 RIGHT
#elif defined stored3
#define F3 STORED
#elif defined sum3
#define F3 SUM
#elif defined factor3
#define F3 FACTOR
#elif defined sign4
#define F4 SIGN
#elif defined factor4
#define F4 FACTOR
#elif defined sign5
#define F5 SIGN
#elif defined factor5
#define F5 FACTOR
#elif defined sum5
#define F5 SUM
#elif defined number5
#define F5 (Fault)7
#endif

/* and right ones otherwise */
#ifndef F0
#define F0 FACTOR
#endif
#ifndef F1
#define F1 SIGN
#endif
#ifndef F2
#define F2 STORED
#endif
#ifndef F3
#define F3 UNWRITTEN
#endif
#ifndef F4
#define F4 SUM
#endif
#ifndef F5
#define F5 RIGHT
#endif
const Fault faults[FUNCTIONS] = { F0, F1, F2, F3, F4, F5 };
