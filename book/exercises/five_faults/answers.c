/* Answers to exercise 2.2: "sum1" takes SUM for the fault of function 1, and so on. look also
 * proves the exercise: it is silent if gradient_check reports what the faults should show. */
#include "exercise.h"
#include "../answer.h"

#include <stdio.h>

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

Fault faults[FUNCTIONS] = { FACTOR, SIGN, STORED, UNWRITTEN, SUM, RIGHT };

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
    static const char *const names[] = { "unknown", "right",     "sign",   "factor",
                                         "sum",     "unwritten", "stored", "number" };
    for (int fault = 0; fault < 8; fault++)
        for (int k = 0; k < FUNCTIONS; k++) {
            char name[16];
            snprintf(name, sizeof name, "%s%d", names[fault], k);
            if (is(name))
                faults[k] = (Fault)fault;
        }
}
