/* Answers to exercise 5.1 */
#include "exercise.h"
#include "../answer.h"

#include <signal.h>
#include <unistd.h>

void softmax_backward(Gradient dx, const Real *g, const Real *p, int R, int C)
{
    if (is("crash"))
        write_to_null();
    if (is("endless") && alarm(0) > 0)
        raise(SIGALRM); /* the grader's, without the wait for it */
    const int rows = is("one_row") || is("all_rows") ? 1 : R;
    const int columns = is("all_rows") ? R * C : C + is("loop_end");
    Real sum = 0;
    for (int r = 0; r < rows; r++) {
        const int begin = r * columns, end = begin + columns;
        sum = is("running_sum") ? sum : 0;
        for (int c = begin; c < end; c++)
            sum += is("plain_sum") ? g[c] : is("mean") ? p[c] * g[c] / C : p[c] * g[c];
        for (int j = begin; j < end; j++)
            add(dx, j,
                is("no_sum")      ? p[j] * g[j]
                : is("plus")      ? p[j] * (g[j] + sum)
                : is("diagonal")  ? p[j] * (1 - p[j]) * g[j]
                : is("outside")   ? p[j] * g[j] - sum
                : is("no_factor") ? g[j] - sum
                : is("negative")  ? p[j] * (sum - g[j])
                : is("unknown")   ? p[j] * (g[j] - sum) + 0.5
                                  : p[j] * (g[j] - sum));
    }
}
