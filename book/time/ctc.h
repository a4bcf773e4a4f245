/* For ctc.c: the lattice of the target a b in four frames, and the two recurrences on it. */
#ifndef TIME_CTC_H
#define TIME_CTC_H

#include <stdbool.h>

enum { T = 4, K = 3, S = 5, PATHS = 81 }; /* S = 2 n + 1 states, K^T paths */

static const int SYMBOL[S] = { 0, 1, 0, 2, 0 }; /* - a - b - */
static const char NAME[] = "-ab";
static const int EACH_SYMBOL[K] = { 0, 1, 2 };
static const char FRAMES[] = "         t = 1   t = 2   t = 3   t = 4\n";
static const double Y[T][K] = {
    { 0.5, 0.4, 0.1 }, { 0.3, 0.6, 0.1 }, { 0.4, 0.1, 0.5 }, { 0.6, 0.1, 0.3 }
};

static bool may_skip_to(int s)
{
    return s >= 2 && SYMBOL[s] != 0 && SYMBOL[s] != SYMBOL[s - 2];
}

/* Fills a [T][S] with alpha and returns p. */
static double prefixes(double (*a)[S], const double (*y)[K])
{
    for (int t = 0; t < T; t++)
        for (int s = 0; s < S; s++) {
            const double stay = t == 0 ? s < 2 : a[t - 1][s];
            const double next = t > 0 && s > 0 ? a[t - 1][s - 1] : 0;
            const double skip = t > 0 && may_skip_to(s) ? a[t - 1][s - 2] : 0;
            a[t][s] = (stay + next + skip) * y[t][SYMBOL[s]];
        }
    return a[T - 1][S - 1] + a[T - 1][S - 2];
}

/* Fills b with beta: the gradient of p by each alpha. */
static void suffixes(double (*b)[S], const double (*y)[K])
{
    for (int s = 0; s < S; s++)
        b[T - 1][s] = s >= S - 2 ? 1 : 0;
    for (int t = T - 2; t >= 0; t--)
        for (int s = 0; s < S; s++) {
            b[t][s] = y[t + 1][SYMBOL[s]] * b[t + 1][s];
            if (s + 1 < S)
                b[t][s] += y[t + 1][SYMBOL[s + 1]] * b[t + 1][s + 1];
            if (s + 2 < S && may_skip_to(s + 2))
                b[t][s] += y[t + 1][SYMBOL[s + 2]] * b[t + 1][s + 2];
        }
}

#endif
