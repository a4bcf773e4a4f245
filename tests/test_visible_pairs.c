/* Which pairs of softmax attention a window, sinks, a prefix and documents leave: visible.h against
 * the definition, and the operations against an additive mask of the same visibility. */
#include "ops/attention/softmax/visible.h"
#include "tests/support.h"

#include <math.h>
#include <stdio.h>

typedef struct Limits {
    int64_t window, sinks, prefix;
    const int32_t *offsets; /* [documents + 1] */
    int documents;
    int32_t length; /* of the keys; 0: all */
} Limits;

static bool is_visible(const Limits *x, bool causal, int64_t i, int64_t j)
{
    int64_t start = 0;
    for (int d = 0; d < x->documents; d++) {
        if ((i < x->offsets[d + 1]) != (j < x->offsets[d + 1]))
            return false;
        if (i >= x->offsets[d + 1])
            start = x->offsets[d + 1];
    }
    if (x->length && j >= x->length)
        return false;
    if (!causal || (i - start < x->prefix && j - start < x->prefix))
        return true;
    return j <= i && (x->window == 0 || i - j < x->window || j - start < x->sinks);
}

static bool in(VisibleColumns c, int64_t j)
{
    return (c.first <= j && j < c.sinks_end) || (c.begin <= j && j < c.end);
}

/* The statements of visible.h for the rows, or columns, from `first` to last. */
static void check_visible_tile(const Visibility *v, const Limits *x, int64_t first, int64_t last)
{
    const VisibleColumns columns = visible_columns_of_tile(v, first, last);
    const VisibleColumns of_first = visible_columns(v, first), of_last = visible_columns(v, last);
    for (int64_t j = 0; j < v->keys; j++) {
        bool all = true, any = false;
        for (int64_t i = first; i <= last; i++) {
            all = all && is_visible(x, v->causal, i, j);
            any = any || is_visible(x, v->causal, i, j);
        }
        ck_assert(in(columns, j) || !any);
        ck_assert(all || !all_visible(&of_first, &of_last, j, j + 1));
    }
    if (last >= v->keys)
        return;
    const PositionRange rows = visible_rows_of_tile(v, first, last);
    for (int64_t i = 0; i < v->N; i++)
        for (int64_t j = first; j <= last && (i < rows.begin || i >= rows.end); j++)
            ck_assert(!is_visible(x, v->causal, i, j));
}

static void check_visible(const Visibility *v, const Limits *x)
{
    VisibleColumns previous = { 0 };
    for (int64_t i = 0; i < v->N; i++) {
        const VisibleColumns c = visible_columns(v, i);
        ck_assert(c.first <= c.sinks_end && c.sinks_end <= c.begin && c.begin <= c.end);
        ck_assert(previous.first <= c.first && previous.sinks_end <= c.sinks_end);
        ck_assert(previous.begin <= c.begin && previous.end <= c.end);
        previous = c;
        int64_t after = c.first, before = visible_before(&c, c.end);
        for (int64_t j = 0; j < v->keys; j++) {
            const bool visible = is_visible(x, v->causal, i, j);
            const PositionRange rows = visible_rows(v, j);
            ck_assert(in(c, j) == visible && (rows.begin <= i && i < rows.end) == visible);
            if (visible) {
                ck_assert_int_eq(after, j);
                after = visible_after(&c, j);
            }
        }
        ck_assert(after >= c.end);
        for (int64_t j = v->keys - 1; j >= 0; j--)
            if (is_visible(x, v->causal, i, j)) {
                ck_assert_int_eq(before, j);
                before = visible_before(&c, j);
            }
        ck_assert(before < c.first);
        for (int64_t last = i; last < v->N; last++)
            check_visible_tile(v, x, i, last);
    }
}

TEST(visible_columns_and_rows_are_intervals_that_ascend)
{
    enum { N = 11 };
    static const int32_t offsets[] = { 0, 0, 4, 5, 11, 11 };
    for (int window = 0; window <= 6; window++)
        for (int sinks = 0; sinks <= 4; sinks += 2)
            for (int prefix = 0; prefix <= N; prefix += prefix < 4 ? 1 : 7)
                for (int form = 0; form < 4; form++) {
                    const bool causal = form != 2, documents = form == 1 || form == 2;
                    const Limits x = { .window = causal ? window : 0,
                                       .sinks = causal ? sinks : 0,
                                       .prefix = causal ? prefix : 0,
                                       .offsets = documents ? offsets : NULL,
                                       .documents = documents ? 5 : 0,
                                       .length = form == 3 ? 5 : 0 };
                    check_visible(&(Visibility){ causal, N, x.length ? x.length : N, x.window,
                                                 x.sinks, x.prefix, x.offsets, x.documents },
                                  &x);
                }
}

/* What the operation gets: limits, or a mask of the same visibility. */
typedef struct LimitedCase {
    const Limits *limits;
    const Real *mask;
    bool causal;
} LimitedCase;

static Tensor *limited_attention(Tape *tape, Tensor *const *in, void *context)
{
    const LimitedCase *c = context;
    const Limits *x = c->limits;
    const int64_t N = in[0]->shape.size[1];
    if (c->mask)
        return op_softmax_attention(
            tape, in[0], in[1], in[2],
            (SoftmaxAttentionOptions){ .mask = tape_input(tape, c->mask, shape(N, N)) });
    SoftmaxAttentionOptions options = { .window = x->window,
                                        .sinks = x->sinks,
                                        .prefix = x->prefix };
    if (x->offsets)
        options.offsets = tape_input_i32(tape, x->offsets, shape(x->documents + 1));
    if (x->length)
        options.key_lengths = tape_input_i32(tape, &x->length, shape(1));
    return (c->causal ? op_causal_softmax_attention : op_softmax_attention)(tape, in[0], in[1],
                                                                            in[2], options);
}

/* Of two heads */
enum { H = 2, D = 6, M = 10 };
typedef struct Arrays {
    Real *query, *key, *value;
} Arrays;

static Arrays normal_arrays(int64_t N)
{
    return (Arrays){ test_normal(1, N * H * D), test_normal(2, N * H * D),
                     test_normal(3, N * H * M) };
}

static Outcome limited(const char *device, const Limits *limits, const Real *mask, bool causal,
                       int64_t N, const Arrays *x)
{
    const CheckInput inputs[] = { { shape(1, N, H, D), x->query },
                                  { shape(1, N, H, D), x->key },
                                  { shape(1, N, H, M), x->value } };
    return test_outcome(device, 0, limited_attention, &(LimitedCase){ limits, mask, causal },
                        inputs, 3);
}

static const int32_t five_documents[] = { 0, 0, 40, 41, 105, 107, 300 };

/* Sizes on both sides of those of tiles; without and with documents that end within them. */
TEST(limits_equal_a_mask_of_the_same_visibility)
{
    enum { N = 300 };
    static const Limits cases[] = {
        { .window = 1 },
        { .window = 31 },
        { .window = 64 },
        { .window = 100, .sinks = 4 },
        { .window = 129, .sinks = 70 },
        { .window = 5, .sinks = 3, .length = 250 },
        { .window = 20, .length = 90 },
        { .prefix = 1 },
        { .prefix = 40 },
        { .prefix = 65 },
        { .prefix = 270 },
        { .prefix = 900, .window = 7 },
        { .prefix = 130, .length = 77 },
        { .prefix = 66, .window = 20, .sinks = 9 },
        { .offsets = five_documents, .documents = 6 },
        { .window = 10, .sinks = 2, .offsets = five_documents, .documents = 6 },
        { .window = 70, .sinks = 5, .prefix = 33, .offsets = five_documents, .documents = 6 },
    };
    const Arrays x = normal_arrays(N);
    Real *mask = test_zeros(N * N);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int causal = cases[n].offsets && !cases[n].window ? 0 : 1; causal < 2; causal++) {
            for (int64_t i = 0; i < N * N; i++)
                mask[i] = is_visible(&cases[n], causal, i / N, i % N) ? 0 : -(Real)INFINITY;
            const Outcome expected = limited("plain", &cases[n], mask, causal, N, &x);
            const Outcome plain = limited("plain", &cases[n], NULL, causal, N, &x);
            const Outcome y = limited(NULL, &cases[n], NULL, causal, N, &x);
            char name[40];
            snprintf(name, sizeof name, "limits %zu", n);
            assert_outcomes_near(name, &plain, &expected, VECTOR_TOLERANCE);
            assert_outcomes_near(name, &y, &expected, VECTOR_TOLERANCE);
        }
}

/* With a window, sinks and a prefix, which begin with each document. */
TEST(a_document_equals_a_sequence_of_its_own)
{
    const Arrays x = normal_arrays(300);
    Limits limits = { 30, 2, 5, five_documents, 6, 0 };
    const Outcome together = limited(NULL, &limits, NULL, true, 300, &x);
    limits.offsets = NULL;
    for (int d = 0; d < 6; d++) {
        const int64_t first = five_documents[d], N = five_documents[d + 1] - first;
        if (N == 0)
            continue;
        const Arrays part = { x.query + first * H * D, x.key + first * H * D,
                              x.value + first * H * M };
        const Outcome alone = limited(NULL, &limits, NULL, true, N, &part);
        assert_close(together.values[0] + first * H * M, alone.values[0], N * H * M,
                     VECTOR_TOLERANCE);
    }
}

static bool row_has_nan(const Real *out, int64_t row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(out[row * count + i]))
            return true;
    return false;
}

/* Rows that the limits exclude are not multiplied by a weight of 0. */
TEST(nan_does_not_reach_rows_that_do_not_attend_to_it)
{
    enum { N = 300, AT = 50 };
    if (device_is_cuda(test_device()))
        return; /* there a tile's product multiplies a NaN by the weight 0 */
    const Limits limits = { 70, 5, 3, five_documents, 6, 0 };
    const Arrays x = normal_arrays(N);
    x.key[AT * H * D] = x.value[AT * H * M] = (Real)NAN;
    for (int of_plain = 0; of_plain < 2; of_plain++) {
        const Outcome y = limited(of_plain ? "plain" : NULL, &limits, NULL, true, N, &x);
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(row_has_nan(y.values[0], i, H * M), is_visible(&limits, true, i, AT));
            ck_assert_int_eq(row_has_nan(y.values[1], i, H * D), is_visible(&limits, true, i, AT));
        }
    }
}

/* Positions from key_length + window - 1 on have no keys: 0. */
TEST(a_window_beyond_the_key_length_gives_0)
{
    enum { N = 200, LENGTH = 70, WINDOW = 9 };
    const Limits limits = { .window = WINDOW, .length = LENGTH };
    const Arrays x = normal_arrays(N);
    const Outcome y = limited(NULL, &limits, NULL, true, N, &x);
    for (int i = 0; i < N * H * M; i++)
        ck_assert_int_eq(y.values[0][i] != 0, i / (H * M) < LENGTH + WINDOW - 1);
    for (int i = 0; i < N * H * D; i++)
        ck_assert(isfinite(y.values[1][i]) && isfinite(y.values[2][i]));
}

#define LIMITED(...) ((SoftmaxAttentionOptions){ __VA_ARGS__ })
TEST(misuse_of_limits_raises)
{
    Tape *tape = tape_new(test_device());
    Real *values = test_zeros(2 * 4 * 3 * 2);
    const int32_t integers[] = { 0, 2, 4, 0, 3, 2, 4 };
    Tensor *query = tape_input(tape, values, shape(1, 4, 3, 2));
    Tensor *two = tape_input(tape, values, shape(2, 4, 3, 2));
    Tensor *five = tape_input(tape, values, shape(1, 5, 3, 2));
    Tensor *offsets = tape_input_i32(tape, integers, shape(3));
    assert_raises("op_causal_softmax_attention: window is -1, expected 0 or more",
                  op_causal_softmax_attention(tape, query, query, query, LIMITED(.window = -1)));
    assert_raises("op_softmax_attention: window is 3, expected 0 without the causal mask of "
                  "op_causal_softmax_attention",
                  op_softmax_attention(tape, query, query, query, LIMITED(.window = 3)));
    assert_raises("op_softmax_attention: sinks is 1, expected 0 without the causal mask of "
                  "op_causal_softmax_attention",
                  op_softmax_attention(tape, query, query, query, LIMITED(.sinks = 1)));
    assert_raises("op_softmax_attention: prefix is 2, expected 0 without the causal mask of "
                  "op_causal_softmax_attention",
                  op_softmax_attention(tape, query, query, query, LIMITED(.prefix = 2)));
    assert_raises("op_causal_softmax_attention: prefix is 2, expected 0 with log_decay, which "
                  "later positions do not have",
                  op_causal_softmax_attention(
                      tape, query, query, query,
                      LIMITED(.prefix = 2, .log_decay = tape_input(tape, values, shape(1, 4, 3)))));
    assert_raises("op_softmax_attention: offsets has dtype Real, expected int32",
                  op_softmax_attention(tape, query, query, query, LIMITED(.offsets = query)));
    assert_raises("op_softmax_attention: offsets: query is [2,4,3,2], expected one sequence, "
                  "[1, N, ..], which they divide",
                  op_softmax_attention(tape, two, two, two, LIMITED(.offsets = offsets)));
    assert_raises(
        "op_softmax_attention: offsets: lengths are given too, expected one of the two",
        op_softmax_attention(tape, query, query, query,
                             LIMITED(.offsets = offsets,
                                     .key_lengths = tape_input_i32(tape, integers + 1, shape(1)))));
    assert_raises("op_softmax_attention: offsets are given, expected the same number of queries "
                  "and keys, not 4 and 5",
                  op_softmax_attention(tape, query, five, five, LIMITED(.offsets = offsets)));
    assert_raises(
        "op_softmax_attention: offsets[2] is 2, expected ascending numbers from 0 to 4, the "
        "number of positions",
        op_softmax_attention(tape, query, query, query,
                             LIMITED(.offsets = tape_input_i32(tape, integers + 3, shape(4)))));
    tape_free(tape);
}

int main(void)
{
    return test_main("visible_pairs", NULL, NULL);
}
