/* Dropout with vectorized Philox, in both dtypes. */
#include "ops/cpu/elementwise/dropout.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Vectorized Philox: one word per 64-bit lane, in its lower half. */
#if defined __AVX512F__
typedef uint64_t Lanes __attribute__((vector_size(64)));
#elif defined __AVX2__
typedef uint64_t Lanes __attribute__((vector_size(32)));
#else
typedef uint64_t Lanes __attribute__((vector_size(16)));
#endif

enum {
    PHILOX_LANES = sizeof(Lanes) / sizeof(uint64_t),
    GROUPS = 4, /* independent vectors of blocks, to hide the latency of the multiplications */
    BLOCKS = GROUPS * PHILOX_LANES,
    WORDS = 4 * BLOCKS,
};

/* The product of the lower halves: one instruction, which gcc 12 does not find. */
static inline Lanes half_product(Lanes a, uint32_t factor)
{
#if defined __AVX512F__
    return (Lanes)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(factor));
#elif defined __AVX2__
    return (Lanes)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(factor));
#else
    return (a & 0xFFFFFFFFu) * factor;
#endif
}

/* One round of philox() in tensor/philox.h. Leftovers in the upper halves never reach the lower. */
static inline void round_of_lanes(Lanes x[4], uint32_t k0, uint32_t k1)
{
    Lanes p0 = half_product(x[0], 0xD2511F53u), p1 = half_product(x[2], 0xCD9E8D57u);
    x[0] = p1 >> 32 ^ x[1] ^ k0;
    x[1] = p1;
    x[2] = p0 >> 32 ^ x[3] ^ k1;
    x[3] = p0;
}

/* word [WORDS] <- the words of philox() at counter, counter + 1, ... */
static inline __attribute__((always_inline)) void draw_words(uint32_t word[WORDS], Random random,
                                                             uint64_t counter)
{
    Lanes x[GROUPS][4], count;
    for (int i = 0; i < PHILOX_LANES; i++)
        count[i] = counter + (uint64_t)i;
    for (int g = 0; g < GROUPS; g++, count += (uint64_t)PHILOX_LANES) {
        x[g][0] = count;
        x[g][1] = count >> 32;
        x[g][2] = (Lanes){ 0 } + random.stream;
        x[g][3] = (Lanes){ 0 } + (random.stream >> 32);
    }
    uint32_t k0 = (uint32_t)random.seed, k1 = (uint32_t)(random.seed >> 32);
    for (int round = 0; round < 10; round++) {
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++)
            round_of_lanes(x[g], k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int g = 0; g < GROUPS; g++, word += 4 * PHILOX_LANES) {
        uint64_t lanes[4][PHILOX_LANES];
        memcpy(lanes, x[g], sizeof lanes);
#pragma omp simd
        for (int i = 0; i < PHILOX_LANES; i++) {
            word[4 * i] = (uint32_t)lanes[0][i];
            word[4 * i + 1] = (uint32_t)lanes[1][i];
            word[4 * i + 2] = (uint32_t)lanes[2][i];
            word[4 * i + 3] = (uint32_t)lanes[3][i];
        }
    }
}

/* out [count] <- k x / (1 - p), where word [count] decides k */
ALWAYS_INLINE void drop(int T, Real *out, bool accumulate, const Real *x, const uint32_t *word,
                        uint32_t limit, Real scale, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const Real value = scale * load(T, x, i);
        contribute(T, out, i, accumulate, word[i] >> 8 >= limit ? value : 0);
    }
}

static void dropout_of(TensorType type, Gradient out, const Real *x, DropoutDraw d, int64_t n)
{
#pragma omp parallel for schedule(static) num_threads(device_threads_for(n, 1))
    for (int64_t start = 0; start < n; start += WORDS) {
        uint32_t word[WORDS];
        draw_words(word, d.random, d.random.counter + (uint64_t)start / 4);
        int64_t count = n - start < WORDS ? n - start : WORDS;
        BY_STORAGE(type, T,
                   drop(T, elements_at(T, out.data, start), out.accumulate,
                        elements_at(T, x, start), word, d.limit, d.scale, count));
    }
}

void dropout_cpu(Gradient out, const Real *x, DropoutDraw d, int64_t n)
{
    dropout_of(TENSOR_REAL, out, x, d, n);
}

void dropout_bf16(Gradient out, const Real *x, DropoutDraw d, int64_t n)
{
    dropout_of(TENSOR_BF16, out, x, d, n);
}

void dropout_factors(Real *m, const DropoutDraw *d, int64_t first, int64_t count)
{
    const uint32_t limit = d->limit;
    const RealBits scale = real_bits(d->scale);
    for (int64_t end = first + count, skipped; first < end; first += WORDS - skipped) {
        uint32_t word[WORDS];
        draw_words(word, d->random, d->random.counter + (uint64_t)first / 4);
        skipped = first % 4;
        const int64_t here = end - first < WORDS - skipped ? end - first : WORDS - skipped;
#pragma omp simd
        for (int64_t i = 0; i < here; i++)
            m[i] = real_from_bits(scale & -(RealBits)(word[skipped + i] >> 8 >= limit));
        m += here;
    }
}
