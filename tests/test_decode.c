/* The decoders and error counts of examples/speech, against sums over all paths and all edits. */
#include "examples/speech/decode.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 6, C = 3, PATHS = 729, TEXTS = 4096 };

/* y [T, C] = softmax of logits */
static void softmax(const Real *logits, double *y)
{
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int k = 0; k < C; k++)
            sum += y[t * C + k] = exp((double)logits[t * C + k]);
        for (int k = 0; k < C; k++)
            y[t * C + k] /= sum;
    }
}

static int64_t merge(const int *path, int32_t *text)
{
    int64_t length = 0;
    for (int t = 0; t < T; t++)
        if (path[t] != 0 && (t == 0 || path[t] != path[t - 1]))
            text[length++] = path[t];
    return length;
}

/* A number per text: its symbols in base 4, each 1 or 2. */
static int number(const int32_t *text, int64_t length)
{
    int sum = 0;
    for (int64_t i = 0; i < length; i++)
        sum = 4 * sum + text[i];
    return sum;
}

/* Calls the function with every path of T frames and its probability. */
typedef void EachPath(const int *path, double p, void *context);
static void enumerate(const Real *logits, EachPath *each, void *context)
{
    double y[T * C];
    softmax(logits, y);
    for (int i = 0; i < PATHS; i++) {
        int path[T], rest = i;
        double p = 1;
        for (int t = 0; t < T; t++, rest /= C) {
            path[t] = rest % C;
            p *= y[t * C + path[t]];
        }
        each(path, p, context);
    }
}

static void add_to_text(const int *path, double p, void *texts)
{
    int32_t text[T];
    ((double *)texts)[number(text, merge(path, text))] += p;
}

static Logits of_stream(uint64_t stream)
{
    Real *values = test_normal(stream, T * C);
    for (int i = 0; i < T * C; i++)
        values[i] *= (Real)1.5;
    return (Logits){ values, T, C };
}

TEST(a_wide_beam_finds_the_most_probable_text_and_its_sum)
{
    int wrong = 0;
    for (uint64_t stream = 1; stream <= 200; stream++) {
        const Logits logits = of_stream(stream);
        double *texts = calloc(TEXTS, sizeof *texts), log_p;
        enumerate(logits.values, add_to_text, texts);
        int best = 0;
        for (int i = 0; i < TEXTS; i++)
            best = texts[i] > texts[best] ? i : best;
        int32_t text[T];
        ck_assert_int_eq(number(text, decode_beam(logits, 200, text, &log_p)), best);
        ck_assert_double_eq_tol(log_p, log(texts[best]), 1e-12);
        wrong += number(text, decode_greedy(logits, text)) != best;
        for (int64_t width = 1; width <= 8; width++) { /* no path counts twice */
            const int found = number(text, decode_beam(logits, width, text, &log_p));
            ck_assert_double_le(log_p, log(texts[found]) + 1e-12);
        }
        free(texts);
    }
    ck_assert_msg(wrong > 0, "greedy decoding found every text: these cases are too easy");
}

typedef struct BestPath {
    const int32_t *text;
    int64_t n;
    double p;
    int path[T];
} BestPath;

static void choose(const int *path, double p, void *context)
{
    BestPath *best = context;
    int32_t text[T];
    const int64_t n = merge(path, text);
    if (n != best->n || memcmp(text, best->text, (size_t)n * sizeof *text) || p <= best->p)
        return;
    best->p = p;
    memcpy(best->path, path, sizeof best->path);
}

TEST(the_alignment_is_the_best_path_of_the_text)
{
    static const int32_t texts[][3] = { { 1, 2, 1 }, { 1, 1, 2 }, { 2, 2, 0 }, { 2, 0, 0 }, { 0 } };
    static const int lengths[] = { 3, 3, 2, 1, 0 };
    for (uint64_t stream = 1; stream <= 20; stream++) {
        for (int i = 0; i < 5; i++) {
            const Logits logits = of_stream(stream);
            BestPath best = { .text = texts[i], .n = lengths[i] };
            enumerate(logits.values, choose, &best);
            Interval intervals[3];
            const double log_p = decode_align(logits, texts[i], lengths[i], intervals);
            ck_assert_double_eq_tol(log_p, log(best.p), 1e-12);
            int path[T] = { 0 };
            for (int j = 0; j < lengths[i]; j++)
                for (int64_t t = intervals[j].start; t < intervals[j].end; t++)
                    path[t] = texts[i][j];
            ck_assert_mem_eq(path, best.path, sizeof path);
        }
    }
}

TEST(a_text_longer_than_its_frames_has_no_alignment)
{
    const int32_t text[] = { 1, 1, 1, 1 };
    Interval intervals[4];
    ck_assert(decode_align(of_stream(1), text, 4, intervals) == -INFINITY);
    ck_assert_int_eq(intervals[3].end, 0);
}

/* The plain recursion. */
static int64_t distance(const int32_t *a, int64_t n, const int32_t *b, int64_t m)
{
    if (n == 0 || m == 0)
        return n + m;
    const int64_t same = distance(a + 1, n - 1, b + 1, m - 1) + (a[0] != b[0]),
                  less = distance(a + 1, n - 1, b, m) + 1, more = distance(a, n, b + 1, m - 1) + 1;
    const int64_t least = same < less ? same : less;
    return least < more ? least : more;
}

TEST(edits_are_the_fewest)
{
    Random random = random_new(1, 1);
    for (int i = 0; i < 300; i++) {
        int32_t a[6], b[6];
        for (int j = 0; j < 6; j++) {
            a[j] = (int32_t)random_integer(&random, 1, 4);
            b[j] = (int32_t)random_integer(&random, 1, 4);
        }
        const int64_t n = random_integer(&random, 0, 7), m = random_integer(&random, 0, 7);
        const Edits edits = edits_between(a, n, b, m);
        ck_assert_int_eq(edits_total(edits), distance(a, n, b, m));
        ck_assert_int_eq(edits.symbols - edits.deletions + edits.insertions, m);
        ck_assert_int_eq(edits.symbols, n);
    }
}

TEST(edits_have_their_kinds)
{
    const int32_t reference[] = { 1, 2, 3, 4, 5 }, found[] = { 1, 3, 6, 5, 7 };
    Edits edits = edits_between(reference, 5, found, 5); /* without 2, 6 for 4, and 7 */
    ck_assert_int_eq(edits.deletions, 1);
    ck_assert_int_eq(edits.substitutions, 1);
    ck_assert_int_eq(edits.insertions, 1);
    edits_add(&edits, edits_between(reference, 5, reference, 5));
    ck_assert_double_eq(edits_percent(edits), 30);
}

int main(void)
{
    return test_main("decode", NULL, NULL);
}
