/* Answers to exercise 11.2, compiled with -Dright, -Dskip_equal, ...; expected.txt has the grader's
 * sentences. One row of alpha suffices if its states are visited from the last one on; most
 * mistakes change one macro. */
#include "exercise.h"

#include <math.h>

#define BLANK 0
#define FACTOR(t, symbol) y[(t)*K + symbol]
#define BEGIN (s < 2)
#define BEGIN_FACTOR FACTOR(0, symbol)
#define STAY alpha[s]
#define NEXT (s > 0 ? alpha[s - 1] : 0)
#define SKIP (s > 2 && s % 2 && target[s / 2] != target[s / 2 - 1] ? alpha[s - 2] : 0)
#define SUM (FACTOR(t, symbol) * (STAY + NEXT + SKIP))
#define FRAMES T
#define END (alpha[S - 1] + alpha[S - 2])

#ifdef skip_equal
#undef SKIP
#define SKIP (s > 2 && s % 2 ? alpha[s - 2] : 0)
#elif defined skip_symbol
#undef SKIP
#define SKIP (s > 1 && (s % 2 == 0 || target[s / 2] != target[s / 2 - 1]) ? alpha[s - 2] : 0)
#elif defined no_skip
#undef SKIP
#define SKIP 0
#elif defined no_stay
#undef STAY
#define STAY 0
#elif defined begins_in_blank
#undef BEGIN
#define BEGIN (s == 0)
#elif defined begins_in_symbol
#undef BEGIN
#define BEGIN (s == 1)
#elif defined begins_anywhere
#undef BEGIN
#define BEGIN 1
#elif defined begins_with_1
#undef BEGIN_FACTOR
#define BEGIN_FACTOR 1
#elif defined ends_in_blank
#undef END
#define END alpha[S - 1]
#elif defined ends_in_symbol
#undef END
#define END alpha[S - 2]
#elif defined ends_anywhere
#undef END
#define END total
#elif defined frame_before
#undef SUM
#define SUM (FACTOR(t - 1, symbol) * (STAY + NEXT + SKIP))
#elif defined frame_missing
#undef FRAMES
#define FRAMES (T - 1)
#elif defined blank_last
#undef BLANK
#define BLANK (K - 1)
#elif defined one_term
#undef SUM
#define SUM (FACTOR(t, symbol) * STAY + NEXT + SKIP)
#elif defined largest
#undef SUM
#undef END
#define SUM (FACTOR(t, symbol) * fmax(STAY, fmax(NEXT, SKIP)))
#define END fmax(alpha[S - 1], alpha[S - 2])
#elif defined logarithm
#undef END
#define END log(alpha[S - 1] + alpha[S - 2])
#elif defined minus_logarithm
#undef END
#define END -log(alpha[S - 1] + alpha[S - 2])
#elif defined unknown
#undef END
#define END 2.5 * alpha[S - 1]
#elif defined zero
#undef BEGIN
#define BEGIN 0
#endif

double ctc_alpha(const Real *y, int T, int K, const int *target, int n)
{
    const int S = 2 * n + 1;
    double alpha[S], total = 0;
    for (int s = 0; s < S; s++) {
        const int symbol = s % 2 ? target[s / 2] : BLANK;
        alpha[s] = BEGIN * BEGIN_FACTOR;
    }
    for (int t = 1; t < FRAMES; t++)
#ifdef in_place
        for (int s = 0; s < S; s++) {
#else
        for (int s = S - 1; s >= 0; s--) {
#endif
            const int symbol = s % 2 ? target[s / 2] : BLANK;
            alpha[s] = SUM;
        }
    for (int s = 0; s < S; s++)
        total += alpha[s];
    return END;
}
