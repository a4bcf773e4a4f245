/* Random numbers from Philox4x32-10: one block of four 32-bit words per counter. */
#include "tensor/internal.h"

#include <inttypes.h>
#include <math.h>

Random random_new(uint64_t seed, uint64_t stream)
{
    return (Random){ .seed = seed, .stream = stream, .counter = 0 };
}

/* FNV-1a (Fowler, Noll, Vo): hash = (hash ^ byte) prime, from the offset basis. */
uint64_t random_stream(const char *name)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (const unsigned char *byte = (const unsigned char *)name; *byte != 0; byte++)
        hash = (hash ^ *byte) * 0x100000001B3u;
    return hash;
}

static Philox next_numbers(Random *random)
{
    return philox(random->seed, random->stream, random->counter++);
}

static void check_count(const char *function, int64_t n)
{
    if (n < 0)
        error_raise("%s: n is %" PRId64 ", expected 0 or more", function, n);
}

void random_uniform(Random *random, Real *out, int64_t n)
{
    check_count("random_uniform", n);
    for (int64_t i = 0; i < n; i += 4) {
        Philox block = next_numbers(random);
        for (int64_t j = i; j < i + 4 && j < n; j++)
            out[j] = (Real)philox_uniform(block.word[j - i]);
    }
}

void random_bernoulli(Random *random, Real *out, int64_t n, Real probability)
{
    check_count("random_bernoulli", n);
    if (!(probability >= 0 && probability <= 1))
        error_raise("random_bernoulli: the probability is %g, expected 0 to 1",
                    (double)probability);
    random_uniform(random, out, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = out[i] < probability ? 1 : 0;
}

void random_normal(Random *random, Real *out, int64_t n)
{
    check_count("random_normal", n);
    for (int64_t i = 0; i < n; i += 4) {
        Philox block = next_numbers(random);
        double normal[4];
        philox_normal(block, normal);
        for (int64_t j = i; j < i + 4 && j < n; j++)
            out[j] = (Real)normal[j - i];
    }
}

/* low + floor(x (high - low) / 2^64) for x uniform over 64 bits (Lemire 2019): the probabilities
 * differ by at most 2^-64. */
int64_t random_integer(Random *random, int64_t low, int64_t high)
{
    if (low >= high)
        error_raise("random_integer: the range [%" PRId64 ", %" PRId64
                    ") is empty, expected low < high",
                    low, high);
    Philox block = next_numbers(random);
    uint64_t x = (uint64_t)block.word[1] << 32 | block.word[0];
    uint64_t range = (uint64_t)high - (uint64_t)low;
    return (int64_t)((uint64_t)low + product_high(x, range));
}

void random_permutation(Random *random, int32_t *out, int64_t n)
{
    if (n < 0 || n > INT32_MAX)
        error_raise("random_permutation: n is %" PRId64 ", expected 0 to %d", n, INT32_MAX);
    for (int64_t i = 0; i < n; i++)
        out[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = random_integer(random, 0, i + 1);
        const int32_t item = out[i];
        out[i] = out[j];
        out[j] = item;
    }
}

/* A permutation advances the counter by less than 2^31, so the epochs' numbers are disjoint. */
void random_batch(Shuffle *shuffle, int64_t position, int32_t *out, int64_t size)
{
    if (shuffle->count < 1 || position < 0 || size < 0)
        error_raise("random_batch: count is %" PRId64 ", position %" PRId64 " and size %" PRId64
                    ", expected at least 1, 0 and 0",
                    shuffle->count, position, size);
    for (int64_t i = 0; i < size; i++) {
        const int64_t epoch = (position + i) / shuffle->count;
        if (shuffle->epochs != epoch + 1) {
            Random random = shuffle->random;
            random.counter += (uint64_t)epoch << 32;
            random_permutation(&random, shuffle->order, shuffle->count);
            shuffle->epochs = epoch + 1;
        }
        out[i] = shuffle->order[(position + i) % shuffle->count];
    }
}

/* ------------------------------------------------------------------------------ orthogonal rows */
static double dot_product(const Real *a, const Real *b, int64_t D)
{
    double sum = 0;
    for (int64_t d = 0; d < D; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

/* a += factor b */
static void add_multiple(Real *a, double factor, const Real *b, int64_t D)
{
    for (int64_t d = 0; d < D; d++)
        a[d] = (Real)((double)a[d] + factor * (double)b[d]);
}

/* Orthogonalizes the rows of w [count, D], count <= D, by Gram-Schmidt, and keeps their lengths:
 * those of normal rows are independent of their directions. The second round removes the error that
 * rounding leaves in the first. */
static void orthogonalize(Real *w, int64_t count, int64_t D)
{
    for (int64_t f = 0; f < count; f++) {
        Real *row = w + f * D;
        const double length = sqrt(dot_product(row, row, D));
        for (int64_t other = 0; other < 2 * f; other++) {
            const Real *before = w + other % f * D;
            add_multiple(row, -dot_product(row, before, D) / dot_product(before, before, D), before,
                         D);
        }
        add_multiple(row, length / sqrt(dot_product(row, row, D)) - 1, row, D);
    }
}

void random_orthogonal(Random *random, Real *host, int64_t rows, int64_t columns)
{
    if (rows < 1 || columns < 1)
        error_raise("random_orthogonal: rows is %" PRId64 " and columns is %" PRId64
                    ", expected 1 or more",
                    rows, columns);
    const Shape size = shape(rows, columns);
    random_normal(random, host, shape_count(size));
    for (int64_t row = 0; row < rows; row += columns)
        orthogonalize(host + row * columns, rows - row < columns ? rows - row : columns, columns);
}
