/* Answers to exercise 12.2 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

/* Whether the class with the probability p is taken; cumulative contains it. */
static bool is_taken(double cumulative, double p, double u, bool is_largest)
{
    return is("always_largest")      ? is_largest
           : is("inclusive")         ? cumulative >= u
           : is("too_late")          ? cumulative - p > u
           : is("overflow_to_first") ? !(cumulative <= u)
                                     : cumulative > u;
}

int sample(const Real *logits, int n, double temperature, double u)
{
    const bool overflow = is("overflow") || is("overflow_to_first") || is("overflow_to_nothing");
    const double T = is("multiplies") ? 1 / temperature : is("no_temperature") ? 1 : temperature;
    const int classes = n - is("last_missing");
    double max = logits[0], sum = 0, cumulative = 0;
    for (int c = 1; c < n; c++)
        max = fmax(max, logits[c]);
    for (int c = 0; c < classes; c++)
        sum += exp((logits[c] - (overflow ? 0 : max)) / T);
    if (is("uniform"))
        return (int)(u * n);
    for (int i = 0; i < classes - is("last_replaced"); i++) {
        const int c = is("from_last") ? n - 1 - i : i;
        const double e = exp((logits[c] - (overflow ? 0 : max)) / T);
        const double p = is("without_sum") || is("scaled_u") ? e : e / sum;
        cumulative = is("each_alone") ? p : cumulative + p;
        if (is_taken(cumulative, p, is("scaled_u") ? u * sum : u, logits[c] == max))
            return c + is("from_1");
    }
    return is("overflow_to_nothing") ? -1
           : is("from_last")         ? 0
           : is("last_replaced")     ? n - 2
                                     : classes - 1 + is("from_1");
}
