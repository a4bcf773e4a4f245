/* Philox4x32-10: Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011),
 * section 3.3 and table 2. CPU and CUDA kernels share this function.
 * Ten rounds on four words x0..x3 under the key (k0, k1):
 *   (h0, l0) = M0 x0     (h1, l1) = M1 x2
 *   x0 = h1 ^ x1 ^ k0    x1 = l1    x2 = h0 ^ x3 ^ k1    x3 = l0      then k0 += W0, k1 += W1
 * Here the counter's words are (counter, stream), low word first, and the key is the seed. */
#ifndef TAPEGRAD_PHILOX_H
#define TAPEGRAD_PHILOX_H

#include <math.h>

#include "tensor/kernel.h"

typedef struct Philox {
    uint32_t word[4];
} Philox;

/* floor(a b / 2^64) */
SHARED_FUNCTION uint64_t product_high(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 Wide;
    return (uint64_t)((Wide)a * b >> 64);
#else
    const uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
    const uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    const uint64_t carry = a_low * b_high + (uint32_t)middle;
    return a_high * b_high + (middle >> 32) + (carry >> 32);
#endif
}

SHARED_FUNCTION Philox philox(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t x0 = (uint32_t)counter, x1 = (uint32_t)(counter >> 32);
    uint32_t x2 = (uint32_t)stream, x3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Philox result = { { x0, x1, x2, x3 } };
    return result;
}

/* Uniform in [0, 1): the upper 24 bits, which a float represents exactly. */
SHARED_FUNCTION float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Box and Muller (1958): of u, v uniform in (0, 1),
 *   sqrt(-2 ln u) cos(2 pi v)   and   sqrt(-2 ln u) sin(2 pi v)
 * are independent and normal. u = (word + 1/2) 2^-32 is never 0, so |result| <= 6.77. Computed in
 * double, so that all math libraries and devices draw the same numbers up to rounding. */
SHARED_FUNCTION void philox_normal(Philox block, double normal[4])
{
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)block.word[i] + 0.5) * 0x1p-32;
        double v = ((double)block.word[i + 1] + 0.5) * 0x1p-32;
        double radius = sqrt(-2 * log(u)), angle = 6.283185307179586 * v;
        normal[i] = radius * cos(angle);
        normal[i + 1] = radius * sin(angle);
    }
}

#endif
