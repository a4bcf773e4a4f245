/* Exercise 8.1: the results are m, l and o after each tile of a row. The right ones come from the
 * definition, the usual mistakes from steps that are wrong in one place. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <string.h>

enum { SCORES, VALUES, MAX_M = 4 };
typedef void Step(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M);

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
    for (int t = 0; t < tiles; t++)
        define(c, (t + 1) * T < N ? (t + 1) * T : N, m + t, l + t, o + t * M);
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
        results[0][t] = m;
        results[1][t] = l;
        for (int k = 0; k < M; k++)
            results[2][t * M + k] = o[k];
        for (int k = 0; k < M; k++)
            changed |= o[k] != 0;
        changed |= l != 0 || m != -INFINITY;
    }
    for (int k = 0; changed && k < 3; k++)
        memcpy(out[k].data, results[k], (size_t)(c->rows[k] * c->columns[k]) * sizeof(Real));
    if (o[M] != guard)
        say("it writes o[%d], and o has %d elements: check the loops' ends", M, M);
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

static Mistaken is;

/* A step that is wrong in one place */
static void wrong_step(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M)
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

/* In the first tile this factor is infinite, and infinity times 0 is NaN, as is all that follows.
 * Other mistakes may lead to NaN, too. They differ where m is finite. */
static void upside_down(const Case *c, const Gradient *out)
{
    static const Real s[2] = { 1, 2 }, v[2] = { 1, 1 };
    Real m[2] = { 1, 1 }, l[2] = { 3, 3 }, o[2] = { 5, 5 };
    online_softmax(&m[0], &l[0], &o[0], s, v, 2, 1);
    is = UPSIDE_DOWN;
    wrong_step(&m[1], &l[1], &o[1], s, v, 2, 1);
    run(c, out, wrong_step);
    if (!(fabs(l[0] - l[1]) + fabs(o[0] - o[1]) < 1e-9))
        out[1].data[0] = c->right[1][0];
}

static void student(const Case *c, const Gradient *out)
{
    run(c, out, online_softmax);
}

static void faulty(const Case *c, const Gradient *out)
{
    is = (Mistaken)c->fault;
    run(c, out, wrong_step);
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
            { upside_down, "the factor is upside down: it is e^(old m - new m), at most 1, "
                           "since earlier terms shrink when m grows. At the start yours is "
                           "infinite" },
        },
        .faulty = faulty,
        .faults = {
            [L_KEPT] = "l is not multiplied by the factor: its earlier terms e^(s - m) are those "
                       "of the old m",
            [O_KEPT] = "o is not multiplied by the factor: its earlier terms e^(s - m) v are "
                       "those of the old m, as in l",
            [BOTH_KEPT] = "neither l nor o is multiplied by e^(old m - new m). If you do "
                          "multiply: compute the factor before m changes, or it is e^0",
            [EACH_SCORE] = "the factor is applied once for each score: m changes once per tile, "
                           "so multiply l and o once per tile",
            [AFTER] = "the new terms are multiplied by the factor, too: they use the new m "
                      "already, so multiply l and o before adding",
            [STORED] = "l and o are those of the last tile alone: keep the earlier terms, times "
                       "e^(old m - new m)",
            [LAST_TILE] = "m is the maximum of the last tile alone: it is that of all keys so "
                          "far, so begin with the old m. It never falls",
            [FROM_ZERO] = "the maximum begins with 0, and all scores of the row are negative: "
                          "begin with the old m",
            [M_KEPT] = "m is not updated: store the new maximum, since the next tile needs it",
            [OLD_M] = "the new terms use the old m: subtract the new one, or e^(s - m) exceeds 1 "
                      "and may overflow",
            [WITHOUT_M] = "the new terms are e^s: subtract m, or e^s overflows from s = 710 on",
            [NO_MAXIMUM] = "l and o are sums without a maximum: e^s overflows from s = 710 on, so "
                           "sum e^(s - m)",
            [DIVIDED] = "o is divided by l in every tile, and the next tile adds a sum to a "
                        "quotient: divide once, after the last tile",
            [MEAN] = "o is the mean so far, expected the sum of e^(s - m) v: one division after "
                     "the last tile is enough, and the caller makes it",
            [NO_POWER] = "o sums v_j without the weight e^(s_j - m)",
            [TRANSPOSED] = "v is read as if it were stored transposed: v_jc is v[j * M + c]",
            [ONE_LESS] = "the last score of each tile is left out: a tile has T scores",
            [UNGUARDED] = "NaN: m is -INFINITY so far, the tile has no other score, and -INFINITY "
                          "- -INFINITY is NaN. Such a tile changes nothing: return",
        },
    });
}
