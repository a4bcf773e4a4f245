/* Answers to exercise 12.2, compiled with -Dright, -Dmultiplies, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

int sample(const Real *logits, int n, double temperature, double u)
{
    double max = logits[0], sum = 0, cumulative = 0;
    for (int c = 1; c < n; c++)
        max = fmax(max, logits[c]);
#if defined overflow || defined overflow_to_first || defined overflow_to_nothing
    max = 0;
#endif
#ifdef multiplies
    temperature = 1 / temperature;
#elif defined no_temperature
    temperature = 1;
#elif defined uniform
    return (int)(u * n);
#endif
#ifdef last_missing
    n--;
#endif
    for (int c = 0; c < n; c++)
        sum += exp((logits[c] - max) / temperature);
#ifdef without_sum
    sum = 1;
#endif
#ifdef overflow_to_first
    int c = -1;
    do
        cumulative += exp(logits[++c] / temperature) / sum;
    while (c < n - 1 && cumulative <= u);
    return c;
#elif defined from_last
    for (int c = n - 1; c >= 0; c--) {
        cumulative += exp((logits[c] - max) / temperature) / sum;
        if (cumulative > u)
            return c;
    }
    return 0;
#elif defined scaled_u
    for (int c = 0; c < n; c++)
        if ((cumulative += exp((logits[c] - max) / temperature)) > u * sum)
            return c;
    return n - 1;
#else
#ifdef last_replaced
    for (int c = 0; c < n - 1; c++) {
#else
    for (int c = 0; c < n; c++) {
#endif
        const double p = exp((logits[c] - max) / temperature) / sum;
#ifdef too_late
        if (cumulative > u)
            return c;
#endif
#ifdef each_alone
        cumulative = p;
#else
        cumulative += p;
#endif
#ifdef always_largest
        if (logits[c] == max)
#elif defined inclusive
        if (cumulative >= u)
#elif defined too_late
    if (cumulative < 0)
#else
    if (cumulative > u)
#endif
#ifdef from_1
            return c + 1;
#else
            return c;
#endif
    }
#ifdef overflow_to_nothing
    return -1;
#elif defined last_replaced
    return n - 2;
#else
return n - 1;
#endif
#endif
}
