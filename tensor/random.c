/* Random numbers from Philox4x32-10: one block of four 32-bit words per counter. */
#include "tensor/internal.h"

#include <inttypes.h>

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

static Philox next_block(Random *random)
{
    return philox(random->seed, random->stream, random->counter++);
}

static void check_count(const char *function, int64_t n)
{
    if (n < 0)
        error_raise("%s: n is %" PRId64 "; it must be 0 or more", function, n);
}

static void draw_uniform(Random *random, Real *out, int64_t n)
{
    for (int64_t i = 0; i < n; i += 4) {
        Philox block = next_block(random);
        for (int64_t j = i; j < i + 4 && j < n; j++)
            out[j] = (Real)philox_uniform(block.word[j - i]);
    }
}

void random_uniform(Random *random, Real *out, int64_t n)
{
    check_count("random_uniform", n);
    draw_uniform(random, out, n);
}

void random_bernoulli(Random *random, Real *out, int64_t n, Real probability)
{
    check_count("random_bernoulli", n);
    if (!(probability >= 0 && probability <= 1))
        error_raise("random_bernoulli: the probability is %g; it must be in [0, 1]",
                    (double)probability);
    draw_uniform(random, out, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = out[i] < probability ? 1 : 0;
}

void random_normal(Random *random, Real *out, int64_t n)
{
    check_count("random_normal", n);
    for (int64_t i = 0; i < n; i += 4) {
        Philox block = next_block(random);
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
                    ") is empty; low must be below high",
                    low, high);
    __extension__ typedef unsigned __int128 Wide;
    Philox block = next_block(random);
    uint64_t x = (uint64_t)block.word[1] << 32 | block.word[0];
    uint64_t range = (uint64_t)high - (uint64_t)low;
    uint64_t step = (uint64_t)((Wide)x * range >> 64);
    return (int64_t)((uint64_t)low + step);
}
