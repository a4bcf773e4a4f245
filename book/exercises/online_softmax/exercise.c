/* Exercise 8.1: the results are m, l and o after each tile of a row. The right ones come from the
 * definition, the usual mistakes from steps that are wrong in one place. NaN and infinity equal
 * nothing, so a number stands for each. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SCORES, VALUES, MAX_M = 4 };
static const Real NAN_CODE = -777, INFINITE_CODE = 778, OUTSIDE_CODE = 779; /* no results */

typedef void Step(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M);

static Real coded(Real value)
{
    if (isnan(value))
        return NAN_CODE;
    return fabs(value) > 1e20 ? copysign(INFINITE_CODE, value) : value;
}

static int tiles_of(const Case *c)
{
    return (c->size[0] + c->size[1] - 1) / c->size[1];
}

/* Scores in which the second tile has the largest: all negative; near 1000; with excluded keys */
static void make_scores(Case *c, int index)
{
    static const double shift[3] = { -3, -1, -2 };
    const int N = c->size[0], T = c->size[1];
    Real *s = c->in[SCORES];
    case_normal(c, index, SCORES, N);
    for (int j = 0; j < N; j++) {
        s[j] = shift[j / T] - 0.4 * fabs(s[j]) + (index == 1 ? 1000 : 0);
        if (index == 2 && (j < T || j == T + 1))
            s[j] = -INFINITY;
    }
}

/* m, l and o of the first `keys` keys */
static void define(const Case *c, int keys, Real *m, Real *l, Real *o)
{
    const int M = c->size[2];
    const Real *s = c->in[SCORES];
    *m = -INFINITY;
    *l = 0;
    for (int j = 0; j < keys; j++)
        *m = fmax(*m, s[j]);
    for (int j = 0; j < keys; j++) {
        const Real power = s[j] > -INFINITY ? exp(s[j] - *m) : 0;
        *l += power;
        for (int k = 0; k < M; k++)
            o[k] += power * c->in[VALUES][j * M + k];
    }
}

static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 6, 2, 3 }, { 5, 3, 2 }, { 8, 3, 4 } };
    Real m[ELEMENTS], l[ELEMENTS], o[ELEMENTS] = { 0 };
    memcpy(c->size, sizes[index], sizeof sizes[index]);
    const int N = c->size[0], T = c->size[1], M = c->size[2], tiles = tiles_of(c);
    make_scores(c, index);
    case_normal(c, index, VALUES, N * M);
    for (int t = 0; t < tiles; t++) {
        define(c, (t + 1) * T < N ? (t + 1) * T : N, m + t, l + t, o + t * M);
        m[t] = coded(m[t]);
    }
    case_right(c, 0, m, 1, tiles);
    case_right(c, 1, l, 1, tiles);
    case_right(c, 2, o, tiles, M);
}

/* Calls step for each tile, the last of which has the rest of the row. Results stay unwritten if no
 * step changes anything. */
static void run(const Case *c, const Gradient *out, Step *step)
{
    const int N = c->size[0], T = c->size[1], M = c->size[2];
    const Real guard = 12345;
    Real m = -INFINITY, l = 0, o[MAX_M + 1] = { 0 };
    Real results[3][ELEMENTS];
    bool changed = false;
    o[M] = guard;
    for (int first = 0, t = 0; first < N; first += T, t++) {
        step(&m, &l, o, c->in[SCORES] + first, c->in[VALUES] + first * M,
             N - first < T ? N - first : T, M);
        results[0][t] = coded(m);
        results[1][t] = coded(l);
        for (int k = 0; k < M; k++)
            results[2][t * M + k] = coded(o[k]);
        for (int k = 0; k < M; k++)
            changed |= o[k] != 0;
        changed |= l != 0 || m != -INFINITY;
    }
    for (int k = 0; changed && k < 3; k++)
        memcpy(out[k].data, results[k], (size_t)(c->rows[k] * c->columns[k]) * sizeof(Real));
    if (o[M] != guard)
        out[2].data[0] = OUTSIDE_CODE;
}

/* --------------------------------------------------------------------------- the usual mistakes */
typedef enum Mistaken {
    L_KEPT,
    O_KEPT,
    BOTH_KEPT,
    UPSIDE_DOWN,
    EACH_SCORE,
    AFTER,
    STORED,
    LAST_TILE,
    FROM_ZERO,
    M_KEPT,
    OLD_M,
    WITHOUT_M,
    NO_MAXIMUM,
    DIVIDED,
    MEAN,
    NO_POWER,
    TRANSPOSED,
    UNGUARDED,
    ONE_LESS,
} Mistaken;

/* A step that is wrong in one place */
static void wrong_step(Mistaken is, Real *m, Real *l, Real *o, const Real *s, const Real *v, int T,
                       int M)
{
    Real top = is == LAST_TILE ? s[0] : is == FROM_ZERO ? fmax(*m, 0) : *m;
    for (int j = 0; j < T; j++)
        top = fmax(top, s[j]);
    if (isinf(top) && is != UNGUARDED)
        return;
    const Real factor = is == UPSIDE_DOWN ? exp(top - *m) : exp(*m - top);
    const bool keeps = is == BOTH_KEPT || is == NO_MAXIMUM || is == AFTER;
    const Real of_l = is == STORED ? 0 : is == L_KEPT || keeps ? 1 : factor;
    const Real of_o = is == STORED ? 0 : is == O_KEPT || keeps ? 1 : factor;
    const Real subtracted = is == OLD_M ? *m : is == WITHOUT_M || is == NO_MAXIMUM ? 0 : top;
    const Real old_l = *l;
    *l *= of_l;
    for (int c = 0; c < M; c++)
        o[c] *= is == MEAN ? old_l * of_o : of_o;
    for (int j = 0; j < T - (is == ONE_LESS); j++) {
        const Real again = is == EACH_SCORE && j > 0 ? factor : 1;
        const Real power = exp(s[j] - subtracted);
        *l = *l * again + power;
        for (int c = 0; c < M; c++)
            o[c] = o[c] * again +
                   (is == NO_POWER ? 1 : power) * v[is == TRANSPOSED ? c * T + j : j * M + c];
    }
    *l *= is == AFTER ? factor : 1;
    for (int c = 0; c < M; c++)
        o[c] *= is == AFTER ? factor : is == DIVIDED || is == MEAN ? 1 / *l : 1;
    *m = is == M_KEPT || is == NO_MAXIMUM ? *m : top;
}

#define MISTAKE(name, is)                                                                          \
    static void name##_step(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M) \
    {                                                                                              \
        wrong_step(is, m, l, o, s, v, T, M);                                                       \
    }                                                                                              \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        run(c, out, name##_step);                                                                  \
    }
MISTAKE(l_kept, L_KEPT)
MISTAKE(o_kept, O_KEPT)
MISTAKE(both_kept, BOTH_KEPT)
MISTAKE(each_score, EACH_SCORE)
MISTAKE(after, AFTER)
MISTAKE(stored, STORED)
MISTAKE(last_tile, LAST_TILE)
MISTAKE(from_zero, FROM_ZERO)
MISTAKE(m_kept, M_KEPT)
MISTAKE(old_m, OLD_M)
MISTAKE(without_m, WITHOUT_M)
MISTAKE(no_maximum, NO_MAXIMUM)
MISTAKE(divided, DIVIDED)
MISTAKE(mean, MEAN)
MISTAKE(no_power, NO_POWER)
MISTAKE(transposed, TRANSPOSED)
MISTAKE(unguarded, UNGUARDED)
MISTAKE(one_less, ONE_LESS)

/* In the first tile this factor is infinite, and infinity times 0 is NaN, as is all that follows.
 * Other mistakes may lead to NaN, too. They differ where m is finite. */
MISTAKE(infinite_factor, UPSIDE_DOWN)

static void upside_down(const Case *c, const Gradient *out)
{
    static const Real s[2] = { 1, 2 }, v[2] = { 1, 1 };
    Real m[2] = { 1, 1 }, l[2] = { 3, 3 }, o[2] = { 5, 5 };
    online_softmax(&m[0], &l[0], &o[0], s, v, 2, 1);
    wrong_step(UPSIDE_DOWN, &m[1], &l[1], &o[1], s, v, 2, 1);
    infinite_factor(c, out);
    if (!(fabs(l[0] - l[1]) + fabs(o[0] - o[1]) < 1e-9))
        out[1].data[0] = c->right[1][0];
}

/* -------------------------------------------------------------------------------- other results */
static Real last[3][ELEMENTS]; /* what the learner's function has computed */
static char sentence[200];

static void student(const Case *c, const Gradient *out)
{
    run(c, out, online_softmax);
    for (int k = 0; k < 3; k++)
        memcpy(last[k], out[k].data, (size_t)(c->rows[k] * c->columns[k]) * sizeof(Real));
}

/* The learner's own results, if o [M] is written, or one is NaN or infinite without need; else the
 * right ones */
static void coded_results(const Case *c, const Gradient *out)
{
    static const char *const names[3] = { "m", "l", "o" };
    bool found = last[2][0] == OUTSIDE_CODE;
    if (found)
        snprintf(sentence, sizeof sentence,
                 "it writes o[%d], and o has %d elements: check the "
                 "loops' ends",
                 c->size[2], c->size[2]);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < c->rows[k] * c->columns[k]; i++) {
            const Real value = last[k][i];
            if (!found && value != c->right[k][i] &&
                (value == NAN_CODE || fabs(value) == INFINITE_CODE)) {
                found = true;
                snprintf(sentence, sizeof sentence,
                         "%s is %s after tile %d: infinity - infinity and 0 times infinity are "
                         "NaN, and e^x overflows from x = 710 on",
                         names[k], value == NAN_CODE ? "NaN" : "infinite",
                         k == 2 ? i / c->size[2] : i);
            }
        }
    for (int k = 0; k < 3; k++)
        memcpy(out[k].data, found ? last[k] : c->right[k],
               (size_t)(c->rows[k] * c->columns[k]) * sizeof(Real));
}

int main(void)
{
    return grade(&(Exercise){
        .name = "online_softmax",
        .outputs = { "m", "l", "o" },
        .fills = true, /* by run */
        .make = make,
        .student = student,
        .mistakes = {
            { l_kept, "l is not multiplied by the factor: its earlier terms e^(s - m) are those of "
                      "the old m" },
            { o_kept, "o is not multiplied by the factor: its earlier terms e^(s - m) v are those "
                      "of the old m, as in l" },
            { both_kept, "neither l nor o is multiplied by e^(old m - new m). If you do multiply: "
                         "compute the factor before m changes, or it is e^0" },
            { upside_down, "the factor is upside down: it is e^(old m - new m), at most 1, since "
                           "earlier terms shrink when m grows. At the start yours is infinite" },
            { each_score, "the factor is applied once for each score: m changes once per tile, so "
                          "multiply l and o once per tile" },
            { after, "the new terms are multiplied by the factor, too: they use the new m already, "
                     "so multiply l and o before adding" },
            { stored, "l and o are those of the last tile alone: keep the earlier terms, times "
                      "e^(old m - new m)" },
            { last_tile, "m is the maximum of the last tile alone: it is that of all keys so far, "
                         "so begin with the old m. It never falls" },
            { from_zero, "the maximum begins with 0, and all scores of the row are negative: begin "
                         "with the old m" },
            { m_kept, "m is not updated: store the new maximum, since the next tile needs it" },
            { old_m, "the new terms use the old m: subtract the new one, or e^(s - m) exceeds 1 "
                     "and may overflow" },
            { without_m, "the new terms are e^s: subtract m, or e^s overflows from s = 710 on" },
            { no_maximum, "l and o are sums without a maximum: e^s overflows from s = 710 on, so "
                          "sum e^(s - m)" },
            { divided, "o is divided by l in every tile, and the next tile adds a sum to a "
                       "quotient: divide once, after the last tile" },
            { mean, "o is the mean so far, expected the sum of e^(s - m) v: one division after the "
                    "last tile is enough, and the caller makes it" },
            { no_power, "o sums v_j without the weight e^(s_j - m)" },
            { transposed, "v is read as if it were stored transposed: v_jc is v[j * M + c]" },
            { one_less, "the last score of each tile is left out: a tile has T scores" },
            { unguarded, "NaN: m is -INFINITY so far, the tile has no other score, and -INFINITY - "
                         "-INFINITY is NaN. Such a tile changes nothing: return" },
            { coded_results, sentence },
        },
    });
}
