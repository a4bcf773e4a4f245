#include "tests/support.h"

#include "tensor/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 1 << 20 };

static Real *numbers(int64_t count)
{
    Real *result = malloc((size_t)count * sizeof *result);
    ck_assert_ptr_nonnull(result);
    return result;
}

/* |value - expected| <= 5 standard deviations: by chance this fails once in two million. */
#define assert_within(value, expected, deviation)                                                  \
    do {                                                                                           \
        double value_ = (value), expected_ = (expected), deviation_ = (deviation);                 \
        ck_assert_msg(fabs(value_ - expected_) <= 5 * deviation_,                                  \
                      #value " is %.9g, expected %.9g within 5 times %.3g", value_, expected_,     \
                      deviation_);                                                                 \
    } while (0)

/* The published known answers of Philox4x32-10 (Random123, kat_vectors). */
TEST(philox_known_answers)
{
    static const struct {
        uint64_t seed, stream, counter;
        uint32_t word[4];
    } cases[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822,
          0x0370734413198a2e,
          0x85a308d3243f6a88,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Philox block = philox(cases[c].seed, cases[c].stream, cases[c].counter);
        for (int i = 0; i < 4; i++)
            ck_assert_uint_eq(block.word[i], cases[c].word[i]);
    }
}

/* The first block's words, 6627e8d5 e169c58d bc57ac4c 9b00dbd8, worked out by hand. */
TEST(draws_known_answers)
{
    Random random = random_new(0, 0);
    Real out[4];
    random_uniform(&random, out, 4);
    static const uint32_t upper[4] = { 0x6627e8, 0xe169c5, 0xbc57ac, 0x9b00db };
    for (int i = 0; i < 4; i++)
        ck_assert((double)out[i] == upper[i] / 16777216.0);

    random = random_new(0, 0);
    random_normal(&random, out, 4);
    static const double normal[4] = { 0.9911376799303855, -0.9246625876655352, -0.6176089594591907,
                                      -0.48206858748717946 };
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol((double)out[i], normal[i], 1e-6);

    /* A draw equal to the probability is not below it. */
    random = random_new(0, 0);
    random_bernoulli(&random, out, 1, (Real)(upper[0] / 16777216.0));
    ck_assert(out[0] == 0);
    random = random_new(0, 0);
    random_bernoulli(&random, out, 1, (Real)((upper[0] + 1) / 16777216.0));
    ck_assert(out[0] == 1);

    random = random_new(0, 0);
    ck_assert_int_eq(random_integer(&random, -1000, 1000), 761);
}

TEST(streams_from_names)
{
    ck_assert_uint_eq(random_stream(""), 0xcbf29ce484222325);
    ck_assert_uint_eq(random_stream("a"), 0xaf63dc4c8601ec8c);
    ck_assert_uint_eq(random_stream("foobar"), 0x85944171f73967e8);
}

static double moment(const Real *x, int64_t count, double center, int power)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += pow((double)x[i] - center, power);
    return sum / (double)count;
}

TEST(uniform_moments)
{
    Random random = random_new(1, 2);
    Real *x = numbers(MANY);
    random_uniform(&random, x, MANY);
    int64_t in_range = 0;
    for (int64_t i = 0; i < MANY; i++) {
        double steps = (double)x[i] * 0x1p24;
        in_range += steps >= 0 && steps < 0x1p24 && steps == floor(steps);
    }
    ck_assert_int_eq(in_range, MANY);
    assert_within(moment(x, MANY, 0, 1), 0.5, sqrt(1.0 / 12 / MANY));
    assert_within(moment(x, MANY, 0.5, 2), 1.0 / 12, sqrt(1.0 / 180 / MANY));
    free(x);
}

/* E z^2k = (2k - 1)!!, hence the variances 1, 2, 15, 96 of z, z^2, z^3, z^4. */
TEST(normal_moments)
{
    Random random = random_new(3, 4);
    Real *z = numbers(MANY);
    random_normal(&random, z, MANY);
    assert_within(moment(z, MANY, 0, 1), 0, sqrt(1.0 / MANY));
    assert_within(moment(z, MANY, 0, 2), 1, sqrt(2.0 / MANY));
    assert_within(moment(z, MANY, 0, 3), 0, sqrt(15.0 / MANY));
    assert_within(moment(z, MANY, 0, 4), 3, sqrt(96.0 / MANY));
    double products = 0, inside = 0, beyond = 0;
    for (int64_t i = 0; i < MANY; i++) {
        products += i % 2 ? (double)(z[i - 1] * z[i]) : 0;
        inside += fabs((double)z[i]) < 1;
        beyond += fabs((double)z[i]) > 4;
    }
    double one = erf(1 / sqrt(2)), four = erfc(4 / sqrt(2));
    assert_within(products / (MANY / 2), 0, sqrt(2.0 / MANY));
    assert_within(inside / MANY, one, sqrt(one * (1 - one) / MANY));
    assert_within(beyond / MANY, four, sqrt(four * (1 - four) / MANY));
    free(z);
}

TEST(bernoulli_frequency)
{
    static const Real probabilities[] = { 0, (Real)0.1, (Real)0.5, (Real)0.999, 1 };
    Real *x = numbers(MANY);
    for (size_t c = 0; c < sizeof probabilities / sizeof *probabilities; c++) {
        double p = (double)probabilities[c];
        Random random = random_new(5, c);
        random_bernoulli(&random, x, MANY, probabilities[c]);
        int64_t in_range = 0;
        for (int64_t i = 0; i < MANY; i++)
            in_range += x[i] == 0 || x[i] == 1;
        ck_assert_int_eq(in_range, MANY);
        assert_within(moment(x, MANY, 0, 1), p, sqrt(p * (1 - p) / MANY));
    }
    free(x);
}

/* The correlation of two sequences of n independent normal values has the deviation 1/sqrt(n). */
TEST(seeds_and_streams_are_independent)
{
    Real *a = numbers(MANY), *b = numbers(MANY);
    static const uint64_t others[][2] = {
        { 7, 1 }, { 8, 0 }, { 7, 1ull << 32 }, { 7ull << 32, 0 }
    };
    Random random = random_new(7, 0);
    random_normal(&random, a, MANY);
    for (size_t c = 0; c < sizeof others / sizeof *others; c++) {
        Random other = random_new(others[c][0], others[c][1]);
        random_normal(&other, b, MANY);
        double products = 0;
        for (int64_t i = 0; i < MANY; i++)
            products += (double)a[i] * (double)b[i];
        assert_within(products / MANY, 0, sqrt(1.0 / MANY));
    }
    free(a);
    free(b);
}

typedef void Draw(Random *random, Real *out, int64_t n);

static void draw_bernoulli(Random *random, Real *out, int64_t n)
{
    random_bernoulli(random, out, n, (Real)0.5);
}

static Draw *const draws[] = { random_uniform, random_normal, draw_bernoulli };

TEST(same_state_same_draws)
{
    Real a[32], b[32];
    for (int d = 0; d < 3; d++) {
        Random first = random_new(9, 10), second = random_new(9, 10);
        draws[d](&first, a, 32);
        draws[d](&second, b, 32);
        ck_assert_mem_eq(a, b, sizeof a);
        draws[d](&first, a, 32); /* and the next values differ from these */
        ck_assert_mem_ne(a, b, sizeof a);
    }
}

/* n values take ceil(n / 4) Philox counters, and nothing after the n-th is written. */
TEST(counters_taken)
{
    for (int d = 0; d < 3; d++)
        for (int64_t n = 0; n <= 9; n++) {
            Real out[12];
            for (int i = 0; i < 12; i++)
                out[i] = -100;
            Random random = { .seed = 1, .stream = 2, .counter = 30 };
            draws[d](&random, out, n);
            ck_assert_uint_eq(random.counter, 30 + (uint64_t)(n + 3) / 4);
            ck_assert(random.seed == 1 && random.stream == 2);
            for (int64_t i = 0; i < 12; i++)
                ck_assert((out[i] == -100) == (i >= n));
        }
    Random random = random_new(1, 2);
    random_integer(&random, 0, 10);
    ck_assert_uint_eq(random.counter, 1);
}

TEST(draws_of_four_equal_one_draw)
{
    Real whole[23], split[23];
    for (int d = 0; d < 3; d++) {
        Random one = random_new(11, 12), two = one;
        draws[d](&one, whole, 23);
        draws[d](&two, split, 8);
        draws[d](&two, split + 8, 12);
        draws[d](&two, split + 20, 3);
        ck_assert_mem_eq(whole, split, sizeof whole);
        ck_assert_uint_eq(one.counter, two.counter);
    }
}

TEST(integers_are_uniform)
{
    enum { DRAWS = 700000, LOW = -3, HIGH = 4 };
    int64_t seen[HIGH - LOW] = { 0 };
    Random random = random_new(13, 14);
    for (int i = 0; i < DRAWS; i++) {
        int64_t value = random_integer(&random, LOW, HIGH);
        if (value < LOW || value >= HIGH)
            ck_abort_msg("%lld is not in [%d, %d)", (long long)value, LOW, HIGH);
        seen[value - LOW]++;
    }
    double p = 1.0 / (HIGH - LOW);
    for (int i = 0; i < HIGH - LOW; i++)
        assert_within((double)seen[i], DRAWS * p, sqrt(DRAWS * p * (1 - p)));
}

/* For a range of 3/4 2^64, a plain remainder would be in the first third half of the time. */
TEST(integers_of_wide_ranges)
{
    enum { DRAWS = 100000 };
    const int64_t third = (int64_t)1 << 62, low = -3 * (third / 2), high = 3 * (third / 2);
    Random random = random_new(15, 16);
    int64_t first = 0, negative = 0;
    for (int i = 0; i < DRAWS; i++) {
        int64_t value = random_integer(&random, low, high);
        if (value < low || value >= high)
            ck_abort_msg("%lld is out of the range", (long long)value);
        first += value < low + third;
        negative += random_integer(&random, INT64_MIN, INT64_MAX) < 0;
    }
    assert_within((double)first / DRAWS, 1.0 / 3, sqrt(2.0 / 9 / DRAWS));
    assert_within((double)negative / DRAWS, 0.5, sqrt(0.25 / DRAWS));
    ck_assert_int_eq(random_integer(&random, INT64_MAX - 1, INT64_MAX), INT64_MAX - 1);
    ck_assert_int_eq(random_integer(&random, INT64_MIN, INT64_MIN + 1), INT64_MIN);
}

/* Each of the 24 orders of 4 items is equally frequent. */
TEST(permutations_are_uniform)
{
    enum { DRAWS = 240000, ORDERS = 24, ITEMS = 4 };
    int64_t seen[ITEMS * ITEMS * ITEMS] = { 0 };
    Random random = random_new(17, 18);
    for (int i = 0; i < DRAWS; i++) {
        int32_t order[ITEMS];
        random_permutation(&random, order, ITEMS);
        ck_assert_int_eq(1 << order[0] | 1 << order[1] | 1 << order[2] | 1 << order[3], 15);
        seen[(order[0] * ITEMS + order[1]) * ITEMS + order[2]]++;
    }
    const double p = 1.0 / ORDERS;
    int orders = 0;
    for (int i = 0; i < ITEMS * ITEMS * ITEMS; i++)
        if (seen[i]) {
            assert_within((double)seen[i], DRAWS * p, sqrt(DRAWS * p * (1 - p)));
            orders++;
        }
    ck_assert_int_eq(orders, ORDERS);
    ck_assert_uint_eq(random.counter, (uint64_t)DRAWS * (ITEMS - 1));
}

TEST(every_item_is_in_each_epoch_once)
{
    enum { ITEMS = 37, SIZE = 10, EPOCHS = 50, BATCHES = ITEMS * EPOCHS / SIZE };
    int32_t order[ITEMS], items[ITEMS * EPOCHS];
    Shuffle shuffle = { random_new(1, 2), order, ITEMS, 0 };
    for (int64_t step = 0; step < BATCHES; step++)
        random_batch(&shuffle, step * SIZE, items + step * SIZE, SIZE);
    int different = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        const int32_t *of_epoch = items + (int64_t)epoch * ITEMS;
        bool seen[ITEMS] = { false };
        for (int i = 0; i < ITEMS; i++) {
            ck_assert(of_epoch[i] >= 0 && of_epoch[i] < ITEMS && !seen[of_epoch[i]]);
            seen[of_epoch[i]] = true;
        }
        different += memcmp(of_epoch, items, ITEMS * sizeof *items) != 0;
    }
    ck_assert_int_eq(different, EPOCHS - 1);
}

/* From any position, even one of an earlier epoch, with batches of another size too. */
TEST(a_resumed_run_reads_the_same_batches)
{
    enum { ITEMS = 7, COUNT = 200 };
    int32_t order[ITEMS], other_order[ITEMS], items[COUNT], resumed[COUNT];
    Shuffle shuffle = { random_new(3, 4), order, ITEMS, 0 };
    for (int position = 0; position < COUNT; position += 5)
        random_batch(&shuffle, position, items + position, 5);
    for (int position = COUNT - 1; position >= 0; position--) {
        Shuffle fresh = { random_new(3, 4), other_order, ITEMS, 0 };
        random_batch(&fresh, position, resumed, COUNT - position);
        ck_assert_mem_eq(resumed, items + position, (size_t)(COUNT - position) * sizeof *resumed);
        random_batch(&shuffle, position, resumed, COUNT - position);
        ck_assert_mem_eq(resumed, items + position, (size_t)(COUNT - position) * sizeof *resumed);
    }
    shuffle = (Shuffle){ random_new(4, 4), order, ITEMS, 0 };
    random_batch(&shuffle, 0, resumed, COUNT);
    ck_assert_mem_ne(resumed, items, sizeof items);
}

TEST(misuse_is_raised)
{
    Random random = random_new(0, 0);
    Real out[1];
    int32_t items[1];
    Shuffle none = { random, items, 0, 0 }, one = { random, items, 1, 0 };
    assert_raises("random_permutation: n is -1, expected 0 to 2147483647",
                  random_permutation(&random, items, -1));
    assert_raises("random_permutation: n is 2147483648, expected 0 to 2147483647",
                  random_permutation(&random, items, (int64_t)1 << 31));
    assert_raises("random_batch: count is 0, position 2 and size 1, expected at least 1, 0 and 0",
                  random_batch(&none, 2, items, 1));
    assert_raises("random_batch: count is 1, position -1 and size 1, expected at least 1, 0 and 0",
                  random_batch(&one, -1, items, 1));
    assert_raises("random_batch: count is 1, position 0 and size -1, expected at least 1, 0 and 0",
                  random_batch(&one, 0, items, -1));
    assert_raises("random_uniform: n is -1, expected 0 or more", random_uniform(&random, out, -1));
    assert_raises("random_normal: n is -2, expected 0 or more", random_normal(&random, out, -2));
    assert_raises("random_bernoulli: n is -3, expected 0 or more",
                  random_bernoulli(&random, out, -3, 1));
    assert_raises("random_bernoulli: the probability is 1.5, expected 0 to 1",
                  random_bernoulli(&random, out, 1, (Real)1.5));
    assert_raises("random_bernoulli: the probability is -0.5, expected 0 to 1",
                  random_bernoulli(&random, out, 1, (Real)-0.5));
    assert_raises("random_bernoulli: the probability is nan, expected 0 to 1",
                  random_bernoulli(&random, out, 1, (Real)NAN));
    assert_raises("random_integer: the range [5, 5) is empty, expected low < high",
                  random_integer(&random, 5, 5));
    assert_raises("random_integer: the range [6, -6) is empty, expected low < high",
                  random_integer(&random, 6, -6));
    ck_assert_uint_eq(random.counter, 0);
}

int main(void)
{
    return test_main("random", NULL, NULL);
}
